"""Copies and checks the files of a backup, and stores its manifest.

    <backup>/backup              the backup's manifest, a checkpoint file; written last: a directory
                                 without it is not a backup
    <backup>/streams/<stream>/   manifest, segments and indexes, as in a data directory; the active
                                 segment is empty: its records are in a sealed segment

No daemon opens a directory that holds a file `backup`. Bytes that the source disk cannot read
become zeros in the backup, and are reported as lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from liftlog.errors import CorruptMetadata
from liftlog.log.data_dir import BACKUP_NAME
from liftlog.log.files.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.files.filesystem import FileSystem, write_all
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry
from liftlog.log.files.unreadable import add_hole, read_around, words
from liftlog.log.segment.index import read_index
from liftlog.log.segment.walk import damage_in_walk, walk
from liftlog.names import is_stream_name

KIND = "backup"
_FILE_NAME = re.compile(r"manifest|\d{20}(\.\d{1,20})?\.(log|index|erased)", re.ASCII)

_PIECE_BYTES = 4 * 1024 * 1024

Copied = Callable[[int], None]
"""A callback that receives the number of bytes that were just read."""


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackedUpStream:
    """One stream of a backup: its records [log_start_offset, end_offset).

    `damaged` describes records that the source lacked. If records from `end_offset` on may have
    been acked before the backup was made, `may_lack` is the reason. Otherwise `may_lack` is empty.
    It is also empty in backups of versions without this key.
    """

    name: str
    incarnation: str
    leader_epoch: int
    log_start_offset: int
    end_offset: int
    files: tuple[BackedUpFile, ...]
    damaged: tuple[str, ...] = ()
    may_lack: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Backup:
    created_ns: int
    version: str
    """The version of liftlog that made the backup."""
    streams: tuple[BackedUpStream, ...] = field(default=())

    @property
    def size_bytes(self) -> int:
        return sum(stream.size_bytes for stream in self.streams)

    def write(self, fs: FileSystem, directory: Path) -> None:
        """Write the manifest that makes `directory` a backup; durable on return. Raises OSError."""
        write_checkpoint_file(fs, directory / BACKUP_NAME, KIND, asdict(self))


_BACKUP = TypeAdapter(Backup)


def read_backup(fs: FileSystem, directory: Path) -> Backup:
    """Read a backup's manifest. Raises CorruptMetadata if it is missing or damaged,
    UnsupportedFormat."""
    content = read_checkpoint_file(fs, directory / BACKUP_NAME, KIND)
    if content is None:
        raise CorruptMetadata(
            f"{directory} is not a backup, or one that was not finished",
            hint="`liftlog backup create` writes the file `backup` last",
        )
    try:
        found = _BACKUP.validate_python(content)
    except ValidationError as error:
        raise CorruptMetadata(f"the manifest of the backup lacks something: {error}") from error
    _check_names(found)
    return found


def _check_names(found: Backup) -> None:
    """Check the names. The names become paths, so a forged manifest could otherwise write to other
    directories."""
    for stream in found.streams:
        if not is_stream_name(stream.name, may_be_system=True):
            raise CorruptMetadata(f"{stream.name!r} is not the name of a stream")
        for file in stream.files:
            if not _FILE_NAME.fullmatch(file.name):
                raise CorruptMetadata(f"{file.name!r} is not the name of a stream's file")


def copy_file(
    source: tuple[FileSystem, Path],
    target: tuple[FileSystem, Path],
    size_bytes: int | None = None,
    copied: Copied = lambda size: None,
    holes: list[range] | None = None,
) -> BackedUpFile:
    """Copy the first `size_bytes` bytes of a file; the copy is fdatasynced on return.

    Copies fewer bytes if the file is shorter, and the whole file if `size_bytes` is None. With
    `holes`, unreadable pages of the source become zeros in the copy and are added to `holes`;
    without `holes` they raise OSError, like any other error.
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
    """Return size and checksum of the file at `path`. Raises OSError."""
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
    fs: FileSystem, path: Path, entry: SegmentEntry, holes: Sequence[range], incarnation: str
) -> tuple[QuarantinedRange, ...]:
    """Return the offsets that the copy at `path` lost in its holes. Raises OSError."""
    if not holes:
        return ()
    file = fs.open(path, writable=False)
    try:
        size = min(file.size(), entry.size_bytes)
        index = read_index(fs, file, entry, incarnation)
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
