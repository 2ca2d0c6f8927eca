"""Checking a backup, and restoring it to a data directory that the daemon opens as cleanly stopped.

A backup is whole if every file is there, with its size and its checksum.

A reader that has read past the end of the backup, in the life of the stream that is given up, must
not mistake what is stored from now on for what comes next. So every stream continues in a new
leader epoch, which begins at the end of the backup: a fetch that states an older epoch and a
position past that end is answered DIVERGED. The new epoch is the number of seconds since 1970, if
that is more than the old one: epochs rise by one with every unclean start, so neither the life that
is given up nor that of another restore of the same backup ever gets there.

While files are copied a marker keeps every daemon away; removing it is the last step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from liftlog.errors import CorruptMetadata, InvalidArgument
from liftlog.log.backup.files import (
    BackedUpFile,
    BackedUpStream,
    Backup,
    copy_file,
    describe_file,
    read_backup,
)
from liftlog.log.data_dir import (
    CLEAN_NAME,
    RESTORING_NAME,
    STREAMS_NAME,
    make_durable_directory,
    write_states,
)
from liftlog.log.filesystem import FileSystem, OsFileSystem
from liftlog.log.lock import LOCK_NAME
from liftlog.log.manifest import MANIFEST_NAME, Manifest, epochs_from, read_manifest
from liftlog.log.recovery import ActiveState
from liftlog.log.unreadable import is_unreadable

_HARMLESS = {LOCK_NAME, "lost+found"}
_MAX_EPOCH = 2**32 - 1


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
    """Read every byte. Raises CorruptMetadata when `directory` is not a backup, OSError."""
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


@dataclass(frozen=True, slots=True)
class RestoredStream:
    name: str
    leader_epoch: int
    log_start_offset: int
    end_offset: int


def restore_backup(
    directory: Path,
    data_dir: Path,
    *,
    now_seconds: int,
    streams: frozenset[str] | None = None,
    copied: Callable[[int], None] = lambda size: None,
    fs: FileSystem | None = None,
    backup_fs: FileSystem | None = None,
) -> list[RestoredStream]:
    """Make `data_dir`, which is empty or missing, hold `streams` (all if None) of the backup.

    Every file is checked while it is copied. The caller keeps daemons out by the lock. What a
    restore without an end left in `data_dir` is removed first. Durable on return.

    Raises CorruptMetadata when it is not a backup or damaged, InvalidArgument when `data_dir` holds
    anything, OSError. Unless it returns, no daemon opens `data_dir`.
    """
    files = fs or OsFileSystem()
    source = backup_fs or files
    backup = read_backup(source, directory)
    wanted = [one for one in backup.streams if streams is None or one.name in streams]
    _begin(files, data_dir)
    states, restored = {}, []
    for stream in wanted:
        _copy_stream(source, directory, files, data_dir, stream, copied)
        manifest = _new_epoch(files, data_dir, stream, now_seconds)
        states[stream.name] = _clean_state(manifest)
        restored.append(
            RestoredStream(
                stream.name,
                manifest.leader_epoch,
                manifest.log_start_offset,
                manifest.high_watermark,
            )
        )
    files.fsync_directory(data_dir / STREAMS_NAME)
    write_states(files, data_dir, CLEAN_NAME, states)
    files.unlink(data_dir / RESTORING_NAME)
    files.fsync_directory(data_dir)
    return restored


def check_target(fs: FileSystem, data_dir: Path) -> None:
    """Raises InvalidArgument unless a backup may be restored into `data_dir`: it is missing, empty,
    or holds what a restore without an end has left."""
    if not fs.exists(data_dir):
        return
    there = set(fs.list_directory(data_dir)) - _HARMLESS
    if there and RESTORING_NAME not in there:
        raise InvalidArgument(
            f"{data_dir} is not empty: it holds {', '.join(sorted(there)[:5])}",
            hint="restore into a directory that is empty or does not exist",
        )


def _begin(fs: FileSystem, data_dir: Path) -> None:
    check_target(fs, data_dir)
    make_durable_directory(fs, data_dir)
    fs.open(data_dir / RESTORING_NAME, create=True).close()
    fs.fsync_directory(data_dir)
    # What an unfinished restore left.
    if fs.exists(data_dir / CLEAN_NAME):
        fs.unlink(data_dir / CLEAN_NAME)
    if fs.exists(data_dir / STREAMS_NAME):
        for name in fs.list_directory(data_dir / STREAMS_NAME):
            stream = data_dir / STREAMS_NAME / name
            for file in fs.list_directory(stream):
                fs.unlink(stream / file)
            fs.remove_directory(stream)
    make_durable_directory(fs, data_dir / STREAMS_NAME)


def _copy_stream(
    source: FileSystem,
    directory: Path,
    fs: FileSystem,
    data_dir: Path,
    stream: BackedUpStream,
    copied: Callable[[int], None],
) -> None:
    old, new = (one / STREAMS_NAME / stream.name for one in (directory, data_dir))
    fs.make_directory(new)
    for file in stream.files:
        try:
            there = copy_file((source, old / file.name), (fs, new / file.name), copied=copied)
            problem = "is damaged in"
        except FileNotFoundError:
            there, problem = None, "is missing in"
        except OSError as error:
            if not is_unreadable(error):
                raise
            there, problem = None, "cannot be read from the disk in"
        if there != file:
            raise CorruptMetadata(
                f"{file.name} of stream {stream.name} {problem} the backup",
                hint="`liftlog backup verify` lists all that is damaged",
            )
    # Their names become durable with the manifest that is written next.


def _new_epoch(
    fs: FileSystem, data_dir: Path, stream: BackedUpStream, now_seconds: int
) -> Manifest:
    directory = data_dir / STREAMS_NAME / stream.name
    manifest = read_manifest(fs, directory)
    if manifest is None or not manifest.segments:
        raise CorruptMetadata(f"the backup holds no {MANIFEST_NAME} of stream {stream.name}")
    end = manifest.high_watermark
    epoch = max(manifest.leader_epoch + 1, min(now_seconds, _MAX_EPOCH))
    before = [entry for entry in manifest.epochs if entry[1] < end]
    manifest = replace(
        manifest,
        leader_epoch=epoch,
        epochs=epochs_from((*before, (epoch, end)), manifest.log_start_offset),
        incomplete="it was restored from a backup" if manifest.replicated else "",
    )
    manifest.write(fs, directory)
    return manifest


def _clean_state(manifest: Manifest) -> ActiveState:
    active = manifest.segments[-1]
    return ActiveState.empty(manifest.incarnation, active.base_offset, active.generation)
