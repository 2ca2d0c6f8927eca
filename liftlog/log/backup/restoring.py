"""Verifies a backup, and restores it to a data directory that the daemon opens as cleanly stopped.

A backup is complete if every file exists and has the listed size and checksum.

Before the restore, a reader may have read beyond the end of the backup. After the restore, the same
offsets get new records, and the reader must not treat these as the continuation of its old records.
So every stream continues in a new leader epoch, which begins at the end of the backup: a fetch with
an older epoch and a position beyond this end gets DIVERGED. The new epoch is the number of seconds
since 1970, if this number is higher than the old epoch. Ordinary epochs only rise by one with each
unclean start. So neither the original stream nor another restore of the same backup ever reaches
the same epoch.

A restored stream belongs to no cluster, even if it was a replica: all its records in the backup are
committed. A cluster adopts the restored stream like a stream of a single daemon.

While files are copied, a marker prevents every daemon from opening the directory; the removal of
the marker is the last step. A stream that is added to a data directory is copied under a temporary
name next to the other streams, and renamed last.
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
    DELETED_PREFIX,
    RESTORING_NAME,
    STREAMS_NAME,
    make_durable_directory,
    read_states,
    write_states,
)
from liftlog.log.files.filesystem import NOT_A_FILE, FileSystem, OsFileSystem, ReadOnlyFileSystem
from liftlog.log.files.lock import LOCK_NAME
from liftlog.log.files.manifest import MANIFEST_NAME, Manifest, epochs_from, read_manifest
from liftlog.log.files.unreadable import is_unreadable
from liftlog.log.segment.tail import ActiveState

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
    """Verify a backup by reading every byte; return its manifest and the problems found. Raises
    CorruptMetadata if `directory` is not a backup, OSError."""
    files = fs or ReadOnlyFileSystem()
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
        if not is_unreadable(error) and error.errno != NOT_A_FILE:
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
    """Restore `streams` (all if None) of the backup to `data_dir`, which is empty or missing.

    Verifies the size and checksum of every file during the copy. The caller holds the lock, so that
    no daemon can start. Removes the files of an unfinished restore first. Durable on return.

    Raises CorruptMetadata if `directory` is not a backup or damaged, InvalidArgument if `data_dir`
    is not empty, OSError. After an error or a stop, no daemon opens `data_dir`.
    """
    files = fs or OsFileSystem()
    source = backup_fs or fs or ReadOnlyFileSystem()
    backup = read_backup(source, directory)
    wanted = [one for one in backup.streams if streams is None or one.name in streams]
    _begin(files, data_dir)
    manifests = {}
    for stream in wanted:
        old, new = (one / STREAMS_NAME / stream.name for one in (directory, data_dir))
        _copy_stream(source, old, files, new, stream, copied)
        manifests[stream.name] = _new_epoch(files, new, stream, now_seconds)
    files.fsync_directory(data_dir / STREAMS_NAME)
    states = {name: _clean_state(manifest) for name, manifest in manifests.items()}
    write_states(files, data_dir, CLEAN_NAME, states)
    files.unlink(data_dir / RESTORING_NAME)
    files.fsync_directory(data_dir)
    return [_restored(name, manifest) for name, manifest in manifests.items()]


def add_to_data_dir(
    directory: Path,
    data_dir: Path,
    *,
    now_seconds: int,
    streams: frozenset[str],
    copied: Callable[[int], None] = lambda size: None,
    fs: FileSystem | None = None,
    backup_fs: FileSystem | None = None,
) -> list[RestoredStream]:
    """Add `streams` of the backup to a data directory whose daemon is stopped.

    The caller holds the lock, so that no daemon can start. Durable on return. After an error or a
    stop, some of the streams may exist, and each of these is complete. The next start of the
    daemon, or the next attempt, removes an unfinished stream. Raises the errors of
    `restore_backup`, and InvalidArgument for a stream that exists already.
    """
    files = fs or OsFileSystem()
    source = backup_fs or fs or ReadOnlyFileSystem()
    backup = read_backup(source, directory)
    wanted = [one for one in backup.streams if one.name in streams]
    check_addable(files, data_dir, streams)
    restored = []
    for stream in wanted:
        old = directory / STREAMS_NAME / stream.name
        new = data_dir / STREAMS_NAME / stream.name
        unnamed = new.with_name(f"{DELETED_PREFIX}{stream.name}")
        _remove(files, unnamed)
        _copy_stream(source, old, files, unnamed, stream, copied)
        manifest = _new_epoch(files, unnamed, stream, now_seconds)
        _add_clean(files, data_dir, stream.name, manifest)
        files.rename(unnamed, new)
        files.fsync_directory(new.parent)
        restored.append(_restored(stream.name, manifest))
    return restored


def check_addable(fs: FileSystem, data_dir: Path, streams: frozenset[str]) -> None:
    """Raise InvalidArgument unless these streams may be added to `data_dir`."""
    if not fs.exists(data_dir / STREAMS_NAME) or fs.exists(data_dir / RESTORING_NAME):
        raise InvalidArgument(
            f"{data_dir} is not a data directory that a daemon has used",
            hint="without --add, a backup is restored into a directory that is empty",
        )
    there = [one for one in sorted(streams) if fs.exists(data_dir / STREAMS_NAME / one)]
    if there:
        raise InvalidArgument(
            f"{data_dir} has a stream {there[0]} already",
            hint="nothing is overwritten: delete that stream first, or restore into another "
            "directory",
        )


def _add_clean(fs: FileSystem, data_dir: Path, name: str, manifest: Manifest) -> None:
    """Add the stream to the clean marker. No daemon uses the entry before the stream is renamed to
    its final name. An unreadable marker counts as empty, as in the daemon."""
    try:
        states = read_states(fs, data_dir, CLEAN_NAME)
    except CorruptMetadata:
        states = {}
    write_states(fs, data_dir, CLEAN_NAME, {**states, name: _clean_state(manifest)})


def _restored(name: str, manifest: Manifest) -> RestoredStream:
    end = manifest.high_watermark
    return RestoredStream(name, manifest.leader_epoch, manifest.log_start_offset, end)


def check_target(fs: FileSystem, data_dir: Path) -> None:
    """Raise InvalidArgument unless a backup may be restored into `data_dir`: it must be missing,
    empty, or hold only the files of an unfinished restore."""
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
    # Files of an unfinished restore.
    if fs.exists(data_dir / CLEAN_NAME):
        fs.unlink(data_dir / CLEAN_NAME)
    if fs.exists(data_dir / STREAMS_NAME):
        for name in fs.list_directory(data_dir / STREAMS_NAME):
            _remove(fs, data_dir / STREAMS_NAME / name)
    make_durable_directory(fs, data_dir / STREAMS_NAME)


def _remove(fs: FileSystem, stream: Path) -> None:
    if fs.exists(stream):
        for file in fs.list_directory(stream):
            fs.unlink(stream / file)
        fs.remove_directory(stream)


def _copy_stream(
    source: FileSystem,
    old: Path,
    fs: FileSystem,
    new: Path,
    stream: BackedUpStream,
    copied: Callable[[int], None],
) -> None:
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
    # Writing the manifest next makes the names of these files durable.


def _new_epoch(
    fs: FileSystem, directory: Path, stream: BackedUpStream, now_seconds: int
) -> Manifest:
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
        replicated=False,
        incomplete="",
    )
    manifest.write(fs, directory)
    return manifest


def _clean_state(manifest: Manifest) -> ActiveState:
    active = manifest.segments[-1]
    return ActiveState.empty(manifest.incarnation, active.base_offset, active.generation)
