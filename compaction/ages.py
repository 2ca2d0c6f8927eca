"""Ages of segments, even if clocks were wrong when their records were stamped.

Limits by age need the time at which the newest record of a segment was stored. Its timestamp comes
from the wall clock of the daemon that stored it, which may have been wrong. So the best available
evidence is used:

    timed      if this process wrote the segment, its monotonic clock gives the exact age,
               whatever the wall clocks were
    stamp      otherwise the timestamp of its newest record, if it is credible: not ahead of the
               present time, and not from before this program existed
    later      if the timestamp is not credible, it is certainly wrong. Later records are younger,
               so the first credible timestamp after it is used, or the time of the file if lower
    present    without any evidence the segment counts as new, and is kept

Other evidence than the timestamp of the segment is used only if this timestamp is not credible. A
later timestamp that is *lower* than a credible one proves nothing: if a machine boots in 1970 and
stores one record, all earlier segments must not seem to be 50 years old.

In each case a segment is at least as old as the time for which this process has had it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

TOLERANCE_NS = 60 * 1_000_000_000
"""Timestamps may be up to this time (60 s, in ns) ahead of the present time, because the clocks of
machines differ slightly."""
FIRST_CREDIBLE_NS = 1_577_836_800_000_000_000  # 2020-01-01
"""The time 2020-01-01, in ns since 1970. A clock with an earlier time was never set."""


class Witness(NamedTuple):
    """Evidence for the age of one segment: the timestamp of its newest record (0 without records),
    the time for which this process has had all records of the segment, and whether the records were
    written during that time."""

    stamp_ns: int
    held_ns: int = 0
    is_timed: bool = False


Asked = Callable[[int], int]
"""A function that returns a time of the segment with this index; 0 if the time is unknown. The
function may read a file."""


def is_credible(stamp_ns: int, now_ns: int) -> bool:
    return FIRST_CREDIBLE_NS <= stamp_ns <= now_ns + TOLERANCE_NS


def newest_times(
    segments: Sequence[Witness],
    now_ns: int,
    *,
    first_ns: Asked = lambda index: 0,
    file_ns: Asked = lambda index: 0,
) -> list[int]:
    """Return the time at which the newest record of each segment was stored, on the clock of
    `now_ns`. `segments` are in the order of the log. `first_ns` returns the stamp of the first
    record of a segment, `file_ns` the time of the last change of its file; both are called only if
    a stamp is not credible. Takes linear time."""
    times = [0] * len(segments)
    later: int | None = None  # the first credible time of a record after segment i
    for i in range(len(segments) - 1, -1, -1):
        one = segments[i]
        held_since = now_ns - one.held_ns
        if one.is_timed:
            later = times[i] = held_since
        elif _is_certain(one, now_ns):
            times[i] = min(one.stamp_ns, held_since)
            later = times[i] if one.stamp_ns else later
        else:
            times[i] = _uncertain_time(file_ns(i), later, held_since, now_ns)
        if i and not one.is_timed and not _is_certain(segments[i - 1], now_ns):
            first = first_ns(i)
            later = first if is_credible(first, now_ns) else later
    return times


def _is_certain(one: Witness, now_ns: int) -> bool:
    return one.is_timed or not one.stamp_ns or is_credible(one.stamp_ns, now_ns)


def _uncertain_time(file_ns: int, later: int | None, held_since: int, now_ns: int) -> int:
    known = [time for time in (file_ns, later) if time is not None and is_credible(time, now_ns)]
    return min([*known, held_since])
