"""The files that are derived from a sealed segment and may be missing: its sketch and its subject
index. The files are not fsynced. If a crash leaves a file incomplete, readers detect this by its
checksums.

Each file begins with its kind and version, and with fields that identify its segment:

     0  4  kind
     4  4  version                        u32
    12  4  CRC-32C of the log's lineage, followed by "/" and the segment's generation if not 0
    16  8  size of the segment in bytes   u64
    24  8  offset after the segment       u64
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from crc32c import crc32c

from liftlog.log.files.filesystem import Buffer, FileSystem, write_all
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.segment.index import index_path
from liftlog.log.segment.segment import Segment

logger = logging.getLogger("liftlog.log")

CACHED_BYTES = 64 * 1024 * 1024
"""Size of the cache for the contents of one kind of file: 64 MiB."""

_HEAD = struct.Struct("<4sI4xIQQ")
_AT_ONCE = 512  # buffers per system call; the limit is 1,024
_COMPARED_BYTES = 48  # the head with the checksums, which differs between two files
_USELESS = 1000
"""Maximum number of files that the cache marks as unusable. It reads other unusable files again at
each request."""

Kind = tuple[bytes, int]
"""The first bytes of a file, and its version."""


DERIVED_SUFFIXES = (".sketch", ".subjects")


def sketch_path(log_path: Path) -> Path:
    return log_path.with_suffix(".sketch")


def subject_index_path(log_path: Path) -> Path:
    return log_path.with_suffix(".subjects")


def files_of(log_path: Path) -> tuple[Path, Path, Path, Path]:
    """Return the paths of a segment and of the files that belong to it."""
    return log_path, index_path(log_path), sketch_path(log_path), subject_index_path(log_path)


def is_named(raw: bytes, kind: Kind, segment: SegmentEntry, lineage: str) -> bool:
    """Return True if `raw`, the first bytes of a file, shows that the file was made from this state
    of the segment."""
    if len(raw) < _HEAD.size:
        return False
    found = _HEAD.unpack_from(raw)
    about = history_check(segment, lineage), segment.size_bytes, segment.next_offset
    return found == (*kind, *about)


def history_check(segment: SegmentEntry, lineage: str) -> int:
    """Return the checksum that identifies the segment in a derived file. Size and end alone do not
    identify it, because a rewritten segment can have the same size and end as the segment that it
    replaced."""
    name = f"{lineage}/{segment.generation}" if segment.generation else lineage
    return crc32c(name.encode())


def names_segment(
    fs: FileSystem, path: Path, kind: Kind, segment: SegmentEntry, lineage: str
) -> bool:
    """Return True if the file at `path` exists, can be read, and belongs to this segment."""
    with suppress(OSError), closing(fs.open(path, writable=False)) as file:
        return is_named(file.pread(_HEAD.size, 0), kind, segment, lineage)
    return False


def write_derived(fs: FileSystem, path: Path, parts: Sequence[Buffer]) -> int:
    """Write the parts to a file, replacing an older file. Returns the size in bytes. Raises
    OSError."""
    made, end = path.with_name(f"{path.name}.tmp"), 0
    try:
        with closing(fs.open(made, create=True)) as file:
            file.truncate(0)
            for first in range(0, len(parts), _AT_ONCE):
                end += write_all(file, parts[first : first + _AT_ONCE], end)
        fs.rename(made, path)
    except OSError:
        with suppress(OSError):
            fs.unlink(made)
        raise
    return end


class Derived(Protocol):
    """The content of a derived file: its segment and lineage, and its size in memory."""

    @property
    def about(self) -> tuple[SegmentEntry, str]: ...

    @property
    def size_bytes(self) -> int: ...


D = TypeVar("D", bound=Derived)


class DerivedFiles(Generic[D]):
    """A cache of the contents of the most recently used files of one kind, up to CACHED_BYTES.
    Thread-safe."""

    def __init__(
        self,
        fs: FileSystem,
        path_of: Callable[[Path], Path],
        read: Callable[[FileSystem, Path, SegmentEntry, str], D | None],
    ) -> None:
        """Make an empty cache. `path_of` maps a segment's path to the path of the derived file.
        `read` gets the path of the segment, and reads its derived file."""
        self._fs = fs
        self._path_of, self._read = path_of, read
        self._lock = threading.Lock()
        self._found: OrderedDict[Path, D] = OrderedDict()
        self._size = 0
        self._useless: OrderedDict[Path, object] = OrderedDict()

    def get(self, segment: Segment, lineage: str, *, load: bool) -> D | None:
        """Return the content of a segment's file; None if the file is missing or unusable, or if
        `load` is False and the content is not cached."""
        path, about = segment.path, (segment.entry(), lineage)
        with self._lock:
            found = self._found.get(path)
            if found is not None and found.about == about:
                self._found.move_to_end(path)
                return found
        if not load:
            return None
        try:
            state = self._state_of(self._path_of(path))
            if state is None or self._useless.get(path) == (about, state):
                return None
            found = self._read(self._fs, path, *about)
        except OSError as error:
            # The file is only an optimization, so an error is ignored. The next read retries.
            logger.debug("derived-file-not-read path=%s error=%s", path, error)
            return None
        if found is None:
            with self._lock:
                self._useless[path] = about, state
                while len(self._useless) > _USELESS:
                    self._useless.popitem(last=False)
            return None
        with self._lock:
            replaced = self._found.pop(path, None)
            self._size += found.size_bytes - (replaced.size_bytes if replaced else 0)
            self._found[path] = found
            while self._size > CACHED_BYTES and len(self._found) > 1:
                _, unused = self._found.popitem(last=False)
                self._size -= unused.size_bytes
        return found

    def _state_of(self, path: Path) -> tuple[bytes, int] | None:
        """Return the first bytes and the size of a file; None if it is missing. Raises OSError."""
        if not self._fs.exists(path):
            return None
        with closing(self._fs.open(path, writable=False)) as file:
            return file.pread(_COMPARED_BYTES, 0), file.size()
