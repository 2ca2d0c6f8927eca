"""Computes the ages of the segments of a log by the rules in `compaction.ages`. The rules use
timestamps from the files, and times that this process has recorded."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.ages import TOLERANCE_NS, Witness, newest_times
from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log.environment import LogEnvironment
from liftlog.log.segment.segment import Segment
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import parse_header


def newest_times_of(
    environment: LogEnvironment, segments: Sequence[Segment], now_ns: int
) -> list[int]:
    """Return the time of the newest record of each segment; see `newest_times`. Reads a few headers
    if timestamps are not credible."""
    monotonic_ns = environment.clock.monotonic_ns()
    known = [
        Witness(
            one.max_timestamp_ns if one.record_count else 0,
            _since(one.held_since_ns, monotonic_ns),
            one.is_timed,
        )
        for one in segments
    ]
    return newest_times(
        known,
        now_ns,
        first_ns=lambda i: first_stamp_ns(environment, segments[i]),
        file_ns=lambda i: _file_ns(environment, segments[i]),
    )


def listed_times_of(
    environment: LogEnvironment, segments: Sequence[Segment], now_ns: int
) -> list[int]:
    """Return, for each segment, a time at which its file already existed with the same content."""
    monotonic_ns = environment.clock.monotonic_ns()
    return [now_ns - _since(segment.listed_since_ns, monotonic_ns) for segment in segments]


def held_times_of(
    environment: LogEnvironment, segments: Sequence[Segment], now_ns: int
) -> list[int]:
    """Return, for each segment, the time at which this process had received all records of the
    segment. The result is right even if the wall clock was wrong at some time in the past."""
    monotonic_ns = environment.clock.monotonic_ns()
    return [now_ns - _since(segment.held_since_ns, monotonic_ns) for segment in segments]


def seconds_ahead(stamp_ns: int, now_ns: int) -> float:
    """Return by how many seconds a timestamp is ahead of `now_ns`; 0.0 if the difference is at most
    `TOLERANCE_NS`."""
    ahead_ns = stamp_ns - now_ns
    return ahead_ns / 1e9 if ahead_ns > TOLERANCE_NS else 0.0


def span(seconds: float) -> str:
    """Return a duration as text, in its largest unit."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.0f} s"


def first_stamp_ns(environment: LogEnvironment, segment: Segment) -> int:
    """Return the timestamp of the first batch of a segment; 0 if it cannot be read."""
    try:
        pooled = environment.pool.acquire(segment.path)
        try:
            return parse_header(pooled.file.pread(HEADER_SIZE, 0)).base_timestamp_ns
        finally:
            environment.pool.release(pooled)
    except (OSError, CorruptBatch, UnsupportedFormat):
        return 0


def _since(held_since_ns: int, monotonic_ns: int) -> int:
    return max(0, monotonic_ns - held_since_ns) if held_since_ns else 0


def _file_ns(environment: LogEnvironment, segment: Segment) -> int:
    try:
        return environment.fs.modified_ns(segment.path)
    except OSError:
        return 0
