"""Reads files with unreadable pages. Such a page counts as damage, like bit rot.

An unreadable sector makes its whole page unreadable. A scan for good data reads the bytes before
and after the page as usual, and replaces the page by zeros, which never match the checksum of a
batch. Some callers must distinguish unknown bytes from zeros, to find the end of the data, or to
decide if a tail may have been acked. Such callers also get the ranges of the unreadable bytes,
called holes.

Errors that are not about a sector (no memory, no descriptor, a stale handle) are not damage and are
raised. A reader of a dispensable file, such as an index, works without the file while such an error
lasts.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple

from liftlog.log.files.filesystem import File, FileSystem

PAGE_BYTES = 4096
WINDOW_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 4 * 1024 * 1024
_SECTOR_ERRORS = frozenset(
    {errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO}
)
"""Error numbers of file systems for a sector or block that is unreadable or has a wrong
checksum."""


_PASSING_ERRORS = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.EAGAIN,
        errno.EINTR,
        errno.EBUSY,
        errno.ETIMEDOUT,
    }
)
"""Error numbers that mean a transient problem, such as a lack of memory or descriptors."""


def is_unreadable(error: OSError) -> bool:
    """True if `error` means that the disk cannot read the bytes; other errors may be transient."""
    return error.errno in _SECTOR_ERRORS


def is_passing(error: OSError) -> bool:
    """True if the same call on the same files can succeed a moment later."""
    return error.errno in _PASSING_ERRORS


class Pieces(NamedTuple):
    """Bytes of a file, with zeros for unreadable bytes. `holes` are the unreadable ranges: [start,
    stop) in the file, ascending, not adjacent."""

    raw: bytes
    holes: tuple[range, ...] = ()


def read_around(file: File, length: int, position: int) -> Pieces:
    """Read like `file.pread`, with zeros for unreadable bytes. Raises OSError for other errors."""
    try:
        return Pieces(file.pread(length, position))
    except OSError as error:
        if not is_unreadable(error):
            raise
    end = min(position + length, max(file.size(), position))
    parts: list[bytes] = []
    holes: list[range] = []
    while position < end:
        following = min(position - position % PAGE_BYTES + PAGE_BYTES, end)
        length = following - position
        try:
            parts.append(file.pread(length, position).ljust(length, b"\0"))
        except OSError as error:
            if not is_unreadable(error):
                raise
            parts.append(bytes(length))
            add_hole(holes, position, following)
        position = following
    return Pieces(b"".join(parts), tuple(holes))


def read_small_file(fs: FileSystem, path: Path) -> bytes | OSError | None:
    """Read a small file. Returns None for a missing file, and the error if the disk cannot read the
    file.

    Raises OSError for other errors, which do not mean that the file is damaged.
    """
    try:
        if not fs.exists(path):
            return None
        file = fs.open(path, writable=False)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()
    except OSError as error:
        if not is_unreadable(error):
            raise
        return error


def add_hole(holes: list[range], start: int, stop: int) -> None:
    """Add the range [start, stop) to the holes. The range begins in or after the last hole."""
    if holes and holes[-1].stop >= start:
        holes[-1] = range(holes[-1].start, stop)
    else:
        holes.append(range(start, stop))


def read_zeroed(file: File, length: int, position: int) -> bytes:
    """Return only the bytes of `read_around`, without the holes. For callers that verify a
    checksum."""
    return read_around(file, length, position).raw


def first_hole(holes: tuple[range, ...], position: int, length: int) -> range | None:
    """Return the first hole that overlaps the `length` bytes at `position`."""
    for hole in holes:
        if hole.start < position + length and position < hole.stop:
            return hole
    return None


def words(hole: range) -> str:
    """Return a description of a hole, for a message."""
    return f"the disk cannot read the {len(hole):,} bytes at {hole.start}"


def content_end(file: File, start: int) -> int:
    """Return the end of the content, at or after `start`: the position from which the file has only
    zeros. Raises OSError.

    Unreadable bytes may hold data, so they do not count as zeros.
    """
    end = file.size()
    while end > start:
        low = max(start, end - _PIECE_BYTES)
        raw, holes = read_around(file, end - low, low)
        found = low + len(raw.rstrip(b"\0"))
        if holes:
            found = max(found, holes[-1].stop)
        if found > low:
            return found
        end = low
    return start


def readable_end(file: File, start: int, end: int) -> int:
    """Return the end of the readable content of [start, end): like `content_end`, but unreadable
    bytes count as zeros. Raises OSError."""
    length = 8  # the usual result is `end`, which one small read finds
    while end > start:
        low = max(start, end - length)
        content = read_zeroed(file, end - low, low).rstrip(b"\0")
        if content:
            return low + len(content)
        end, length = low, _PIECE_BYTES
    return start


class FileWindow:
    """A sliding view of the first `size` bytes of a file: a scan reads each byte about once."""

    def __init__(self, file: File, size: int, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = file
        self._size = size
        self._window_bytes = window_bytes
        self._start = 0
        self._buffer = b""
        self._holes: tuple[range, ...] = ()

    def view(self, position: int, length: int) -> memoryview:
        """Return `length` bytes at `position`, fewer only at the end. Unreadable bytes become
        zeros. Raises OSError for other errors."""
        length = max(min(length, self._size - position), 0)
        at = position - self._start
        if at < 0 or at + length > len(self._buffer):
            wanted = min(max(length, self._window_bytes), self._size - position)
            self._start, at = position, 0
            self._buffer, self._holes = read_around(self._file, wanted, position)
        return memoryview(self._buffer)[at : at + length]

    def unreadable(self, position: int, length: int) -> str:
        """Describe the first hole in the `length` bytes at `position`; empty if all are
        readable."""
        self.view(position, length)
        hole = first_hole(self._holes, position, length) if self._holes else None
        return "" if hole is None else words(hole)
