"""Reading a segment in large pieces."""

from __future__ import annotations

from typing import Protocol

WINDOW_BYTES = 4 * 1024 * 1024


class Readable(Protocol):
    def pread(self, length: int, position: int) -> bytes: ...


class Window:
    """The first `size` bytes of a file, so that going through it reads each byte about once."""

    def __init__(self, file: Readable, size: int) -> None:
        self._file = file
        self._size = size
        self._start = 0
        self._buffer = b""

    def view(self, position: int, length: int) -> memoryview:
        """`length` bytes at `position`, fewer at the end."""
        length = max(min(length, self._size - position), 0)
        at = position - self._start
        if at < 0 or at + length > len(self._buffer):
            wanted = min(max(length, WINDOW_BYTES), self._size - position)
            self._start, at, self._buffer = position, 0, self._file.pread(wanted, position)
        return memoryview(self._buffer)[at : at + length]
