"""Conditions on the values of records: a text in it, a field of its JSON, a regular expression.

Each looks at a column of values at once, about 128 KiB at a time: for so long it may hold the
interpreter, on which the commits wait.
"""

from __future__ import annotations

import json
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from liftlog.errors import InvalidArgument
from liftlog.records.columns.column_set import BinaryColumn, Flags
from liftlog.server.web.automaton import Automaton, compile_expression

KINDS = ("text", "json", "regex")
MAX_JSON_BYTES = 256 * 1024
"""Longer values have no JSON fields: the parser cannot be interrupted."""
_STEP_BYTES = 128 * 1024
_OUTSIDE_ASCII = re.compile(r"[^\x00-\x7f]+")
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)

Condition = Callable[[BinaryColumn], Flags]


def parse_condition(kind: str, text: str) -> Condition:
    """`kind` is one of KINDS. Takes up to a second for an expression. Raises InvalidArgument."""
    if kind == "json":
        return FieldIs.parse(text)
    return Expression(_compiled(text)) if kind == "regex" else Contains(text)


_compiled = lru_cache(maxsize=32)(compile_expression)


def parts_of(values: BinaryColumn, size: int) -> Iterator[tuple[int, BinaryColumn]]:
    """Parts of about `size` bytes, or one value, each with the number of its first item."""
    first, count = 0, len(values)
    while first < count:
        limit = int(values.ends[first]) + size
        end = max(first + 1, int(np.searchsorted(values.ends, limit, "right")) - 1)
        yield first, values.part(first, min(end, count))
        first = min(end, count)


class Contains:
    """Upper and lower case of ASCII letters are the same. A text with other letters is also found
    as JSON escapes it: many programs write `\\u00fc` there for `ü`."""

    def __init__(self, text: str) -> None:
        # Quotes and backslashes stay as they are: the rest of such a text is JSON itself, perhaps.
        escaped = _OUTSIDE_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
        self._wanted = dict.fromkeys(_encoded(one).lower() for one in (text, escaped))

    def __call__(self, values: BinaryColumn) -> Flags:
        found = np.zeros(len(values), np.bool_)
        for first, part in parts_of(values, _STEP_BYTES):
            raw = _LOWER[part.content()].tobytes()
            for wanted in self._wanted:
                found[[first + one for one in _items_with(wanted, raw, part)]] = True
        return found


def _items_with(wanted: bytes, raw: bytes, part: BinaryColumn) -> Iterator[int]:
    """The items of `part`, whose content is `raw`, that contain these bytes."""
    ends = (part.ends - part.ends[0]).tolist()
    at = raw.find(wanted)
    while at >= 0:
        item = bisect_right(ends, at) - 1
        if item >= len(part):
            return
        if at + len(wanted) <= ends[item + 1]:
            yield item
            at = raw.find(wanted, ends[item + 1])
        else:  # it reaches from one value into the next
            at = raw.find(wanted, at + 1)


@dataclass(frozen=True, slots=True)
class Expression:
    automaton: Automaton

    def __call__(self, values: BinaryColumn) -> Flags:
        found = np.zeros(len(values), np.bool_)
        for first, part in parts_of(values, _STEP_BYTES):
            ends = part.ends.astype(np.int64)
            if not self.automaton.needle:
                matches = self.automaton.matches(part.data, ends[:-1], np.diff(ends))
                found[first : first + len(part)] = matches
                continue
            raw = _LOWER[part.content()].tobytes()
            some = np.array(list(_items_with(self.automaton.needle, raw, part)), np.intp)
            if len(some):
                begins = ends[some]
                matches = self.automaton.matches(part.data, begins, ends[some + 1] - begins)
                found[first + some] = matches
        return found if values.valid is None else found & values.valid


# --- a field of JSON ---

_STEP = re.compile(r"""\.?([^\s.\[\]=!<>"']+)|\.?\[(\d{1,9}|\*)\]|\[("(?:[^"\\]|\\.)*")\]""")
_COMPARISON = re.compile(r"\s*(<=|>=|!=|==?|<|>)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ESCAPES = re.compile(rb"\\")
_ASCII_ESCAPES = re.compile(rb"\\u00[0-7]")
_NOTHING = object()
_HELP = "expected a field such as customer.id, items[0].sku or items[*].sku, and maybe = 17"


Path = tuple[str | int | None, ...]
"""The way to a field: names, numbers, and None for every item of a list."""


def parse_path(text: str) -> Path:
    """A field without a comparison. Raises InvalidArgument."""
    path, position = _path(text)
    if not path or text[position:].strip():
        raise InvalidArgument(
            "expected a field such as customer.id, items[0].sku or items[*].sku; "
            f"{text!r} is not valid at character {position + 1}"
        )
    return path


def _path(text: str) -> tuple[Path, int]:
    """As far as it goes, and where it ends. Raises InvalidArgument."""
    path: list[str | int | None] = []
    position = 1 if text.startswith("$") else 0
    while step := _STEP.match(text, position):
        name, index, quoted = step.groups()
        position = step.end()
        if index is not None:
            path.append(None if index == "*" else int(index))
        else:
            path.append(name if quoted is None else _from_json(quoted))
    return tuple(path), position


def found_at(value: Any, path: Path) -> Iterator[Any]:
    """What a JSON value has there: several values for every item of a list, or none."""
    for level, step in enumerate(path):
        if isinstance(value, dict) and isinstance(step, str) and step in value:
            value = value[step]
        elif isinstance(value, list) and step is None:
            for one in value:
                yield from found_at(one, path[level + 1 :])
            return
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return
    yield value


@dataclass(frozen=True, slots=True)
class _Unusual:
    """With these escapes a text, or with an exponent a number, can be written in another way than
    it usually is."""

    escapes: re.Pattern[bytes]
    exponents: bool

    def is_in(self, content: bytes) -> bool:
        if self.escapes.search(content):
            return True
        if not self.exponents:
            return False
        # As the expression \d[eE] would, which has to try every digit: that takes 30 times as long.
        octets = np.frombuffer(content, np.uint8)
        behind = np.flatnonzero((octets[1:] | 0x20) == ord("e"))
        return bool((octets[behind] - np.uint8(ord("0")) < 10).any())


@dataclass(frozen=True, slots=True)
class FieldIs:
    """The field exists, and its value compares as wanted. A number is compared with numbers, a
    quoted text with texts; 17 without quotes is also the text "17"."""

    path: Path
    compare: Callable[[Any, Any], Any] | None
    wanted: tuple[Any, ...]
    needle: bytes
    """Bytes that every match contains, unless something in it is written in an unusual way."""
    unusual: _Unusual

    @classmethod
    def parse(cls, text: str) -> FieldIs:
        """Raises InvalidArgument."""
        path, position = _path(text)
        comparison = _COMPARISON.match(text, position)
        if not path or (comparison is None and text[position:].strip()):
            raise InvalidArgument(f"{_HELP}; it is not valid at character {position + 1}")
        needle = max([one for one in path if isinstance(one, str)], key=len, default="")
        if comparison is None:
            return cls(path, None, (), _encoded(needle), _unusual(needle))
        sign, literal = comparison[1], text[comparison.end() :].strip()
        if not literal:
            raise InvalidArgument(f"{_HELP}; there is nothing after {sign}")
        wanted = _literal(literal)
        if sign[0] in "<>":
            wanted = wanted[:1]  # 5 is not compared with texts that way
            if isinstance(wanted[0], bool | None):
                raise InvalidArgument(f"{_HELP}; only numbers and texts are less or greater")
        if sign in ("=", "==") and not isinstance(wanted[0], bool | float | None):
            needle = str(wanted[0])
        unusual = _unusual(needle, is_number=isinstance(wanted[0], int))
        return cls(path, _COMPARE[sign], wanted, _encoded(needle), unusual)

    def __call__(self, values: BinaryColumn) -> Flags:
        found = np.zeros(len(values), np.bool_)
        for first, part in parts_of(values, _STEP_BYTES):
            content, ends = part.content().tobytes(), (part.ends - part.ends[0]).tolist()
            if self.unusual.is_in(content):
                candidates: Iterable[int] = range(len(part))
            else:
                candidates = _items_with(self.needle, content, part)
            for one in candidates:
                found[first + one] = self._is_in(content[ends[one] : ends[one + 1]])
        return found

    def _is_in(self, raw: bytes) -> bool:
        if not raw or (self.needle not in raw and not self.unusual.is_in(raw)):
            return False
        if len(raw) > MAX_JSON_BYTES:
            return False
        try:
            return self._holds_for(json.loads(raw.decode()))
        except (ValueError, RecursionError):
            return False

    def _holds_for(self, value: Any) -> bool:
        found = found_at(value, self.path)
        if self.compare is None:
            return next(found, _NOTHING) is not _NOTHING
        return any(self._compares(one) for one in found)

    def _compares(self, value: Any) -> bool:
        assert self.compare is not None
        same = [one for one in self.wanted if _kind(one) is _kind(value)]
        if not same:
            return self.compare is operator.ne
        return bool(self.compare(value, same[0]))


def _unusual(needle: str, *, is_number: bool = False) -> _Unusual:
    if not needle.isascii() or re.search(r'["\\/\x00-\x1f]', needle):
        return _Unusual(_ESCAPES, exponents=False)
    return _Unusual(_ASCII_ESCAPES, exponents=is_number)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _literal(text: str) -> tuple[Any, ...]:
    """What to compare with: the JSON that this is, and the text itself if it has no quotes."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    if isinstance(value, dict | list):
        raise InvalidArgument("compare with a text, a number, true, false or null")
    return (value,) if isinstance(value, str) else (value, text)


def _from_json(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise InvalidArgument(f"{_HELP}; {quoted} is not a JSON text") from None


def _kind(value: Any) -> type:
    """Numbers are one kind; true and false are not numbers."""
    return float if type(value) is int else type(value)
