"""Copying the bytes of a file, telling them again, and what the disk of the source does not give:
zeros in the backup, and reported as lost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from liftlog.log.backup.layout import BackedUpFile
from liftlog.log.damage import damage_in_walk
from liftlog.log.filesystem import FileSystem, write_all
from liftlog.log.index import read_index
from liftlog.log.manifest import QuarantinedRange, SegmentEntry
from liftlog.log.unreadable import add_hole, read_around, words
from liftlog.log.walk import walk

_PIECE_BYTES = 4 * 1024 * 1024

Copied = Callable[[int], None]
"""Called with the number of bytes that were just read."""


def copy_file(
    source: tuple[FileSystem, Path],
    target: tuple[FileSystem, Path],
    size_bytes: int | None = None,
    copied: Copied = lambda size: None,
    holes: list[range] | None = None,
) -> BackedUpFile:
    """Copy the first `size_bytes` (fewer if there are no more; None: all); fdatasynced on return.

    Pages that the source's disk does not give are zeros in the copy, if `holes` is there to be told
    of them; else they are an error like any other. Raises OSError.
    """
    file = source[0].open(source[1], writable=False)
    try:
        new = target[0].open(target[1], create=True)
        try:
            digest, position = hashlib.sha256(), 0
            end = file.size() if size_bytes is None else size_bytes
            while position < end:
                length = min(_PIECE_BYTES, end - position)
                if holes is None:
                    piece = file.pread(length, position)
                else:
                    piece, found = read_around(file, length, position)
                    for hole in found:
                        add_hole(holes, hole.start, hole.stop)
                if not piece:
                    break
                digest.update(piece)
                write_all(new, [piece], position)
                position += len(piece)
                copied(len(piece))
            new.fdatasync()
        finally:
            new.close()
    finally:
        file.close()
    return BackedUpFile(target[1].name, position, digest.hexdigest())


def describe_file(fs: FileSystem, path: Path, copied: Copied = lambda size: None) -> BackedUpFile:
    """Size and checksum of what lies at `path`. Raises OSError."""
    file = fs.open(path, writable=False)
    try:
        digest, position = hashlib.sha256(), 0
        while piece := file.pread(_PIECE_BYTES, position):
            digest.update(piece)
            position += len(piece)
            copied(len(piece))
    finally:
        file.close()
    return BackedUpFile(path.name, position, digest.hexdigest())


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
