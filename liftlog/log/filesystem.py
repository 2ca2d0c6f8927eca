"""The file operations that the log needs, behind a seam that tests replace.

Every durability argument in this package rests on five assumptions about the disk:
`fdatasync` returns only when the bytes and the size are stable; `rename` is atomic;
a directory entry is stable after `fsync` of its directory; a failed `fdatasync` may have
dropped the dirty pages; and un-synced writes may reach the disk torn and in any order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from liftlog.errors import DiskFull, StorageError

Buffer = bytes | bytearray | memoryview

_FULL = {errno.ENOSPC, errno.EDQUOT}
_PIECE_BYTES = 4 * 1024 * 1024


class File(Protocol):
    """One open file; positions and sizes in bytes. Methods raise OSError."""

    path: Path

    def fileno(self) -> int: ...
    def pread(self, length: int, position: int) -> bytes: ...
    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int: ...
    def fdatasync(self) -> None: ...
    def truncate(self, size: int) -> None: ...
    def allocate(self, size: int) -> None:
        """Make the file `size` bytes long, the new ones zero and with disk space behind them."""
        ...

    def size(self) -> int: ...
    def close(self) -> None: ...


class FileSystem(Protocol):
    """The calls that create, name and remove files. They raise OSError."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def unlink(self, path: Path) -> None: ...
    def exists(self, path: Path) -> bool: ...
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
        fd, self._fd = self._fd, -1  # gone also when close fails; the number may be another's soon
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


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
        return path.exists()

    def list_directory(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in path.iterdir())

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=0o750)

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def fsync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def is_full(error: OSError) -> bool:
    """Whether the operation failed for want of room."""
    return error.errno in _FULL


class storage_errors:  # noqa: N801  # used as a function
    """Map OSError to StorageError or DiskFull, once, at the border of the package.

    A class and not a generator: it stands on the path of every append.
    """

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
        if error is None or not isinstance(error, OSError):
            return
        if is_full(error):
            raise DiskFull(f"{self._what}: the disk is full") from error
        raise StorageError(f"{self._what}: {error.strerror or error}") from error


def write_all(file: File, buffers: Sequence[Buffer], position: int) -> int:
    """Write every byte, going on after short writes; returns the number of bytes."""
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


def content_end(file: File, start: int) -> int:
    """Where the zeros at the end of the file begin, at or after `start`. Raises OSError."""
    end = file.size()
    while end > start:
        low = max(start, end - _PIECE_BYTES)
        stem = file.pread(end - low, low).rstrip(b"\0")
        if stem:
            return low + len(stem)
        end = low
    return start
