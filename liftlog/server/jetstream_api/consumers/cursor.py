"""The position of a consumer in the log. A cursor reads the records that the consumer wants, in
order, in bounded pieces.

The threads that all readers share read the pieces, as for filtered fetches (`reading.filtering`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TypeVar

from liftlog.deliveries.columns import Ints
from liftlog.errors import (
    CorruptBatch,
    CorruptRange,
    OffsetOutOfRange,
    UnsupportedFormat,
)
from liftlog.log import Log
from liftlog.log.state import ReadView
from liftlog.records.columns.batch_columns import decode_columns
from liftlog.records.columns.selection import OFFSET, SUBJECT, Selection
from liftlog.records.decode import iter_batches
from liftlog.server.jetstream_api.consumers.budget import Budgets, Part
from liftlog.server.jetstream_api.consumers.chosen import end_of_run, has, too_many
from liftlog.server.jetstream_api.consumers.recent import MOST_BYTES, recent_rows
from liftlog.server.jetstream_api.consumers.removals import News, Removals, Seen
from liftlog.server.jetstream_api.consumers.rows import Row, rows_in, rows_of, without_erased
from liftlog.server.jetstream_api.messages.newest import newest_of
from liftlog.server.jetstream_api.messages.purges import Purges
from liftlog.server.jetstream_api.messages.shown import Shown
from liftlog.server.pull.services import PullServices
from liftlog.server.reading.filtering import MAX_ANSWER_BYTES, scan_log
from liftlog.server.reading.scan import Scan, Scanned
from liftlog.server.reading.tailing import Tail, TailGroup, inflated_bytes, read_tail

logger = logging.getLogger("liftlog.server.jetstream_api")

PIECE_BYTES = 128 * 1024
_COUNT_SECONDS = 2.0
_SEARCH_SECONDS = 4.5
"""Time limit of a search, in seconds. It is lower than the usual timeout of clients, 5 s."""
_FRESH = 64
"""A consumer counts as fresh while it has at most this number of records to read."""

Result = TypeVar("Result")


class Cursor:
    """The position of one consumer. Belongs to the event loop, and accepts one call at a time. The
    owner must `close` it."""

    def __init__(
        self,
        services: PullServices,
        shown: Shown,
        filters: tuple[str, ...],
        readable: tuple[str, ...] | None,
        member: Hashable,
        budgets: Budgets,
        purges: Purges | None = None,
    ) -> None:
        """`purges` are the purges of a bucket, whose messages are left out."""
        self._shown = shown
        self._purges = purges
        self._seen_version = -1
        self._is_fresh = False
        self.is_stale = False
        """True if `left` may contain records that were removed since they were counted."""
        self._is_recounting = False
        self._restarts = 0
        self.log: Log = shown.host.log
        self._removals = Removals(self.log)
        self.next_offset = shown.first_offset
        """The next offset to examine."""
        self.left = 0
        """Number of wanted records from `next_offset` on, up to the offset at which the count
        ended."""
        self._selection = Selection(subjects=filters or None, readable=readable)
        self.read_bytes = 0
        """Upper bound of the number of bytes of the last read, including headers and other bytes
        around the records."""
        self._is_all = not filters and readable is None
        self._keeps_tombstones = shown.history is None
        self._threads = services.scanners.of("(nats)", member)
        self._cold = services.cold_readers
        self._noted = budgets.noted
        self._kept: Part = budgets.chosen.part()
        self._chosen: Sequence[int] = ()
        self._chosen_end = 0  # below this offset, only `_chosen` are wanted
        self._counted_to = 0
        self._noted_count = 0
        """The number of wanted records that reads have added to `left`."""

    # --- where to begin ---

    async def begin(self, offset: int, newest: int | None, end: int | None = None) -> None:
        """Begin at this offset. If `newest` is given, deliver only this number of the newest
        records of each subject below `end` (default: the high watermark). Raises LimitExceeded if
        the search for these records takes too long."""
        self.next_offset = max(offset, self._shown.first_offset)
        if newest is None:
            await self.count()
            return
        end = self.log.high_watermark if end is None else end
        found = await self._newest(newest, end)
        chosen = found[bisect_left(found, offset) :]
        if not self._kept.resize(len(chosen)):
            raise too_many()
        self._chosen = chosen
        if chosen:
            self.next_offset = chosen[0]
        self._chosen_end = self._counted_to = end
        self.left = len(self._chosen)

    async def begin_at_time(self, timestamp_ns: int, newest: int | None) -> None:
        await self.begin(
            await self._run(self.log.offset_for_timestamp, timestamp_ns, cold=True), newest
        )

    async def begin_at_last(self) -> None:
        """Begin with the last record."""
        if self._is_all and self._keeps_tombstones:
            await self.begin(self.log.high_watermark - 1, None)
            return
        found = await self._newest(1, self.log.high_watermark)
        await self.begin(found[-1] if found else self.log.high_watermark, None)

    async def count(self) -> None:
        """Count the wanted records. If an exact count would take long, records that do not match
        are also counted."""
        self.note_erased(view := self.log.view)
        end = view.committed.offset
        first = at = max(self.next_offset, self._counted_to)
        if at >= end:
            self._is_recounting = False
            return
        before, restarts, total = self._noted_count, self._restarts, 0
        is_whole = self.takes_all and at >= self._chosen_end
        if is_whole and (known := view.count_between(at, end)) is not None:
            total = known
        else:
            purges = None if self._purges is None or self._purges.is_empty else self._purges
            columns = frozenset((OFFSET,) if purges is None else (OFFSET, SUBJECT))
            selection = replace(self._selection, columns=columns)
            deadline = time.monotonic() + _COUNT_SECONDS
            while at < end and time.monotonic() < deadline:
                counts: list[int] = []
                scan = Scan(at, end, MAX_ANSWER_BYTES, selection)
                scanned = await self._scan(scan, partial(self._note_count, counts, end, purges))
                total += sum(counts)
                at = max(scanned.next_offset, at + 1)
            total += max(0, end - at)
        if restarts == self._restarts and self._counted_to <= end:
            # `passed` may have added some of these records in the meantime.
            self.note_erased(self.log.view)
            self.left += max(total - (self._noted_count - before), 0)
            self._counted_to = end
            if Seen.of(view).count_in(self.log.view, first, end) != 0:
                self.is_stale = True  # `left` may include these records
        if self._is_recounting:
            self._is_recounting = False
            self._removals.count_ends()

    def count_anew(self, known: int) -> None:
        """Count the records again, because some of them were removed. `known` is the number of
        wanted records that were read, but not delivered."""
        self.left, self._counted_to = known, self.next_offset
        self.is_stale, self._is_recounting = False, True
        self._restarts += 1
        self._removals.count_begins()

    def note_erased(self, view: ReadView) -> None:
        """Subtract the records that were erased since the last call from `left`. If the number of
        wanted records among them is unknown, `left` becomes stale."""
        count = self._removals.count_in(view, self.next_offset, self._counted_to)
        if count and self.takes_all:
            self.left = max(self.left - count, 0)
        elif count != 0:
            self.is_stale = True

    @property
    def must_recount(self) -> bool:
        """True if `left` should be counted before records are delivered, or is being counted.

        If records are erased all the time, new counts use only a share of the time. Between two
        counts, `left` includes erased records.
        """
        return self._is_recounting or (self.is_stale and self._removals.may_count)

    def _note_count(self, counts: list[int], end: int, purges: Purges | None, body: bytes) -> None:
        """Add the wanted records in some batches to the counts. Runs in a thread."""
        chosen, chosen_end = self._chosen, self._chosen_end
        for whole in iter_batches(body, verify=False):
            batch = whole.trim(whole.base_offset, end)
            has_deletes = batch.has_tombstones and not self._keeps_tombstones
            if batch.base_offset < chosen_end or purges is not None:
                columns = (
                    batch.offsets(),
                    repeat(b"") if purges is None else batch.raw_subjects(),
                    batch.values() if has_deletes else repeat(b""),
                )
                kept = [
                    value is not None
                    and (offset >= chosen_end or has(chosen, offset))
                    and not (purges is not None and purges.hides(subject, offset))
                    for offset, subject, value in zip(*columns, strict=False)
                ]
                counts.append(sum(kept))
                continue
            counts.append(len(batch))
            if has_deletes:
                counts.append(-batch.values().count(None))

    # --- purges ---

    def knows_purges(self, first: int, group: TailGroup) -> bool:
        """Return True if all purges of records from `first` on are known. Otherwise call
        `read_purges`."""
        return self._purges is None or self._purges.knows(first, group)

    async def read_purges(self, first: int) -> None:
        """Find all committed purges of records from `first` on. Raises LiftlogError."""
        if self._purges is not None:
            await self._purges.read(first, self._run)

    def sees_erased(self) -> News:
        """Return whether the records of earlier reads were erased since the last call. If the
        result is UNKNOWN, the caller must read these records again."""
        if (news := self._removals.concern_rows()) is not News.NONE:
            self.note_erased(self.log.view)
        self.is_stale |= news is News.UNKNOWN
        return news

    def sees_new_purges(self) -> bool:
        """Return True, once, if earlier reads may contain purged records."""
        if self._purges is None or self._purges.version == self._seen_version:
            return False
        self._seen_version, self.is_stale = self._purges.version, True
        return True

    def _has_new_purges(self) -> bool:
        purges = self._purges
        return purges is not None and not (
            purges.version == self._seen_version and purges.covers(self.next_offset)
        )

    @property
    def is_fresh(self) -> bool:
        """True if the consumer has delivered all records but the newest, and a client waits for the
        next record. If a purge follows at once, JetStream delivers such a record before the purge.
        So the next reads do not leave out records that were purged meanwhile."""
        return self._is_fresh

    @is_fresh.setter
    def is_fresh(self, is_waiting: bool) -> None:
        was_fresh = self._is_fresh
        self._is_fresh = is_waiting and self.log.high_watermark - self.next_offset < _FRESH
        if was_fresh and not self._is_fresh:
            self._seen_version = -1

    def without_purged(self, rows: Iterable[Row], view: ReadView | None = None) -> list[Row]:
        """Leave out the records that are erased in `view` (None: the current view). Also leave out
        the records that known purges cover."""
        purges, rows = self._purges, without_erased(rows, view or self.log.view)
        if purges is None or purges.is_empty:
            return rows
        return [row for row in rows if not purges.hides(row.subject, row.offset)]

    async def _newest(self, count: int, end: int) -> array[int]:
        """Return the offsets of the newest `count` records of each subject below `end`,
        ascending."""
        newest = newest_of(self._shown.history, end, count=count)
        selection = replace(self._selection, columns=newest.columns)
        noted = self._noted.part()
        at, deadline = self._shown.first_offset, time.monotonic() + _SEARCH_SECONDS
        try:
            while at < end:
                if time.monotonic() > deadline or not noted.resize(newest.size):
                    raise too_many()
                scan = Scan(at, end, MAX_ANSWER_BYTES, selection)
                scanned = await self._scan(scan, newest.note)
                at = max(scanned.next_offset, at + 1)
            return await self._run(lambda: array("Q", sorted(newest.offsets())), cold=True)
        finally:
            noted.close()

    # --- reading on ---

    async def read(self) -> tuple[list[Row], bool]:
        """Return the next wanted records (possibly none), and True if the read has reached the high
        watermark."""
        at, stop = self.next_offset, None
        if at < self._chosen_end:
            place = bisect_left(self._chosen, at)
            if place == len(self._chosen):
                at, self._chosen = self._chosen_end, ()
                self._kept.close()
            else:
                at, stop = self._chosen[place], end_of_run(self._chosen, place)
        rows: list[Row] = []
        self.read_bytes = 0

        def take(body: bytes) -> None:
            rows.extend(rows_in(body, keeps_tombstones=self._keeps_tombstones))
            self.read_bytes = inflated_bytes(body)

        before = Seen.of(self.log.view)
        scanned = await self._scan(Scan(at, stop, PIECE_BYTES, self._selection), take)
        is_fresh = self._is_fresh
        await self.read_purges(at)
        if before.news(self.log.view) is News.UNKNOWN:
            return [], False  # some of these records may be erased: the next call reads them again
        # The count and the rows must leave out the same erased records.
        self.note_erased(view := self.log.view)
        rows = without_erased(rows, view) if is_fresh else self.without_purged(rows, view)
        end = max(scanned.next_offset, at)
        if stop is not None:
            end = min(end, stop)  # if offsets were chosen, no piece extends past `stop`
            wanted = self._chosen[bisect_left(self._chosen, at) : bisect_left(self._chosen, end)]
            chosen = set(wanted)
            rows = [row for row in rows if row.offset in chosen]
        self._advance(rows, end)
        return rows, scanned.caught_up and stop is None

    def _advance(self, rows: Sequence[Row], end: int) -> None:
        """Store the offsets of all wanted records between `next_offset` and `end`."""
        self.next_offset = end
        if end > self._counted_to:
            self._note(len([row for row in rows if row.offset >= self._counted_to]), end)

    def _note(self, count: int, end: int) -> None:
        """Note the number of wanted records from `_counted_to` up to `end`."""
        self.left += count
        self._noted_count += count
        self._counted_to = end

    def read_now(self, group: TailGroup) -> tuple[list[Row], bool] | None:
        """Read records that were just written in the event loop, like `read`. Starting a thread
        would take longer than the read. Returns None, and changes nothing, if `read` is needed."""
        if self.next_offset < self._chosen_end or not self.knows_purges(self.next_offset, group):
            return None
        self.note_erased(view := self.log.view)
        try:
            if self._is_all and self._keeps_tombstones:
                shared = recent_rows(group).read(self.log, group, view, self.next_offset)
                if shared is not None:
                    rows, end = shared
                    rows = rows if self._is_fresh else self.without_purged(rows, view)
                    self.read_bytes = MOST_BYTES
                    self._advance(rows, end)
                    return rows, end >= view.committed.offset
            tail = read_tail(self.log, group, view, self.next_offset, PIECE_BYTES)
            if tail is None or inflated_bytes(tail.body) > PIECE_BYTES:
                return None
            rows = self._tail_rows(tail)
            rows = rows if self._is_fresh else self.without_purged(rows, view)
            self.read_bytes = PIECE_BYTES
        except (CorruptBatch, CorruptRange, OffsetOutOfRange, UnsupportedFormat):
            return None  # `read` reports the problem
        self._advance(rows, tail.next_offset)
        return rows, tail.next_offset >= view.committed.offset

    def _tail_rows(self, tail: Tail) -> list[Row]:
        rows: list[Row] = []
        for batch in iter_batches(tail.body):
            flags = None if self._is_all else self._selection.matching(decode_columns(batch))
            rows += rows_of(batch, flags, keeps_tombstones=self._keeps_tombstones)
        return rows[bisect_left(rows, self.next_offset, key=itemgetter(0)) :]

    @property
    def takes_all(self) -> bool:
        """True if all records from `next_offset` on are wanted unchanged."""
        return self._is_all and self._keeps_tombstones and self.next_offset >= self._chosen_end

    @property
    def wanted_subjects(self) -> tuple[tuple[str, ...] | None, ...]:
        """Sets of subject patterns; None for no condition. Each returned record matches at least
        one pattern of each set."""
        return self._selection.subjects, self._selection.readable

    def passed(self, offsets: Ints, end: int) -> None:
        """Count the wanted records that the caller has read in another way: at the ascending
        `offsets`, up to `end`."""
        if end > self._counted_to:
            self._note(len(offsets) - int(offsets.searchsorted(self._counted_to)), end)

    async def rows_at(self, offsets: Sequence[int], max_bytes: int) -> tuple[list[Row], int]:
        """Return the records at these ascending offsets, and the offset below which all of them
        were examined. Leaves out records that no longer exist or that the client may not read.
        Ignores the filters. Stops after `max_bytes`."""
        await self.read_purges(offsets[0])
        rows: list[Row] = []
        everything, place, size = replace(self._selection, subjects=None), 0, 0
        while place < len(offsets):
            at, stop = offsets[place], end_of_run(offsets, place)
            chosen = set(offsets[place : bisect_left(offsets, stop, place)])
            place += len(chosen)
            while at < stop:
                if size >= max_bytes:
                    return rows, at
                found: list[Row] = []

                def take(body: bytes, found: list[Row] = found) -> None:
                    found.extend(rows_in(body, keeps_tombstones=self._keeps_tombstones))

                before = Seen.of(self.log.view)
                scanned = await self._scan(Scan(at, stop, PIECE_BYTES, everything), take)
                if before.news(self.log.view) is News.UNKNOWN:
                    continue
                found = self.without_purged(row for row in found if row.offset in chosen)
                rows += found
                size += sum([len(row.headers) + len(row.value) for row in found])
                at = max(scanned.next_offset, at + 1)
        return rows, offsets[-1] + 1

    @property
    def chosen_end(self) -> int:
        """Offset below which the cursor returns only records that the deliver policy has chosen."""
        return self._chosen_end

    @property
    def is_counted(self) -> bool:
        """True if `left` is exact for all committed records."""
        counted_to = max(self.next_offset, self._counted_to)
        is_current = not (self.is_stale or self._has_new_purges()) and self._removals.are_counted
        return is_current and counted_to >= self.log.high_watermark

    @property
    def log_start(self) -> int:
        """The first offset that the stream shows. Retention, `max_age` and purges have removed all
        earlier records."""
        return min(self._shown.first_offset, self.log.high_watermark)

    def move(self, offset: int) -> None:
        """Continue at `offset`, which may be before or after the present position. The counts do
        not change."""
        self.next_offset = offset

    def skip(self, offset: int) -> None:
        """Continue at `offset` if it is above the present position. The caller has determined that
        no record before `offset` is wanted."""
        if offset > self.next_offset:
            self.next_offset = offset
            self._counted_to = max(self._counted_to, offset)

    def close(self) -> None:
        """Free the cursor's memory. The cursor must not be used afterwards."""
        self._chosen = ()
        self._kept.close()

    def go_back(self, row: Row) -> None:
        """Read again from `row` on."""
        self.next_offset = row.offset

    async def _scan(self, scan: Scan, take: Callable[[bytes], None] = lambda body: None) -> Scanned:
        """Run a scan, and return its result. Passes the batches that the scan finds to `take`.
        Skips unreadable records: the daemon reports the damage, and clients see a gap in the
        sequence numbers."""
        while True:
            try:
                return await self._run(_scan_and_take, self.log, scan, take)
            except OffsetOutOfRange:
                first = self.log.log_start_offset
                if scan.offset >= first:
                    # The offset is beyond the end of the log, where no records exist yet.
                    return Scanned(self.log.incarnation, scan.offset, scan.offset, 0, (), True)
            except CorruptRange as damage:
                first = max(damage.next_offset, scan.offset + 1)
                logger.warning(
                    "jetstream-consumer-skipped first=%d next=%d",
                    damage.first_offset,
                    damage.next_offset,
                )
            if scan.stop_offset is not None and first >= scan.stop_offset:
                return Scanned(self.log.incarnation, first, first, 0, (), False)
            scan = scan._replace(offset=first)

    async def _run(
        self, function: Callable[..., Result], *arguments: object, cold: bool = False
    ) -> Result:
        threads = self._cold if cold else self._threads
        return await asyncio.wrap_future(threads.submit(function, *arguments))


def _scan_and_take(log: Log, scan: Scan, take: Callable[[bytes], None]) -> Scanned:
    scanned = scan_log(log, scan)
    if scanned.batches:
        take(scanned.body)
    return scanned
