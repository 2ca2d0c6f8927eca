"""The data directory: its lock, its streams, and the checkpoint files that all streams share.

<data_dir>/lock              locked by the daemon that uses the directory; contains its name
<data_dir>/clean             clean marker, exists only after a clean stop
<data_dir>/recovery-points   per stream, the offset below which everything was fsynced
<data_dir>/records           the metadata of the streams (`liftlog.server.metadata`)
<data_dir>/addresses.json    where the daemon listens, while it runs
<data_dir>/node, known-records   for a node of a cluster: its identity, the metadata it last read
<data_dir>/streams/<stream>/ manifest, segments, indexes, acked-end slot

For each stream, the marker and the recovery points contain the end of the valid part of its active
segment.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from liftlog.errors import ConfigError, CorruptMetadata
from liftlog.log.environment import LogConfig, LogEnvironment
from liftlog.log.files.checkpoint_file import (
    TEMPORARY_SUFFIX,
    read_dispensable_file,
    write_checkpoint_file,
)
from liftlog.log.files.filesystem import FileSystem, storage_errors
from liftlog.log.files.identity import DirectoryIdentity, Witness
from liftlog.log.files.lock import DataDirLock, take_lock
from liftlog.log.files.manifest import COPY_NAME, MANIFEST_NAME, SegmentEntry
from liftlog.log.files.unreadable import is_unreadable
from liftlog.log.log import Log
from liftlog.log.recovery.inventory import RecoveryReport
from liftlog.log.recovery.opening import open_log
from liftlog.log.segment.tail import ActiveState
from liftlog.names import is_stream_name

CLEAN_NAME = "clean"
RECOVERY_POINTS_NAME = "recovery-points"

logger = logging.getLogger("liftlog.log")

STREAMS_NAME = "streams"
BACKUP_NAME = "backup"
RESTORING_NAME = "restoring"
ADDRESSES_NAME = "addresses.json"
"""File with the addresses of a running daemon, which `liftlog.server` writes."""
DELETED_PREFIX = ".deleted-"
_UNFINISHED_NAMES = {name + TEMPORARY_SUFFIX for name in (MANIFEST_NAME, COPY_NAME)}


def read_states(fs: FileSystem, data_dir: Path, file_name: str) -> dict[str, ActiveState]:
    """Return the states by stream. Returns an empty dict if the file is missing, damaged or of
    another version; recovery then scans more. Raises OSError for a transient error."""
    return _states(read_dispensable_file(fs, data_dir / file_name, file_name), file_name)


def _states(content: dict[str, Any] | None, file_name: str) -> dict[str, ActiveState]:
    if content is None:
        return {}
    try:
        return {stream: _state(state) for stream, state in content["streams"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        logger.warning("checkpoint-file-ignored file=%s error=%r", file_name, error)
        return {}


def _state(content: dict[str, Any]) -> ActiveState:
    """Parse one state. Like all readers of checkpoint files, ignores keys that newer versions of
    liftlog have added."""
    known = ActiveState.__slots__
    return ActiveState(**{name: value for name, value in content.items() if name in known})


def _content(state: ActiveState) -> dict[str, Any]:
    content = asdict(state)
    if not state.high_watermark:
        del content["high_watermark"]
    return content


def write_states(
    fs: FileSystem,
    data_dir: Path,
    file_name: str,
    states: Mapping[str, ActiveState],
    *,
    start: int = 0,
) -> None:
    """Replace the file; durable on return. Raises OSError."""
    content: dict[str, Any] = {
        "streams": {stream: _content(state) for stream, state in states.items()}
    }
    if start:
        content["start"] = start
    write_checkpoint_file(fs, data_dir / file_name, file_name, content)


@dataclass(slots=True)
class KnownStates:
    """The states of one stream in the recovery points and in the clean marker."""

    clean: ActiveState | None = None
    recovery_point: ActiveState | None = None

    def of(self, incarnation: str, active: SegmentEntry) -> list[ActiveState]:
        """Return the states that refer to this segment."""
        return [one for one in self.all() if one.is_of(incarnation, active)]

    def all(self) -> list[ActiveState]:
        return [one for one in (self.clean, self.recovery_point) if one is not None]


def read_known_states(fs: FileSystem, data_dir: Path | None, stream: str) -> KnownStates:
    """Read the recovery points and the clean marker, as the daemon does. Raises OSError for a
    transient error."""
    if data_dir is None:
        return KnownStates()
    names = (CLEAN_NAME, RECOVERY_POINTS_NAME)
    return KnownStates(*(read_states(fs, data_dir, name).get(stream) for name in names))


def make_durable_directory(fs: FileSystem, path: Path) -> None:
    """Create `path` and its missing parents. Durable on return: the directories survive a power
    cut."""
    missing = [one for one in (path, *path.parents) if not fs.exists(one)]
    fs.make_directory(path)
    for one in reversed(missing):
        fs.fsync_directory(one.parent)


def refuse_unfit(fs: FileSystem, path: Path) -> None:
    """Raise CorruptMetadata if no daemon may use `path`. Changes nothing."""
    if _is_file(fs, path / BACKUP_NAME):  # a directory of that name may contain backups
        raise CorruptMetadata(
            f"{path} is a backup", hint="make a data directory of it with `liftlog backup restore`"
        )
    if fs.exists(path / RESTORING_NAME):
        raise CorruptMetadata(
            f"a backup was being restored into {path}, and not all of it is there",
            hint="run `liftlog backup restore` again: it starts from the beginning",
        )


def _is_file(fs: FileSystem, path: Path) -> bool:
    if not fs.exists(path):
        return False
    try:
        file = fs.open(path, writable=False)
        try:
            file.pread(1, 0)
        finally:
            file.close()
    except IsADirectoryError:
        return False
    except OSError as error:
        if not is_unreadable(error):
            raise
    return True


_UNUSABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST}
)


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the data directory {path} cannot be used: {error.filename or path}: {error.strerror}",
        hint="set data_dir to a directory that the daemon's user may write, or may make",
    )


class SharedSync:
    """A sync that several threads share. Each call waits for a sync that begins after the call. All
    threads that call during one sync share the next sync."""

    def __init__(self, sync: Callable[[], None]) -> None:
        """`sync` may raise OSError."""
        self._sync = sync
        self._turn = threading.Condition()
        self._runs = False
        self._next = _SyncRound()

    def __call__(self) -> None:
        """Sync. If the sync fails, each thread that shares it raises OSError. It does not retry: a
        repeated sync could succeed although the data were dropped."""
        with self._turn:
            own = self._next
            while self._runs and not own.is_over:
                self._turn.wait()
            if own.is_over:
                if own.error is not None:
                    raise OSError(own.error.errno, own.error.strerror)
                return
            self._runs, self._next = True, _SyncRound()
        try:
            self._sync()
        except OSError as error:
            own.error = error
            raise
        except BaseException as error:
            own.error = OSError(errno.EIO, f"the sync ended: {error!r}")
            raise
        finally:
            with self._turn:
                self._runs, own.is_over = False, True
                self._turn.notify_all()


class _SyncRound:
    __slots__ = ("error", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self.error: OSError | None = None


class DataDir:
    """Owns the lock from `open` to `close`. Blocking; used from one thread at a time."""

    def __init__(self, path: Path, environment: LogEnvironment) -> None:
        self.path = path
        self.environment = environment
        self._lock: DataDirLock | None = None
        streams = path / STREAMS_NAME
        self._sync_streams = SharedSync(lambda: environment.fs.fsync_directory(streams))
        self.start = 0
        """Number of this start of the node; 0 until the metadata store contains it."""
        self._closed_start = 0
        """Number of the start of the node that closed the directory cleanly; 0 if no start did."""
        self._clean: dict[str, ActiveState] = {}
        self._recovery_points: dict[str, ActiveState] = {}

    def open(self) -> None:
        """Take the lock and read the shared checkpoint files.

        Before the return, the clean marker is removed durably: every stop counts as unclean unless
        `close` writes the marker again. Raises DataDirLocked, ConfigError for a directory that
        cannot be created or written, CorruptMetadata for a directory that holds a backup or an
        unfinished restore, and StorageError. On an error the lock is released.
        """
        fs = self.environment.fs
        refuse_unfit(fs, self.path)
        with storage_errors(f"opening the data directory {self.path}"):
            try:
                make_durable_directory(fs, self.path / STREAMS_NAME)
                self._lock = take_lock(self.path)
            except OSError as error:
                if error.errno in _UNUSABLE:
                    raise _unusable(self.path, error) from error
                raise
            try:
                refuse_unfit(fs, self.path)  # again: a restore may have failed by now
                # A process that was killed may have created a directory and not synced its name.
                # The stream is served from now on, so its name must survive a power cut.
                fs.fsync_directory(self.path / STREAMS_NAME)
                self._recovery_points = read_states(fs, self.path, RECOVERY_POINTS_NAME)
                clean = read_dispensable_file(fs, self.path / CLEAN_NAME, CLEAN_NAME)
                self._clean = _states(clean, CLEAN_NAME)
                start = (clean or {}).get("start")
                self._closed_start = start if isinstance(start, int) else 0
                if fs.exists(self.path / CLEAN_NAME):
                    fs.unlink(self.path / CLEAN_NAME)
                fs.fsync_directory(self.path)
            except BaseException:
                self.close(None)
                raise

    @property
    def lock(self) -> DataDirLock | None:
        """The lock, between `open` and `close`."""
        return self._lock

    def identity(self) -> DirectoryIdentity:
        """The identity that distinguishes the open directory from its copies."""
        lock, streams = self._lock, self.path / STREAMS_NAME
        files = (None, None) if lock is None else (lock.found, lock.taken)
        found, taken = (
            None if file is None else Witness.of(streams, file.changed_ns) for file in files
        )
        return DirectoryIdentity(found, taken, self._closed_start)

    # --- streams ---

    def stream_path(self, name: str) -> Path:
        return self.path / STREAMS_NAME / name

    def stream_names(self) -> list[str]:
        """Return the names of the streams on disk. Removes the files of creations and deletions
        that did not finish. Files that cannot be removed now are removed at the next start."""
        fs = self.environment.fs
        names = []
        with storage_errors("listing the streams"):
            for name in fs.list_directory(self.path / STREAMS_NAME):
                if name.startswith(DELETED_PREFIX):
                    self._remove_leftover(name)
                elif not is_stream_name(name, may_be_system=True):
                    logger.warning("not-a-stream name=%r", name)  # lost+found, an editor's file
                elif self._is_unfinished(name):
                    self._remove_leftover(name)
                else:
                    names.append(name)
        return names

    def _remove_leftover(self, name: str) -> None:
        try:
            self._remove_directory(name)
        except OSError as error:
            logger.warning("leftover-not-removed name=%r error=%s", name, error)

    def remove_unfinished(self, name: str) -> None:
        """Remove the files of a failed creation. The caller ensures that no other creation of this
        name is running. Raises StorageError."""
        with storage_errors(f"removing what was left of {name}"):
            if self.environment.fs.exists(self.stream_path(name)) and self._is_unfinished(name):
                self._remove_directory(name)

    def _is_unfinished(self, name: str) -> bool:
        """Return True if the stream's directory contains only files that a creation writes before
        the manifest. Any other file may be worth keeping."""
        directory = self.stream_path(name)
        try:
            files = self.environment.fs.list_directory(directory)
            return all(
                file in _UNFINISHED_NAMES
                or (file.endswith(".log") and not self._has_bytes(directory / file))
                for file in files
            )
        except OSError as error:
            # Not a directory, or unreadable: opening this stream will fail too, without affecting
            # others.
            if not isinstance(error, NotADirectoryError) and not is_unreadable(error):
                raise
            return False

    def _has_bytes(self, path: Path) -> bool:
        file = self.environment.fs.open(path, writable=False)
        try:
            return file.size() > 0
        finally:
            file.close()

    def create_log(
        self,
        name: str,
        config: LogConfig,
        *,
        initial_offset: int,
        metadata: dict[str, Any],
        incarnation: str | None = None,
        environment: LogEnvironment | None = None,
    ) -> Log:
        """Create a new log for `name`; durable on return. See `Log.create`. If `environment` is
        given, the log uses it in place of the environment that all logs share."""
        return Log.create(
            self.stream_path(name),
            environment or self.environment,
            config,
            initial_offset=initial_offset,
            metadata=metadata,
            incarnation=incarnation,
            sync_parent=self._sync_streams,
        )

    def open_log(
        self, name: str, config: LogConfig, *, environment: LogEnvironment | None = None
    ) -> tuple[Log, RecoveryReport]:
        """Open the log of `name` and recover it if necessary. An error affects only this stream. If
        `environment` is given, the log uses it in place of the environment that all logs share."""
        return open_log(
            self.stream_path(name),
            environment or self.environment,
            config,
            clean=self._clean.pop(name, None),
            recovery_point=self._recovery_points.get(name),
        )

    def keep_clean(self, name: str, state: ActiveState | None) -> None:
        """Record that a log was opened and closed again before any client used it. `state` is the
        end of the log; with it, the next start treats the log as cleanly closed. `state` is None if
        closing failed."""
        if state is not None:
            self._clean[name] = state

    def rename_log(self, name: str, new_name: str) -> None:
        """Rename the directory of a stream that is not open. Durable on return. Raises
        StorageError; the stream then has one of the two names."""
        self._recovery_points.pop(name, None)
        self._clean.pop(name, None)
        fs, directory = self.environment.fs, self.stream_path(name)
        with storage_errors(f"renaming {name}"):
            self.environment.pool.forget_directory(directory)
            self.environment.indexes.drop_directory(directory)
            fs.rename(directory, self.stream_path(new_name))
            fs.fsync_directory(directory.parent)

    def delete_log(self, name: str) -> None:
        """Remove the stream's files. The directory is first renamed to a name that no stream can
        have. After a crash in between, the next start removes the directory."""
        self._recovery_points.pop(name, None)
        with storage_errors(f"deleting {name}"):
            self._remove_directory(name)

    def _remove_directory(self, name: str) -> None:
        fs = self.environment.fs
        directory = self.stream_path(name)
        doomed = (
            directory.with_name(DELETED_PREFIX + name) if not name.startswith(".") else directory
        )
        if doomed != directory:
            if fs.exists(doomed):  # left by a deletion that did not finish
                self._remove_directory(doomed.name)
            self.environment.pool.forget_directory(directory)
            self.environment.indexes.drop_directory(directory)
            fs.rename(directory, doomed)
            fs.fsync_directory(directory.parent)
        for file in fs.list_directory(doomed):
            self.environment.pool.remove(doomed / file)
        fs.remove_directory(doomed)

    # --- shared checkpoint files ---

    def write_recovery_points(self, states: dict[str, ActiveState]) -> None:
        """Store the fsynced end of each stream; replaces the earlier recovery points of these
        streams."""
        with storage_errors("writing the recovery points"):
            self._recovery_points.update(states)
            write_states(
                self.environment.fs, self.path, RECOVERY_POINTS_NAME, self._recovery_points
            )

    def mark_clean(self, states: dict[str, ActiveState]) -> None:
        """Write the clean marker with the `states` of the streams that were opened. A stream that
        was not opened keeps its earlier state. After this call, only `close` may be called."""
        if self._lock is None:
            return
        try:
            write_states(
                self.environment.fs,
                self.path,
                CLEAN_NAME,
                self._clean | states,
                start=self.start or self._closed_start,
            )
        except OSError as error:
            logger.warning("clean-marker-not-written error=%s", error)

    def close(self, states: dict[str, ActiveState] | None) -> None:
        """Release the lock; with `states`, write the clean marker first (see `mark_clean`)."""
        if self._lock is None:
            return
        try:
            if states is not None:
                self.mark_clean(states)
        finally:
            self.environment.pool.close()
            lock, self._lock = self._lock, None
            lock.release()
