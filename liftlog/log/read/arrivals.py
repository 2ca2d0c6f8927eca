"""When records arrived in a log, by a clock that does not step.

The stamps of a stream come from the wall clocks of its leaders, one after the other. A clock that
is wrong by minutes would make what was written a moment ago seem old, or young for long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

_TOLERANCE_NS = 1_000_000_000
_MOST = 256


class Arrivals:
    """How the stamps of one log stand to the monotonic clock of this process, from which offset on.
    Only in memory: of a start nothing is known before the first append."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=_MOST)
        """(first offset, monotonic time minus stamp), ascending by offset."""

    def note(self, offset: int, stamp_ns: int, monotonic_ns: int) -> None:
        """A record with this stamp was stamped just now, at `offset`, which is the log's end."""
        marks, ahead_ns = self._marks, monotonic_ns - stamp_ns
        if marks and marks[-1][0] < offset and abs(ahead_ns - marks[-1][1]) <= _TOLERANCE_NS:
            return
        while marks and marks[-1][0] >= offset:  # those records were cut off
            marks.pop()
        marks.append((offset, ahead_ns))

    @property
    def has_marks(self) -> bool:
        """Whether anything is known."""
        return bool(self._marks)

    def known(self) -> Known | None:
        """As it is now; None if nothing is known."""
        marks = tuple(self._marks)
        return Known(marks) if marks else None


class Known:
    """What was known of the arrivals in a log at one moment."""

    def __init__(self, marks: tuple[tuple[int, int], ...]) -> None:
        self._offsets = [offset for offset, _ in marks]
        self._ahead_ns = [ahead_ns for _, ahead_ns in marks]

    def ahead_ns(self, offset: int) -> int:
        """What to add to the stamp of the record there for the monotonic time of its arrival. What
        is older than all that is known had the clock of the first that is."""
        return self._ahead_ns[max(0, bisect_right(self._offsets, offset) - 1)]

    @property
    def most_ahead_ns(self) -> int:
        return max(self._ahead_ns)
