"""Keeps the offsets and sizes of a bucket's shown records in memory. An update reads only the
records that have arrived since the previous update.

They are used for the counts in a bucket's description, for the revisions of a longer history, and
for a limit of bytes. Compaction deletes superseded records only later. They must not count for the
limit, because the bucket would then refuse new values.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import deque
from concurrent.futures import Executor
from itertools import pairwise
from weakref import WeakKeyDictionary

from liftlog.errors import CorruptBatch, CorruptRange, LiftlogError
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.server.commits.configs import counts_newest
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.messages.ages import Ages, look_often
from liftlog.server.jetstream_api.messages.newest import ROLLUP_LINE, deleted_below
from liftlog.server.streams.broker import Broker

logger = logging.getLogger("liftlog.server.jetstream_api")

_PIECE_BYTES = 256 * 1024
_TURN_SECONDS = 0.02
"""Time, in seconds, for reading one bucket in a thread before another bucket or a scan has its
turn."""
_MAX_RECORDS = 2_000_000
"""Maximum number of shown records of all buckets together, at about 250 bytes each. A bucket that
would exceed this number gets no index."""
_PATIENCE_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_MOST_OF_TIME = 0.2
"""Maximum share of the daemon's time that is used for reading a bucket with a limit of bytes."""
_OVERHEAD_BYTES = 24
"""Overhead in bytes that is counted for a record that shares its batch with others."""
_TUPLE_RECORDS = 64
"""A subject with more records has a deque in place of a tuple. A deque takes more memory, but can
drop its first item quickly."""
_SIZE_BITS = 32
_SIZE_MASK = (1 << _SIZE_BITS) - 1

_Some = tuple[int, ...] | deque[int]
"""Ascending offsets, with the sizes in their lowest bits. They are stored in tuples, because the
garbage collector visits a tuple of numbers only once. With millions of lists, a collection would
stop the whole process for half a second."""


class Buckets:
    """The indexes of all buckets. Buckets are read in turns, one at a time. Belongs to the event
    loop; `keep` is a task."""

    def __init__(self, broker: Broker, threads: Executor, ages: Ages) -> None:
        self._broker, self._threads, self._ages = broker, threads, ages
        self._known: WeakKeyDictionary[StreamHost, BucketIndex] = WeakKeyDictionary()
        self._turn = asyncio.Lock()  # the lock serves waiting tasks in their order

    async def keep(self) -> None:
        """Update the sizes of buckets that have a limit of bytes. Runs until it is cancelled."""
        await look_often(self._broker, self._look)

    async def close(self) -> None:
        tasks = [one.advancing for one in self._known.values() if one.advancing is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def index(self, host: StreamHost) -> BucketIndex | None:
        """Return the index of all records that are committed now. Returns None in three cases:

        - the stream has no history
        - the stream has too many records
        - reading the bucket takes longer than the time limit of a caller
        """
        known = self._index_of(host)
        if known is None:
            return None
        end, until = host.log.high_watermark, time.monotonic() + _PATIENCE_SECONDS
        while known.advancing or self._is_behind(known, host, end):
            if not self._begin(known, host):
                return None
            assert known.advancing is not None, "it was begun"
            patience = max(0.0, until - time.monotonic())
            done, _ = await asyncio.wait({known.advancing}, timeout=patience)
            if not done or any(one.cancelled() or not one.result() for one in done):
                return None
        return known

    async def erased(self, host: StreamHost, subject: bytes, offsets: ErasedSet) -> None:
        """Remove records of a subject that were erased. When the call returns, no index shows
        them."""
        known = self._known.get(host)
        if known is not None:
            async with self._turn:
                known.erased(subject, offsets)

    def _index_of(self, host: StreamHost) -> BucketIndex | None:
        own = host.settings.jetstream
        history = None if own is None else own.max_msgs_per_subject
        if history is None:
            return None
        known = self._known.get(host)
        if known is None or known.history != history:
            known = self._known[host] = BucketIndex(history)
        return known

    def _is_behind(self, index: BucketIndex, host: StreamHost, end: int) -> bool:
        return index.next_offset < end or index.first_offset != self._ages.first_offset(host)

    def _begin(self, index: BucketIndex, host: StreamHost) -> bool:
        """Start to read the rest of the bucket, unless a read is already running. Return False if
        the bucket would exceed the limit."""
        if index.advancing is None:
            refused, log = index.refused, host.log
            if refused is not None and refused.still(
                log, self._ages.first_offset(host), self._most(index)
            ):
                return False
            index.advancing = asyncio.create_task(self._advance(index, host))
        return True

    def _most(self, index: BucketIndex) -> int:
        return _MAX_RECORDS - sum(one.count for one in self._known.values() if one is not index)

    async def _advance(self, index: BucketIndex, host: StreamHost) -> bool:
        """Read the rest of the bucket. Return False if the bucket cannot be read or has too many
        records."""
        log, end, took = host.log, host.log.high_watermark, 0.0
        try:
            while True:
                async with self._turn:
                    first_offset, most = self._ages.first_offset(host), self._most(index)
                    # Messages that arrive during the read may count twice.
                    grown = host.newest.grown_bytes
                    began = time.monotonic()
                    future = self._threads.submit(
                        index.advance, log, first_offset, most, _TURN_SECONDS
                    )
                    fits = await asyncio.wrap_future(future)
                    took += time.monotonic() - began
                if not fits:
                    index.refused = Refused(log, first_offset, most)
                    host.newest.count(None)
                    return False
                if index.next_offset >= min(end, log.high_watermark):
                    index.refused = None
                    self._count(index, host, grown)
                    return True
        except (LiftlogError, OSError) as error:
            logger.warning("bucket-not-read stream=%s error=%s", log.name, error)
            host.newest.count(None)
            return False
        finally:
            index.look_at = time.monotonic() + max(_LOOK_SECONDS, took / _MOST_OF_TIME)
            index.advancing = None

    def _count(self, index: BucketIndex, host: StreamHost, grown_bytes: int) -> None:
        if counts_newest(host.settings):
            host.newest.count(index.size_bytes, grown_bytes)

    async def _look(self, host: StreamHost) -> None:
        """Start an update without waiting for it, so that other buckets are updated at the same
        time."""
        index = self._index_of(host) if host.is_leading and counts_newest(host.settings) else None
        if index is None:
            host.newest.count(None)
        elif index.advancing is None:
            grown = host.newest.grown_bytes
            if not self._is_behind(index, host, host.log.high_watermark):
                self._count(index, host, grown)
            elif time.monotonic() >= index.look_at and not self._begin(index, host):
                host.newest.count(None)


class Refused:
    """A bucket that had more than `most` records. Another attempt to index such a bucket would take
    a long time and would most likely fail."""

    def __init__(self, log: Log, first_offset: int, most: int) -> None:
        self._first_offset, self._end, self._most = first_offset, log.high_watermark, most
        self._size_bytes = log.view.size_bytes

    def still(self, log: Log, first_offset: int, most: int) -> bool:
        """Return True while another attempt is likely to fail. Return False when about an eighth of
        the bucket was lost or deleted, or when the limit has grown by about an eighth."""
        extent = max(1, self._end - self._first_offset)
        return (
            self._first_offset <= first_offset < self._first_offset + extent / 8
            # A lower end means that records were lost. The comparison doubles the number of
            # offsets, because many of them may be tombstones.
            and self._end <= log.high_watermark < self._end + extent
            and log.view.size_bytes > self._size_bytes * 7 / 8
            and most < self._most + _MAX_RECORDS / 8
        )


class BucketIndex:
    """The shown records of one bucket. `advance` runs in a thread. All other methods belong to the
    event loop and must not run at the same time as `advance`; see `advancing`."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.advancing: asyncio.Task[bool] | None = None
        self.refused: Refused | None = None
        self.look_at = 0.0
        """Monotonic time of the next read of a bucket that has a limit of bytes."""
        # The shown records of each subject. Subjects are ordered by their newest record.
        self._shown: dict[bytes, _Some] = {}
        self._start_over()

    def _start_over(self) -> None:
        while self._shown:  # not `clear`, which would block the event loop with millions of items
            self._shown.popitem()
        self._shown = {}
        self.count = self.size_bytes = 0
        self.next_offset = 0
        """All records below this offset are in the index."""
        self.first_offset = 0

    @property
    def subject_count(self) -> int:
        return len(self._shown)

    def shows(self, subject: bytes, offset: int) -> bool:
        some = self._shown.get(subject, ())
        at = bisect_left(some, offset << _SIZE_BITS)
        return at < len(some) and some[at] >> _SIZE_BITS == offset

    def erased(self, subject: bytes, offsets: ErasedSet) -> None:
        """Remove records of a subject. Records that are not in the index do not count."""
        some = self._shown.get(subject, ())
        gone = {one for one in some if offsets.next_at(one >> _SIZE_BITS) == one >> _SIZE_BITS}
        self.count -= len(gone)
        self.size_bytes -= sum([one & _SIZE_MASK for one in gone])
        if gone and len(gone) == len(some):
            del self._shown[subject]
        elif gone:
            self._shown[subject] = type(some)(one for one in some if one not in gone)

    def advance(self, log: Log, first_offset: int, most: int, seconds: float | None = None) -> bool:
        """Add the committed records from `first_offset` up to `next_offset`, for at most about
        `seconds`. Return False if there are more than `most` records. Blocking. Raises
        LiftlogError, OSError."""
        until = None if seconds is None else time.monotonic() + seconds
        if log.high_watermark < self.next_offset or first_offset < self.first_offset:
            self._start_over()  # records were lost, or records are shown that were hidden before
        self._forget(first_offset)
        end = log.high_watermark
        at = max(self.next_offset, first_offset)
        while at < end:
            at = max(self._take(log, at, end), at + 1)
            if self.count > most or (until is not None and time.monotonic() >= until):
                break
        self.next_offset = min(at, end)
        if self.count > most:
            self._start_over()
            return False
        return True

    def _take(self, log: Log, at: int, end: int) -> int:
        """Add one piece of the log, and return the offset at which to continue. Unreadable records
        are skipped."""
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
            some = self._shown.pop(subject, ())
            if self.history == 1 or ROLLUP_LINE in block:
                some = self._drop(some, offset)
            elif len(some) >= self.history:
                some = self._drop(some, (some[0] >> _SIZE_BITS) + 1)
            size = high - low + len(block) + len(subject) + _OVERHEAD_BYTES
            self._shown[subject] = _with(some, offset << _SIZE_BITS | size)
            self.count += 1
            self.size_bytes += size

    def _keep(self, subject: bytes, first_offset: int) -> None:
        """Hide the records of one subject below `first_offset`."""
        some = self._drop(self._shown.get(subject, ()), first_offset)
        if some:
            self._shown[subject] = some
        else:
            self._shown.pop(subject, None)

    def _drop(self, some: _Some, first_offset: int) -> _Some:
        dropped = 0
        for one in some:
            if one >> _SIZE_BITS >= first_offset:
                break
            dropped += 1
            self.size_bytes -= one & _SIZE_MASK
        self.count -= dropped
        if isinstance(some, tuple):
            return some[dropped:]
        for _ in range(dropped):
            some.popleft()
        return some

    def _forget(self, first_offset: int) -> None:
        if first_offset <= self.first_offset:
            return
        self.first_offset = first_offset
        for subject in list(self._shown):
            if self._shown[subject][0] >> _SIZE_BITS < first_offset:
                self._keep(subject, first_offset)
            elif self.history == 1:
                return  # all further records are newer


def _with(some: _Some, one: int) -> _Some:
    if isinstance(some, tuple):
        if len(some) < _TUPLE_RECORDS:
            return (*some, one)
        some = deque(some)
    some.append(one)
    return some
