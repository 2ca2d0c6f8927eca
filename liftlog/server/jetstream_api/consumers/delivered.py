"""The records that a consumer has delivered: their number, and the messages that carry them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from liftlog.sequencing.destinations import Destination
from liftlog.server.jetstream_api.consumers.cursor import Cursor, Row
from liftlog.server.jetstream_api.consumers.leaf import leaf_message


class Delivered:
    """`count` records were delivered, the last one at `last_ns`; 0: none yet."""

    def __init__(self, stream: str, consumer: str, next_offset: int, *, headers_only: bool) -> None:
        self.ack_head = f"$JS.ACK.{stream}.{consumer}.1.".encode()
        self.count = 0
        self.last_offset = max(0, next_offset - 1)
        self.last_ns = 0
        self._headers_only = headers_only

    def commands(self, target: Destination, rows: Sequence[Row], cursor: Cursor) -> list[bytes]:
        """Count these rows as delivered, and return the messages that carry them."""
        head, left, number = self.ack_head, cursor.left, self.count
        commands = []
        for row in rows:
            number += 1
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
                commands.append(leaf_message(target, reply, _headers_only(row), b""))
            else:
                commands.append(leaf_message(target, reply, row.headers, row.value))
        cursor.left = left
        self.count = number
        if rows:
            self.last_offset = rows[-1].offset
            self.last_ns = time.time_ns()
        return commands


def _headers_only(row: Row) -> bytes:
    head = row.headers[:-2] if row.headers else b"NATS/1.0\r\n"
    return b"%bNats-Msg-Size: %d\r\n\r\n" % (head, len(row.value))
