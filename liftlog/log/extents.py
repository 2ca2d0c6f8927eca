"""How the bytes of a log lie over its offsets, for readers that share a stream out by size.

A segment may hold large records at one end and small ones at the other, so that its size alone says
little. Its index says where each offset lies; of a sealed segment only the few entries that are
asked for are read from the file, since a planner asks about all segments at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from liftlog.log.filesystem import File, FileSystem
from liftlog.log.index import IndexEntry, SparseIndex, count_entries, index_path, read_entry
from liftlog.log.segment import Segment
from liftlog.log.unreadable import is_unreadable

MAX_EXTENTS = 4096
_LEAST_STEP_BYTES = 64 * 1024


class Extent(NamedTuple):
    """The records [first_offset, next_offset) take up about this much."""

    first_offset: int
    next_offset: int
    size_bytes: int


def measure(
    fs: FileSystem,
    segments: Sequence[Segment],
    active_index: SparseIndex,
    readable_end: Callable[[Segment], IndexEntry],
    step_bytes: int,
) -> list[Extent]:
    """Extents that tile the offsets of `segments`, each about `step_bytes` large, or larger where
    there would be more than MAX_EXTENTS of them. A record is never divided.

    `active_index` counts for the segment that it belongs to, if that is not sealed. Raises OSError.
    """
    ends = [readable_end(segment) for segment in segments]
    total = sum(end.position for end in ends)
    step = max(step_bytes, _LEAST_STEP_BYTES, -(-total // (MAX_EXTENTS // 2)))
    found = (
        extent
        for segment, end in zip(segments, ends, strict=True)
        for extent in _cut(fs, segment, end, active_index, step)
    )
    return list(_merged(found, step))


def _cut(
    fs: FileSystem, segment: Segment, end: IndexEntry, index: SparseIndex, step: int
) -> Iterator[Extent]:
    before = IndexEntry(segment.base_offset, 0)
    for place in [*_places(fs, segment, end, index, step), end]:
        if place.offset > before.offset and place.position >= before.position:
            yield Extent(before.offset, place.offset, place.position - before.position)
            before = place


def _places(
    fs: FileSystem, segment: Segment, end: IndexEntry, index: SparseIndex, step: int
) -> list[IndexEntry]:
    """Batch boundaries about `step` apart; none where the index does not tell."""
    wanted = range(step, end.position, step)
    if not wanted:
        return []
    if not segment.sealed and index.base_offset == segment.base_offset:
        return [index.floor_position(position) for position in wanted]
    try:
        with closing(fs.open(index_path(segment.path), writable=False)) as file:
            count = count_entries(file)
            return [_floor(file, count, segment.base_offset, position) for position in wanted]
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_unreadable(error):
            return []
        raise


def _floor(file: File, count: int, base_offset: int, position: int) -> IndexEntry:
    """The last of the entries at or before `position`. What a damaged file says is of no harm: it
    makes extents uneven, and `_cut` drops what does not ascend."""
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
    """Small neighbours as one: a stream may have thousands of small segments."""
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
