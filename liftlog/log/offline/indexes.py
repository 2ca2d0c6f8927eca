"""Which indexes of a stream are missing or wrong, and rebuilding them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from liftlog.log.filesystem import File, FileSystem
from liftlog.log.index import (
    INTERVAL_BYTES,
    IndexEntry,
    SparseIndex,
    index_path,
    read_index,
    write_index,
)
from liftlog.log.index_cache import build_index
from liftlog.log.manifest import Manifest
from liftlog.log.segment import Segment, walk_batches


class StaleIndex(NamedTuple):
    """The index of a sealed segment that has to be rebuilt, and why."""

    segment: Segment
    reason: str

    @property
    def path(self) -> Path:
        return index_path(self.segment.path)


def find_stale_indexes(fs: FileSystem, directory: Path, manifest: Manifest) -> list[StaleIndex]:
    """Compare the index of every sealed segment with the batch headers. Raises OSError.

    The index of the active segment is left out: it is as old as the last checkpoint, and the
    daemon updates it when it starts.
    """
    found = []
    for entry in manifest.segments[:-1]:
        segment = Segment(directory, entry, sealed=True)
        if not fs.exists(segment.path):
            continue
        reason = _what_is_wrong(fs, segment, manifest)
        if reason:
            found.append(StaleIndex(segment, reason))
    return found


def rebuild_index(fs: FileSystem, segment: Segment, manifest: Manifest) -> int:
    """Rebuild the segment's index; durable on return. Returns the number of entries."""
    file = fs.open(segment.path, writable=False)
    try:
        known = manifest.quarantined_in(segment.path.name)
        index = build_index(file, segment, known)
    finally:
        file.close()
    write_index(fs, segment.path, index)
    fs.fsync_directory(segment.path.parent)
    return len(index)


def _what_is_wrong(fs: FileSystem, segment: Segment, manifest: Manifest) -> str:
    if not fs.exists(index_path(segment.path)):
        return "it is missing"
    index = read_index(fs, segment.path, segment.base_offset)
    if index is None:
        return "it fails its check"
    file = fs.open(segment.path, writable=False)
    try:
        return _disagreement(file, segment, index, manifest)
    finally:
        file.close()


def _disagreement(file: File, segment: Segment, index: SparseIndex, manifest: Manifest) -> str:
    """Where the index leads elsewhere than the headers do, or leaves out what it should have.

    Entries that point into damage are kept: readers continue there.
    """
    known = manifest.quarantined_in(segment.path.name)
    start = IndexEntry(segment.base_offset, 0)
    end = IndexEntry(segment.next_offset, min(segment.size_bytes, file.size()))
    before, border = 0, 0  # where the last batch begins, and ends
    for position, header in walk_batches(file, start, end, index=index, quarantined=known):
        entry = index.floor_position(position)
        if entry.position == position and entry.offset != header.base_offset:
            return f"it has offset {entry.offset} at {position}, where {header.base_offset} lies"
        if position == border and before < entry.position < position:
            return f"it has an entry at {entry.position}, where no batch begins"
        if position - entry.position >= INTERVAL_BYTES:
            return f"it has no entry for the batch at {position}"
        before, border = position, position + header.length
    return ""
