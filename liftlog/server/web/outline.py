"""JSON and msgpack values as indented text, bounded while it is written; and such a text with
colours, and marks where a browser can fold it. Pure.

A value of 64 KiB can take megabytes when it is indented. The text is therefore not truncated
afterwards: writing stops at the bounds.
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
"""Writing a line takes some microseconds."""

_encoder = json.JSONEncoder(ensure_ascii=False)  # dumps() would make one at each call
_UNPACKING = {"raw": True, "strict_map_key": False, "timestamp": 0}


class Outline(NamedTuple):
    """`is_whole` is False if a bound was reached."""

    text: str
    is_whole: bool


class TooDeep(ValueError):
    """The written part is nested deeper than MAX_DEPTH."""


def outline_json(raw: bytes, *, max_chars: int = MAX_CHARS, max_lines: int = MAX_LINES) -> Outline:
    """Raises TooDeep, and ValueError for input that is not JSON."""
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
    """Bytes for which `is_text` is false are written as `b"ff00"`.

    Raises ValueError unless `raw` is one msgpack value, and TooDeep.
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
    """Raises ValueError unless `raw` is one value from end to end.

    The values are skipped, at the speed of the C library, and nothing is allocated for a length
    that a header only declares. So the values that are unpacked later are no longer than the bytes
    that exist.
    """
    unpacker = _unpacker(raw)
    try:
        unpacker.skip()
    except (TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(str(error)) from error
    if unpacker.tell() != len(raw):
        raise ValueError("bytes follow the value")


class _Full(Exception):
    """A bound was reached."""


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
        """Write `count` items, each on a line of its own."""
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
    """As in JSON, for values that JSON has."""
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
"""Characters of a line; a longer line has a long text in it, not many small values."""

Part = tuple[str, str]


class Line(NamedTuple):
    """`folds` is 1 if a block begins with this line, -1 if one ends with it, else 0. `parts` are
    kinds (empty for signs and blanks) with their texts."""

    folds: int
    parts: list[Part]


def folded(text: str) -> list[Line]:
    """Return the lines of a text that `outline` wrote. Blocks that were cut off are closed by lines
    without parts, so that every block has its end."""
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
