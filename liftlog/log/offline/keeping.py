"""A file system that changes files only after it has copied what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from liftlog.log.filesystem import Buffer, File, FileSystem, write_all
from liftlog.log.manifest import SEGMENT_SUFFIX
from liftlog.log.unreadable import content_end, read_zeroed

_COPY_BYTES = 4 * 1024 * 1024


class _KeptFile:
    """A file whose tail is copied before it is cut off."""

    def __init__(self, fs: KeepingFileSystem, file: File) -> None:
        self.path = file.path
        self._fs = fs
        self._file = file

    def fileno(self) -> int:
        return self._file.fileno()

    def size(self) -> int:
        return self._file.size()

    def pread(self, length: int, position: int) -> bytes:
        return self._file.pread(length, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return self._file.pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        end = content_end(self._file, size)
        if end > size:
            self._fs.keep_tail(self._file, size, end)
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    def fdatasync(self) -> None:
        self._file.fdatasync()

    def close(self) -> None:
        self._file.close()


class KeepingFileSystem:
    """Changes the files of another file system, each only after a copy of what is lost is durably
    in `directory`, which is made with the first of them.

    A file that is replaced or removed is copied there under its own name, a tail that is cut off
    as `<name>.<position>.tail`.
    """

    def __init__(self, beneath: FileSystem, directory: Path) -> None:
        self._beneath = beneath
        self.directory = directory
        self.kept: list[str] = []
        self._made: set[Path] = set()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        if create or (writable and path.suffix != SEGMENT_SUFFIX):
            self._keep(path)
            self._made.add(path)
        file = self._beneath.open(path, create=create, writable=writable)
        return file if path in self._made or not writable else _KeptFile(self, file)

    def rename(self, source: Path, target: Path) -> None:
        self._keep(target)
        self._beneath.rename(source, target)
        self._made.discard(source)
        self._made.add(target)

    def unlink(self, path: Path) -> None:
        self._keep(path)
        self._beneath.unlink(path)

    def exists(self, path: Path) -> bool:
        return self._beneath.exists(path)

    def list_directory(self, path: Path) -> list[str]:
        return self._beneath.list_directory(path)

    def make_directory(self, path: Path) -> None:
        self._beneath.make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self._beneath.remove_directory(path)

    def fsync_directory(self, path: Path) -> None:
        self._beneath.fsync_directory(path)

    # --- copies ---

    def _keep(self, path: Path) -> None:
        """Copy a file, unless this run has made it itself."""
        if path in self._made or not self._beneath.exists(path):
            return
        file = self._beneath.open(path, writable=False)
        try:
            self._copy(file, 0, file.size(), self._new_copy(path.name))
        finally:
            file.close()
        self._beneath.fsync_directory(self.directory)

    def keep_tail(self, file: File, position: int, end: int) -> None:
        target = self._new_copy(f"{file.path.name}.{position}.tail")
        self._copy(file, position, end, target)
        self._beneath.fsync_directory(self.directory)

    def _new_copy(self, name: str) -> Path:
        if not self.kept:
            self._beneath.make_directory(self.directory)
            for directory in (self.directory.parent, self.directory.parent.parent):
                self._beneath.fsync_directory(directory)
        self.kept.append(name)
        return self.directory / name

    def _copy(self, file: File, start: int, end: int, target: Path) -> None:
        copy = self._beneath.open(target, create=True)
        try:
            for position in range(start, end, _COPY_BYTES):
                # What cannot be read is zeros in the copy: there is nothing else to keep of it.
                piece = read_zeroed(file, min(_COPY_BYTES, end - position), position)
                write_all(copy, [piece], position - start)
            copy.fdatasync()
        finally:
            copy.close()
