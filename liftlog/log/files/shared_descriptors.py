"""A file system that limits the number of descriptors of files that are open for writing.

Each stream has two such files, its active segment and its acked-end slot, and most streams are idle
most of the time. If more files than the limit are open, the least recently used files are closed,
and a closed file is opened again at the next call on it. So an idle stream needs no descriptor, and
the descriptor limit of the process does not limit the number of streams.

A file keeps its descriptor as long as it has writes that no `fdatasync` has confirmed. If a
write-back fails, Linux reports the failure to the next fsync, even on a descriptor that was opened
later. It does so only while the inode stays in memory, and an open descriptor keeps the inode in
memory.

If too many files have unconfirmed writes, one of these files is synced and then closed. If that
sync fails, the next `fdatasync` of the file's owner raises the error. Files that their owner never
syncs can be closed at any time: closing a descriptor drops nothing from the page cache.

A file that is opened again must have the same device and inode as before.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from liftlog.log.files.filesystem import Buffer, File, FileSystem

_NONE_LEFT = {errno.EMFILE, errno.ENFILE}
_AT_ONCE = 8
"""Divisor: one eighth of the descriptors is closed at once, so that searches for descriptors to
close are rare."""

_T = TypeVar("_T")


class SharedFile:
    """A File that may have no descriptor between two calls. Calls on one file are serialized."""

    __slots__ = (
        "__weakref__",
        "_error",
        "_file",
        "_identity",
        "_is_dirty",
        "_is_kept",
        "_is_synced",
        "_lock",
        "_shared",
        "path",
        "used",
    )

    def __init__(
        self, shared: SharedDescriptors, path: Path, file: File, *, is_synced: bool
    ) -> None:
        self.path = path
        self.used = 0
        """The number of the last call on this file, from one counter for the calls on all files."""
        self._shared = shared
        self._file: File | None = file
        self._lock = threading.Lock()
        self._identity: object = shared.identify(file)
        self._is_synced = is_synced
        self._is_dirty = False
        self._is_kept = False
        self._error: OSError | None = None

    # --- a File ---

    def fileno(self) -> int:
        with self._lock:
            self._is_kept = True  # the caller continues to use the number
            return self._opened().fileno()

    def pread(self, length: int, position: int) -> bytes:
        with self._lock:
            return self._opened().pread(length, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        with self._lock:
            file = self._opened()
            self._is_dirty = self._is_synced
            return file.pwritev(buffers, position)

    def fdatasync(self) -> None:
        with self._lock:
            if self._error is not None:
                raise OSError(self._error.errno, self._error.strerror, str(self.path))
            if self._file is None and self._is_synced:
                return  # the file had no unsynced writes when it was closed
            self._sync(self._opened())

    def truncate(self, size: int) -> None:
        with self._lock:
            file = self._opened()
            self._is_dirty = self._is_synced
            file.truncate(size)

    def allocate(self, size: int) -> None:
        with self._lock:
            file = self._opened()
            self._is_dirty = self._is_synced
            file.allocate(size)

    def size(self) -> int:
        with self._lock:
            return self._opened().size()

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            self._identity = None
            if file is not None:
                self._shared.given_up()
                file.close()

    # --- the descriptor ---

    @property
    def has_descriptor(self) -> bool:
        return self._file is not None

    def rest(self, *, sync: bool) -> bool:
        """Close the descriptor, unless a call is running or writes are unconfirmed. With `sync`,
        unconfirmed writes are synced first. Returns True if the descriptor was closed."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            file = self._file
            if file is None or self._is_kept or (self._is_dirty and not sync):
                return False
            if self._is_dirty:
                try:
                    self._sync(file)
                except OSError as error:
                    self._error = error
                    return False
            self._file = None
            self._shared.given_up()
            file.close()
            return True
        finally:
            self._lock.release()

    def _opened(self) -> File:
        """Return the file, opened again if necessary. Call it under the lock. Raises OSError."""
        self.used = next(self._shared.uses)
        file = self._file
        if file is None:
            if self._identity is None:
                raise OSError(errno.EBADF, "the file was closed", str(self.path))
            file = self._shared.reopen(self.path)
            if self._shared.identify(file) != self._identity:
                self._shared.given_up()
                file.close()
                raise OSError(errno.ESTALE, "another file has its name", str(self.path))
            self._file = file
        return file

    def _sync(self, file: File) -> None:
        """Sync the file. After a failure the writes stay unconfirmed, and the descriptor stays
        open."""
        try:
            file.fdatasync()
        except OSError:
            self._is_kept = True
            raise
        self._is_dirty = False


def device_and_inode(file: File) -> object:
    """Return device and inode of a file. Other values under the same name mean that another file
    has taken the name."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino


class SharedDescriptors:
    """A FileSystem that wraps another one and limits its descriptors. Thread-safe."""

    def __init__(
        self,
        inner: FileSystem,
        limit: int,
        *,
        unsynced: Collection[str] = (),
        identify: Callable[[File], object] = device_and_inode,
    ) -> None:
        """Limit the descriptors of files open for writing to about `limit`. `unsynced` contains the
        names of files that are never synced."""
        self.identify = identify
        self._inner = inner
        self._limit = limit
        self._unsynced = frozenset(unsynced)
        self._lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._count = 0
        self._files: weakref.WeakSet[SharedFile] = weakref.WeakSet()
        self.uses = itertools.count(1)

    @property
    def descriptors(self) -> int:
        """Number of descriptors that files open for writing use now."""
        return self._count

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        if not writable:
            return self._with_descriptor(lambda: self._inner.open(path, writable=False))
        file = self._taken(lambda: self._inner.open(path, create=create))
        shared = SharedFile(self, path, file, is_synced=path.name not in self._unsynced)
        shared.used = next(self.uses)
        with self._lock:
            self._files.add(shared)
        return shared

    def reopen(self, path: Path) -> File:
        """Open a file again after its descriptor was closed."""
        return self._taken(lambda: self._inner.open(path))

    def _taken(self, call: Callable[[], File]) -> File:
        if self._count >= self._limit:
            self._make_room()
        file = self._with_descriptor(call)
        with self._count_lock:
            self._count += 1
        return file

    def given_up(self) -> None:
        """Count a descriptor as closed."""
        with self._count_lock:
            self._count -= 1

    def _with_descriptor(self, call: Callable[[], _T]) -> _T:
        """Make a call that needs a descriptor. If the process or the system has no descriptor left,
        close some files and retry once. Raises OSError."""
        try:
            return call()
        except OSError as error:
            if error.errno not in _NONE_LEFT or not self._make_room():
                raise
        return call()

    def _make_room(self) -> bool:
        """Close the least recently used descriptors. Returns True if any was closed."""
        wanted = max(1, self._limit // _AT_ONCE)
        with self._lock:
            files = [one for one in self._files if one.has_descriptor]
            files.sort(key=lambda one: one.used)
            with self._count_lock:
                self._count = len(files)  # some files were garbage-collected without a close
            done = 0
            for file in files:
                done += file.rest(sync=False)
                if done == wanted:
                    return True
            # Nearly all files have unconfirmed writes, so each close needs a sync.
            return done > 0 or any(file.rest(sync=True) for file in files)

    # --- names ---

    def rename(self, source: Path, target: Path) -> None:
        self._inner.rename(source, target)

    def unlink(self, path: Path) -> None:
        self._inner.unlink(path)

    def exists(self, path: Path) -> bool:
        return self._inner.exists(path)

    def modified_ns(self, path: Path) -> int:
        return self._inner.modified_ns(path)

    def list_directory(self, path: Path) -> list[str]:
        return self._with_descriptor(lambda: self._inner.list_directory(path))

    def make_directory(self, path: Path) -> None:
        self._inner.make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self._inner.remove_directory(path)

    def fsync_directory(self, path: Path) -> None:
        self._with_descriptor(lambda: self._inner.fsync_directory(path))
