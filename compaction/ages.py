"""How old segments are, although clocks were wrong when their records were stamped.

Limits by age need the time at which the newest record of a segment was stored. Its stamp comes from
the wall clock of the daemon that stored it, which may have been wrong. So the time is that of the
best witness:

    timed      the segment was written while this process watched: its monotonic clock knows the
               age exactly, whatever any wall clock said
    stamp      otherwise the stamp of its newest record, if it is credible: not ahead of the present
               time, and not before this program existed
    later      a stamp that is not credible proves itself wrong. What was stored later is younger,
               so the first credible stamp after it is used, or the time of the file if it is less
    present    without any witness the segment is as young as can be, and is kept

Witnesses other than its own stamp count only if that is not credible. A later stamp that is *lower*
than a credible one proves nothing: a machine that boots in 1970 and stores one record must not make
all that is before it look 50 years old.

In each case a segment is at least as old as the time for which this process has had it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

TOLERANCE_NS = 60 * 1_000_000_000
"""Stamps may lie this far ahead of the present time: clocks of machines differ a little."""
FIRST_CREDIBLE_NS = 1_577_836_800_000_000_000  # 2020-01-01
"""A clock that shows less was never set."""


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What is known of the age of one segment.

    `held_ns` is the time for which this process has had all of its records, and `is_timed` whether
    it was written just then. `first_ns` and `file_ns` return the stamp of its first record and the
    time of the last change of its file, 0 if unknown; they may read, and are called only if a stamp
    is not credible. `stamp_ns` is 0 for a segment without records.
    """

    stamp_ns: int
    held_ns: int = 0
    is_timed: bool = False
    first_ns: Callable[[], int] = int
    file_ns: Callable[[], int] = int


def is_credible(stamp_ns: int, now_ns: int) -> bool:
    return FIRST_CREDIBLE_NS <= stamp_ns <= now_ns + TOLERANCE_NS


def newest_times(segments: Sequence[Witnesses], now_ns: int) -> list[int]:
    """When the newest record of each segment was stored, as far as can be known, in the time that
    `now_ns` belongs to. `segments` are in the order of the log. Takes linear time."""
    times = [0] * len(segments)
    later: int | None = None  # the first credible time of a record after segment i
    for i in range(len(segments) - 1, -1, -1):
        one = segments[i]
        times[i] = _newest_time(one, now_ns, later)
        if one.stamp_ns and _is_certain(one, now_ns):
            later = times[i]
        if i and not one.is_timed and not _is_certain(segments[i - 1], now_ns):
            first = one.first_ns()
            later = first if is_credible(first, now_ns) else later
    return times


def _is_certain(one: Witnesses, now_ns: int) -> bool:
    return one.is_timed or not one.stamp_ns or is_credible(one.stamp_ns, now_ns)


def _newest_time(one: Witnesses, now_ns: int, later: int | None) -> int:
    held_since = now_ns - one.held_ns
    if one.is_timed:
        return held_since
    if _is_certain(one, now_ns):
        return min(one.stamp_ns, held_since)
    found = one.file_ns()
    known = [time for time in (found, later) if time is not None and is_credible(time, now_ns)]
    return min([*known, held_since])
