"""The two file systems of a repair. One changes files only in memory, to show the planned changes.
The other copies the bytes that a change destroys, and then changes the files.

The same repair code runs on both, so a repair does exactly what its plan shows.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from liftlog.log.files.filesystem import Buffer, File, FileSystem, write_all
from liftlog.log.files.manifest import SEGMENT_SUFFIX
from liftlog.log.files.unreadable import content_end, read_zeroed


class Cut(NamedTuple):
    """A truncation of a file. The removed bytes are [position, end_position), followed only by
    zeros."""

    path: Path
    position: int
    end_position: int


class _Bytes:
    """The content of a file that exists only in a PretendingFileSystem."""

    def __init__(self) -> None:
        self.data = bytearray()


class _PretendedFile:
    """A new file in memory, or a view of a file on disk that can only become shorter."""

    def __init__(self, fs: PretendingFileSystem, path: Path, source: _Bytes | File) -> None:
        self.path = path
        self._fs = fs
        self._source = source

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a pretended file has no descriptor", str(self.path))

    def size(self) -> int:
        if isinstance(self._source, _Bytes):
            return len(self._source.data)
        return min(self._source.size(), self._fs.sizes.get(self.path, 1 << 63))

    def pread(self, length: int, position: int) -> bytes:
        length = max(min(length, self.size() - position), 0)
        if isinstance(self._source, _Bytes):
            return bytes(self._source.data[position : position + length])
        return self._source.pread(length, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        raw = b"".join(buffers)
        if not isinstance(self._source, _Bytes) and self.pread(len(raw), position) == raw:
            return len(raw)  # recovery rewrites bytes that may only be in the page cache
        data = self._own().data
        data.extend(bytes(max(position - len(data), 0)))
        data[position : position + len(raw)] = raw
        return len(raw)

    def truncate(self, size: int) -> None:
        if isinstance(self._source, _Bytes):
            self.allocate(size)
            del self._source.data[size:]
            return
        if size > self.size():
            self._refuse()
        end = min(content_end(self, size), self.size())
        if end > size:
            self._fs.cuts.append(Cut(self.path, size, end))
        self._fs.sizes[self.path] = size

    def allocate(self, size: int) -> None:
        data = self._own().data
        data.extend(bytes(max(size - len(data), 0)))

    def fdatasync(self) -> None:
        pass

    def close(self) -> None:
        if not isinstance(self._source, _Bytes):
            self._source.close()

    def _own(self) -> _Bytes:
        """Return the copy in memory, which may be changed. Raises an error for a segment, because
        only its size may change."""
        if isinstance(self._source, _Bytes):
            return self._source
        if self.path.suffix == SEGMENT_SUFFIX:
            self._refuse()
        self._source = self._fs.made_from(self.path, self._source)
        return self._source

    def _refuse(self) -> None:
        raise OSError(errno.EROFS, "repair never writes into a segment", str(self.path))


class PretendingFileSystem:
    """Shows the files of another file system and keeps every change in memory.

    `cuts` are the bytes that were cut off. Not thread-safe.
    """

    def __init__(self, beneath: FileSystem) -> None:
        self._beneath = beneath
        self._made: dict[Path, _Bytes] = {}
        self._gone: set[Path] = set()
        self.sizes: dict[Path, int] = {}
        self.cuts: list[Cut] = []

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        if create:
            self._made[path] = _Bytes()
            self._gone.discard(path)
        made = self._made.get(path)
        if made is not None:
            return _PretendedFile(self, path, made)
        if path in self._gone:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return _PretendedFile(self, path, self._beneath.open(path, writable=False))

    def made_from(self, path: Path, file: File) -> _Bytes:
        """Return a copy of a small file; later calls change the copy instead of the file."""
        made = self._made[path] = _Bytes()
        made.data += file.pread(file.size(), 0)
        file.close()
        return made

    def exists(self, path: Path) -> bool:
        return path in self._made or (path not in self._gone and self._beneath.exists(path))

    def modified_ns(self, path: Path) -> int:
        return 0 if path in self._made else self._beneath.modified_ns(path)

    def rename(self, source: Path, target: Path) -> None:
        if source not in self._made:  # a file that is set aside and not read again
            self._made[source] = _Bytes()
        self._made[target] = self._made.pop(source)
        self._gone.discard(target)
        self._gone.add(source)

    def unlink(self, path: Path) -> None:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._made.pop(path, None)
        self._gone.add(path)

    def list_directory(self, path: Path) -> list[str]:
        names = {name for name in self._beneath.list_directory(path) if self.exists(path / name)}
        names |= {made.name for made in self._made if made.parent == path}
        return sorted(names)

    def make_directory(self, path: Path) -> None:
        pass

    def remove_directory(self, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def fsync_directory(self, path: Path) -> None:
        pass


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
    """Changes the files of another file system, but first makes durable copies of the bytes that a
    change destroys.

    The copies go to `directory`, which is created with the first copy. A file that is replaced or
    removed is copied under its own name, a tail that is cut off as `<name>.<position>.tail`.
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

    def modified_ns(self, path: Path) -> int:
        return self._beneath.modified_ns(path)

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
        """Copy a file, unless this run of repair has created it."""
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
                # Unreadable bytes become zeros in the copy.
                piece = read_zeroed(file, min(_COPY_BYTES, end - position), position)
                write_all(copy, [piece], position - start)
            copy.fdatasync()
        finally:
            copy.close()
