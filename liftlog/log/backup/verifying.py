"""Whether a backup is whole: every file is there, with its size and its checksum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from liftlog.log.backup.copying import describe_file
from liftlog.log.backup.layout import BackedUpFile, Backup, read_backup
from liftlog.log.data_dir import STREAMS_NAME
from liftlog.log.filesystem import FileSystem, OsFileSystem
from liftlog.log.unreadable import is_unreadable


@dataclass(frozen=True, slots=True)
class BackupFinding:
    stream: str
    file: str
    problem: str


def verify_backup(
    directory: Path,
    *,
    fs: FileSystem | None = None,
    read: Callable[[int], None] = lambda size: None,
) -> tuple[Backup, list[BackupFinding]]:
    """Read every byte. Raises CorruptMetadata when `directory` is no backup, OSError."""
    files = fs or OsFileSystem()
    backup = read_backup(files, directory)
    found = []
    for stream in backup.streams:
        for file in stream.files:
            path = directory / STREAMS_NAME / stream.name / file.name
            problem = _problem(files, path, file, read)
            if problem:
                found.append(BackupFinding(stream.name, file.name, problem))
    return backup, found


def _problem(fs: FileSystem, path: Path, file: BackedUpFile, read: Callable[[int], None]) -> str:
    try:
        there = describe_file(fs, path, read)
    except FileNotFoundError:
        return "the file is missing"
    except OSError as error:
        if not is_unreadable(error):
            raise
        return f"it cannot be read from the disk: {error.strerror or error}"
    if there.size_bytes != file.size_bytes:
        return f"it has {there.size_bytes:,} bytes instead of {file.size_bytes:,}"
    if there.sha256 != file.sha256:
        return "its checksum does not match"
    return ""
