"""Measures the data between two offsets: its bytes, for readers that divide a stream by size, and
its records, for limits on the number of records.

A segment may contain large records at one end and small records at the other, so its size alone is
not enough. The index of the segment gives the position of each offset. A planner measures all
segments at once. So this module reads only the few necessary entries of the index file of a sealed
segment.

If compaction left holes, only the batch headers show the offset of the n-th record. A limit on the
number of records needs this offset in only one segment: the segment in which the log will start.
The numbers of records up to some of the batches are cached, so that the next search reads few
headers.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log.environment import FilePool
from liftlog.log.erased import ErasedSet
from liftlog.log.files.filesystem import File, FileSystem, storage_errors
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.files.unreadable import read_zeroed
from liftlog.log.segment.index import IndexEntry, SparseIndex, count_entries, index_path, read_entry
from liftlog.log.segment.segment import Segment, walk_batches
from liftlog.log.segment.sketch import Blocks, Probe, read_sketch
from liftlog.records.decode import decode_batch
from liftlog.records.header import BatchHeader

MAX_EXTENTS = 4096
_LEAST_STEP_BYTES = 64 * 1024

_STEP_BYTES = 64 * 1024
_REMEMBERED = 2
"""Number of segments with cached counts: the segment with the log start, and the next one."""


class Extent(NamedTuple):
    """The approximate size of the records [first_offset, next_offset)."""

    first_offset: int
    next_offset: int
    size_bytes: int


class Wanted(NamedTuple):
    """The records that a read wants, and the information about the log that is needed to find these
    records."""

    first_offset: int
    probe: Probe
    lineage: str
    damaged: Set[str]
    """The segment files with quarantined bytes; their sketches are not used."""
    seconds: float = 0.2
    """Processor time limit of the search; it examines at least one segment."""


def measure(
    fs: FileSystem,
    incarnation: str,
    segments: Sequence[Segment],
    active_index: SparseIndex,
    readable_end: Callable[[Segment], IndexEntry],
    step_bytes: int,
) -> list[Extent]:
    """Divide the offsets of `segments` into extents of about `step_bytes`, without gaps.

    The extents are larger if otherwise more than MAX_EXTENTS would result. A record is never
    divided. `active_index` is the index of the active segment; it is not used if this segment has
    been sealed in the meantime. Raises OSError.
    """
    ends = [readable_end(segment) for segment in segments]
    total = sum(end.position for end in ends)
    step = max(step_bytes, _LEAST_STEP_BYTES, -(-total // (MAX_EXTENTS // 2)))
    found = (
        extent
        for segment, end in zip(segments, ends, strict=True)
        for extent in _cut(fs, incarnation, segment, end, active_index, step)
    )
    return list(_merged(found, step))


def find_matching(
    fs: FileSystem,
    incarnation: str,
    segments: Sequence[Segment],
    active_index: SparseIndex,
    readable_end: Callable[[Segment], IndexEntry],
    step_bytes: int,
    wanted: Wanted,
) -> list[Extent]:
    """Measure like `measure`, but extents that cannot hold a wanted record have the size 0.

    The search ends early at MAX_EXTENTS extents, or after `wanted.seconds`. Uses the sketches of
    segments; a segment without a sketch counts as a whole. Raises OSError.
    """
    found: list[Extent] = []
    step = max(step_bytes, _LEAST_STEP_BYTES)
    deadline = time.thread_time() + wanted.seconds
    for segment in segments:
        if found and time.thread_time() >= deadline:
            break
        end = readable_end(segment)
        sketch = None
        extents: Iterable[Extent]
        if segment.sealed and segment.path.name not in wanted.damaged:
            with suppress(OSError):  # a sketch is optional
                sketch = read_sketch(fs, segment.path, segment.entry(), wanted.lineage)
        if sketch is None or end.position < segment.size_bytes:
            # Only a sketch may exclude records.
            cut = _cut(fs, incarnation, segment, end, active_index, step)
            extents = (one._replace(size_bytes=max(one.size_bytes, 1)) for one in cut)
        else:
            extents = _joined(sketch.blocks(wanted.probe), step)
        behind = found[-1].next_offset if found else segment.base_offset
        if behind < segment.base_offset:
            # The offsets between two segments were lost or skipped. Readers must get the error for
            # these offsets.
            extents = chain([Extent(behind, segment.base_offset, 1)], extents)
        for extent in extents:
            if extent.next_offset <= wanted.first_offset:
                continue
            last = found[-1] if found else None
            if (
                last is not None
                and bool(last.size_bytes) == bool(extent.size_bytes)
                and (last.size_bytes + extent.size_bytes <= step)
            ):
                size = last.size_bytes + extent.size_bytes
                found[-1] = Extent(last.first_offset, extent.next_offset, size)
            elif len(found) == MAX_EXTENTS:
                return found
            else:
                found.append(extent)
    return found


def _joined(blocks: Blocks, step: int) -> Iterator[Extent]:
    """Join neighbouring blocks of the same kind, up to `step` bytes, because a segment has
    thousands of blocks."""
    borders = blocks.borders.tolist()
    sizes = np.where(blocks.may_match, blocks.sizes_bytes, 0)
    reached = [0, *np.cumsum(sizes).tolist()]
    turns = np.flatnonzero(np.diff(blocks.may_match)) + 1
    first = 0
    for turn in [*turns.tolist(), len(sizes)]:
        while first < turn:
            end = bisect_right(reached, reached[first] + step, first + 1, turn + 1) - 1
            end = max(end, first + 1)
            yield Extent(borders[first], borders[end], reached[end] - reached[first])
            first = end


def _cut(
    fs: FileSystem,
    incarnation: str,
    segment: Segment,
    end: IndexEntry,
    index: SparseIndex,
    step: int,
) -> Iterator[Extent]:
    before = IndexEntry(segment.base_offset, 0)
    for place in [*_places(fs, incarnation, segment, end, index, step), end]:
        if place.offset > before.offset and place.position >= before.position:
            yield Extent(before.offset, place.offset, place.position - before.position)
            before = place


def _places(
    fs: FileSystem,
    incarnation: str,
    segment: Segment,
    end: IndexEntry,
    index: SparseIndex,
    step: int,
) -> list[IndexEntry]:
    """Return batch boundaries before `end` that are about `step` bytes apart, or farther if the
    index has no closer boundaries."""
    wanted = range(step, end.position, step)
    if not wanted:
        return []
    if not segment.sealed and index.base_offset == segment.base_offset:
        return [index.floor_position(position) for position in wanted]
    try:
        with closing(fs.open(index_path(segment.path), writable=False)) as file:
            count = count_entries(file, segment, incarnation)
            places = [_floor(file, count, segment.base_offset, position) for position in wanted]
    except OSError:
        return []
    return [place for place in places if place.offset < end.offset]


def _floor(file: File, count: int, base_offset: int, position: int) -> IndexEntry:
    """Return the last entry at or before `position`. A damaged index file does no harm: it only
    makes extents uneven, and `_cut` drops entries that do not ascend."""
    low, high = 0, count
    best = IndexEntry(base_offset, 0)
    while low < high:
        middle = (low + high) // 2
        entry = read_entry(file, middle, base_offset)
        if entry.position <= position:
            best, low = entry, middle + 1
        else:
            high = middle
    return best


def _merged(extents: Iterable[Extent], step: int) -> Iterator[Extent]:
    """Join small neighbouring extents, because a stream may have thousands of small segments."""
    held: Extent | None = None
    for extent in extents:
        if held is None:
            held = extent
        elif (
            held.next_offset == extent.first_offset and held.size_bytes + extent.size_bytes <= step
        ):
            size = held.size_bytes + extent.size_bytes
            held = Extent(held.first_offset, extent.next_offset, size)
        else:
            yield held
            held = extent
    if held is not None:
        yield held


class _Counted(NamedTuple):
    """A batch boundary, and the number of records before it in the segment."""

    records: int
    offset: int
    position: int


class RecordCounts:
    """A cache of the record counts of one log. Thread-safe."""

    def __init__(self, pool: FilePool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._steps: OrderedDict[Path, list[_Counted]] = OrderedDict()

    def offset_of(
        self,
        segment: Segment,
        number: int,
        quarantined: Sequence[QuarantinedRange] = (),
        erased: ErasedSet | None = None,
    ) -> int:
        """Return the offset of record `number` (from 0) of `segment`. The records that `erased`
        contains do not count.

        If damage prevents an exact count, the result is a lower offset, so that retention never
        deletes too much. Raises StorageError.
        """
        if erased is not None and not erased.count_in(segment.base_offset, segment.next_offset):
            erased = None
        with self._lock, storage_errors(f"counting records of {segment.path.name}"):
            if erased is not None:
                pooled = self._pool.acquire(segment.path)
                try:
                    return _find_left(pooled.file, segment, number, quarantined, erased)
                finally:
                    self._pool.release(pooled)
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
    # Damaged batches are not counted, so the offset may be too low. Each earlier record has its own
    # offset, which gives a lower bound.
    return segment.base_offset + number


def _find_left(
    file: File,
    segment: Segment,
    number: int,
    quarantined: Sequence[QuarantinedRange],
    erased: ErasedSet,
) -> int:
    """Like `_find`, without the erased records. Reads all headers, because the cached counts are of
    stored records."""
    before = 0
    start = IndexEntry(segment.base_offset, 0)
    end = IndexEntry(segment.next_offset, segment.size_bytes)
    for at, header in walk_batches(file, start, end, quarantined=quarantined):
        hidden = erased.offsets_in(header.base_offset, header.next_offset)
        left = header.record_count - len(hidden)
        if number < before + left:
            if not len(hidden):
                return _offset_in(file, at, header, number - before)
            try:
                stored = decode_batch(read_zeroed(file, header.length, at)).offsets()
            except (CorruptBatch, UnsupportedFormat):  # as in `_offset_in`
                return header.base_offset
            return int(np.setdiff1d(stored, hidden, assume_unique=True)[number - before])
        before += left
    return segment.base_offset + number


def _offset_in(file: File, position: int, header: BatchHeader, number: int) -> int:
    if header.record_count <= header.last_offset_delta:
        try:
            return int(decode_batch(read_zeroed(file, header.length, position)).offsets()[number])
        except (CorruptBatch, UnsupportedFormat):
            pass  # readers get an error; this result only becomes less precise
    return header.base_offset + number
