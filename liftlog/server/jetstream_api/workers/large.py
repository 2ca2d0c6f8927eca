"""Records that are larger than the `max_payload` of NATS.

Only workers on the pull socket can get them. If such workers use a consumer, these records wait for
them, and pulls over NATS wait behind. Otherwise the records are left out.
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

    def takes_large(self) -> bool:
        """Let a worker on the pull socket get the next message. If no such worker waits, return
        False, and end the pulls that do not wait."""
        is_taken = self.local.takes_next(self.machine)
        if not is_taken:
            self.machine.nothing_to_deliver()
        return is_taken


def limit_of(spec: ConsumerSpec, machine: Consumer, max_payload_bytes: int) -> int:
    """Return the size in bytes that a record may have to be delivered to each waiting client; 0
    without a limit. Workers on the pull socket take all sizes."""
    is_over_nats = spec.deliver_subject or not all(map(is_local, machine.waiting))
    return max_payload_bytes if is_over_nats and not spec.headers_only else 0


def most_of(buffer: Buffer, waiting: Waiting) -> int:
    """Return the maximum number of the next rows that the waiting clients can take. 0 means that
    the first row waits for a worker on the pull socket. If such a worker waits, it gets this
    row."""
    if not waiting.local.is_used:
        buffer.leave_out_large(waiting.limit, waiting.name)
        return sys.maxsize
    count = buffer.fitting(waiting.limit)
    if count == len(buffer.rows):
        return sys.maxsize
    return count or int(waiting.takes_large())


def again_of(
    order: Sequence[int], rows: dict[int, Row], waiting: Waiting
) -> tuple[list[int], dict[int, Row]]:
    """Return the redeliveries that the waiting clients can take, and their records. Return nothing
    if the first redelivery must wait for a worker on the pull socket. If such a worker waits
    already, it gets this redelivery. An offset without a record means that the record no longer
    exists."""
    limit = waiting.limit
    if not waiting.local.is_used:
        fitting = within_payload([*rows.values()], limit, waiting.name)
        return list(order), {row.offset: row for row in fitting}
    large = {at for at, row in rows.items() if limit and size_over_nats(row) > limit}
    count = next((place for place, at in enumerate(order) if at in large), len(order))
    if order and not count:
        count = int(waiting.takes_large())
    taken = list(order[:count])
    return taken, {at: rows[at] for at in taken if at in rows}
