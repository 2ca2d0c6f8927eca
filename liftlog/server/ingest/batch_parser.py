"""The NATS client protocol, parsed a chunk at a time.

Replaces nats-py's parser (nats.protocol.parser.Parser). Every MSG and HMSG becomes part of a run,
and each run is delivered as a whole. INFO, PING, PONG, +OK and -ERR go to the stock parser, one
line at a time. Protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol

    MSG <subject> <sid> [reply] <size>\r\n<payload>\r\n
    HMSG <subject> <sid> [reply] <header size> <total size>\r\n<headers><payload>\r\n
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

from nats.errors import ProtocolError

from envelope import COOKIES
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.shapes import Columns, Shape

MAX_CONTROL_LINE = 64 * 1024  # the default of nats-server is 4 KiB, and operators can raise it
_CRLF = b"\r\n"
_COOKIE_BYTE = COOKIES[0][:1]
_COOKIE_START = COOKIES[0][:2]
assert all(cookie.startswith(_COOKIE_START) for cookie in COOKIES)
_UNIFORM_MIN_ROWS = 8
_UNIFORM_MAX_SIZES = 32
_UNIFORM_RETRY_CHUNKS = 16
_UNIFORM_MISSES = 4
_MIXED_CHUNKS = 64
"""After this number of consecutive chunks with messages of only one subscription, the parser
expects the same for the next messages."""


class MessageSink(Protocol):
    """Receives the messages. Neither method may block, await or raise."""

    def deliver(self, sid: int, run: MessageRun) -> None:
        """Take a run of messages. `sid` is the number of their subscription. If several
        subscriptions share a run, it is the number of the run."""
        ...

    def chunk_end(self) -> None:
        """Called when all messages of one read have been delivered."""
        ...


class StockParser(Protocol):
    """The methods of nats-py's own parser that the batch parser calls."""

    buf: bytearray

    def reset(self) -> None: ...
    def parse(self, data: bytes) -> Coroutine[Any, Any, None]: ...


class BatchParser:
    """Parses one connection's input. Not thread-safe. The state is consistent at every await: if
    `parse` is cancelled, input that was not delivered is kept. A `reset` during an await ends the
    current parse."""

    def __init__(
        self,
        stock: StockParser,
        sink: MessageSink,
        *,
        before_pong: Callable[[], None],
        pressure: Callable[[], Coroutine[Any, Any, None]],
        on_error: Callable[[bytes], bool] = lambda line: False,
        joined_runs: Mapping[bytes, bytes] = {},
    ) -> None:
        """`on_error` gets each -ERR line and returns True if it has handled the line completely.

        Several subscriptions can share one run, so that their messages stay in the order of
        arrival. The run has the `sid` of one of these subscriptions. `joined_runs` maps the `sid`
        of each other subscription to the `sid` of the run.
        """
        self._joined = joined_runs
        self._stock = stock
        self._sink = sink
        self._before_pong = before_pong
        self._on_error = on_error
        self._pressure = pressure
        self._generation = 0
        self._rest = b""
        self._parts: list[bytes] = []
        self._missing = 0
        self._uniform: Shape | None = None
        self._uniform_wait = 0
        self._misses = 0
        self._mixed_chunks = 0

    def reset(self) -> None:
        """Discard unfinished input, because a new connection begins."""
        self._generation += 1
        self._rest = b""
        self._parts = []
        self._missing = 0
        self._stock.reset()

    async def parse(self, data: bytes = b"") -> None:
        """Parse the bytes of one read. Raises ProtocolError for every failure, so that the
        connection is replaced. After any other exception, nats-py would stop reading the connection
        without reporting an error."""
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
            self._rest = rest  # needed if the await below is cancelled
            if line.startswith(b"PONG"):
                self._before_pong()
            await self._stock.parse(line)
            if self._generation != generation:
                return
            if self._stock.buf:
                raise ProtocolError  # after a whole line, the stock parser still expects more input
            self._rest = b""
            rest = self.feed(rest) if rest else b""
        await self._pressure()

    def feed(self, data: bytes) -> bytes:
        """Deliver the messages at the beginning of a read, without an await.

        Returns the bytes after these messages if they begin with a whole line of another kind.
        Keeps an incomplete line or message for the next call. Raises ProtocolError.
        """
        if self._missing:
            # The bytes are in the middle of a large message. Collecting the pieces avoids a copy
            # for each piece.
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return b""
            data = b"".join(self._parts)
            self._parts, self._missing = [], 0
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        if self._take_lone(data):
            return b""
        pos = self._take_messages(data, 0)
        while data.startswith(b"-ERR", pos):
            # NATS sends one for each ack that it refuses, so there may be thousands in a chunk.
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

    def _take_lone(self, data: bytes) -> bool:
        """Deliver a chunk that is one whole message with a reply subject. Returns False, without a
        change, for any other chunk.

        `_take_messages` has the same result, but takes longer, and would delay a publisher that
        waits for each ack before it sends the next message.
        """
        line_end = data.find(_CRLF)
        words = data[: max(line_end, 0)].split(b" ")
        header_end = start = line_end + 2
        if len(words) == 6 and words[0] == b"HMSG":
            header_end += int(words[4])
        elif len(words) != 5 or words[0] != b"MSG":
            return False
        stop = start + int(words[-1])
        if stop + 2 != len(data) or header_end > stop:
            return False
        payload = data[header_end:stop]
        headers = (data[start:header_end],) if header_end > start else None
        has_cookie = payload.startswith(_COOKIE_START)
        run = MessageRun((words[1],), (words[3],), (payload,), headers, has_cookie=has_cookie)
        self._sink.deliver(int(self._joined.get(words[2], words[2])), run)
        self._sink.chunk_end()
        return True

    def _take_messages(self, data: bytes, pos: int) -> int:
        """Deliver every whole message from `pos` on. Return the position of the first byte after
        these messages."""
        start = pos
        # A search for one byte is the fastest check. Text does not contain this byte.
        may_have_cookie = data.find(_COOKIE_BYTE, pos) >= 0
        by_run: dict[bytes, Columns] = {}
        if self._uniform is not None and not self._uniform_wait:
            pos = self._take_uniform(data, pos, by_run)
        elif self._uniform_wait:
            self._uniform_wait -= 1
        known = {number: len(columns.payloads) for number, columns in by_run.items()}
        pos = self._take_any(data, pos, len(data), by_run)
        if pos == start:
            return pos
        self._learn_from(by_run, known)
        for number, columns in by_run.items():
            run = MessageRun(
                columns.subjects,
                columns.replies,
                columns.payloads,
                columns.headers,
                has_cookie=may_have_cookie and _any_cookie(columns.payloads),
            )
            self._sink.deliver(int(number), run)
        self._sink.chunk_end()
        return pos

    def _take_uniform(self, data: bytes, pos: int, by_run: dict[bytes, Columns]) -> int:
        """Take messages of the learned shape: one call of the regex engine splits the chunk into
        columns.

        The split is a search, and the search may skip text between two matches. Skipped text is
        parsed message by message. The next match counts only if it begins at the end of the last of
        these messages. Otherwise the match is inside a payload.
        """
        shape = self._uniform
        assert shape is not None
        fields = shape.pattern.split(data[pos:] if pos else data)
        stride = shape.stride
        gaps = fields[0:-1:stride]
        count = len(gaps)
        stops = [i for i, gap in enumerate(gaps) if gap] if any(gaps) else []
        if len(stops) * _UNIFORM_MIN_ROWS > max(count, _UNIFORM_MIN_ROWS):
            self._forget_shape()
        at = 0
        for stop in [*stops, count]:
            if at < stop:
                length = shape.take(by_run, self._joined, fields[at * stride : stop * stride])
                if not length:
                    self._forget_shape()
                    return pos
                pos += length
            if stop < count:
                end = pos + len(gaps[stop])
                pos = self._take_any(data, pos, end, by_run)
                if pos != end:
                    return pos
            at = stop
        return pos

    def _learn_from(self, by_run: Mapping[bytes, Columns], known: Mapping[bytes, int]) -> None:
        """Learn the shape of the messages of a chunk. `known` contains, for each run, the number of
        messages that already had the known shape."""
        if len(by_run) == 1:
            ((number, columns),) = by_run.items()
            most = count = len(columns.payloads)
        else:
            counts = {number: len(columns.payloads) for number, columns in by_run.items()}
            number = max(counts, key=counts.__getitem__)
            most, count = counts[number], sum(counts.values())
        new = count - sum(known.values())
        self._note_misses(count, new)
        if self._is_mixed(number, most, count):
            if not self._mixed_chunks:
                self._uniform_wait = 0  # the shape was forgotten because of the other runs
            self._mixed_chunks = _MIXED_CHUNKS
        elif self._mixed_chunks and count >= _UNIFORM_MIN_ROWS:
            self._mixed_chunks -= 1
            if not self._mixed_chunks:
                self._uniform = None
        if new < _UNIFORM_MIN_ROWS or self._uniform_wait:
            return
        if self._mixed_chunks:
            self._learn_uniform(None, by_run, known)
        else:
            self._learn_uniform(number, {number: by_run[number]}, known)

    def _is_mixed(self, number: bytes, most: int, count: int) -> bool:
        """Return True if messages of several runs share the shape of this chunk. `most` of its
        messages belong to the run `number`."""
        if self._uniform_wait == _UNIFORM_RETRY_CHUNKS:  # the shape has just been forgotten
            return count > most
        shape = self._uniform
        is_other = shape is not None and shape.run not in (None, number)
        return is_other or count > most + most // _UNIFORM_MIN_ROWS

    def _note_misses(self, count: int, new: int) -> None:
        """Forget a shape if most messages of several chunks do not have it."""
        if self._uniform is None or new * 2 <= count:
            self._misses = 0
            return
        self._misses += 1
        if self._misses >= _UNIFORM_MISSES:
            self._forget_shape()

    def _forget_shape(self) -> None:
        self._uniform = None
        self._uniform_wait = _UNIFORM_RETRY_CHUNKS
        self._misses = 0

    def _learn_uniform(
        self, run: bytes | None, by_run: Mapping[bytes, Columns], known: Mapping[bytes, int]
    ) -> None:
        """Learn a shape from the messages of the columns, except the first `known` messages of each
        run. `run` is None for a shape of any run."""
        latest = [
            (columns, rows)
            for number, columns in by_run.items()
            if (rows := len(columns.payloads) - known.get(number, 0))
        ]
        count = sum(rows for _, rows in latest)
        if count < _UNIFORM_MIN_ROWS:
            return
        without_reply = 0
        sizes: set[tuple[int, int]] = set()
        subjects: set[bytes] = set()
        for columns, rows in latest:
            without_reply += columns.replies[-rows:].count(b"")
            blocks = repeat(0) if columns.headers is None else map(len, columns.headers[-rows:])
            sizes.update(zip(blocks, map(len, columns.payloads[-rows:]), strict=False))
            subjects.update(columns.subjects[-rows:])
        if without_reply not in (0, count) or len(sizes) > _UNIFORM_MAX_SIZES:
            self._forget_shape()
            return
        sizes = {(header_size, header_size + size) for header_size, size in sizes}
        if run in self._joined.values():
            run = None  # its messages have the numbers of several subscriptions
        is_fixed = run is not None and len(subjects) == 1
        subject = subjects.pop() if is_fixed else None
        self._uniform = Shape(run, sizes, subject, has_reply=not without_reply)

    def _take_any(self, data: bytes, pos: int, until: int, by_run: dict[bytes, Columns]) -> int:
        """Parse one message after the other, of any form, as long as each begins before `until`.
        Returns the position after the last message."""
        find = data.find
        length = len(data)
        columns = Columns()
        last_sid = b""
        while pos < until:
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
            if sid != last_sid:
                run = self._joined.get(sid, sid)
                columns = by_run.get(run) or by_run.setdefault(run, Columns())
                last_sid = sid
            columns.append(subject, reply, data[start:header_end], data[header_end:stop])
            pos = stop + 2
        return pos


def _arguments(words: Sequence[bytes], least: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Return (sid, total size, subject, reply or b"") of a control line. The line has `least`
    words, or one more word if it contains a reply subject."""
    if len(words) == least:
        return words[2], words[-1], words[1], b""
    if len(words) == least + 1:
        return words[2], words[-1], words[1], words[3]
    raise ProtocolError


def _any_cookie(payloads: Sequence[bytes]) -> bool:
    """Return True if a payload begins like an envelope."""
    return any(map(bytes.startswith, payloads, repeat(_COOKIE_START)))
