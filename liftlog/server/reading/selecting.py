"""Finds the offsets of the records that match a filter, for an erasure.

The search uses the filtered read of clients (`filtering`). It runs in bounded pieces in the threads
that all scans share, and other scans run between two pieces. It reads only offsets. If the wanted
records have bounds of time, it also reads timestamps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from acl.subjects import matches
from liftlog.errors import CorruptRange, LiftlogError, LimitExceeded, OffsetOutOfRange
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.erasing import MOST_MEMORY_BYTES, joined
from liftlog.log.erasing import Selection as Found
from liftlog.protocol.administration import MAX_SHOWN_SUBJECTS
from liftlog.records.columns.selection import OFFSET, TIMESTAMP, parse_selection
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.server.reading.fairness import FairThreads
from liftlog.server.reading.filtering import MAX_ANSWER_BYTES, scan_log
from liftlog.server.reading.one_record import NoRecord, read_record
from liftlog.server.reading.scan import Scan
from liftlog.server.streams.erasing import Ranges, Wanted

if TYPE_CHECKING:
    from pyroaring import BitMap

_NEAR_OFFSETS = 4096
"""Ranges with at most this number of offsets between them are searched together."""
_CHECKED_EVERY = 64
"""Number of pieces after which the size of the found set is checked."""
_SAMPLED = 16
"""Number of records whose subjects are read for a preview."""

Result = TypeVar("Result")


class MatchFinder:
    """Searches logs for matching records. Belongs to the event loop."""

    def __init__(self, scanners: FairThreads) -> None:
        self._scanners = scanners

    async def find(self, log: Log, wanted: Wanted, party: Hashable) -> Found:
        """See `Finder.find`."""
        search = _Search(log, wanted)
        pieces = 0
        for low, high in _spans(wanted.ranges):
            at = low
            while at < high:
                at = await self.run(party, search.step, at, high)
                pieces += 1
                if pieces % _CHECKED_EVERY == 0:
                    await self.run(party, search.check_size)
        return search.found()

    async def subjects(
        self, log: Log, offsets: ErasedSet, readable: Sequence[str] | None, party: Hashable
    ) -> list[str]:
        """See `Finder.subjects`."""
        if not offsets or (readable is not None and not readable):
            return []
        return await self.run(party, _some_subjects, log, offsets, readable)

    async def run(
        self, party: Hashable, function: Callable[..., Result], *arguments: object
    ) -> Result:
        """See `Finder.run`."""
        threads = self._scanners.of(party, self)
        return await asyncio.wrap_future(threads.submit(function, *arguments))


class _Search:
    """The records that one search has found. Used by one thread at a time."""

    def __init__(self, log: Log, wanted: Wanted) -> None:
        self._log, self._wanted = log, wanted
        self._is_timed = wanted.since_ns is not None or wanted.until_ns is not None
        columns = (OFFSET, TIMESTAMP) if self._is_timed else (OFFSET,)
        selection = parse_selection() if wanted.matching is None else wanted.matching
        self._selection = replace(selection, columns=frozenset(columns))
        self._chunks: dict[int, BitMap] = {}
        self._lost: list[tuple[int, int]] = []

    def step(self, offset: int, stop: int) -> int:
        """Search a piece of [offset, stop), and return its end. Blocking. Raises StorageError,
        StreamUnavailable, CorruptMetadata."""
        log = self._log
        try:
            scanned = scan_log(log, Scan(offset, stop, MAX_ANSWER_BYTES, self._selection))
        except CorruptRange as damage:
            first, following = damage.details["first_offset"], damage.details["next_offset"]
            self._lost.append((int(first), int(following)))
            return max(int(following), offset + 1)
        except OffsetOutOfRange:  # retention has deleted these records
            return max(log.log_start_offset, offset + 1)
        for batch in iter_batches(scanned.body):
            self._take(batch)
        return max(scanned.next_offset, offset + 1)

    def _take(self, batch: RecordBatch) -> None:
        offsets = np.array(batch.offsets(), np.int64)
        if self._is_timed:
            since_ns, until_ns = self._wanted.since_ns, self._wanted.until_ns
            stamps = np.array(batch.timestamps_ns(), np.int64)
            if since_ns is not None:
                offsets, stamps = offsets[stamps >= since_ns], stamps[stamps >= since_ns]
            if until_ns is not None:
                offsets = offsets[stamps < until_ns]
        for number, bits in ErasedSet.of_offsets(offsets).chunks.items():
            if number in self._chunks:
                self._chunks[number] |= bits
            else:
                self._chunks[number] = bits

    def check_size(self) -> None:
        """Raise LimitExceeded if the found offsets take too much memory."""
        for bits in self._chunks.values():
            bits.run_optimize()
        if ErasedSet(self._chunks).size_bytes > MOST_MEMORY_BYTES:
            raise LimitExceeded(
                "too many scattered records match", hint="select fewer, for example by time"
            )

    def found(self) -> Found:
        ranges = ErasedSet.of_ranges(self._wanted.ranges)
        lost = [(first, end) for first, end in joined(self._lost) if ranges.count_in(first, end)]
        return Found(ErasedSet(self._chunks) & ranges, tuple(lost))


def _spans(ranges: Ranges) -> list[tuple[int, int]]:
    """Return the ranges to search. Ranges that are near to each other are joined."""
    found: list[tuple[int, int]] = []
    for first, end in ranges:
        if found and first - found[-1][1] <= _NEAR_OFFSETS:
            found[-1] = found[-1][0], end
        else:
            found.append((first, end))
    return found


def _some_subjects(log: Log, offsets: ErasedSet, readable: Sequence[str] | None) -> list[str]:
    """Read the subjects of some of these records, spread over all. Blocking."""
    count, found = len(offsets), set[str]()
    for rank in {step * (count - 1) // (_SAMPLED - 1) for step in range(_SAMPLED)}:
        with suppress(LiftlogError, NoRecord):  # damaged, or deleted meanwhile
            subject = read_record(log, offsets.offset_at(rank))[0].subject
            if readable is None or any(matches(pattern, subject) for pattern in readable):
                found.add(subject)
    return sorted(found)[:MAX_SHOWN_SUBJECTS]
