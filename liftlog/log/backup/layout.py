"""What a backup consists of.

    <backup>/backup              its manifest, a checkpoint file; written last, so without it there
                                 is no backup
    <backup>/streams/<stream>/   manifest, segments and indexes, as in a data directory; the active
                                 segment is empty: what it held is sealed here

No daemon opens a directory that holds a file `backup`.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from liftlog.errors import CorruptMetadata
from liftlog.log.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.data_dir import BACKUP_NAME
from liftlog.log.filesystem import FileSystem
from liftlog.names import is_stream_name

KIND = "backup"
_FILE_NAME = re.compile(r"manifest|\d{20}(\.\d{1,20})?\.(log|index)", re.ASCII)


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackedUpStream:
    """Records [log_start_offset, end_offset). `damaged`: what the source lacked, in words."""

    name: str
    incarnation: str
    leader_epoch: int
    log_start_offset: int
    end_offset: int
    files: tuple[BackedUpFile, ...]
    damaged: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Backup:
    created_ns: int
    version: str
    """Of the liftlog that made it."""
    streams: tuple[BackedUpStream, ...] = field(default=())

    @property
    def size_bytes(self) -> int:
        return sum(stream.size_bytes for stream in self.streams)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, fs: FileSystem, directory: Path) -> None:
        """Make `directory` a backup; durable on return. Raises OSError."""
        write_checkpoint_file(fs, directory / BACKUP_NAME, KIND, self.to_dict())


_BACKUP = TypeAdapter(Backup)


def read_backup(fs: FileSystem, directory: Path) -> Backup:
    """Raises CorruptMetadata when there is none, or none that is whole; UnsupportedFormat."""
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
    """They become paths: a forged manifest must not lead anywhere else."""
    for stream in found.streams:
        if not is_stream_name(stream.name, may_be_system=True):
            raise CorruptMetadata(f"{stream.name!r} is not the name of a stream")
        for file in stream.files:
            if not _FILE_NAME.fullmatch(file.name):
                raise CorruptMetadata(f"{file.name!r} is not the name of a stream's file")
