"""How large the newest records of a bucket are, for a limit of its bytes: older ones are deleted
later, and must not keep new values out."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from itertools import pairwise
from weakref import WeakKeyDictionary

from liftlog.errors import CorruptBatch, CorruptRange
from liftlog.log import Log
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.server.commits.configs import counts_newest
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.shown import Ages, look_often
from liftlog.server.streams.broker import Broker

logger = logging.getLogger("liftlog.server.jetstream_api")

_PIECE_BYTES = 1024 * 1024
_MAX_SUBJECTS = 2_000_000
"""Of all buckets, some 200 bytes each. One that has more is limited by its size on the disk."""
_OVERHEAD_BYTES = 24
"""Of a record that shares its batch with others."""


class Sizes:
    """Belongs to the event loop; `keep` is a task."""

    def __init__(self, broker: Broker, threads: Executor, ages: Ages) -> None:
        self._broker, self._threads, self._ages = broker, threads, ages
        self._known: WeakKeyDictionary[StreamHost, NewestSizes] = WeakKeyDictionary()

    async def keep(self) -> None:
        await look_often(self._broker, self._look)

    async def _look(self, host: StreamHost) -> None:
        if not (host.is_leading and counts_newest(host.settings)):
            if self._known.pop(host, None) is not None:
                host.newest.count(None)
            return
        known = self._known.setdefault(host, NewestSizes())
        log, first = host.log, self._ages.first_offset(host)
        if known.next_offset == log.high_watermark and known.first_offset == first:
            host.newest.count(known.total, log.size_bytes)  # it may have been compacted
            return
        others = sum(len(one) for one in self._known.values()) - len(known)
        at_bytes = log.size_bytes  # what comes meanwhile may count twice, but never not at all
        future = self._threads.submit(known.advance, log, first, _MAX_SUBJECTS - others)
        fits = await asyncio.wrap_future(future)
        if self._broker.hosts.get(host.name) is host:
            host.newest.count(known.total if fits else None, at_bytes)


class NewestSizes:
    """The size of the newest record of each subject. One thread at a time."""

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self.total = 0
        self.next_offset = 0
        """Everything below was counted."""
        self.first_offset = 0
        self._newest: dict[bytes, tuple[int, int]] = {}  # offset and size, by offset

    def __len__(self) -> int:
        return len(self._newest)

    def advance(self, log: Log, first_offset: int, most: int) -> bool:
        """Count what is committed now, from `first_offset` on. False if there are more than `most`
        subjects. Blocking. Raises LiftlogError, OSError."""
        if log.high_watermark < self.next_offset or first_offset < self.first_offset:
            self._start_over()  # records were lost, or count again
        self.first_offset = first_offset
        self._forget(first_offset)
        at = max(self.next_offset, first_offset)
        end = log.high_watermark
        while at < end:
            if len(self) > most:
                self._start_over()
                return False
            at = max(self._take(log, at, end), at + 1)
        self.next_offset = end
        return len(self) <= most

    def _take(self, log: Log, at: int, end: int) -> int:
        """Returns where to continue; what cannot be read counts nothing."""
        try:
            piece = log.read(at, _PIECE_BYTES)
            if piece is None:
                return end
            try:
                raw, following = piece.pread(), piece.next_offset
            finally:
                piece.release()
        except CorruptRange as damage:
            return int(damage.next_offset)
        try:
            for batch in iter_batches(raw):
                self._add(batch.trim(at, end))
        except CorruptBatch:
            pass
        return following

    def _add(self, batch: RecordBatch) -> None:
        newest = self._newest
        ends = batch.value_column()[1]
        values = batch.values() if batch.has_tombstones else None
        rows = zip(
            batch.raw_subjects(), batch.offsets(), batch.headers(), pairwise(ends), strict=True
        )
        for row, (subject, offset, headers, (low, high)) in enumerate(rows):
            _, size = newest.pop(subject, (0, 0))
            self.total -= size
            if values is None or values[row] is not None:
                size = high - low + len(headers) + len(subject) + _OVERHEAD_BYTES
                newest[subject] = (offset, size)
                self.total += size

    def _forget(self, first_offset: int) -> None:
        newest = self._newest
        while newest:
            subject, (offset, size) = next(iter(newest.items()))
            if offset >= first_offset:
                return
            del newest[subject]
            self.total -= size
