"""Which records of a bucket are shown, and how large they are: noted in memory, and read on from
where the last look ended.

For what a description of a bucket counts, for revisions of a longer history, and for a limit of
bytes: older records are deleted later, and must not keep new values out.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from itertools import pairwise
from weakref import WeakKeyDictionary

from liftlog.errors import CorruptBatch, CorruptRange, LiftlogError
from liftlog.log import Log
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.server.commits.configs import counts_newest
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.ages import Ages, look_often
from liftlog.server.jetstream_api.newest import ROLLUP_LINE, deleted_below
from liftlog.server.streams.broker import Broker

logger = logging.getLogger("liftlog.server.jetstream_api")

_PIECE_BYTES = 1024 * 1024
_MAX_RECORDS = 2_000_000
"""Shown of all buckets, some 250 bytes each. Of one that has more nothing is noted."""
_PATIENCE_SECONDS = 2.0
_OVERHEAD_BYTES = 24
"""Of a record that shares its batch with others."""


class Buckets:
    """Belongs to the event loop; `keep` is a task."""

    def __init__(self, broker: Broker, threads: Executor, ages: Ages) -> None:
        self._broker, self._threads, self._ages = broker, threads, ages
        self._known: WeakKeyDictionary[StreamHost, BucketIndex] = WeakKeyDictionary()

    async def keep(self) -> None:
        """Count what limits of bytes need."""
        await look_often(self._broker, self._look)

    async def index(
        self, host: StreamHost, patience_seconds: float | None = _PATIENCE_SECONDS
    ) -> BucketIndex | None:
        """Of all that is committed now; None for a stream without a history, and for one that has
        too many records, or more than can be read while the caller waits."""
        own = host.settings.jetstream
        history = None if own is None else own.max_msgs_per_subject
        if history is None:
            return None
        known = self._known.get(host)
        if known is None or known.history != history:
            known = self._known[host] = BucketIndex(history)
        end = host.log.high_watermark
        while (
            known.next_offset < end
            or known.first_offset != self._ages.first_offset(host)
            or known.advancing
        ):
            if known.advancing is None:
                known.advancing = asyncio.create_task(self._advance(known, host))
            done, _ = await asyncio.wait({known.advancing}, timeout=patience_seconds)
            if not (done and done.pop().result()):
                return None
        return known

    async def _advance(self, index: BucketIndex, host: StreamHost) -> bool:
        """False if it cannot be read, or is too much."""
        log, first_offset = host.log, self._ages.first_offset(host)
        most = _MAX_RECORDS - sum(one.count for one in self._known.values() if one is not index)
        try:
            future = self._threads.submit(index.advance, log, first_offset, most)
            return await asyncio.wrap_future(future)
        except (LiftlogError, OSError) as error:
            logger.warning("bucket-not-read stream=%s error=%s", log.name, error)
            return False
        finally:
            index.advancing = None

    async def _look(self, host: StreamHost) -> None:
        if not (host.is_leading and counts_newest(host.settings)):
            host.newest.count(None)
            return
        at_bytes = host.log.size_bytes  # what comes meanwhile may count twice, but never not at all
        found = await self.index(host, None)
        host.newest.count(None if found is None else found.size_bytes, at_bytes)


class BucketIndex:
    """What is shown of one bucket. `advance` is for a thread; all else is for the event loop, while
    none runs: see `advancing`."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.advancing: asyncio.Task[bool] | None = None
        self._start_over()

    def _start_over(self) -> None:
        self.count = self.size_bytes = 0
        self.next_offset = 0
        """Everything below was noted."""
        self.first_offset = 0
        # Offset and size of what is shown of each subject, ascending; by the newest of them.
        self._shown: dict[bytes, list[tuple[int, int]]] = {}

    @property
    def subject_count(self) -> int:
        return len(self._shown)

    def shows(self, subject: bytes, offset: int) -> bool:
        return any(offset == one for one, _ in self._shown.get(subject, ()))

    def advance(self, log: Log, first_offset: int, most: int) -> bool:
        """Note what is committed now, from `first_offset` on. False if that is more than `most`.
        Blocking. Raises LiftlogError, OSError."""
        if log.high_watermark < self.next_offset or first_offset < self.first_offset:
            self._start_over()  # records were lost, or are shown again
        self._forget(first_offset)
        at, end = max(self.next_offset, first_offset), log.high_watermark
        while at < end:
            if self.count > most:
                self._start_over()
                return False
            at = max(self._take(log, at, end), at + 1)
        self.next_offset = end
        return self.count <= most

    def _take(self, log: Log, at: int, end: int) -> int:
        """Returns where to continue; what cannot be read is not shown."""
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
        ends = batch.value_column()[1]
        subjects, headers = batch.raw_subjects(), batch.headers()
        rows = zip(subjects, batch.offsets(), headers, pairwise(ends), strict=True)
        deletes = batch.has_tombstones
        values, keys = (batch.values(), batch.keys()) if deletes else ((), ())
        for row, (subject, offset, block, (low, high)) in enumerate(rows):
            if deletes and values[row] is None:
                self._keep(subject, deleted_below(keys[row], offset))
                continue
            before = self._shown.pop(subject, [])
            size = high - low + len(block) + len(subject) + _OVERHEAD_BYTES
            kept = [] if self.history == 1 or ROLLUP_LINE in block else before[1 - self.history :]
            self._shown[subject] = [*kept, (offset, size)]
            self._changed(before, self._shown[subject])

    def _keep(self, subject: bytes, first_offset: int) -> None:
        """Of one subject nothing below that is shown any more."""
        before = self._shown.get(subject, [])
        kept = [one for one in before if one[0] >= first_offset]
        if kept:
            self._shown[subject] = kept
        else:
            self._shown.pop(subject, None)
        self._changed(before, kept)

    def _changed(self, before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
        self.count += len(after) - len(before)
        self.size_bytes += sum(size for _, size in after) - sum(size for _, size in before)

    def _forget(self, first_offset: int) -> None:
        if first_offset <= self.first_offset:
            return
        self.first_offset = first_offset
        for subject, some in list(self._shown.items()):
            if some[0][0] < first_offset:
                self._keep(subject, first_offset)
            elif self.history == 1:
                return  # the others are newer
