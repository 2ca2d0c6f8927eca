"""The fast path of the batch parser: one regular expression splits a chunk of similar messages into
columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import compress, repeat
from operator import ne

_CRLF = b"\r\n"
_SHORT_RUN = 4
"""If fewer messages of a subscription than this arrive in a row, they are copied one by one."""


class Columns:
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

    def append(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        if headers:
            self.header_column().append(headers)
        elif self.headers is not None:
            self.headers.append(b"")
        self.subjects.append(subject)
        self.replies.append(reply)
        self.payloads.append(payload)

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


class Shape:
    """The form of messages that one regular expression can split into columns.

    The messages belong to the subscription `run`, or to any subscriptions if `run` is None. They
    can differ in reply subject, headers and payload, and also in subject if `subject` is None. Each
    message has one of the few `sizes`. A size is a pair: the bytes of the headers (0 for a message
    without headers), and the bytes of headers and payload.

    If there is only one size, headers and payload are separate groups of the expression. With
    several sizes, all bytes after the reply subject are one group, which is divided afterwards.
    """

    __slots__ = ("_fixed_bytes", "_header_sizes", "has_headers", "has_reply", "pattern", "run",
                 "stride", "subject")  # fmt: skip

    def __init__(
        self, run: bytes | None, sizes: Collection[tuple[int, int]], subject: bytes | None, *,
        has_reply: bool,
    ) -> None:  # fmt: skip
        self.run = run
        self.subject = subject
        self.has_reply = has_reply
        # `[^ ]` is three times as fast as a list of all forbidden characters. The fields are
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
        sid = rb"(\d+)" if run is None else run
        self.pattern = re.compile(rb"%b %b %b %b%b\r\n" % (op, name, sid, reply, body), re.DOTALL)
        self.stride = 1 + groups + has_reply + (subject is None) + (run is None)
        blanks = 4 if has_reply else 3
        self._fixed_bytes = fixed + len(subject or b"") + blanks + len(run or b"") + len(_CRLF)

    def take(
        self, by_run: dict[bytes, Columns], joined: Mapping[bytes, bytes], fields: Sequence[bytes]
    ) -> int:
        """Append the messages that were split into `fields`; returns their length in bytes.

        Returns 0 and changes nothing if the fields are not messages of this shape.
        """
        stride = self.stride
        count = len(fields) // stride
        payloads = fields[stride - 1 :: stride]
        at = 1 if self._header_sizes is None else 2
        subjects: Sequence[bytes] = [self.subject or b""] * count
        replies: Sequence[bytes] = [b""] * count
        sids: Sequence[bytes] = ()
        names = b""
        if self.subject is None:
            subjects = fields[at::stride]
            names = b"".join(subjects)
            at += 1
        if self.run is None:
            sids = fields[at::stride]
            names += b"".join(sids)
            at += 1
        if self.has_reply:
            replies = fields[at::stride]
            names += b"".join(replies)
        if b"\n" in names:
            return 0  # a field contains a line end: a payload that looks like protocol
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
                return 0  # HMSG with one size, or MSG with two sizes: the fields do not match
            if not (self.has_headers and any(headers)):
                headers = None
        runs = [self.run] if self.run is not None else sids
        if joined:
            runs = [joined.get(sid, sid) for sid in runs]
        _share_out(by_run, runs, subjects, replies, headers, payloads)
        return length


def _share_out(
    by_run: dict[bytes, Columns],
    runs: Sequence[bytes],
    subjects: Sequence[bytes],
    replies: Sequence[bytes],
    headers: Sequence[bytes] | None,
    payloads: Sequence[bytes],
) -> None:
    """Append messages to the columns of their runs, in their order. `runs` has one item for each
    message, or a single item for all messages."""
    if runs.count(runs[0]) == len(runs):
        columns = by_run.get(runs[0]) or by_run.setdefault(runs[0], Columns())
        columns.extend(subjects, replies, headers, payloads)
        return
    bounds = [*compress(range(1, len(runs)), map(ne, runs, runs[1:])), len(runs)]
    if len(bounds) * _SHORT_RUN > len(runs):
        blocks = repeat(b"") if headers is None else headers
        rows = zip(runs, subjects, replies, blocks, payloads, strict=False)
        for run, subject, reply, block, payload in rows:
            columns = by_run.get(run) or by_run.setdefault(run, Columns())
            columns.append(subject, reply, block, payload)
        return
    start = 0
    for end in bounds:
        columns = by_run.get(runs[start]) or by_run.setdefault(runs[start], Columns())
        part = headers and headers[start:end]
        if part is not None and not any(part):
            part = None
        columns.extend(subjects[start:end], replies[start:end], part, payloads[start:end])
        start = end


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
