"""Memory for the bodies of answers. A buffer is reused when nothing refers to it any more.

Reuse saves time: a new mebibyte costs 256 page faults, which take as long as computing its
checksum. A buffer is free when the pool holds the only reference to it: every batch, view or array
over the buffer holds another reference.
"""

from __future__ import annotations

import sys

_SMALLEST_BYTES = 64 * 1024
_LARGEST_BYTES = 16 * 1024 * 1024
_ROUND_BYTES = 256 * 1024


def _references(held: list[bytearray], i: int) -> int:
    return sys.getrefcount(held[i])


_FREE = _references([bytearray(1)], 0)


class BufferPool:
    """Allocates buffers for bodies, and keeps up to `max_buffers` of the larger buffers for reuse.
    Not thread-safe."""

    def __init__(self, max_buffers: int = 8) -> None:
        self._max_buffers = max_buffers
        self._held: list[bytearray] = []

    def __len__(self) -> int:
        """Number of buffers that the pool keeps."""
        return len(self._held)

    def allocate(self, length: int) -> memoryview:
        """Return writable memory of exactly `length` bytes; its contents are arbitrary."""
        if not _SMALLEST_BYTES <= length <= _LARGEST_BYTES:
            return memoryview(bytearray(length))
        held = self._held
        for i in range(len(held)):
            if len(held[i]) >= length and _references(held, i) == _FREE:
                return memoryview(held[i])[:length]
        fresh = bytearray(-(-length // _ROUND_BYTES) * _ROUND_BYTES)
        self._keep(fresh)
        return memoryview(fresh)[:length]

    def _keep(self, fresh: bytearray) -> None:
        held = self._held
        if len(held) < self._max_buffers:
            held.append(fresh)
            return
        for i in range(len(held)):
            if len(held[i]) < len(fresh) and _references(held, i) == _FREE:
                held[i] = fresh
                return
