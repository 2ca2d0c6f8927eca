"""A file system that only pretends to change files: what a repair would do, before it is done.

The same code then runs on `KeepingFileSystem`, so what is announced is what happens.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from liftlog.log.filesystem import Buffer, File, FileSystem
from liftlog.log.manifest import SEGMENT_SUFFIX
from liftlog.log.unreadable import content_end


class Cut(NamedTuple):
    """Bytes [position, end_position) of a file were cut off; only zeros followed."""

    path: Path
    position: int
    end_position: int


class _Bytes:
    """The content of a file that was made in the pretended world."""

    def __init__(self) -> None:
        self.data = bytearray()


class _PretendedFile:
    """A new file in memory, or a view of one on disk that may only become shorter."""

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
            return len(raw)  # recovery writes again what may be in the page cache only
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
        """What may be changed: never a segment: only its size is pretended."""
        if isinstance(self._source, _Bytes):
            return self._source
        if self.path.suffix == SEGMENT_SUFFIX:
            self._refuse()
        self._source = self._fs.made_from(self.path, self._source)
        return self._source

    def _refuse(self) -> None:
        raise OSError(errno.EROFS, "repair never writes into a segment", str(self.path))


class PretendingFileSystem:
    """Shows the files of another file system and keeps every change to itself.

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
        """A copy of a small file, to be changed in its place."""
        made = self._made[path] = _Bytes()
        made.data += file.pread(file.size(), 0)
        file.close()
        return made

    def exists(self, path: Path) -> bool:
        return path in self._made or (path not in self._gone and self._beneath.exists(path))

    def rename(self, source: Path, target: Path) -> None:
        if source not in self._made:  # put aside, and not looked at any more
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
