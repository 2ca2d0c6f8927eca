"""Records that were read for a consumer and not delivered yet."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from liftlog.deliveries.records import Records
from liftlog.server.jetstream_api.consumers.cursor import Row

logger = logging.getLogger("liftlog.server.jetstream_api")


class Buffer:
    """Holds two kinds of records. `rows` are for first deliveries: all wanted records from `start`
    up to the position of the cursor. `again` are for redeliveries, by offset, together with the
    offsets that were read."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.rows: list[Row] = []
        self.is_at_end = False
        self.waits = False
        self.again: tuple[list[int], dict[int, Row]] = ([], {})

    def take_again(self) -> tuple[list[int], dict[int, Row]]:
        taken, self.again = self.again, ([], {})
        return taken

    def clear(self, start: int) -> None:
        self.start, self.rows, self.is_at_end = start, [], False

    def add(self, rows: list[Row], is_at_end: bool) -> None:
        self.rows += rows
        self.is_at_end = is_at_end

    def drop_before(self, offset: int) -> dict[int, Row]:
        """Remove the records below `offset`, and return them."""
        if offset <= self.start:
            return {}
        self.start = offset
        place = 0
        while place < len(self.rows) and self.rows[place].offset < offset:
            place += 1
        taken, self.rows = self.rows[:place], self.rows[place:]
        return {row.offset: row for row in taken}


def records_of(rows: Sequence[Row]) -> Records:
    count = len(rows)
    return Records(
        np.fromiter([row.offset for row in rows], np.int64, count),
        np.fromiter(
            [len(row.subject) + len(row.headers) + len(row.value) for row in rows], np.int64, count
        ),
        np.fromiter([row.timestamp_ns for row in rows], np.int64, count),
    )


def within_payload(rows: list[Row], limit: int, consumer: str) -> list[Row]:
    """Leave out rows that are larger than `limit` bytes, the `max_payload` of NATS; 0: no limit.
    It can be lowered, and NATS ends the connection after a larger message. Such records count as
    not matching."""
    if not limit:
        return rows
    fitting = [row for row in rows if len(row.value) + len(row.headers) <= limit]
    if len(fitting) < len(rows):
        logger.warning(
            "jetstream-consumer-skipped name=%s first=%d last=%d max_payload=%d reason=%s",
            consumer,
            rows[0].offset,
            rows[-1].offset,
            limit,
            "records that are larger than NATS takes",
        )
    return fitting
