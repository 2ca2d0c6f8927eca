"""Writes JSON and msgpack values as indented text of limited size, and adds colours and marks for
folding to such a text. Pure.

The text of an indented value can be far longer than the value: the text of 64 KiB can take
megabytes. Therefore the writer stops at the limits, instead of truncating a finished text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

MAX_DEPTH = 64
MAX_CHARS = 256 * 1024
MAX_LINES = 5_000
"""Limit for the lines of an outline, because writing a line takes some microseconds."""

_encoder = json.JSONEncoder(ensure_ascii=False)  # dumps() creates one at each call
_UNPACKING = {"raw": True, "strict_map_key": False, "timestamp": 0}


class Outline(NamedTuple):
    """The indented text of a value. `is_whole` is False if the text ends at a limit."""

    text: str
    is_whole: bool


class TooDeep(ValueError):
    """Raised if the written part of a value is nested deeper than MAX_DEPTH."""


def outline_json(raw: bytes, *, max_chars: int = MAX_CHARS, max_lines: int = MAX_LINES) -> Outline:
    """Write JSON as indented text. Raises TooDeep, and ValueError for input that is not JSON."""
    try:
        value = json.loads(raw)
    except RecursionError:
        raise TooDeep from None
    writer = _Writer(max_chars, max_lines)
    return writer.outline(lambda: _write_json(writer, value, 0))


def outline_msgpack(
    raw: bytes,
    is_text: Callable[[bytes], bool],
    *,
    max_chars: int = MAX_CHARS,
    max_lines: int = MAX_LINES,
) -> Outline:
    """Write msgpack as indented text. Bytes for which `is_text` returns False are written as
    `b"ff00"`.

    Raises ValueError unless `raw` is exactly one msgpack value. Raises TooDeep.
    """
    _check_msgpack(raw)
    unpacker = _unpacker(raw)
    writer = _Writer(max_chars, max_lines)
    try:
        return writer.outline(lambda: _write_msgpack(writer, unpacker, raw, is_text, 0))
    except (TypeError, OverflowError, msgpack.UnpackException) as error:
        raise ValueError(str(error)) from error


def _unpacker(raw: bytes) -> Any:
    unpacker = msgpack.Unpacker(max_buffer_size=len(raw), **_UNPACKING)
    unpacker.feed(raw)
    return unpacker


def _check_msgpack(raw: bytes) -> None:
    """Raise ValueError unless `raw` is exactly one msgpack value.

    The C library skips over the values. It allocates no memory for a length that a header only
    declares. So after this check, unpacking cannot allocate more than the content of `raw`.
    """
    unpacker = _unpacker(raw)
    try:
        unpacker.skip()
    except (TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(str(error)) from error
    if unpacker.tell() != len(raw):
        raise ValueError("bytes follow the value")


class _Full(Exception):
    """Raised when the text has reached a limit."""


class _Writer:
    def __init__(self, max_chars: int, max_lines: int) -> None:
        self._parts: list[str] = []
        self._chars = self._max_chars = max_chars
        self._lines = max_lines

    def outline(self, write: Callable[[], None]) -> Outline:
        is_whole = True
        try:
            write()
        except _Full:
            is_whole = False
        return Outline("".join(self._parts)[: self._max_chars], is_whole)

    def put(self, text: str) -> None:
        self._parts.append(text)
        self._chars -= len(text)
        if self._chars < 0:
            raise _Full

    def line(self, depth: int) -> None:
        self._lines -= 1
        if self._lines < 0:
            raise _Full
        self.put("\n" + "  " * depth)

    def block(
        self, brackets: str, count: int, depth: int, write_one: Callable[[int], None]
    ) -> None:
        """Write `count` items, each on its own line."""
        if not count:
            self.put(brackets)
            return
        if depth >= MAX_DEPTH:
            raise TooDeep
        self.put(brackets[0])
        for number in range(count):
            if number:
                self.put(",")
            self.line(depth + 1)
            write_one(number)
        self.line(depth)
        self.put(brackets[1])


def _write_json(writer: _Writer, value: Any, depth: int) -> None:
    if isinstance(value, dict):
        items = iter(value.items())

        def write_item(_: int) -> None:
            name, one = next(items)
            writer.put(_encoder.encode(name) + ": ")
            _write_json(writer, one, depth + 1)

        writer.block("{}", len(value), depth, write_item)
    elif isinstance(value, list):
        writer.block("[]", len(value), depth, lambda at: _write_json(writer, value[at], depth + 1))
    else:
        writer.put(_encoder.encode(value))


def _write_msgpack(
    writer: _Writer, unpacker: Any, raw: bytes, is_text: Callable[[bytes], bool], depth: int
) -> None:
    first = raw[unpacker.tell()]
    if first >> 4 == 0x8 or first in (0xDE, 0xDF):

        def write_item(_: int) -> None:
            _write_msgpack(writer, unpacker, raw, is_text, depth + 1)
            writer.put(": ")
            _write_msgpack(writer, unpacker, raw, is_text, depth + 1)

        writer.block("{}", unpacker.read_map_header(), depth, write_item)
    elif first >> 4 == 0x9 or first in (0xDC, 0xDD):
        writer.block(
            "[]",
            unpacker.read_array_header(),
            depth,
            lambda _: _write_msgpack(writer, unpacker, raw, is_text, depth + 1),
        )
    else:
        writer.put(_leaf(unpacker.unpack(), is_text))


def _leaf(value: Any, is_text: Callable[[bytes], bool]) -> str:
    """Return a single value as text; a value that JSON can express is written as in JSON."""
    if isinstance(value, bytes):
        if is_text(value):
            return _encoder.encode(value.decode("utf-8", "replace"))
        return f'b"{value.hex()}"'
    if isinstance(value, msgpack.ExtType):
        return f'ext({value.code}, b"{value.data.hex()}")'
    if isinstance(value, msgpack.Timestamp):
        return f"timestamp({value.seconds}.{value.nanoseconds:09d})"
    return _encoder.encode(value)


_TOKEN = re.compile(
    r"""(?P<name>"(?:[^"\\]|\\.)*"(?=:\ ))
    |(?P<string>b?"(?:[^"\\]|\\.)*")
    |(?P<number>-?\b\d[\d.eE+-]*\b)
    |(?P<word>\b(?:true|false|null|NaN|Infinity)\b)""",
    re.VERBOSE,
)
_MAX_COLOURED = 2000
"""Maximum length of a line that gets colours. A longer line contains a long text rather than many
small values."""

Part = tuple[str, str]


class Line(NamedTuple):
    """One line of an outline. `folds` is 1 if a block begins with this line, -1 if a block ends
    with it, and 0 otherwise. `parts` are pairs of a kind and a text. The kind is empty for
    punctuation and blanks."""

    folds: int
    parts: list[Part]


def folded(text: str) -> list[Line]:
    """Split a text that `outline` wrote into lines. A block that was cut off is closed by a line
    without parts, so that every block has an end."""
    lines: list[Line] = []
    depth = 0
    for text_line in text.split("\n"):
        bare = text_line.strip()
        folds = 0
        if bare[-1:] in ("{", "["):
            folds = 1
        elif bare[:1] in ("}", "]") and depth:
            folds = -1
        depth += folds
        lines.append(Line(folds, _coloured(text_line + "\n")))
    return lines + [Line(-1, [])] * depth


def _coloured(line: str) -> list[Part]:
    if len(line) > _MAX_COLOURED:
        return [("", line)]
    parts: list[Part] = []
    position = 0
    for token in _TOKEN.finditer(line):
        if token.start() > position:
            parts.append(("", line[position : token.start()]))
        parts.append((token.lastgroup or "", token[0]))
        position = token.end()
    if position < len(line):
        parts.append(("", line[position:]))
    return parts
