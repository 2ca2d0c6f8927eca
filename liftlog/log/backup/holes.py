"""What the source's disk did not give: zeros in the backup, and told as lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from liftlog.log.damage import damage_in_walk
from liftlog.log.filesystem import FileSystem
from liftlog.log.index import read_index
from liftlog.log.manifest import QuarantinedRange, SegmentEntry
from liftlog.log.unreadable import words
from liftlog.log.walk import walk


def lost_in_holes(
    fs: FileSystem, path: Path, entry: SegmentEntry, holes: Sequence[range]
) -> tuple[QuarantinedRange, ...]:
    """The offsets of the copy at `path` that its holes cost. Raises OSError."""
    if not holes:
        return ()
    file = fs.open(path, writable=False)
    try:
        size = min(file.size(), entry.size_bytes)
        index = read_index(fs, path, entry.base_offset)
        found = damage_in_walk(walk(file, entry.base_offset, size, size, index), entry)
    finally:
        file.close()
    lost = []
    for bad in found:
        for hole in holes:
            if bad.position < hole.stop and hole.start < bad.end_position:
                lost.append(replace(bad, reason=f"{words(hole)}, when the backup was made"))
                break
    return tuple(lost)
