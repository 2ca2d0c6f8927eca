"""The header block of a NATS message. It is read-only, and parsed when it is needed: a look-up only
searches the block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

# Headers that control how a message is stored: JetStream's names, then our own. Case matters, as in
# nats-server.
MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_MESSAGE_ID = "Nats-Expected-Last-Msg-Id"
EXPECTED_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
ROLLUP = "Nats-Rollup"
KEY = "Liftlog-Key"
TOMBSTONE = "Liftlog-Tombstone"
CORRELATION_ID = "Liftlog-Correlation-Id"

HeaderLine = tuple[bytes, bytes]
"""Name and value of a header line, without the blanks around the value. Headers are a sequence of
lines. A sequence may contain the same name several times, or names that differ only in case; names
and values may contain any bytes."""

PREAMBLE = b"NATS/1.0"
_CRLF = b"\r\n"
_BLANKS = (b" ", b"\t")


def header_lines(block: bytes, limit: int = -1) -> list[HeaderLine]:
    """Return name and value of every well-formed line, in order; never raises.

    Skips the first line, which contains the version and perhaps a status. Examines at most `limit`
    lines, because a block can have hundreds of thousands of lines.
    """
    found = []
    lines = block.split(_CRLF) if limit < 0 else block.split(_CRLF, limit + 1)[: limit + 1]
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if colon and name:
            found.append((name, value.strip(b" \t")))
    return found


def count_lines(block: bytes) -> int:
    """Return the number of header lines, well-formed or not, without parsing them."""
    return max(0, block.count(_CRLF) - 2)


def first_value(block: bytes, name: bytes) -> bytes | None:
    """Return the first value that `header_lines` has for exactly this name; None if there is none.

    Searches the block and does not parse it, because a publisher chooses the number of lines.
    """
    return _value_after(block, _CRLF + name + b":")


def _value_after(block: bytes, mark: bytes) -> bytes | None:
    start = block.find(mark)
    if start < 0:
        return None
    start += len(mark)
    end = block.find(_CRLF, start)
    return block[start : end if end >= 0 else len(block)].strip(b" \t")


def is_carried(name: bytes, value: bytes) -> bool:
    """Return True if a block can carry this line: `header_lines` would return it unchanged."""
    return (
        name != b""
        and b":" not in name
        and b"\r\n" not in name
        and b"\r\n" not in value
        and value[:1] not in _BLANKS
        and value[-1:] not in _BLANKS
    )


def without(lines: Iterable[HeaderLine], *names: str) -> list[HeaderLine]:
    """Return the lines in order, without the lines that have one of the `names`. Names are
    case-sensitive."""
    left_out = {name.encode() for name in names}
    return [line for line in lines if line[0] not in left_out]


def build_block(lines: Sequence[HeaderLine]) -> bytes:
    """Build a header block of these lines; b"" if there are none. `is_carried` must be True for
    each line."""
    if not lines:
        return b""
    body = b"".join(b"%b: %b\r\n" % line for line in lines)
    return PREAMBLE + _CRLF + body + _CRLF


class MessageHeaders(Mapping[str, str]):
    """The headers of a message by name. The first of several equal names is used, as in nats-py.

    Names that differ in case are different headers, as in NATS. A look-up returns the header with
    exactly this name or, if there is no such header, the first header whose name differs only in
    case. Bytes that are not UTF-8 become U+FFFD in this mapping; `lines` returns every line as
    bytes, and `raw` the unchanged block. If a message is published with these headers, every line
    is sent.
    """

    __slots__ = ("_items", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._items: dict[str, str] | None = None

    @property
    def lines(self) -> list[HeaderLine]:
        """All header lines in order, as bytes."""
        return header_lines(self.raw)

    def _parsed(self) -> dict[str, str]:
        if self._items is None:
            items: dict[str, str] = {}
            # Decoding the whole block is faster, and gives the same text as decoding its parts: the
            # separators are ASCII, so they are never part of another character.
            for line in self.raw.decode("utf-8", "replace").split("\r\n")[1:]:
                name, colon, value = line.partition(":")
                if colon and name and name not in items:
                    items[name] = value.strip(" \t")
            self._items = items
        return self._items

    def _find(self, name: str) -> str | None:
        items = self._items
        if not self.raw:
            return None
        if items is None:
            mark = _mark_of(name)
            value = _value_after(self.raw, mark) if mark else None
            if value is not None:
                return value.decode("utf-8", "replace")
            items = self._parsed()
        if name in items:
            return items[name]
        lowered = name.lower()
        for found, text in items.items():
            if found.lower() == lowered:
                return text
        return None

    def __getitem__(self, name: str) -> str:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        found = self._find(name)
        return default if found is None else found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def get_all(self, name: str) -> list[str]:
        """Return every value of a name, in order, ignoring the case of names."""
        wanted = name.lower().encode()
        return [
            value.decode("utf-8", "replace")
            for found, value in header_lines(self.raw)
            if found.lower() == wanted
        ]

    def __repr__(self) -> str:
        return repr(dict(self))


@lru_cache(maxsize=256)
def _mark_of(name: str) -> bytes:
    """Return the bytes to search for the line of this name: the end of the previous line, and the
    beginning of this line. Returns b"" if such a search could find something else."""
    if not name or ":" in name or "\r" in name or "\n" in name or "\ufffd" in name:
        return b""
    try:
        return _CRLF + name.encode() + b":"
    except UnicodeEncodeError:  # a lone surrogate
        return b""
