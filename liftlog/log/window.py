"""A sliding view of a file, so that a scan reads each byte about once."""

from __future__ import annotations

from liftlog.log.filesystem import File

WINDOW_BYTES = 4 * 1024 * 1024


class FileWindow:
    """The first `size` bytes of a file, read in large pieces."""

    def __init__(self, file: File, size: int, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = file
        self._size = size
        self._window_bytes = window_bytes
        self._start = 0
        self._buffer = b""

    def view(self, position: int, length: int) -> memoryview:
        """`length` bytes at `position`; fewer only at the end. Raises OSError."""
        length = max(min(length, self._size - position), 0)
        at = position - self._start
        if at < 0 or at + length > len(self._buffer):
            wanted = min(max(length, self._window_bytes), self._size - position)
            self._start, at, self._buffer = position, 0, self._file.pread(wanted, position)
        return memoryview(self._buffer)[at : at + length]
