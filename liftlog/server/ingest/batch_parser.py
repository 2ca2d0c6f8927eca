"""The NATS client protocol, parsed by the chunk.

Takes the place of nats-py's parser (nats.protocol.parser.Parser): every MSG and HMSG becomes part
of a run that is handed over as a whole; INFO, PING, PONG, +OK and -ERR go to the stock parser, one
line at a time. Protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol

    MSG <subject> <sid> [reply] <size>\r\n<payload>\r\n
    HMSG <subject> <sid> [reply] <header size> <total size>\r\n<headers><payload>\r\n
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from nats.errors import ProtocolError

from envelope import COOKIES
from liftlog.stream.run import MessageRun

MAX_CONTROL_LINE = 64 * 1024  # nats-server's default is 4 KiB and it can be raised
_CRLF = b"\r\n"
_COOKIE_START = COOKIES[0][:1]
_COOKIE = re.compile(b"|".join(map(re.escape, COOKIES)))
_UNIFORM_MIN_ROWS = 8
_UNIFORM_RETRY_CHUNKS = 16


class MessageSink(Protocol):
    """Who gets the messages. Neither method may block, await or raise."""

    def deliver(self, sid: int, run: MessageRun) -> None: ...

    def chunk_end(self) -> None:
        """All messages of what was read at once have been delivered."""
        ...


class StockParser(Protocol):
    """What the batch parser needs of nats-py's own parser."""

    buf: bytearray

    def reset(self) -> None: ...
    def parse(self, data: bytes) -> Coroutine[Any, Any, None]: ...


class _Columns:
    """Messages of one subscription while a chunk is parsed."""

    __slots__ = ("headers", "payloads", "replies", "subjects")

    def __init__(self) -> None:
        self.subjects: list[bytes] = []
        self.replies: list[bytes] = []
        self.payloads: list[bytes] = []
        self.headers: list[bytes] | None = None


class _Shape:
    """Messages that differ only in reply and payload bytes, and in the subject unless that is
    known to be `subject`."""

    __slots__ = ("fixed_bytes", "has_reply", "pattern", "sid", "size", "stride", "subject")

    def __init__(self, sid: bytes, size: bytes, subject: bytes | None, *, has_reply: bool) -> None:
        self.sid = sid
        self.size = size
        self.subject = subject
        self.has_reply = has_reply
        # `[^ ]` instead of all that a subject may not hold: three times as fast, and checked after.
        reply = rb"([^ ]+) " if has_reply else b""
        name = rb"([^ ]+)" if subject is None else re.escape(subject)
        self.pattern = re.compile(
            rb"MSG %b %b %b%b\r\n(.{%b})\r\n" % (name, sid, reply, size, size), re.DOTALL
        )
        self.stride = 2 + has_reply + (subject is None)
        blanks = 4 if has_reply else 3
        line_ends = 4
        fixed = b"MSG" + (subject or b"") + sid + size
        self.fixed_bytes = len(fixed) + blanks + line_ends + int(size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and self.pattern == other.pattern

    __hash__ = None  # type: ignore[assignment]  # compared, never kept in a set


class BatchParser:
    """Not thread-safe. State is consistent at every await: a cancelled `parse` loses nothing that
    was not delivered, and `reset` during an await ends the parse that is under way."""

    def __init__(
        self,
        stock: StockParser,
        sink: MessageSink,
        *,
        before_pong: Callable[[], None],
        pressure: Callable[[], Coroutine[Any, Any, None]],
        on_error: Callable[[bytes], bool] = lambda line: False,
    ) -> None:
        """`on_error` gets each -ERR line and says whether that was all there is to do with it."""
        self._stock = stock
        self._sink = sink
        self._before_pong = before_pong
        self._on_error = on_error
        self._pressure = pressure
        self._generation = 0
        self._rest = b""
        self._parts: list[bytes] = []
        self._missing = 0
        self._uniform: _Shape | None = None
        self._uniform_wait = 0

    def reset(self) -> None:
        """Forget everything unfinished: the connection is a new one."""
        self._generation += 1
        self._rest = b""
        self._parts = []
        self._missing = 0
        self._stock.reset()

    async def parse(self, data: bytes = b"") -> None:
        """Take what was read. Raises ProtocolError, whatever goes wrong, so that the client
        reconnects instead of dying silently."""
        try:
            await self._parse(data)
        except ProtocolError:
            raise
        except Exception as error:
            raise ProtocolError from error

    async def _parse(self, data: bytes) -> None:
        generation = self._generation
        rest = self.feed(data)
        while rest:
            end = rest.index(_CRLF) + 2
            line, rest = rest[:end], rest[end:]
            self._rest = rest  # if the await below never returns
            if line.startswith(b"PONG"):
                self._before_pong()
            await self._stock.parse(line)
            if self._generation != generation:
                return
            if self._stock.buf:
                raise ProtocolError  # it waits for more of a line that was whole
            self._rest = b""
            rest = self.feed(rest) if rest else b""
        await self._pressure()

    def feed(self, data: bytes) -> bytes:
        """Deliver the messages at the beginning of what was read, without an await.

        Returns what follows them if it begins with a whole line of something else; anything
        unfinished is kept for the next call. Raises ProtocolError.
        """
        if self._missing:
            # In the middle of a large message: gather pieces instead of copying them each time.
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return b""
            data = b"".join(self._parts)
            self._parts, self._missing = [], 0
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        pos = self._take_messages(data, 0)
        while data.startswith(b"-ERR", pos):
            # One for each ack that NATS refuses, so there may be thousands in a chunk.
            end = data.find(_CRLF, pos) + 2
            if end < 2 or not self._on_error(data[pos:end]):
                break
            pos = self._take_messages(data, end)
        if self._missing:
            self._parts = [data[pos:]]
            return b""
        rest = data[pos:] if pos else data
        if rest and rest.find(_CRLF) < 0:
            if len(rest) > MAX_CONTROL_LINE:
                raise ProtocolError
            self._rest = rest
            return b""
        return rest

    # --- messages ---

    def _take_messages(self, data: bytes, pos: int) -> int:
        """Deliver every whole message from `pos` on; returns where something else begins."""
        start = pos
        # A search for one byte is the fastest there is, and text does not hold this one.
        has_cookie = data.find(_COOKIE_START, pos) >= 0 and _COOKIE.search(data, pos) is not None
        by_sid: dict[bytes, _Columns] = {}
        if self._uniform is not None and not self._uniform_wait:
            pos = self._take_uniform(data, pos, by_sid)
        elif self._uniform_wait:
            self._uniform_wait -= 1
        pos = self._take_any(data, pos, by_sid)
        if pos == start:
            return pos
        for sid, columns in by_sid.items():
            run = MessageRun(
                columns.subjects,
                columns.replies,
                columns.payloads,
                columns.headers,
                has_cookie=has_cookie,
            )
            self._sink.deliver(int(sid), run)
        self._sink.chunk_end()
        return pos

    def _take_uniform(self, data: bytes, pos: int, by_sid: dict[bytes, _Columns]) -> int:
        """Messages of one subscription, one size, all with a reply or all without, no headers: one
        call of the regex engine splits the chunk into columns.

        The split is a search, so what it skipped shows as text between two matches: only the rows
        before the first such gap count.
        """
        shape = self._uniform
        assert shape is not None
        fields = shape.pattern.split(data[pos:] if pos else data)
        stride = shape.stride
        gaps = fields[0:-1:stride]
        count = len(gaps)
        if any(gaps):
            count = next(i for i, gap in enumerate(gaps) if gap)
            fields = fields[: count * stride]
        if count < _UNIFORM_MIN_ROWS:
            self._uniform = None
            self._uniform_wait = _UNIFORM_RETRY_CHUNKS
            return pos
        replies = fields[stride - 2 :: stride] if shape.has_reply else [b""] * count
        names = b"".join(replies)
        if shape.subject is None:
            subjects = fields[1::stride]
            names += b"".join(subjects)
        else:
            subjects = [shape.subject] * count
        if b"\n" in names:
            # A field swallowed a line end: a payload that looks like protocol. Go slowly.
            self._uniform = None
            self._uniform_wait = _UNIFORM_RETRY_CHUNKS
            return pos
        columns = by_sid[shape.sid] = _Columns()
        columns.subjects = subjects
        columns.replies = replies
        columns.payloads = fields[stride - 1 :: stride]
        return pos + count * shape.fixed_bytes + len(names)

    def _learn_uniform(self, sid: bytes, size: bytes, columns: _Columns, count: int) -> None:
        if count < _UNIFORM_MIN_ROWS or self._uniform_wait:
            return
        seen = columns.subjects[-count:]
        subject = seen[0] if seen.count(seen[0]) == len(seen) else None
        shape = _Shape(sid, size, subject, has_reply=bool(columns.replies[-1]))
        if shape != self._uniform:
            self._uniform = shape

    def _take_any(self, data: bytes, pos: int, by_sid: dict[bytes, _Columns]) -> int:
        """One message after the other, whatever its form."""
        find = data.find
        length = len(data)
        count = same = 0
        sid = size = last_sid = last_size = b""
        while pos < length:
            end = find(_CRLF, pos)
            if end < 0:
                break
            words = data[pos:end].split(b" ")
            op = words[0]
            if op == b"MSG":
                header_end = start = end + 2
                sid, size, subject, reply = _arguments(words, 4)
            elif op == b"HMSG":
                start = end + 2
                header_end = start + int(words[-2])
                sid, size, subject, reply = _arguments(words, 5)
            else:
                break
            stop = start + int(size)
            if stop + 2 > length:
                self._missing = stop + 2 - length
                break
            if header_end > stop:
                raise ProtocolError
            columns = by_sid.get(sid)
            if columns is None:
                columns = by_sid[sid] = _Columns()
            if header_end > start:
                _headers(columns).append(data[start:header_end])
            elif columns.headers is not None:
                columns.headers.append(b"")
            columns.subjects.append(subject)
            columns.replies.append(reply)
            columns.payloads.append(data[header_end:stop])
            pos = stop + 2
            count += 1
            if sid == last_sid and size == last_size and header_end == start:
                same += 1
            last_sid, last_size = sid, size
        if count and same >= count - 1:
            self._learn_uniform(last_sid, last_size, by_sid[last_sid], count)
        return pos


def _arguments(words: Sequence[bytes], least: int) -> tuple[bytes, bytes, bytes, bytes]:
    """(sid, total size, subject, reply or b"") of a control line with `least` words or one more."""
    if len(words) == least:
        return words[2], words[-1], words[1], b""
    if len(words) == least + 1:
        return words[2], words[-1], words[1], words[3]
    raise ProtocolError


def _headers(columns: _Columns) -> list[bytes]:
    """The header column, filled up with b"" for the messages before."""
    if columns.headers is None:
        columns.headers = [b""] * len(columns.payloads)
    return columns.headers
