"""Arrival times of the records of a log, by a clock that does not step.

The timestamps of a stream come from the wall clocks of its successive leaders. If one of these
clocks is wrong by minutes, the ages that are computed from its timestamps are wrong by the same
amount. The arrival times of this module avoid this error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

_TOLERANCE_NS = 1_000_000_000
_MOST = 256


class Arrivals:
    """The differences between the timestamps of one log and the monotonic clock of this process, by
    offset. The differences are only in memory. So after a start there are none until the first
    append."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=_MOST)
        """Pairs (first offset, monotonic time minus timestamp), ascending by offset."""

    def note(self, offset: int, stamp_ns: int, monotonic_ns: int) -> None:
        """Note that a record with the timestamp `stamp_ns` has just arrived at `offset`, the log
        end."""
        marks, ahead_ns = self._marks, monotonic_ns - stamp_ns
        if marks and marks[-1][0] < offset and abs(ahead_ns - marks[-1][1]) <= _TOLERANCE_NS:
            return
        while marks and marks[-1][0] >= offset:  # marks of records that were truncated
            marks.pop()
        marks.append((offset, ahead_ns))

    @property
    def has_marks(self) -> bool:
        """True if any difference is recorded."""
        return bool(self._marks)

    def known(self) -> Known | None:
        """Return the current differences; None if no difference is recorded."""
        marks = tuple(self._marks)
        return Known(marks) if marks else None


class Known:
    """The marks of a log at one moment: the differences between monotonic time and timestamps."""

    def __init__(self, marks: tuple[tuple[int, int], ...]) -> None:
        self._offsets = [offset for offset, _ in marks]
        self._ahead_ns = [ahead_ns for _, ahead_ns in marks]

    def ahead_ns(self, offset: int) -> int:
        """Return how far the monotonic clock was ahead of the timestamp when the record at `offset`
        arrived, in ns; negative if it was behind. The timestamp plus this difference is the
        monotonic time of the arrival. Records before the first recorded difference get the first
        difference."""
        return self._ahead_ns[max(0, bisect_right(self._offsets, offset) - 1)]

    @property
    def most_ahead_ns(self) -> int:
        return max(self._ahead_ns)
