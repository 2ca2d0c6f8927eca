"""A segment: a file of record batches that begins at `base_offset`. Also walks the headers of a
segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from liftlog.errors import CorruptBatch
from liftlog.log.files.filesystem import File
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry
from liftlog.log.files.unreadable import read_zeroed
from liftlog.log.segment.index import IndexEntry, SparseIndex
from liftlog.log.segment.resync import find_resync
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import BatchHeader, parse_header
from liftlog.records.place import Epochs, Place

MAX_POSITION = 0xFFFF_0000  # positions in the index are u32; leave room for one last group
_WALK_BYTES = 64 * 1024


class Segment:
    """The properties of a segment that are known without reading its file. The active segment
    grows, and only its `ActiveSegment` changes it; a sealed segment never changes.

    The following segment begins at `next_offset`. The file is valid up to `size_bytes`; readers
    ignore bytes past it.

    Two monotonic times, 0 if unknown, give the age of the segment independently of wall clocks. At
    `held_since_ns` this process had all records of the segment. If `is_timed` is true, the newest
    record was stored at exactly that time. The file has not changed since `listed_since_ns`.
    """

    __slots__ = (
        "base_offset",
        "created_ns",
        "delete_horizon_ns",
        "generation",
        "held_since_ns",
        "is_timed",
        "listed_since_ns",
        "max_timestamp_ns",
        "next_offset",
        "path",
        "record_count",
        "sealed",
        "size_bytes",
    )

    def __init__(self, directory: Path, entry: SegmentEntry, *, sealed: bool) -> None:
        self.base_offset = entry.base_offset
        self.generation = entry.generation
        self.path = directory / entry.file_name
        self.size_bytes = entry.size_bytes
        self.next_offset = entry.next_offset or entry.base_offset
        self.record_count = entry.record_count
        self.max_timestamp_ns = entry.max_timestamp_ns
        self.delete_horizon_ns = entry.delete_horizon_ns
        self.sealed = sealed
        self.created_ns = 0
        self.held_since_ns = self.listed_since_ns = 0
        self.is_timed = False

    def entry(self) -> SegmentEntry:
        return SegmentEntry(
            base_offset=self.base_offset,
            generation=self.generation,
            size_bytes=self.size_bytes,
            next_offset=self.next_offset,
            record_count=self.record_count,
            max_timestamp_ns=self.max_timestamp_ns,
            delete_horizon_ns=self.delete_horizon_ns,
        )

    def sealed_at(self, size_bytes: int, next_offset: int, record_count: int) -> Segment:
        """Return the part of this segment before a batch boundary, as a sealed segment."""
        entry = replace(
            self.entry(),
            size_bytes=size_bytes,
            next_offset=next_offset,
            record_count=record_count,
        )
        segment = Segment(self.path.parent, entry, sealed=True)
        segment.created_ns = self.created_ns
        segment.take_times([self], listed_since_ns=self.listed_since_ns)
        return segment

    def take_times(self, sources: Sequence[Segment], *, listed_since_ns: int) -> None:
        """Copy the times of `sources`, the segments from which the records of this segment come."""
        newest = max(sources, key=lambda one: one.held_since_ns)
        self.held_since_ns, self.is_timed = newest.held_since_ns, newest.is_timed
        self.listed_since_ns = listed_since_ns


class SteppedOver(NamedTuple):
    """A damaged range of a segment that a walk skipped, and the offsets that the range
    contained."""

    position: int
    first_offset: int
    next_offset: int
    known: bool  # already quarantined


def walk_batches(
    file: File,
    start: IndexEntry,
    end: IndexEntry,
    *,
    index: SparseIndex | None = None,
    quarantined: Sequence[QuarantinedRange] = (),
    stepped_over: list[SteppedOver] | None = None,
    window: int = _WALK_BYTES,
    size_bytes: int | None = None,
    epochs: Epochs = (),
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch from `start` to `end`, reading ahead in windows.

    Pass `size_bytes`, the size of the file, if `end.position` is only the start of the zeros at the
    end of the file (see `find_data_end`). The last batch may itself end in zeros, so it may extend
    up to that size, and the offset at its end is unknown.

    The walk skips damage up to the next batch that certainly continues the log, and adds each
    skipped range to `stepped_over`. So readers lose only the damaged batches. A batch that belongs
    to another place counts as damage; the `epochs` of the manifest help to detect such batches.
    Bodies are not verified. Raises OSError and UnsupportedFormat.
    """
    position = start.position
    limit = end.position if size_bytes is None else max(size_bytes, end.position)
    known_end = end.offset if size_bytes is None else None
    place = Place(start.offset, known_end, epochs=epochs)
    buffer = b""
    read_from = position
    while position < end.position:
        at = position - read_from
        if at < 0 or at + HEADER_SIZE > len(buffer):
            read_from, at = position, 0
            buffer = read_zeroed(file, min(window, limit - position), position)
        try:
            header = parse_header(buffer, at)
            whole = position + header.length <= limit and place.accept(header)
        except CorruptBatch:
            whole = False
        if whole:
            yield position, header
            position += header.length
            continue
        offset = place.offset
        hit = SteppedOver(position, offset, 0, known=False)
        known = _covering(quarantined, position)
        if known is not None:
            offset, position = known.next_offset, known.end_position
        else:
            offset, position = _behind_damage(file, position, offset, end, known_end, index)
        place.go_on_at(offset)
        if stepped_over is not None:
            stepped_over.append(hit._replace(next_offset=offset, known=known is not None))


def _covering(ranges: Sequence[QuarantinedRange], position: int) -> QuarantinedRange | None:
    for bad in ranges:
        if bad.position <= position < bad.end_position:
            return bad
    return None


def _behind_damage(
    file: File,
    position: int,
    offset: int,
    end: IndexEntry,
    known_end: int | None,
    index: SparseIndex | None,
) -> IndexEntry:
    border = index.after_position(position) if index is not None else None
    if border is None or border.position >= end.position or border.offset <= offset:
        border = end
    reached = known_end if border is end else border.offset
    found = find_resync(file, position, border.position, offset=offset, epoch=0, end_offset=reached)
    return IndexEntry(found.offset, found.position) if found is not None else border
