"""Holds records that were read for a consumer and are not delivered yet."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import itemgetter

import numpy as np

from liftlog.deliveries.columns import NO_INTS
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.records import Records, Scan
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.consumers.removals import News
from liftlog.server.jetstream_api.consumers.rows import Row, without_erased
from liftlog.server.jetstream_api.workers.pacing import Replay
from liftlog.server.pull.services import PullServices

logger = logging.getLogger("liftlog.server.jetstream_api")

_OFFSET = itemgetter(0)
_AGAIN_BYTES = 1024 * 1024
"""Maximum size, in bytes, of the redeliveries that one read returns."""
_MOST_LOOKED_UP = 10_000
"""Maximum number of pending messages that are read after a purge."""


class Buffer:
    """Holds two kinds of records. `rows` are for first deliveries: all wanted records from `start`
    up to the position of the cursor. `again` are for redeliveries: records by offset, together with
    the offsets that were read."""

    def __init__(self, start: int, *, replay: Replay | None = None) -> None:
        """`replay` delays `rows`."""
        self.start = start
        self.replay = replay
        self.due_ns: int | None = None
        """Time at which the next row that a pause delays may be delivered; None if no row is
        delayed."""
        self.rows: list[Row] = []
        self.is_at_end = False
        self.examined = 0
        """The offset below which the present wait for records has found no wanted record. The value
        stays until the next `skip`. Without a wait it is 0."""
        self._waits_from = -1
        self._needs_thread = False
        """True if a thread has read the newest rows."""
        self._clears = 0
        self._largest_bytes = 0
        """Upper bound of the sizes of `rows`."""
        self.again: tuple[list[int], dict[int, Row]] = ([], {})
        self._must_look = False
        """True if pending messages may have been purged."""

    def waits(self, position: int, offset: int) -> None:
        """Note that the consumer waits for records from `offset` on. `position` is the position of
        the cursor. The cursor may still be below `offset`."""
        self._waits_from = position if position >= offset else -1

    def skip(self, position: int, examined: int) -> int:
        """Return the position to which the cursor may skip. All records below `examined` were
        examined during the present wait. If the consumer does not wait, `examined` is 0."""
        end, self.examined = examined or self.examined, 0
        return end if position == self._waits_from and not self.rows else position

    async def count(self, cursor: Cursor, machine: Consumer) -> None:
        """Let the cursor count the records that the consumer has not delivered yet."""
        state = machine.state
        await cursor.read_purges(min(state.floor_offset, cursor.next_offset))
        self.leave_out_purged(cursor)
        if self.must_look(machine):
            await self.drop_purged(cursor, machine)
        if cursor.is_stale:
            if not self.start <= state.next_offset <= cursor.next_offset:
                cursor.move(state.next_offset)
                self.clear(state.next_offset)
            place = bisect_left(self.rows, state.next_offset, key=_OFFSET)
            cursor.count_anew(len(self.rows) - place)
        await cursor.count()

    def drop_removed(self, cursor: Cursor, machine: Consumer) -> None:
        """Drop the messages that retention or a purge has removed from the stream."""
        start = cursor.log_start
        if start > machine.state.next_offset:
            cursor.is_stale = True
        machine.log_started(start)

    def must_look(self, machine: Consumer) -> bool:
        """Return True if `drop_purged` may find messages. If a consumer has very many pending
        messages, purged messages stay pending until they fall due."""
        return self._must_look and 0 < machine.state.pending.total <= _MOST_LOOKED_UP

    async def drop_purged(self, cursor: Cursor, machine: Consumer) -> None:
        """Drop the pending messages that were purged."""
        self._must_look = False
        offsets = machine.state.pending.offsets().tolist()
        while offsets:
            rows, end = await cursor.rows_at(offsets, _AGAIN_BYTES)
            found, count = {row.offset for row in rows}, bisect_left(offsets, end)
            gone = [offset for offset in offsets[:count] if offset not in found]
            machine.records_gone(np.array(gone, np.int64))
            offsets = offsets[count:] if count else []

    def read_now(self, cursor: Cursor, services: PullServices, host: StreamHost) -> bool:
        """Read records that were just written, in the event loop. Returns False if the read needs a
        thread."""
        with services.read_share:
            found = cursor.read_now(services.live_group(host))
        if found is None:
            return False
        self.add(*found, cursor.read_bytes)
        return True

    def leave_out_purged(self, cursor: Cursor) -> None:
        """Leave out the records that were erased or purged after they had been read."""
        news, has_purges = cursor.sees_erased(), cursor.sees_new_purges()
        if news is News.NONE and not has_purges:
            return
        self._must_look = True
        if news is News.UNKNOWN:
            cursor.move(self.start)
            self.clear(self.start)
            self.again = ([], {})
            return
        count = len(self.rows)
        if cursor.is_fresh:
            self.rows = without_erased(self.rows, cursor.log.view)
        else:
            self.rows = cursor.without_purged(self.rows)
        cursor.left = max(cursor.left - count + len(self.rows), 0)
        asked, rows = self.again
        self.again = asked, {row.offset: row for row in cursor.without_purged(rows.values())}

    def take_again(self) -> tuple[list[int], dict[int, Row]]:
        taken, self.again = self.again, ([], {})
        return taken

    def clear(self, start: int) -> None:
        self.start, self.rows, self.is_at_end = start, [], False
        self._clears += 1

    def add(self, rows: list[Row], is_at_end: bool, read_bytes: int) -> None:
        """Add rows. `read_bytes` is an upper bound of the size of all of them together."""
        self._needs_thread = False
        self.rows += rows
        self._largest_bytes = max(self._largest_bytes, read_bytes)
        self.is_at_end = is_at_end

    async def read(self, cursor: Cursor) -> None:
        """Read the next records for first deliveries."""
        clears = self._clears
        found = await cursor.read()
        if clears != self._clears:  # the delivery continues in another place
            cursor.move(self.start)
            return
        self.add(*found, cursor.read_bytes)
        self._needs_thread = True

    def reads_ahead(self, delivered: int) -> bool:
        """Return True if the next records should be read now, while the clients process the records
        of this turn. Without this read, the next turn would have to wait for a thread."""
        return self._needs_thread and not self.is_at_end and len(self.rows) < delivered

    async def read_again(self, cursor: Cursor, wanted: Sequence[int]) -> None:
        """Read the first of these records, in the order of their redelivery, up to about
        `_AGAIN_BYTES`."""
        rows, end = await cursor.rows_at(sorted(wanted), _AGAIN_BYTES)
        asked = list(takewhile(lambda offset: offset < end, wanted))
        if not asked:  # in the log, many of the other records precede the first one
            asked = [wanted[0]]
            rows, _ = await cursor.rows_at(asked, _AGAIN_BYTES)
        self.again = asked, {row.offset: row for row in rows}

    def fitting(self, limit: int) -> int:
        """Return the number of rows before the first row that is larger than `limit` bytes; 0 means
        no limit."""
        if not limit or self._largest_bytes <= limit:
            return len(self.rows)
        large = (place for place, row in enumerate(self.rows) if size_over_nats(row) > limit)
        return next(large, len(self.rows))

    def leave_out_large(self, limit: int, consumer: str) -> None:
        """Apply `within_payload` to the rows."""
        if limit and self._largest_bytes > limit:
            self.rows, self._largest_bytes = within_payload(self.rows, limit, consumer), limit

    def delivered(self, taken: Mapping[int, Row], now_ns: int) -> None:
        """Note the rows that were delivered."""
        replay = self.replay
        if replay is None or not taken:
            return
        replay.delivered(taken[max(taken)].timestamp_ns, now_ns)
        if self.rows and not replay.is_over:
            self.due_ns = replay.due_ns(self.rows[0])

    def tick(self, now_ns: int) -> None:
        if self.due_ns is not None and self.due_ns <= now_ns:
            self.due_ns = None

    def drop_before(self, offset: int) -> dict[int, Row]:
        """Remove the records below `offset`, and return them."""
        if offset <= self.start:
            return {}
        self.start = offset
        place = bisect_left(self.rows, offset, key=_OFFSET)
        taken = self.rows[:place]
        del self.rows[:place]
        return dict(zip(map(_OFFSET, taken), taken, strict=True))

    def scan(
        self, most: int, end: int, now_ns: int, *, is_at_end: bool, has_sizes: bool
    ) -> Scan | None:
        """Return up to `most` records for first deliveries; None if they must wait. `end` is the
        position of the cursor. `is_at_end` is true if the log has no committed record at or above
        `end`. If `has_sizes` is false, the sizes of the records are 0."""
        rows = self.rows
        if self.replay is not None:
            self.replay.is_over = self.replay.is_over or (is_at_end and not rows)
            most = min(most, self.replay.ready(rows, now_ns))
        if len(rows) <= most:
            return Scan(self.start, end, records_of(rows, has_sizes=has_sizes), is_at_end)
        if not most:
            assert self.replay is not None
            self.due_ns = self.replay.due_ns(rows[0])
            return None
        rows = rows[:most]
        records = records_of(rows, has_sizes=has_sizes)
        return Scan(self.start, rows[-1].offset + 1, records, is_at_end=False)


def records_of(rows: Sequence[Row], *, has_sizes: bool = True) -> Records:
    """Return the columns of some rows. If `has_sizes` is false, the sizes are 0, which takes less
    time."""
    if not rows:
        return Records(NO_INTS, NO_INTS, NO_INTS)
    offsets, stamps, subjects, headers, values = zip(*rows, strict=True)
    sizes = np.zeros(len(rows), np.int64)
    if has_sizes:
        each = zip(map(len, subjects), map(len, headers), map(len, values), strict=True)
        sizes = np.fromiter(map(sum, each), np.int64, len(rows))
    return Records(np.array(offsets, np.int64), sizes, np.array(stamps, np.int64))


def within_payload(rows: list[Row], limit: int, consumer: str) -> list[Row]:
    """Leave out rows that are larger than `limit` bytes, the `max_payload` of NATS; 0 means no
    limit. Stored records can be larger, because NATS servers can lower `max_payload`. A server
    closes a connection that sends a larger message. Records that are left out count as not
    matching."""
    if not limit or _largest_bytes(rows) <= limit:
        return rows
    fitting = [row for row in rows if size_over_nats(row) <= limit]
    if len(fitting) < len(rows):
        logger.warning(
            "jetstream-consumer-skipped name=%s first=%d last=%d max_payload=%d reason=%s",
            consumer,
            rows[0].offset,
            rows[-1].offset,
            limit,
            "records that are larger than NATS accepts",
        )
    return fitting


def size_over_nats(row: Row) -> int:
    """Return the size that counts for the `max_payload` of NATS, in bytes."""
    return len(row.value) + len(row.headers)


def _largest_bytes(rows: Sequence[Row]) -> int:
    """Return an upper bound of the sizes of these rows."""
    if not rows:
        return 0
    _, _, _, headers, values = zip(*rows, strict=True)
    return max(map(len, headers)) + max(map(len, values))
