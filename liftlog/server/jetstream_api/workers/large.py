"""Records that are larger than the `max_payload` of NATS.

Only workers on the pull socket can get them. If such workers use a consumer, a large record waits
for one of them, and pulls over NATS wait behind the record. If no worker on the pull socket asks
for messages within the ack wait, the record counts as delivered. The workers over NATS then get the
next records. The record then falls due repeatedly, like a message that no worker acks. A worker on
the pull socket can still get it, and after `max_deliver` deliveries it is exhausted. If only
clients of NATS use the consumer, large records are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from liftlog.deliveries.consumer import Consumer
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.rows import Row
from liftlog.server.jetstream_api.workers.buffer import Buffer, size_over_nats, within_payload
from liftlog.server.jetstream_api.workers.local_work import LocalWork, is_local


class Waiting(NamedTuple):
    """The clients of a consumer that wait for messages."""

    limit: int
    """See `limit_of`."""
    local: LocalWork
    machine: Consumer
    name: str
    buffer: Buffer
    now_ns: int

    def takes_large(self) -> bool:
        """Let a worker on the pull socket get the next message. If no such worker waits, return
        False, and end the pulls with `no_wait`."""
        is_taken = self.local.takes_next(self.machine)
        if not is_taken:
            self.machine.nothing_to_deliver()
        return is_taken

    def is_late(self) -> bool:
        """Return True if no worker on the pull socket has asked for messages for at least one ack
        wait. The consumer then continues with its next record. Otherwise schedule a turn of the
        consumer for the end of this time."""
        waits_ns = self.machine.state.settings.waits_ns
        due_ns = self.local.seen_ns + waits_ns[0]
        if self.local.is_waiting:  # the worker takes more when its last answer has been sent
            return False
        if due_ns > self.now_ns:
            self.buffer.due_ns = due_ns
            return False
        self.local.wake()  # for the next record
        return True


def limit_of(spec: ConsumerSpec, machine: Consumer, max_payload_bytes: int) -> int:
    """Return the maximum size, in bytes, of a record that every waiting client can receive; 0 if
    there is no limit. Workers on the pull socket receive records of all sizes."""
    is_over_nats = spec.deliver_subject or not all(map(is_local, machine.waiting))
    return max_payload_bytes if is_over_nats and not spec.headers_only else 0


def most_of(buffer: Buffer, waiting: Waiting) -> int:
    """Return the maximum number of the next rows that the waiting clients can take. If the first
    row is too large for NATS, return 1 if a worker on the pull socket waits for messages. Otherwise
    return 0: the row waits for such a worker, or counts as delivered."""
    if not waiting.local.is_used:
        buffer.leave_out_large(waiting.limit, waiting.name)
        return sys.maxsize
    count = buffer.fitting(waiting.limit)
    if count == len(buffer.rows):
        return sys.maxsize
    if count or waiting.takes_large():
        return count or 1
    if waiting.is_late():
        row, cursor = buffer.rows[0], waiting.local.cursor
        waiting.machine.deliver_to_nobody(row.offset, row.timestamp_ns, waiting.now_ns)
        buffer.drop_before(row.offset + 1)
        cursor.left = max(cursor.left - 1, 0)
    return 0


def again_of(
    order: Sequence[int], rows: dict[int, Row], waiting: Waiting
) -> tuple[list[int], dict[int, Row]]:
    """Return the redeliveries that the waiting clients can take, and their records. If the first
    redelivery is too large for NATS, return it only if a worker on the pull socket waits for
    messages. Otherwise return nothing: the redelivery waits for such a worker, or counts as made.
    An offset without a record means that the record no longer exists."""
    limit = waiting.limit
    if not waiting.local.is_used:
        fitting = within_payload([*rows.values()], limit, waiting.name)
        return list(order), {row.offset: row for row in fitting}
    large = {at for at, row in rows.items() if limit and size_over_nats(row) > limit}
    count = next((place for place, at in enumerate(order) if at in large), len(order))
    if order and not count:
        count = int(waiting.takes_large())
        if not count and waiting.is_late():
            waiting.machine.redeliver_to_nobody(order[0], waiting.now_ns)
    taken = list(order[:count])
    return taken, {at: rows[at] for at in taken if at in rows}
