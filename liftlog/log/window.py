"""A sliding view of a file, so that a scan reads each byte about once."""

from __future__ import annotations

from liftlog.log.filesystem import File
from liftlog.log.unreadable import first_hole, read_around, words

WINDOW_BYTES = 4 * 1024 * 1024


class FileWindow:
    """The first `size` bytes of a file, read in large pieces."""

    def __init__(self, file: File, size: int, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = file
        self._size = size
        self._window_bytes = window_bytes
        self._start = 0
        self._buffer = b""
        self._holes: tuple[range, ...] = ()

    def view(self, position: int, length: int) -> memoryview:
        """`length` bytes at `position`; fewer only at the end. What the disk does not give is
        zeros. Raises OSError for other errors."""
        length = max(min(length, self._size - position), 0)
        at = position - self._start
        if at < 0 or at + length > len(self._buffer):
            wanted = min(max(length, self._window_bytes), self._size - position)
            self._start, at = position, 0
            self._buffer, self._holes = read_around(self._file, wanted, position)
        return memoryview(self._buffer)[at : at + length]

    def unreadable(self, position: int, length: int) -> str:
        """What to tell of the first of these bytes that the disk does not give; empty if it gives
        all of them."""
        self.view(position, length)
        hole = first_hole(self._holes, position, length) if self._holes else None
        return "" if hole is None else words(hole)
