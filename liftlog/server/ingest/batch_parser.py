"""The NATS client protocol, parsed a chunk at a time.

Takes the place of nats-py's parser (nats.protocol.parser.Parser): every MSG and HMSG becomes part
of a run that is handed over as a whole; INFO, PING, PONG, +OK and -ERR go to the stock parser, one
line at a time. Protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol

    MSG <subject> <sid> [reply] <size>\r\n<payload>\r\n
    HMSG <subject> <sid> [reply] <header size> <total size>\r\n<headers><payload>\r\n
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

from nats.errors import ProtocolError

from envelope import COOKIES
from liftlog.sequencing.run import MessageRun

MAX_CONTROL_LINE = 64 * 1024  # the default of nats-server is 4 KiB, and operators can raise it
_CRLF = b"\r\n"
_COOKIE_BYTE = COOKIES[0][:1]
_COOKIE_START = COOKIES[0][:2]
assert all(cookie.startswith(_COOKIE_START) for cookie in COOKIES)
_UNIFORM_MIN_ROWS = 8
_UNIFORM_MAX_SIZES = 32
_UNIFORM_MAX_SIDS = 16
_UNIFORM_RETRY_CHUNKS = 16


class MessageSink(Protocol):
    """Receives the messages. Neither method may block, await or raise."""

    def deliver(self, sid: int, run: MessageRun) -> None:
        """Take a run of messages. `sid` is the number of their subscription, or the number of the
        run if several subscriptions share a run."""
        ...

    def chunk_end(self) -> None:
        """Called when all messages of one read have been delivered."""
        ...


class StockParser(Protocol):
    """The methods of nats-py's own parser that the batch parser calls."""

    buf: bytearray

    def reset(self) -> None: ...
    def parse(self, data: bytes) -> Coroutine[Any, Any, None]: ...


class _Columns:
    """Messages of one run while a chunk is parsed."""

    __slots__ = ("headers", "payloads", "replies", "subjects")

    def __init__(self) -> None:
        self.subjects: list[bytes] = []
        self.replies: list[bytes] = []
        self.payloads: list[bytes] = []
        self.headers: list[bytes] | None = None

    def header_column(self) -> list[bytes]:
        """Return the header column. The first call fills it with b"" for the messages so far."""
        if self.headers is None:
            self.headers = [b""] * len(self.payloads)
        return self.headers

    def extend(
        self,
        subjects: Sequence[bytes],
        replies: Sequence[bytes],
        headers: Sequence[bytes] | None,
        payloads: Sequence[bytes],
    ) -> None:
        if headers is not None:
            self.header_column().extend(headers)
        elif self.headers is not None:
            self.headers += [b""] * len(payloads)
        self.subjects += subjects
        self.replies += replies
        self.payloads += payloads


class _Shape:
    """The form of messages that one regular expression can split into columns.

    The messages belong to one run, and their `sids` have the same length. They can differ in reply
    subject, headers and payload, and also in subject if `subject` is None. Each message has one of
    the few `sizes`. A size is a pair: the bytes of the headers (0 for a message without headers),
    and the bytes of headers and payload.

    If there is only one size, headers and payload are separate groups of the expression. With
    several sizes, all bytes after the reply subject are one group, which is divided afterwards.
    """

    __slots__ = ("_fixed_bytes", "_header_sizes", "has_headers", "has_reply", "pattern", "run",
                 "stride", "subject")  # fmt: skip

    def __init__(
        self, run: bytes, sids: Sequence[bytes], sizes: Collection[tuple[int, int]],
        subject: bytes | None, *, has_reply: bool,
    ) -> None:  # fmt: skip
        self.run = run
        self.subject = subject
        self.has_reply = has_reply
        # `[^ ]` is three times as fast as a list of all forbidden characters; the fields are
        # checked afterwards.
        reply = rb"([^ ]+) " if has_reply else b""
        name = rb"([^ ]+)" if subject is None else re.escape(subject)
        self._header_sizes: dict[bytes, int] | None = None
        if len(sizes) == 1:
            ((header_size, size),) = sizes
            self.has_headers = header_size > 0
            op = b"HMSG" if header_size else b"MSG"
            line = _size_line(header_size, size)
            body = b"(.{%d})" % (size - header_size)
            if header_size:
                body = b"(.{%d})%b" % (header_size, body)
            body = line + body
            fixed = len(op) + len(line) + size
            groups = 1 + self.has_headers
        else:
            self.has_headers = any(header_size for header_size, _ in sizes)
            op = b"(H?)MSG"
            body = b"(%b)" % b"|".join(
                [b"%b.{%d}" % (_size_line(*pair), pair[1]) for pair in sorted(sizes)]
            )
            self._header_sizes = {
                (b"H" if header_size else b"") + _size_line(header_size, size): header_size
                for header_size, size in sizes
            }
            fixed = len(b"MSG")
            groups = 2
        sid = sids[0] if len(sids) == 1 else b"(?:%b)" % b"|".join(sids)
        self.pattern = re.compile(rb"%b %b %b %b%b\r\n" % (op, name, sid, reply, body), re.DOTALL)
        self.stride = 1 + groups + has_reply + (subject is None)
        blanks = 4 if has_reply else 3
        self._fixed_bytes = fixed + len(subject or b"") + blanks + len(sids[0]) + len(_CRLF)

    def take(self, columns: _Columns, fields: Sequence[bytes]) -> int:
        """Append the messages that were split into `fields`; returns their length in bytes.

        Returns 0 and changes nothing if the fields are not messages of this shape.
        """
        stride = self.stride
        count = len(fields) // stride
        payloads = fields[stride - 1 :: stride]
        at = 1 if self._header_sizes is None else 2
        subjects: Sequence[bytes] = [self.subject or b""] * count
        replies: Sequence[bytes] = [b""] * count
        names = b""
        if self.subject is None:
            subjects = fields[at::stride]
            names = b"".join(subjects)
            at += 1
        if self.has_reply:
            replies = fields[at::stride]
            names += b"".join(replies)
        if b"\n" in names:
            return 0  # a field swallowed a line end: a payload that looks like protocol
        headers: Sequence[bytes] | None = None
        length = count * self._fixed_bytes + len(names)
        if self._header_sizes is None:
            if self.has_headers:
                headers = fields[stride - 2 :: stride]
        else:
            ops = fields[1::stride]
            length += sum(map(len, payloads)) + sum(map(len, ops))
            try:
                headers, payloads = _cut(ops, payloads, self._header_sizes)
            except KeyError:
                return 0  # HMSG with one size or MSG with two: not what the fields say
            if not (self.has_headers and any(headers)):
                headers = None
        columns.extend(subjects, replies, headers, payloads)
        return length


def _size_line(header_size: int, size: int) -> bytes:
    """Return the bytes that end a control line: the sizes of the message, and CR LF."""
    return b"%d %d\r\n" % (header_size, size) if header_size else b"%d\r\n" % size


def _cut(
    ops: Sequence[bytes], bodies: Sequence[bytes], header_sizes: Mapping[bytes, int]
) -> tuple[list[bytes], list[bytes]]:
    """Split bodies that begin with their sizes; returns the headers and the payloads."""
    headers, payloads = [], []
    for op, body in zip(ops, bodies, strict=True):
        start = body.index(b"\n") + 1
        end = start + header_sizes[op + body[:start]]
        headers.append(body[start:end])
        payloads.append(body[end:])
    return headers, payloads


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
        arrival. The run has the `sid` of one of these subscriptions, and `joined_runs` maps the
        `sid` of each other one to this `sid`.
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
        self._uniform: _Shape | None = None
        self._uniform_wait = 0

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
            self._rest = rest  # in case the await below is cancelled
            if line.startswith(b"PONG"):
                self._before_pong()
            await self._stock.parse(line)
            if self._generation != generation:
                return
            if self._stock.buf:
                raise ProtocolError  # the stock parser expects more after a whole line
            self._rest = b""
            rest = self.feed(rest) if rest else b""
        await self._pressure()

    def feed(self, data: bytes) -> bytes:
        """Deliver the messages at the beginning of a read, without an await.

        Returns the bytes after these messages if they begin with a whole line of another kind.
        Keeps an incomplete line or message for the next call. Raises ProtocolError.
        """
        if self._missing:
            # In the middle of a large message: collect the pieces instead of copying them each
            # time.
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
        # Nothing is faster than a search for one byte, and text does not contain this byte.
        may_have_cookie = data.find(_COOKIE_BYTE, pos) >= 0
        by_run: dict[bytes, _Columns] = {}
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

    def _take_uniform(self, data: bytes, pos: int, by_run: dict[bytes, _Columns]) -> int:
        """Take messages of the learned shape: one call of the regex engine splits the chunk into
        columns.

        The split is a search, and the search may skip text between two matches. Skipped text is
        parsed message by message. The next match counts only if it begins where the last of these
        messages ends; otherwise the match is inside a payload.
        """
        shape = self._uniform
        assert shape is not None
        fields = shape.pattern.split(data[pos:] if pos else data)
        stride = shape.stride
        gaps = fields[0:-1:stride]
        count = len(gaps)
        stops = [i for i, gap in enumerate(gaps) if gap] if any(gaps) else []
        if count < _UNIFORM_MIN_ROWS or len(stops) * _UNIFORM_MIN_ROWS > count:
            self._forget_shape()
        at = 0
        for stop in [*stops, count]:
            if at < stop:
                columns = by_run.get(shape.run) or by_run.setdefault(shape.run, _Columns())
                length = shape.take(columns, fields[at * stride : stop * stride])
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

    def _learn_from(self, by_run: Mapping[bytes, _Columns], known: Mapping[bytes, int]) -> None:
        """If nearly all messages of a chunk belong to one run, learn their shape. `known` has, for
        each run, the number of messages that already had the known shape."""
        number, columns = max(by_run.items(), key=lambda one: len(one[1].payloads))
        count = len(columns.payloads)
        if sum(len(one.payloads) for one in by_run.values()) <= count + count // _UNIFORM_MIN_ROWS:
            self._learn_uniform(number, columns, count - known.get(number, 0))

    def _forget_shape(self) -> None:
        self._uniform = None
        self._uniform_wait = _UNIFORM_RETRY_CHUNKS

    def _learn_uniform(self, run: bytes, columns: _Columns, count: int) -> None:
        """Learn a shape from the last `count` messages of `columns`, which arrived in a row."""
        if count < _UNIFORM_MIN_ROWS or self._uniform_wait:
            return
        replies = columns.replies[-count:]
        without_reply = replies.count(b"")
        header_sizes = [0] * count
        if columns.headers is not None:
            header_sizes = list(map(len, columns.headers[-count:]))
        sizes = {*zip(header_sizes, map(len, columns.payloads[-count:]), strict=True)}
        if without_reply not in (0, count) or len(sizes) > _UNIFORM_MAX_SIZES:
            self._forget_shape()
            return
        sizes = {(header_size, header_size + size) for header_size, size in sizes}
        seen = columns.subjects[-count:]
        subject = seen[0] if seen.count(seen[0]) == len(seen) else None
        sids = self._sids_of(run)
        if len(sids) > _UNIFORM_MAX_SIDS:
            self._forget_shape()
            return
        self._uniform = _Shape(run, sids, sizes, subject, has_reply=not without_reply)

    def _sids_of(self, run: bytes) -> list[bytes]:
        """Return the numbers of the subscriptions that share this run, but only numbers of the most
        frequent length, because one expression can find only numbers of one length."""
        sids = [run, *(sid for sid, joined in self._joined.items() if joined == run)]
        lengths = [len(sid) for sid in sids]
        usual = max(lengths, key=lengths.count)
        return [sid for sid in sids if len(sid) == usual]

    def _take_any(self, data: bytes, pos: int, until: int, by_run: dict[bytes, _Columns]) -> int:
        """Parse one message after the other, of any form, as long as the messages begin before
        `until`. Returns the position after the last message."""
        find = data.find
        length = len(data)
        columns = _Columns()
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
                columns = by_run.get(run) or by_run.setdefault(run, _Columns())
                last_sid = sid
            if header_end > start:
                columns.header_column().append(data[start:header_end])
            elif columns.headers is not None:
                columns.headers.append(b"")
            columns.subjects.append(subject)
            columns.replies.append(reply)
            columns.payloads.append(data[header_end:stop])
            pos = stop + 2
        return pos


def _arguments(words: Sequence[bytes], least: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Return (sid, total size, subject, reply or b"") of a control line, which has `least` words,
    or one more word if it has a reply subject."""
    if len(words) == least:
        return words[2], words[-1], words[1], b""
    if len(words) == least + 1:
        return words[2], words[-1], words[1], words[3]
    raise ProtocolError


def _any_cookie(payloads: Sequence[bytes]) -> bool:
    """Return True if a payload begins like an envelope."""
    return any(map(bytes.startswith, payloads, repeat(_COOKIE_START)))
