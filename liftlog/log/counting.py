"""Which offset the n-th record of a segment has, where compaction left holes.

Needed where a limit counts records: the log start then lies inside one segment, and only its batch
headers tell where. What was counted is remembered at steps, so that the next look reads little.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log.file_pool import FilePool
from liftlog.log.filesystem import File, storage_errors
from liftlog.log.index import IndexEntry
from liftlog.log.manifest import QuarantinedRange
from liftlog.log.segment import Segment, walk_batches
from liftlog.log.unreadable import read_zeroed
from liftlog.records.decode import decode_batch
from liftlog.records.header import BatchHeader

_STEP_BYTES = 64 * 1024
_REMEMBERED = 2
"""Segments. The log start lies in one of them, and moves on to the next."""


class _Counted(NamedTuple):
    """So many records lie before this batch boundary."""

    records: int
    offset: int
    position: int


class RecordCounts:
    """Of one log. Thread-safe."""

    def __init__(self, pool: FilePool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._steps: OrderedDict[Path, list[_Counted]] = OrderedDict()

    def offset_of(
        self, segment: Segment, number: int, quarantined: Sequence[QuarantinedRange] = ()
    ) -> int:
        """The offset of record `number` of `segment`, from 0 on; never more than that.

        Where records cannot be counted for damage it is less, so that too much is kept rather than
        too little. Raises StorageError.
        """
        with self._lock, storage_errors(f"counting records of {segment.path.name}"):
            steps = self._steps.setdefault(segment.path, [_Counted(0, segment.base_offset, 0)])
            self._steps.move_to_end(segment.path)
            while len(self._steps) > _REMEMBERED:
                self._steps.popitem(last=False)
            pooled = self._pool.acquire(segment.path)
            try:
                return _find(pooled.file, segment, number, quarantined, steps)
            finally:
                self._pool.release(pooled)


def _find(
    file: File,
    segment: Segment,
    number: int,
    quarantined: Sequence[QuarantinedRange],
    steps: list[_Counted],
) -> int:
    before, offset, position = steps[bisect_right(steps, number, key=lambda one: one.records) - 1]
    end = IndexEntry(segment.next_offset, segment.size_bytes)
    start = IndexEntry(offset, position)
    for at, header in walk_batches(file, start, end, quarantined=quarantined):
        if at >= steps[-1].position + _STEP_BYTES:
            steps.append(_Counted(before, header.base_offset, at))
        if number < before + header.record_count:
            return _offset_in(file, at, header, number - before)
        before += header.record_count
    # Damaged batches are not counted; each record up to this one has an offset of its own.
    return segment.base_offset + number


def _offset_in(file: File, position: int, header: BatchHeader, number: int) -> int:
    if header.record_count <= header.last_offset_delta:
        try:
            return int(decode_batch(read_zeroed(file, header.length, position)).offsets()[number])
        except (CorruptBatch, UnsupportedFormat):
            pass  # readers get an error; here a little less precision does no harm
    return header.base_offset + number
