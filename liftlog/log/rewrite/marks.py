"""One bit per offset of a range."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Offsets = NDArray[np.int64]


class OffsetMarks:
    """Offsets in [first_offset, end_offset) can be marked. Later ones are ignored; earlier ones
    must not come."""

    def __init__(self, first_offset: int, end_offset: int) -> None:
        self.first_offset = first_offset
        self.end_offset = max(first_offset, end_offset)
        self._bits = np.zeros((self.end_offset - first_offset + 7) // 8, np.uint8)

    @property
    def memory_used_bytes(self) -> int:
        return self._bits.nbytes

    def mark(self, offsets: Offsets) -> None:
        """In any order, and more than once if need be."""
        relative = offsets - self.first_offset
        relative = relative.compress(offsets < self.end_offset)
        places, bits = relative >> 3, relative & 7
        for bit in range(8):
            # In one assignment a byte may come twice: both times with the same bit, so it is set.
            chosen = places.compress(bits == bit)
            self._bits[chosen] = self._bits.take(chosen) | np.uint8(1 << bit)

    def marked(self, offsets: Offsets) -> Flags:
        """Which of these are; all of them lie in the range."""
        relative = offsets - self.first_offset
        bits = self._bits.take(relative >> 3) >> (relative & 7).astype(np.uint8)
        return (bits & np.uint8(1)).view(np.bool_)
