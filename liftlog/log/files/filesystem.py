"""The file operations that the log needs, behind protocols that tests implement in their own way.

Every durability argument in this package rests on five assumptions about the disk: `fdatasync`
returns only when the bytes and the size are stable; `rename` is atomic; a directory entry is stable
after `fsync` of its directory; a failed `fdatasync` may have dropped the dirty pages; un-synced
writes may reach the disk incompletely and in any order.

A sixth assumption is about reads: only the size of a file shows its end. A short read does not show
the end, because Linux also returns fewer bytes at an unreadable sector. `read_whole` distinguishes
the two cases.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol

from liftlog.errors import DiskFull, StorageError

Buffer = bytes | bytearray | memoryview

_FULL = {errno.ENOSPC, errno.EDQUOT}


class File(Protocol):
    """One open file; positions and sizes in bytes. Methods raise OSError."""

    path: Path

    def fileno(self) -> int: ...
    def pread(self, length: int, position: int) -> bytes:
        """Read `length` bytes at `position`; returns fewer bytes only at the end of the file
        according to its size.

        Raises OSError if the disk cannot read one of the bytes; see `liftlog.log.files.unreadable`.
        """
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int: ...
    def fdatasync(self) -> None: ...
    def truncate(self, size: int) -> None: ...
    def allocate(self, size: int) -> None:
        """Extend the file to `size` bytes with zeros, and reserve disk space for the zeros."""
        ...

    def size(self) -> int: ...
    def close(self) -> None: ...


class FileSystem(Protocol):
    """The calls that create, name and remove files. They raise OSError."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def unlink(self, path: Path) -> None: ...
    def exists(self, path: Path) -> bool:
        """Return True if `path` exists, and False if the directory has no such file. Raises OSError
        if neither is certain."""
        ...

    def modified_ns(self, path: Path) -> int:
        """Return the wall clock time at which `path` was last changed; 0 if the time is unknown."""
        ...

    def list_directory(self, path: Path) -> list[str]: ...
    def make_directory(self, path: Path) -> None: ...
    def remove_directory(self, path: Path) -> None: ...
    def fsync_directory(self, path: Path) -> None: ...


class OsFile:
    """A File on the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def pread(self, length: int, position: int) -> bytes:
        raw = os.pread(self._fd, length, position)
        if len(raw) == length:
            return raw
        return read_whole(self._pread, self.size, length, position, raw)

    def _pread(self, length: int, position: int) -> bytes:
        return os.pread(self._fd, length, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(self._fd, buffers, position)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # dropped even if close fails: it may be reused
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


NOT_A_FILE = errno.EINVAL
"""Error number of ReadOnlyFileSystem for a path that is neither a file nor a directory."""


def private(path: str, flags: int) -> int:
    """Open a file for the builtin `open`. Only the owner can access files that this function
    creates."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


class OsFileSystem:
    """The FileSystem of the operating system."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_TRUNC
        return OsFile(path, os.open(path, flags, 0o640))

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)  # noqa: PTH104  # the call is the point here

    def unlink(self, path: Path) -> None:
        path.unlink()

    def exists(self, path: Path) -> bool:
        # `Path.exists` cannot be used: from Python 3.14 on it returns False for every error.
        try:
            os.stat(path)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def modified_ns(self, path: Path) -> int:
        return path.stat().st_mtime_ns

    def list_directory(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in path.iterdir())

    def make_directory(self, path: Path) -> None:
        missing = [one for one in path.parents if not one.exists()]
        for one in reversed(missing):  # data directory: only its owner has access
            one.mkdir(exist_ok=True, mode=0o700)
        path.mkdir(exist_ok=True, mode=0o750)

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def fsync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class ReadOnlyFileSystem(OsFileSystem):
    """A file system that opens files for reading only, and refuses every change. It is for the
    files of a backup, or of a log that a daemon may be using.

    It opens only regular files, because opening a pipe would block until another process opens the
    other end.
    """

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        if create:
            _refuse(path)
        file = OsFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        kind = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # reading a directory fails later
            return file
        file.close()
        raise OSError(NOT_A_FILE, "it is not a regular file", str(path))

    def rename(self, source: Path, target: Path) -> None:
        _refuse(target)

    def unlink(self, path: Path) -> None:
        _refuse(path)

    def make_directory(self, path: Path) -> None:
        _refuse(path)

    def remove_directory(self, path: Path) -> None:
        _refuse(path)

    def fsync_directory(self, path: Path) -> None:
        _refuse(path)


def _refuse(path: Path) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def is_full(error: OSError) -> bool:
    """True if the operation failed because the disk, or a quota, is full."""
    return error.errno in _FULL


class storage_errors:  # noqa: N801  # used as a function
    """Map OSError to StorageError or DiskFull in a `with` block; used in the functions that other
    packages call."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and isinstance(error, OSError):
            raise storage_error(self._what, error) from error


def storage_error(what: str, error: OSError) -> StorageError:
    """Return the StorageError or DiskFull for an OSError; see `storage_errors`."""
    if is_full(error):
        return DiskFull(f"{what}: the disk is full")
    return StorageError(f"{what}: {error.strerror or error}")


def write_all(file: File, buffers: Sequence[Buffer], position: int) -> int:
    """Write all bytes of the buffers, even after short writes; return their number."""
    total = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
    done = file.pwritev(buffers, position)
    if done < total:
        rest = memoryview(b"".join(buffers))
        while done < total:
            written = file.pwritev([rest[done:]], position + done)
            if written == 0:
                raise OSError(errno.EIO, "write returned 0 bytes")
            done += written
    return total


def read_whole(
    pread: Callable[[int, int], bytes],
    size: Callable[[], int],
    length: int,
    position: int,
    begun: bytes = b"",
) -> bytes:
    """Read `length` bytes, even after short reads; `begun` is the result of a first read.

    Returns fewer bytes only at the end of the file according to `size`. Raises OSError with EIO if
    a read before that end returns no bytes.
    """
    parts, done = [begun], len(begun)
    while done < length:
        part = pread(length - done, position + done)
        if not part:
            if position + done >= size():
                break
            raise OSError(errno.EIO, f"the disk returns {done} of {length} bytes at {position}")
        parts.append(part)
        done += len(part)
    return b"".join(parts)
