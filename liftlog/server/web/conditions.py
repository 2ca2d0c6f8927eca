"""Search conditions on the values of records: a text, a field of JSON, a regular expression.

A condition examines a column of values in steps of about 128 KiB. During a step it may hold the
interpreter lock. Commits also need this lock.
"""

from __future__ import annotations

import json
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from liftlog.errors import InvalidArgument, MissingDependency
from liftlog.records.columns.column_set import BinaryColumn, Flags

KINDS = ("text", "json", "regex")
MAX_JSON_BYTES = 256 * 1024
"""Maximum size, in bytes, of a JSON value to search. Fields of longer values are not searched,
because the parser cannot be interrupted."""
_STEP_BYTES = 128 * 1024
_OUTSIDE_ASCII = re.compile(r"[^\x00-\x7f]+")
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)

_EXPRESSION_BYTES = 512 * 1024
"""Memory that RE2 may use for one expression, and for the states that a search visits."""
_MAX_STEPS = 1000
"""Maximum number of steps of RE2's program for an expression. With this limit, a search of 64 KiB
takes at most 0.3 s."""
_MAX_WORK = 500_000_000
"""Maximum product of the size of a value in bytes and the number of steps of the program. With the
worst expression and value, a search takes about 2.5 s."""
_TOGETHER = 64
"""Number of values that are first joined and searched together. Without this, short values would be
slow, because a call of RE2 takes as long as a search of a few hundred bytes."""
_NO_LEAST_COUNT = re.compile(r"(?<!\\)\{,(\d+)\}")
_NOT_VALID = "the expression is not valid"
_MAX_REASON = 80
_HINTS = {
    "invalid escape sequence": r"; there are no references such as \1, and \\ is a backslash",
    "invalid perl operator": "; it cannot look ahead or behind",
    "invalid repetition size": "; counts are at most 1000, multiplied where groups are nested",
}

Condition = Callable[[BinaryColumn], Flags]


def parse_condition(kind: str, text: str) -> Condition:
    """Return the condition of a kind, one of KINDS. Raises InvalidArgument, MissingDependency."""
    if kind == "json":
        return FieldIs.parse(text)
    return _expression(text) if kind == "regex" else Contains(text)


@lru_cache(maxsize=16)
def _expression(text: str) -> Expression:
    return Expression(text)


def parts_of(values: BinaryColumn, size: int) -> Iterator[tuple[int, BinaryColumn]]:
    """Yield parts of a column, each with the index of its first item. A part has about `size`
    bytes, or contains a single longer value."""
    first, count = 0, len(values)
    while first < count:
        limit = int(values.ends[first]) + size
        end = max(first + 1, int(np.searchsorted(values.ends, limit, "right")) - 1)
        yield first, values.part(first, min(end, count))
        first = min(end, count)


class Contains:
    """Matches values that contain a text.

    ASCII letters match without regard to case. Other letters also match their escaped form in
    JSON, because many programs write `\\u00fc` for `ü`.
    """

    def __init__(self, text: str, *, step_bytes: int = _STEP_BYTES) -> None:
        """`step_bytes` is the approximate size of the values that one step searches."""
        self._step_bytes = step_bytes
        # Quotes and backslashes are not escaped, because a text inside the JSON may itself contain
        # JSON.
        escaped = _OUTSIDE_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
        self._wanted = dict.fromkeys(_encoded(one).lower() for one in (text, escaped))

    def __call__(self, values: BinaryColumn) -> Flags:
        found = np.zeros(len(values), np.bool_)
        for first, part in parts_of(values, self._step_bytes):
            raw = _LOWER[part.content()].tobytes()
            for wanted in self._wanted:
                found[[first + one for one in _items_with(wanted, raw, part)]] = True
        return found


def _items_with(wanted: bytes, raw: bytes, part: BinaryColumn) -> Iterator[int]:
    """Yield the indexes of the items of `part` that contain `wanted`. `raw` is the content of
    `part`."""
    ends = (part.ends - part.ends[0]).tolist()
    at = raw.find(wanted)
    while at >= 0:
        item = bisect_right(ends, at) - 1
        if item >= len(part):
            return
        if at + len(wanted) <= ends[item + 1]:
            yield item
            at = raw.find(wanted, ends[item + 1])
        else:  # the match spans two values, so it does not count
            at = raw.find(wanted, at + 1)


# --- a regular expression ---


class Expression:
    """A regular expression of RE2.

    Python's `re` can take hours for a short text, and holds the interpreter lock during that time.
    The time of RE2 is proportional to the length of the text, and RE2 releases the lock.

    Each byte that is not valid UTF-8 counts as one character. Skips values for which the search
    could take seconds.
    """

    def __init__(self, text: str, *, together: int = _TOGETHER) -> None:
        """Compile the expression. A search joins `together` values, and examines the single values
        only if the joined text matches. Raises InvalidArgument, MissingDependency."""
        self._together = together
        try:
            import re2
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "expressions need google-re2, which is not installed: "
                "pip install 'liftlog[search]'",
            ) from error
        if count := _NO_LEAST_COUNT.search(text):  # RE2 treats it as plain text
            raise InvalidArgument(f"{_NOT_VALID}: write {{0,{count[1]}}} for {count[0]}")
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = _EXPRESSION_BYTES
        try:
            self._compiled = re2.compile(_encoded(text), options)
        except re2.error as error:
            raise InvalidArgument(_problem(error.args[0].decode(errors="replace"))) from None
        finally:
            re2.purge()  # re2 itself caches 128 expressions
        steps = self._compiled.programsize
        if steps > _MAX_STEPS:
            raise InvalidArgument("the expression is too large: use smaller counts")
        self._longest = _MAX_WORK // steps
        self._sees_edges = _sees_edges(text)

    def __call__(self, values: BinaryColumn) -> Flags:
        found = np.zeros(len(values), np.bool_)
        for first, part in parts_of(values, _STEP_BYTES):
            content, ends = part.content().tobytes(), (part.ends - part.ends[0]).tolist()
            texts = [content[begin:end] for begin, end in pairwise(ends)]
            if not content.isascii():
                texts = list(map(_as_utf8, texts))
            found[first : first + len(part)] = self._are_in(texts)
        return found if values.valid is None else found & values.valid

    def _are_in(self, texts: list[bytes]) -> list[bool]:
        found: list[bool] = []
        for first in range(0, len(texts), self._together):
            some = texts[first : first + self._together]
            may_match = (
                self._sees_edges
                or len(some) == 1
                or self._compiled.search(b"".join(some)) is not None
            )
            found += map(self._is_in, some) if may_match else [False] * len(some)
        return found

    def _is_in(self, text: bytes) -> bool:
        return len(text) <= self._longest and self._compiled.search(text) is not None


def _sees_edges(text: str) -> bool:
    """Return True if the expression might match a single value although it does not match several
    joined values. This is possible if it tests for the edge of a text or of a word. Returns True in
    case of doubt."""
    without_escapes = re.sub(r"\\.", "", text, flags=re.DOTALL)
    outside_classes = without_escapes.replace("[^", "")
    return bool(re.search(r"\\[AzbBQ]", text) or re.search(r"[$^]", outside_classes))


def _as_utf8(raw: bytes) -> bytes:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace").encode()
    return raw


def _problem(reason: str) -> str:
    """Return RE2's error message, with a hint for errors that need one."""
    if reason.startswith("pattern too large"):
        return "the expression is too large: use smaller counts"
    hint = next((hint for words, hint in _HINTS.items() if reason.startswith(words)), "")
    return f"{_NOT_VALID}: {reason[:_MAX_REASON]}{hint}"


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
"""The path to a field: names, numbers, and None for every item of a list."""


def parse_path(text: str) -> Path:
    """Parse the path of a field, without a comparison. Raises InvalidArgument."""
    path, position = _path(text)
    if not path or text[position:].strip():
        raise InvalidArgument(
            "expected a field such as customer.id, items[0].sku or items[*].sku; "
            f"{text!r} is not valid at character {position + 1}"
        )
    return path


def _path(text: str) -> tuple[Path, int]:
    """Parse the longest path at the start of `text`. Return the path, and the position of its end.
    Raises InvalidArgument."""
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
    """Yield the parts of a JSON value to which `path` leads: no part if the path does not exist,
    several parts if the path contains `[*]`."""
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
    """Signs that a value may be written in an unusual form: escapes in a text, exponents in a
    number. A search for the usual bytes of the value is then not sufficient."""

    escapes: re.Pattern[bytes]
    exponents: bool

    def is_in(self, content: bytes) -> bool:
        if self.escapes.search(content):
            return True
        if not self.exponents:
            return False
        # The regular expression \d[eE] finds the same bytes but takes 30 times as long, because it
        # tries every digit.
        octets = np.frombuffer(content, np.uint8)
        behind = np.flatnonzero((octets[1:] | 0x20) == ord("e"))
        return bool((octets[behind] - np.uint8(ord("0")) < 10).any())


@dataclass(frozen=True, slots=True)
class FieldIs:
    """Matches a value if its JSON has the field and the field satisfies the comparison. A number is
    compared with numbers, and a quoted text with texts. 17 without quotes also equals the text
    "17"."""

    path: Path
    compare: Callable[[Any, Any], Any] | None
    wanted: tuple[Any, ...]
    needle: bytes
    """Bytes that every match contains. Values with a part in an unusual form are an exception."""
    unusual: _Unusual

    @classmethod
    def parse(cls, text: str) -> FieldIs:
        """Parse a path with an optional comparison. Raises InvalidArgument."""
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
            wanted = wanted[:1]  # `<` and `>` compare the literal 5 with numbers only
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
    """Return the values to compare with: the parsed JSON and, if the literal is not quoted, also
    the literal as a text."""
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
    """Return the kind of a JSON value. All numbers have the same kind; true and false are not
    numbers."""
    return float if type(value) is int else type(value)
