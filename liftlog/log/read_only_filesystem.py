"""A view of files that cannot write: of a log that a daemon may be using."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import NoReturn

from liftlog.log.filesystem import OsFile, OsFileSystem


class ReadOnlyFileSystem(OsFileSystem):
    """Opens files for reading only; everything that would change something is refused."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        if create:
            _refuse(path)
        return super().open(path, writable=False)

    def map_shared(self, path: Path, size: int) -> mmap.mmap:
        """A private copy of the file's bytes."""
        copy = mmap.mmap(-1, size)
        try:
            copy.write(path.read_bytes()[:size])
        except OSError:
            copy.close()
            raise
        return copy

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
