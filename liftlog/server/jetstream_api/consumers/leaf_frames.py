r"""The part of the protocol between leaf nodes of NATS that the daemon needs. No I/O.

    LS+ <subject> [<queue> <weight>]\r\n           the subject has subscribers
    LS- <subject> [<queue>]\r\n
    LMSG <subject> [<reply>] <size>\r\n<payload>\r\n
    LMSG <subject> + <reply> <queue>... <size>\r\n    for queue groups, and `|` without a reply

HMSG is like LMSG, with the size of the headers before the size of headers and payload together. A
message from a leaf node reaches members of a queue group only if the message names the group
(nats-server: leafnode.go, processLeafMsgArgs; client.go, processMsgResults).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

from liftlog.errors import NatsUnavailable
from liftlog.sequencing.destinations import Destination

_MAX_LINE_BYTES = 256 * 1024
_MAX_PAYLOAD_BYTES = 64 * 2**20
_CRLF = b"\r\n"


class LeafEvents(Protocol):
    """Receives the events that the server sends. No method may block."""

    def interest_added(self, subject: bytes, queue: bytes) -> None:
        """A subject has subscribers; `queue` is empty unless these subscribers are members of a
        queue group."""

    def interest_removed(self, subject: bytes, queue: bytes) -> None: ...

    def message(self, subject: bytes) -> None:
        """A message has arrived. The daemon does not use its payload."""

    def pinged(self) -> None: ...

    def ponged(self) -> None: ...


class LeafParser:
    """Parses the bytes of a connection as they arrive, many lines at a time."""

    def __init__(self, events: LeafEvents) -> None:
        self.events = events
        """The receiver of the events."""
        self._rest = b""
        self._skipped = 0
        """Number of bytes of a payload that have not arrived yet."""

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Raises ValueError for bytes that do not follow the protocol, and
        NatsUnavailable if the server ends the connection with a reason."""
        if self._skipped:
            dropped = min(self._skipped, len(data))
            self._skipped -= dropped
            data = data[dropped:]
        data, position = self._rest + data, 0
        while (end := data.find(_CRLF, position)) >= 0:
            position, after = end + 2, data[position:end]
            position += self._take(after)
        self._rest = data[position:]
        if position > len(data):
            self._skipped = position - len(data)
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ValueError("a line is too long")

    def _take(self, line: bytes) -> int:
        """Parse one line. Returns the number of bytes to skip after it."""
        words = line.split()
        match words:
            case [b"LS+", subject]:
                self.events.interest_added(subject, b"")
            case [b"LS+", subject, queue, *_]:
                self.events.interest_added(subject, queue)
            case [b"LS-", subject]:
                self.events.interest_removed(subject, b"")
            case [b"LS-", subject, queue, *_]:
                self.events.interest_removed(subject, queue)
            case [b"LMSG" | b"HMSG", subject, *_, size]:
                length = int(size)
                if not 0 <= length <= _MAX_PAYLOAD_BYTES:
                    raise ValueError("a message has an impossible length")
                self.events.message(subject)
                return length + 2
            case [b"PING"]:
                self.events.pinged()
            case [b"PONG"]:
                self.events.ponged()
            case [b"-ERR", *_]:
                raise NatsUnavailable(line[4:].decode("utf-8", "replace").strip().strip("'"))
        return 0


def leaf_message(
    target: Destination, reply: bytes, headers: bytes, body: bytes, queues: bytes = b""
) -> bytes:
    """Return the command that sends a message from a leaf node. `queues` are the groups, separated
    by blanks. One member of each group gets the message, and so do the subscribers without a
    group."""
    place: bytes = target
    if queues:
        place = b"%b + %b %b" % (target, reply, queues) if reply else b"%b | %b" % (target, queues)
    elif reply:
        place = b"%b %b" % (target, reply)
    if not headers:
        return b"LMSG %b %d\r\n%b\r\n" % (place, len(body), body)
    size = len(headers)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (place, size, size + len(body), headers, body)


def leaf_deliveries(
    target: Destination,
    ack_head: bytes,
    numbers: Sequence[Sequence[int]],
    subjects: Sequence[bytes],
    headers: Sequence[bytes],
    bodies: Sequence[bytes],
    queues: bytes = b"",
) -> bytes:
    """Return the commands that deliver records, each in the form of `leaf_message`. `numbers` are
    the columns of the five numbers that follow `ack_head` in the reply subject."""
    if any(headers):
        each = each_leaf_delivery(target, ack_head, numbers, subjects, headers, bodies, queues)
        return b"".join(each)
    columns = (*numbers, subjects, map(len, bodies), bodies)
    fields = tuple(chain.from_iterable(zip(*columns, strict=True)))
    plain = b"LMSG " + _place(target, ack_head, queues) + b" %d\r\n%b\r\n"
    return plain * len(bodies) % fields


def each_leaf_delivery(
    target: Destination,
    ack_head: bytes,
    numbers: Sequence[Sequence[int]],
    subjects: Sequence[bytes],
    headers: Sequence[bytes],
    bodies: Sequence[bytes],
    queues: bytes = b"",
) -> list[bytes]:
    """Return the commands of `leaf_deliveries` one by one."""
    plain, with_headers = delivery_forms(target, ack_head, queues)
    parts = []
    for *five, subject, block, body in zip(*numbers, subjects, headers, bodies, strict=True):
        if block:
            size = len(block)
            parts.append(with_headers % (*five, subject, size, size + len(body), block, body))
        else:
            parts.append(plain % (*five, subject, len(body), body))
    return parts


def delivery_forms(
    target: Destination, ack_head: bytes, queues: bytes = b""
) -> tuple[bytes, bytes]:
    """Return the formats of two commands that deliver a record: without headers and with headers.

    Both formats begin with the five numbers and the record's subject in the reply subject. Without
    headers, the size and the bytes of the body follow. With headers, the size of the headers, the
    size of headers and body together, the headers and the body follow.
    """
    place = _place(target, ack_head, queues)
    return b"LMSG " + place + b" %d\r\n%b\r\n", b"HMSG " + place + b" %d %d\r\n%b%b\r\n"


def common_parts(
    offset: int, timestamp_ns: int, subject: bytes, headers: bytes, body: bytes
) -> tuple[bytes, bytes, bytes]:
    """Return the parts of a first delivery that are equal for all consumers.

    There are two parts: the offset and the timestamp, with dots; and everything that follows the
    last number of the reply subject. The caller adds its own parts. Target, `ack_head` and the
    number of deliveries precede the first part. The number of the delivery precedes the second
    part, and the number of pending messages precedes the third.
    """
    if headers:
        sizes = b"%d %d" % (len(headers), len(headers) + len(body))
    else:
        sizes = b"%d" % len(body)
    rest = b"@%b %b\r\n%b%b\r\n" % (subject, sizes, headers, body)
    return b"%d." % offset, b".%d." % timestamp_ns, rest


def _place(target: Destination, ack_head: bytes, queues: bytes) -> bytes:
    """Return a format for the subjects of a command, with one placeholder for each field of the
    reply subject."""
    place = b"%b %b" % (target, b"+ " * bool(queues) + ack_head)
    place = place.replace(b"%", b"%%") + b"%d.%d.%d.%d.%d@%b"
    return place + b" " + queues.replace(b"%", b"%%") if queues else place
