"""Regular expressions that take time in proportion to the text, whatever they are. Pure.

Python's own `re` backtracks: a short expression can take hours for a short text, and holds the
interpreter, and with it every commit, for as long. Here an expression becomes a table with one row
for each state and one column for each byte, and texts are looked at side by side with numpy.

Known: `.`, classes, groups, `|`, `*`, `+`, `?`, `{m,n}`, `^`, `$`, `\\d`, `\\w`, `\\s` and their
opposites, `(?i)` in front. Whether there is a match is all that is asked, so greedy and lazy are
the same. Unknown: references, looking ahead or behind, `\\b`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import InvalidArgument

_MAX_DEPTH = 40
_MAX_REPEAT = 200
_MAX_PARTS = 2000
"""Places of the expression after its repetitions are written out."""
_MAX_STATES = 600
_MAX_WORK = 2_000_000
"""Places that may be looked at while the table is made: about a fifth of a second."""
_FEW = 48
"""So few texts are followed one after another: a step of numpy costs as much."""

_ALL = (1 << 256) - 1


def _mask(octets: Iterable[int]) -> int:
    return sum([1 << octet for octet in set(octets)])


_NEWLINE = _mask(b"\n")
_CONTINUATIONS = _mask(range(0x80, 0xC0))
_ASCII = (1 << 128) - 1
_DIGITS = _mask(b"0123456789")
_UPPER, _LOWER = _mask(range(0x41, 0x5B)), _mask(range(0x61, 0x7B))
_LETTERS = _UPPER | _LOWER
_CLASSES = {"d": _DIGITS, "w": _DIGITS | _LETTERS | _mask(b"_"), "s": _mask(b" \t\n\r\f\v")}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}


# --- the expression as a tree ---


@dataclass(frozen=True, slots=True)
class _One:
    """One byte out of a set: bit n of `mask` stands for byte n."""

    mask: int


@dataclass(frozen=True, slots=True)
class _Row:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Edge:
    """The start of the text, or its end."""

    is_start: bool


_Node = _One | _Row | _Choice | _Repeat | _Edge


def _beyond_ascii(mask: int) -> _Node:
    """A character out of `mask`, or any that takes several bytes in UTF-8."""
    lead = _One(_ALL & ~_ASCII & ~_CONTINUATIONS)
    several = _Row((lead, _Repeat(_One(_CONTINUATIONS), 0, None)))
    return _Choice((_One(mask & _ASCII), several))


class _Parser:
    def __init__(self, text: str) -> None:
        self._ignores_case = text.startswith("(?i)")
        self._text = text.removeprefix("(?i)")
        self._at = 0

    def parse(self) -> _Node:
        found = self._choice(0)
        if self._at < len(self._text):
            raise self._wrong("a closing parenthesis without an opening one")
        return found

    def _wrong(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"the expression is not valid at character {self._at + 1}: {why}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        one = self._peek()
        if not one:
            raise self._wrong("it ends too early")
        self._at += 1
        return one

    def _choice(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise self._wrong(f"groups are nested deeper than {_MAX_DEPTH}")
        ways = [self._row(depth)]
        while self._peek() == "|":
            self._at += 1
            ways.append(self._row(depth))
        return ways[0] if len(ways) == 1 else _Choice(tuple(ways))

    def _row(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom(depth)))
        return _Row(tuple(parts))

    def _repeated(self, part: _Node) -> _Node:
        while self._peek() in ("*", "+", "?", "{"):
            if self._peek() == "{":
                least, most = self._counts()
            else:
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._take()]
            part = _Repeat(part, least, most)
            if self._peek() == "?":  # lazy
                self._at += 1
        return part

    def _counts(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        digits = (low or "0", high or low or "0")
        if end < 0 or not all(one.isascii() and one.isdecimal() for one in digits):
            raise self._wrong("expected {3}, {2,} or {2,5}; write \\{ for the character")
        least, most = int(digits[0]), int(digits[1]) if high or not comma else None
        if max(least, most or 0) > _MAX_REPEAT or (most is not None and most < least):
            raise self._wrong(f"counts are in order, and at most {_MAX_REPEAT}")
        self._at = end + 1
        return least, most

    def _atom(self, depth: int) -> _Node:
        one = self._take()
        if one == "(":
            return self._group(depth)
        if one == "[":
            return self._class()
        if one == ".":
            return _beyond_ascii(_ALL & ~_NEWLINE)
        if one in "^$":
            return _Edge(one == "^")
        if one == "\\":
            return self._escape()
        if one in "*+?{":
            raise self._wrong(f"nothing to repeat before {one}")
        return self._literal(one)

    def _group(self, depth: int) -> _Node:
        if self._peek() == "?":
            self._at += 1
            if self._take() != ":":
                raise self._wrong("of the groups with (? only (?: is known, and (?i) in front")
        found = self._choice(depth + 1)
        if self._peek() != ")":
            raise self._wrong("a group is not closed")
        self._at += 1
        return found

    def _escape(self) -> _Node:
        one = self._take()
        if one in _CLASSES:
            return _One(_CLASSES[one])
        if one.lower() in _CLASSES:
            return _beyond_ascii(_ALL & ~_CLASSES[one.lower()])
        return self._literal(self._escaped(one))

    def _escaped(self, one: str) -> str:
        if one in _ESCAPES:
            return _ESCAPES[one]
        if one == "x":
            digits = self._text[self._at : self._at + 2]
            try:
                code = int(digits, 16) if len(digits) == 2 else 0x80
            except ValueError:
                code = 0x80
            if code >= 0x80:
                raise self._wrong("expected \\x00 to \\x7f")
            self._at += 2
            return chr(code)
        if one.isascii() and one.isalnum():
            raise self._wrong(f"\\{one} is not known")
        return one

    def _literal(self, one: str) -> _Node:
        octets = one.encode("utf-8", "surrogatepass")
        if len(octets) == 1:
            return _One(self._cased(_mask(octets)))
        return _Row(tuple([_One(_mask(bytes([octet]))) for octet in octets]))

    def _cased(self, mask: int) -> int:
        letters = mask & _LETTERS
        if not self._ignores_case or not letters:
            return mask
        upper = letters & _UPPER
        return mask | upper << 32 | (letters & _LOWER) >> 32

    def _class(self) -> _Node:
        is_negated = self._peek() == "^"
        self._at += is_negated
        mask, others, is_first = 0, list[_Node](), True
        while is_first or self._peek() != "]":
            is_first = False
            one = self._take()
            if one == "\\" and self._peek() in ("d", "w", "s"):
                mask |= _CLASSES[self._take()]
                continue
            low = self._escaped(self._take()) if one == "\\" else one
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                one = self._take()
                high = self._escaped(self._take()) if one == "\\" else one
                if not "\0" <= low <= high <= "\x7f":
                    raise self._wrong("a range goes up, from one ASCII character to another")
                mask |= _mask(range(ord(low), ord(high) + 1))
            elif low.isascii():
                mask |= 1 << ord(low)
            elif is_negated:
                raise self._wrong("[^...] knows ASCII characters only")
            else:
                others.append(self._literal(low))
        self._at += 1
        mask = self._cased(mask)
        if is_negated:
            return _beyond_ascii(_ALL & ~mask)
        return _Choice((_One(mask), *others)) if others else _One(mask)


# --- the tree as places with ways between them ---


class _Places:
    """`steps`: from a place, over a byte of the mask, to another; the others cost no byte."""

    def __init__(self, tree: _Node) -> None:
        self.steps: list[list[tuple[int, int]]] = []
        self.free: list[list[int]] = []
        self.at_start: list[list[int]] = []
        self.at_end: list[list[int]] = []
        self.first = self._place()
        self.last = self._place()
        self._build(tree, self.first, self.last)

    def _place(self) -> int:
        if len(self.steps) >= _MAX_PARTS:
            raise InvalidArgument("the expression is too large: use smaller counts")
        self.steps.append([])
        for ways in (self.free, self.at_start, self.at_end):
            ways.append([])
        return len(self.steps) - 1

    def _build(self, node: _Node, begin: int, end: int) -> None:
        match node:
            case _One(mask):
                self.steps[begin].append((mask, end))
            case _Edge(is_start):
                (self.at_start if is_start else self.at_end)[begin].append(end)
            case _Row(parts):
                for part in parts:
                    following = self._place()
                    self._build(part, begin, following)
                    begin = following
                self.free[begin].append(end)
            case _Choice(parts):
                for part in parts:
                    self._build(part, begin, end)
            case _Repeat(part, least, most):
                self._repeat(part, least, most, begin, end)

    def _repeat(self, part: _Node, least: int, most: int | None, begin: int, end: int) -> None:
        for _ in range(least):
            following = self._place()
            self._build(part, begin, following)
            begin = following
        if most is None:
            around, back = self._place(), self._place()
            self.free[begin].append(around)
            self._build(part, around, back)
            self.free[back].append(around)
            self.free[around].append(end)
            return
        for _ in range(most - least):
            self.free[begin].append(end)
            following = self._place()
            self._build(part, begin, following)
            begin = following
        self.free[begin].append(end)

    def closure(
        self, places: frozenset[int], *, is_start: bool, is_end: bool = False
    ) -> frozenset[int]:
        """With everything that can be reached without a byte."""
        found, left = set(places), list(places)
        while left:
            place = left.pop()
            ways = list(self.free[place])
            if is_start:
                ways += self.at_start[place]
            if is_end:
                ways += self.at_end[place]
            for one in ways:
                if one not in found:
                    found.add(one)
                    left.append(one)
        return frozenset(found)


# --- the table ---

_FOUND = 0
"""The state of a text in which there is a match, whatever follows."""


class Automaton(NamedTuple):
    """`table[state, byte]` is the next state; a text that ends in `is_match[state]` matches.

    `needle` is in every text that matches, in upper or lower case, and is itself in lower case: to
    look for it first is many times faster. It may be empty."""

    table: NDArray[np.int16]
    is_match: NDArray[np.bool_]
    begin: int
    needle: bytes

    def matches(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether there is a match in each of the texts `data[start:start + length]`."""
        order = np.argsort(-lengths, kind="stable")
        begins, falling = starts[order], -lengths[order]
        states = np.full(len(order), self.begin, np.int16)
        step, longest = 0, int(-falling[0]) if len(order) else 0
        while step < longest:
            count = int(np.searchsorted(falling, -step, "left"))  # those longer than `step`
            if count <= _FEW:
                for one in range(count):
                    raw = data[begins[one] + step : begins[one] - falling[one]]
                    states[one] = self._follow(int(states[one]), raw.tobytes())
                break
            states[:count] = self.table[states[:count], data[begins[:count] + step]]
            step += 1
        found = np.empty(len(order), np.bool_)
        found[order] = self.is_match[states]
        return found

    def _follow(self, state: int, raw: bytes) -> int:
        flat = self.table.data.cast("B").cast("h")
        for octet in raw:
            state = flat[state << 8 | octet]
            if state == _FOUND:
                break
        return state


def compile_expression(text: str) -> Automaton:
    """Takes a fraction of a second, whatever the expression. Raises InvalidArgument: not valid, or
    too large."""
    tree = _Parser(text).parse()
    places = _Places(tree)
    kinds, count = _kinds_of_bytes(places)
    samples = [int(np.flatnonzero(kinds == kind)[0]) for kind in range(count)]
    ways = [
        [
            ([kind for kind, octet in enumerate(samples) if mask >> octet & 1], to)
            for mask, to in one
        ]
        for one in places.steps
    ]
    following: dict[frozenset[int], frozenset[int]] = {}
    work = 0
    anywhere = places.closure(frozenset((places.first,)), is_start=False)
    begin = places.closure(frozenset((places.first,)), is_start=True)
    known: dict[tuple[frozenset[int], bool], int] = {}
    rows: list[list[int]] = [[_FOUND] * count]
    is_match = [True]
    left: list[tuple[frozenset[int], bool]] = []

    def state_of(found: frozenset[int], is_start: bool) -> int:
        if places.last in found:
            return _FOUND
        state = known.get((found, is_start))
        if state is None:
            if len(rows) >= _MAX_STATES:
                raise InvalidArgument("the expression is too large: use smaller counts")
            state = known[found, is_start] = len(rows)
            rows.append([])
            at_end = places.closure(found, is_start=is_start, is_end=True)
            is_match.append(places.last in at_end)
            left.append((found, is_start))
        return state

    first = state_of(begin, True)
    while left:
        found, is_start = left.pop()
        row = rows[known[found, is_start]]
        reached: list[set[int]] = [set() for _ in samples]
        for place in found:
            for over, to in ways[place]:
                work += len(over)
                for kind in over:
                    reached[kind].add(to)
        for one in map(frozenset, reached):
            if one not in following:
                following[one] = places.closure(one, is_start=False) | anywhere
                work += len(following[one])
            row.append(state_of(following[one], False))
        if work > _MAX_WORK:
            raise InvalidArgument("the expression is too large: use smaller counts")
    table = np.array(rows, np.int16)[:, kinds]
    return Automaton(np.ascontiguousarray(table), np.array(is_match), first, _needle(tree))


def _needle(tree: _Node) -> bytes:
    """The longest row of bytes that every match contains, in lower case."""
    longest, row = bytearray(), bytearray()
    for octet in (*_letters(tree), None):
        if octet is not None:
            row.append(octet)
            continue
        if len(row) > len(longest):
            longest = row
        row = bytearray()
    return bytes(longest)


def _letters(node: _Node) -> Iterator[int | None]:
    """The bytes of a match one after the other, in lower case; None where they may differ."""
    match node:
        case _One(mask):
            lowered = (mask & ~_UPPER) | (mask & _UPPER) << 32
            yield lowered.bit_length() - 1 if lowered.bit_count() == 1 else None
        case _Row(parts):
            for part in parts:
                yield from _letters(part)
        case _Repeat(part, least, most):
            for _ in range(least):
                yield from _letters(part)
            if most != least:
                yield None
        case _Choice():
            yield None


def _kinds_of_bytes(places: _Places) -> tuple[NDArray[np.intp], int]:
    """Bytes that no part of the expression tells apart are of one kind."""
    masks = {mask for steps in places.steps for mask, _ in steps}
    seen: dict[tuple[bool, ...], int] = {}
    kinds = [
        seen.setdefault(tuple([bool(mask >> octet & 1) for mask in masks]), len(seen))
        for octet in range(256)
    ]
    return np.array(kinds, np.intp), len(seen)
