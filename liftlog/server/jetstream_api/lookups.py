"""Finds single records of a log: the record at an offset, the last or the next record of a subject,
the last record of each subject.

The log has no index by subject. The last offset of a subject is usually known
(`subject_sequences`). All other searches run in bounded pieces, in the threads that all readers
share fairly. A search that takes too long ends with an error.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from acl.rules import OVER_NATS
from acl.subjects import is_literal, matches, why_no_subject
from liftlog.deliveries.columns import NO_INTS
from liftlog.errors import CorruptRange, LimitExceeded, OffsetOutOfRange
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.records.columns.selection import OFFSET, SUBJECT, Selection, parse_selection
from liftlog.records.decode import Record, iter_batches
from liftlog.sequencing.subject_sequences import deletes_subject
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import without_statuses
from liftlog.server.jetstream_api.inboxes import party_of
from liftlog.server.jetstream_api.messages.newest import Newest, newest_of
from liftlog.server.jetstream_api.messages.shown import Shown
from liftlog.server.jetstream_api.methods import Request
from liftlog.server.pull.services import PullServices
from liftlog.server.reading.filtering import MAX_ANSWER_BYTES, scan_log
from liftlog.server.reading.one_record import NoRecord, read_record
from liftlog.server.reading.scan import Scan
from liftlog.server.reading.walking import Backward, Damage, Span

_SEARCH_SECONDS = 4.0
"""Time limit of a search, in seconds. It is lower than the usual timeout of clients, 5 s."""
MAX_RESULTS = 1024
MAX_HOLES = 50_000
MAX_SUBJECTS = 250_000
_KNOWN_SUBJECTS = frozenset((OFFSET, SUBJECT))

Result = TypeVar("Result")


class Found(NamedTuple):
    """A record that was found. `headers` is the header block of the message; empty without
    headers."""

    record: Record
    headers: bytes


class TooManyResults(Exception):
    """Raised if there are more subjects or records than one answer may contain."""


class Lookup:
    """Searches one stream for one request. Belongs to the event loop. Methods raise LiftlogErrors;
    they raise LimitExceeded if a search takes too long."""

    def __init__(
        self,
        services: PullServices,
        shown: Shown,
        readable: tuple[str, ...] | None,
        member: Hashable,
    ) -> None:
        """Create a lookup. The lookup finds only records on `readable` subjects; None stands for
        all subjects."""
        self._shown = shown
        self._log: Log = shown.host.log
        self._subjects = shown.host.sequencer.subjects
        self._readable = readable
        # As in `cursor`, all clients of NATS count together as one party, so a client gains nothing
        # by using many inboxes.
        self._threads = services.scanners.of(OVER_NATS, member)
        self._cold = services.cold_readers
        self._until = time.monotonic() + _SEARCH_SECONDS

    @property
    def first_offset(self) -> int:
        """The first offset that is shown."""
        return self._shown.first_offset

    async def at(self, offset: int) -> Found | None:
        """Return the record at an offset; None if the record does not exist or is not shown."""
        found = await self.stored(offset)
        return found if found is not None and await self._shown.shows(found.record) else None

    async def stored(self, offset: int) -> Found | None:
        """Return the record at an offset that a search has just found, even if a newer record of
        the same subject has arrived."""
        try:
            record, block = await self._run(read_record, self._log, offset, cold=True)
        except (NoRecord, OffsetOutOfRange):
            return None
        if record.value is None and self._shown.history is not None:
            return None
        if not self._may_read(record.subject):
            return None
        return Found(record, without_statuses([block])[0])

    async def offset_at(self, timestamp_ns: int) -> int:
        """Return the offset of the first record at or after the time; the high watermark if there
        is no such record."""
        return await self._run(self._log.offset_for_timestamp, timestamp_ns, cold=True)

    async def last(self, pattern: str) -> Found | None:
        """Return the last record on the subjects of a pattern."""
        while (known := self._known_last(pattern)) is not None:
            found = await self.stored(known) if known else None
            if found is None and known and self._log.view.hides(known):
                break  # an older record of the subject may be the last one now
            if found is not None or known == self._known_last(pattern):
                return found
        start, view = self._shown.first_offset, self._log.view
        while True:
            end, erased = view.committed.offset, view.erased_total
            offset = await self.last_left(pattern, end, start)
            found = await self.stored(offset) if offset else None
            view = self._log.view
            if found is not None or view.erased_total == erased:
                return found
            # A roll-up that was committed during the search may have replaced the record. If no
            # record was found, only such a roll-up can be the last record now.
            start = self._shown.first_offset if offset else end

    async def last_left(self, pattern: str, end: int, start: int | None = None) -> int:
        """Search the last record in [start, end) on the subjects of a pattern, by default from the
        first one that is shown, and return its offset; 0 if there is none."""
        start = self._shown.first_offset if start is None else start
        walk = Backward(self._log, Span(start, end), self._selection((pattern,)))
        deleted: set[str] = set()
        while not walk.at_end:
            for item in await self._step(walk.step, 1):
                if isinstance(item, Damage) or item.subject in deleted:
                    continue
                if item.value is not None or self._shown.history is None:
                    return item.offset
                if deletes_subject(item.key, item.value):
                    deleted.add(item.subject)
        return 0

    async def superseded(self, subject: str, end: int) -> ErasedSet:
        """Return the offsets of the records of a subject, below `end`, that are not shown.
        Tombstones are included. Only for a stream with a history."""
        shown = (await self.of_subjects(subject)).get(subject.encode(), ())
        selection = self._selection((subject,), columns=(OFFSET,))
        found = ErasedSet({})

        def take(body: bytes) -> None:
            nonlocal found
            offsets = [np.array(batch.offsets(), np.int64) for batch in iter_batches(body)]
            found |= ErasedSet.of_offsets(np.concatenate([NO_INTS, *offsets]))

        await self._search(self._log.log_start_offset, end, selection, take)
        return found.within(0, end) - ErasedSet.of_offsets(np.array(shown, np.int64))

    def _known_last(self, pattern: str) -> int | None:
        """Return the last offset of a subject without a search: 0 if the subject has no record,
        None if the offset is unknown."""
        if self._subjects is None or not is_literal(pattern):
            return None
        offset = self._subjects.last_committed(pattern.encode())
        return offset if offset is not None and offset < self._log.high_watermark else None

    async def following(
        self, offset: int, subjects: Sequence[str], limit: int, max_bytes: int
    ) -> tuple[list[Found], int]:
        """Return the next records at or after `offset` on any of the subjects (empty: all), and the
        offset at which to continue. If there are no more records, this offset is the end of the
        stream.

        Returns at most `limit` records of about `max_bytes` in total. The first record is always
        returned, even if it is larger.
        """
        log, selection = self._log, self._selection(subjects)
        at = max(offset, self._shown.first_offset)
        while at < log.high_watermark:
            scan = Scan(at, None, max_bytes, selection)
            found, at = await self._step(_found_by, log, scan, limit)
            if found := [one for one in found if await self._shown.shows(one.record)]:
                return found, at
        return [], max(at, log.high_watermark)

    async def count(self, offset: int, subjects: Sequence[str]) -> int:
        """Return the number of records at or after `offset` on any of the subjects (empty: all)."""
        if self._shown.history is not None:
            newest = await self._newest(subjects, self._log.high_watermark)
            return sum(one >= offset for one in newest.offsets())
        view = self._log.view
        end = view.committed.offset
        at = max(offset, self._shown.first_offset)
        known = view.count_between(at, end) if at < end else 0
        if not subjects and self._readable is None and known is not None:
            return known
        selection = self._selection(subjects, columns=(OFFSET,))
        count = 0

        def take(body: bytes) -> None:
            nonlocal count
            count += sum(len(batch) for batch in iter_batches(body))

        await self._search(at, end, selection, take)
        return count

    async def last_of_each(self, patterns: Sequence[str], first: int, end: int) -> list[int]:
        """Return the offset of the last record below `end` of each matching subject, in ascending
        order. Offsets below `first` are left out. Raises TooManyResults."""
        log = self._log
        if end >= log.high_watermark and all(self._known_last(one) is not None for one in patterns):
            known = {self._known_last(one) or 0 for one in patterns}
            if not any(log.view.hides(one) for one in known):
                return sorted(one for one in known if one and one >= first)
        last = await self._newest(patterns, end, count=1, most=64 * MAX_RESULTS)
        return sorted(one for one in last.offsets() if one >= first)

    async def _newest(
        self,
        patterns: Sequence[str],
        end: int,
        *,
        count: int | None = None,
        most: int = MAX_SUBJECTS,
    ) -> Newest:
        """Find the last `count` records below `end` of each matching subject. The default of
        `count` is the number that the stream shows. Raises TooManyResults if there are more than
        `most` subjects."""
        newest = newest_of(self._shown.history, end, count=count)
        selection = self._selection(patterns, columns=newest.columns)

        def take(body: bytes) -> None:
            newest.note(body)
            if newest.size > most:
                raise TooManyResults

        await self._search(max(self._shown.first_offset, 1), end, selection, take)
        return newest

    async def of_subjects(self, pattern: str) -> dict[bytes, Sequence[int]]:
        """Return the shown offsets of each matching subject, in ascending order. Only for a stream
        with a history. Raises TooManyResults."""
        return (await self._newest((pattern,), self._log.high_watermark)).by_subject()

    async def holes(self, first: int, end: int) -> list[int]:
        """Return the offsets in [first, end) whose records have been deleted. `first` is the offset
        of a record. Raises TooManyResults."""
        # The records are superseded, but compaction has not deleted them yet.
        if self._shown.history is not None:
            kept = set((await self._newest((), end)).offsets())
            if end - first - len(kept) > MAX_HOLES:
                raise TooManyResults
            return [offset for offset in range(first, end) if offset not in kept]
        view = self._log.view
        if view.erased is not None and view.count_between(first, end) is not None:
            # No other offset is missing.
            if view.erased.count_in(first, end) > MAX_HOLES:
                raise TooManyResults
            return list(view.erased.offsets_in(first, end).tolist())
        selection = self._selection((), columns=(OFFSET,))
        expected, found = first, list[int]()

        def take(body: bytes) -> None:
            nonlocal expected
            for batch in iter_batches(body):
                for offset in map(int, batch.offsets()):
                    if offset > expected:
                        found.extend(range(expected, min(offset, expected + 2 * MAX_HOLES)))
                    expected = offset + 1
            if len(found) > MAX_HOLES:
                raise TooManyResults

        await self._search(first, end, selection, take)
        return [*found, *range(expected, end)]

    async def subjects(self, pattern: str, most: int) -> dict[bytes, int]:
        """Return the number of records of each matching subject. Raises TooManyResults."""
        if self._shown.history is not None:
            found = await self._newest((pattern,), self._log.high_watermark, most=most)
            return {subject: len(some) for subject, some in found.by_subject().items()}
        selection = self._selection((pattern,), columns=_KNOWN_SUBJECTS)
        counts: Counter[bytes] = Counter()

        def take(body: bytes) -> None:
            for batch in iter_batches(body):
                counts.update(batch.raw_subjects())
            if len(counts) > most:
                raise TooManyResults

        await self._search(self._shown.first_offset, self._log.high_watermark, selection, take)
        return counts

    # --- the searches ---

    def _may_read(self, subject: str) -> bool:
        readable = self._readable
        return readable is None or any(matches(one, subject) for one in readable)

    def _selection(
        self, subjects: Sequence[str], columns: Sequence[str] | frozenset[str] | None = None
    ) -> Selection:
        return parse_selection(
            subjects=subjects or None,
            columns=None if columns is None else sorted(columns),
            readable=self._readable,
            wrong_subject=why_no_subject,
        )

    async def _search(
        self, at: int, end: int, selection: Selection, take: Callable[[bytes], None]
    ) -> None:
        """Search [at, end), and pass the encoded batches of the matching records to `take`. `take`
        runs in the thread and may raise an exception."""

        def pieces() -> Generator[None, None, None]:
            position = at
            while position < end:
                self._check_time()
                body, position = _piece(self._log, Scan(position, end, MAX_ANSWER_BYTES, selection))
                take(body)
                yield

        await asyncio.wrap_future(self._threads.submit_steps(pieces()))

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise LimitExceeded(
                "the search takes too long: the log has no index by subject",
                hint="read the stream with liftlog's clients, with a filter",
            )

    async def _step(self, function: Callable[..., Result], *arguments: object) -> Result:
        self._check_time()
        return await self._run(function, *arguments)

    async def _run(
        self, function: Callable[..., Result], *arguments: object, cold: bool = False
    ) -> Result:
        threads = self._cold if cold else self._threads
        return await asyncio.wrap_future(threads.submit(function, *arguments))


def open_lookup(request: Request) -> tuple[StreamHost, Lookup]:
    """Return the request's stream, and a lookup that finds the records that its client may read.
    Raises LiftlogError."""
    gate = request.parts.gate
    readable = gate.readable_subjects(OVER_NATS, request.stream, peer="nats")
    host = request.led_stream()
    shown = Shown(host, request.parts.ages, request.parts.buckets)
    return host, Lookup(request.parts.services, shown, readable, _member(request))


def open_whole_lookup(request: Request) -> tuple[StreamHost, Lookup]:
    """Like `open_lookup`, but the lookup finds records on all subjects, regardless of read rights.
    Raises LiftlogError."""
    host = request.led_stream()
    shown = Shown(host, request.parts.ages, request.parts.buckets)
    return host, Lookup(request.parts.services, shown, None, _member(request))


def _member(request: Request) -> Hashable:
    return request.parts.inboxes.member(party_of(request.reply))


# --- in threads: each call searches one bounded piece and returns where to continue ---


def _piece(log: Log, scan: Scan) -> tuple[bytes, int]:
    """Return the encoded batches of a piece of the log, and the end of the piece. Skips damaged and
    missing batches. Readers of the log report such damage, and the client sees the gap in the
    sequences."""
    try:
        scanned = scan_log(log, scan)
    except CorruptRange as damage:
        return b"", max(int(damage.details["next_offset"]), scan.offset + 1)
    except OffsetOutOfRange:
        return b"", max(log.log_start_offset, scan.offset + 1)
    return scanned.body, max(scanned.next_offset, scan.offset + 1)


def _found_by(log: Log, scan: Scan, limit: int) -> tuple[list[Found], int]:
    body, following = _piece(log, scan)
    found: list[Found] = []
    for batch in iter_batches(body):
        left = limit - len(found)
        if left <= 0:
            return found, int(batch.offsets()[0])
        if len(batch) > left:
            offsets = batch.offsets()
            following = int(offsets[left])
            batch = batch.trim(int(offsets[0]), following)
        pairs = zip(batch.records(), without_statuses(batch.headers()), strict=True)
        found += [Found(record, block) for record, block in pairs]
        if len(found) >= limit and batch.next_offset == following:
            break
    return found, following
