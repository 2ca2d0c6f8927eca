"""The lock of a data directory: one daemon uses it at a time, or one command that works offline.

The operating system lets it go with the process that holds it. The file stays, and says who holds
the lock while somebody does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from liftlog.errors import DataDirLocked

LOCK_NAME = "lock"


def take_lock(data_dir: Path, *, hint: str = "") -> int:
    """The descriptor that holds the lock. Raises DataDirLocked, OSError."""
    fd = os.open(data_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        _lock(fd, data_dir, hint)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def release_lock(fd: int) -> None:
    with contextlib.suppress(OSError):  # a name that stays only misleads
        os.ftruncate(fd, 0)
    os.close(fd)


@contextlib.contextmanager
def exclusive(data_dir: Path | None, *, read_only: bool = False) -> Iterator[None]:
    """Keep daemons out of `data_dir` meanwhile. Raises DataDirLocked when one holds it, OSError.

    `read_only` leaves no trace: a directory that was never locked stays so.
    """
    if data_dir is None or (read_only and not (data_dir / LOCK_NAME).exists()):
        yield
        return
    if not read_only:
        fd = take_lock(data_dir, hint="stop the daemon first")
        try:
            yield
        finally:
            release_lock(fd)
        return
    fd = os.open(data_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _lock(fd, data_dir, "stop the daemon first")
        yield
    finally:
        os.close(fd)


def _lock(fd: int, data_dir: Path, hint: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise DataDirLocked(
            f"the data directory {data_dir} is in use by process {holder}", hint=hint
        ) from None
