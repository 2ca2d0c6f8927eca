"""The records that a consumer has delivered: their number, and the messages that carry them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from liftlog.sequencing.destinations import Destination
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.consumers.leaf_frames import common_parts, delivery_forms
from liftlog.server.jetstream_api.consumers.rows import Row, SharedRow

_SHARED = b"%b%b%d%b%d%b"

Message = tuple[bytes, bytes, bytes]
"""A tuple: the reply subject, which contains the subject of the record; headers; payload."""


class Delivered:
    """The number of delivered records, and the time `last_ns` of the last delivery (ns since 1970).
    `last_ns` is 0 if nothing was delivered."""

    def __init__(self, stream: str, consumer: str, next_offset: int, *, headers_only: bool) -> None:
        self._ack_head = f"$JS.ACK.{stream}.{consumer}.".encode()
        self._forms_of: tuple[bytes, bytes] | None = None  # the target and queues of `_forms`
        self._forms = self._starts = b"", b""
        self.count = 0
        self.last_offset = max(0, next_offset - 1)
        self.last_ns = 0
        self._headers_only = headers_only

    def messages(self, rows: Sequence[Row], left: int) -> list[Message]:
        """Return the messages with these rows, as if the rows were delivered next. `left` is the
        number of wanted records from the first row on."""
        head = self._ack_head + b"1."
        messages = []
        for number, row in enumerate(rows, self.count + 1):
            left = max(left - 1, 0)
            reply = b"%b%d.%d.%d.%d@%b" % (
                head,
                row.offset,
                number,
                row.timestamp_ns,
                left,
                row.subject,
            )
            if self._headers_only:
                messages.append((reply, headers_only(row), b""))
            else:
                messages.append((reply, row.headers, row.value))
        return messages

    def commands(
        self, target: Destination, rows: Sequence[Row], cursor: Cursor, queues: bytes
    ) -> list[bytes]:
        """Count these rows as delivered, and return the commands that send them. `queues` are the
        queue groups that subscribe to the target."""
        if not rows:
            return []
        if self._forms_of != (target, queues):
            self._forms_of = target, queues
            self._forms = delivery_forms(target, self._ack_head, queues)
            start = b"MSG %b %b1." % (target, self._ack_head)
            self._starts = b"L" + start, b"H" + start
        plain, with_headers = self._forms
        left, commands = cursor.left, []
        is_whole = not (self._headers_only or queues)
        for number, row in enumerate(rows, self.count + 1):
            left = left - 1 if left > 0 else 0
            if is_whole and type(row) is SharedRow:
                wire = row.wire
                if wire is None:
                    wire = row.wire = common_parts(*row)
                start = self._starts[row.headers != b""]
                commands.append(_SHARED % (start, wire[0], number, wire[1], left, wire[2]))
                continue
            offset, stamp, subject, headers, value = row
            if self._headers_only:
                headers, value = headers_only(row), b""
            if headers:
                size = len(headers)
                fields = (size, size + len(value), headers, value)
                commands.append(with_headers % (1, offset, number, stamp, left, subject, *fields))
            else:
                plainly = (1, offset, number, stamp, left, subject, len(value), value)
                commands.append(plain % plainly)
        cursor.left = left
        self.count += len(rows)
        self.last_offset = rows[-1].offset
        self.last_ns = time.time_ns()
        return commands

    def position(self, examined: int) -> bytes:
        """Return the header lines of a heartbeat that show the progress of the consumer. All
        records below `examined` were delivered or do not match."""
        return b"Nats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n" % (
            self.count,
            max(self.last_offset, examined - 1),
        )


def size_of(message: Message) -> int:
    """Return the size of a message for the `max_bytes` of a pull: subject, reply, headers and
    payload, as clients count them."""
    reply, headers, value = message
    return len(reply) - 1 + len(headers) + len(value)  # the reply holds the subject after an `@`


def headers_only(row: Row) -> bytes:
    head = row.headers[:-2] if row.headers else b"NATS/1.0\r\n"
    return b"%bNats-Msg-Size: %d\r\n\r\n" % (head, len(row.value))
