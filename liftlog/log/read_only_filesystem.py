"""A view of files that cannot write: of a log that a daemon may be using."""

from __future__ import annotations

import errno
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
