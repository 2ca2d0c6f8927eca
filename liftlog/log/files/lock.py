"""The lock of a data directory: only one daemon or one offline command uses the directory at a
time.

A process locks (flock) both the file `lock` and the directory itself, and writes its name to the
file. The lock on the directory protects against a deletion of the file: otherwise a second process
could create and lock a new file. The operating system releases both locks when the process ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from liftlog.errors import DataDirLocked
from liftlog.log.files.filesystem import is_full

logger = logging.getLogger("liftlog.log")

LOCK_NAME = "lock"
_NOT_LOCKABLE = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""Errors of file systems that cannot lock a directory (NFS locks only files open for writing)."""


class LockFile(NamedTuple):
    """The file `lock` of a data directory."""

    device: int
    inode: int
    changed_ns: int
    """Change time of the inode, which no program can set."""


class DataDirLock:
    """The lock on a data directory, held from `take_lock` until `release`."""

    def __init__(self) -> None:
        self._file = -1
        self._directory = -1
        self.found: LockFile | None = None
        """Properties of the file `lock` before this process wrote it; None if the file cannot be
        examined."""
        self.taken: LockFile | None = None
        """Properties of the file `lock` while this process has the lock."""

    def take(self, data_dir: Path, flags: int, hint: str) -> None:
        try:
            self._file = _open_file(data_dir, flags)
            if self._file >= 0:  # the file first, because it contains the name of the holder
                _lock(self._file, data_dir, hint)
            self._directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _lock(self._directory, data_dir, hint)
            except OSError as error:
                if error.errno not in _NOT_LOCKABLE:
                    raise
                logger.warning("directory-not-lockable path=%s error=%s", data_dir, error)
        except BaseException:
            self._close()
            raise

    def write_holder(self) -> None:
        self.found = self._examined()
        with contextlib.suppress(OSError):  # a full disk: the holder's name is only informative
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        self.taken = self._examined()

    def _examined(self) -> LockFile | None:
        """Examine the lock file; None if the disk was too full to create it."""
        if self._file < 0:
            return None
        try:
            found = os.fstat(self._file)
        except OSError:
            return None
        return LockFile(found.st_dev, found.st_ino, found.st_ctime_ns)

    def release(self) -> None:
        with contextlib.suppress(OSError):  # a stale name only misleads people
            os.ftruncate(self._file, 0)
        self._close()

    def _close(self) -> None:
        for fd in (self._file, self._directory):
            if fd >= 0:
                os.close(fd)
        self._file = self._directory = -1


def _open_file(data_dir: Path, flags: int) -> int:
    """Open the lock file; -1 if it was deleted or the disk is too full to create it."""
    try:
        return os.open(data_dir / LOCK_NAME, flags | os.O_CLOEXEC, 0o640)
    except FileNotFoundError:
        if flags & os.O_CREAT:
            raise
    except OSError as error:
        if not is_full(error):
            raise
    return -1


def take_lock(data_dir: Path, *, hint: str = "") -> DataDirLock:
    """Lock `data_dir` for this process; this also works on a full disk. Raises DataDirLocked,
    OSError."""
    lock = DataDirLock()
    lock.take(data_dir, os.O_RDWR | os.O_CREAT, hint)
    lock.write_holder()
    return lock


@contextlib.contextmanager
def exclusive(data_dir: Path | None, *, read_only: bool = False) -> Iterator[None]:
    """Hold the lock of `data_dir` in a `with` block, so that no daemon can use the directory.

    Raises DataDirLocked if another process holds it, OSError. With `read_only`, no file is changed.
    """
    if data_dir is None or (read_only and not data_dir.is_dir()):
        yield
        return
    lock = DataDirLock()
    lock.take(
        data_dir, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT, "stop the daemon first"
    )
    if not read_only:
        lock.write_holder()
    try:
        yield
    finally:
        lock.release()


def _lock(fd: int, data_dir: Path, hint: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataDirLocked(
            f"the data directory {data_dir} is in use by process {_holder(data_dir)}", hint=hint
        ) from None


def _holder(data_dir: Path) -> str:
    try:
        with (data_dir / LOCK_NAME).open("rb") as file:
            return file.read(32).decode("ascii", "replace").strip() or "unknown"
    except OSError:
        return "unknown"
