"""Decides when a stream is compacted, and which of its segments take part.

A pass maps the keys of the *dirty* part (from `cleaned_below` on) and applies that map to every
older segment. After the pass, each key occurs only once below the end of the pass. A pass is due
when

    dirty ratio         a large enough part of the compactable data has not been compacted yet
    max_lag             the oldest record that was never compacted is older than max_lag
    expired tombstones  the retention of tombstones in a clean segment has passed
    on demand           an operator requested a pass, and something can be compacted

A pass takes whole sealed segments below the bound, from the oldest up to the first segment that is
too new: newer than min_lag, or newer than the dedupe window, because message ids are rebuilt from
such segments.

Tombstones. A segment in which a pass keeps tombstones gets a *delete horizon*: the time of the
first such pass plus tombstone_retention. After that time the next pass drops these tombstones.
Expired tombstones alone make a pass due, even for a stream without new records. By then, the map
with the tombstone has been applied to every older segment, except for segments that must not be
rewritten. Tombstones that are newer than such a segment are never dropped, because the segment may
still contain the value that they delete. Horizons are rounded up to an eighth of
tombstone_retention, and only segments with the same horizon are merged. Otherwise a frequently
compacted stream would merge old tombstones with new tombstones in each pass, and never drop a
tombstone.

The rules are like those of Kafka's LogCleaner. The class comment of LogCleaner describes the idea
best.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

MAX_RELATIVE_OFFSET = 0xFFFF_FFFF
"""Maximum span of offsets in a segment, because offsets in an index are 32 bits wide."""

_HORIZONS_PER_RETENTION = 8


class CompactableSegment(Protocol):
    """The properties of a segment that planning needs. `next_offset` is the start of the next
    segment."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def max_timestamp_ns(self) -> int: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def delete_horizon_ns(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """The settings of compaction. Times in nanoseconds. `protect_newer_than_ns` is the dedupe
    window."""

    min_dirty_ratio: float = 0.5
    min_lag_ns: int = 0
    max_lag_ns: int | None = None
    tombstone_retention_ns: int = 86_400 * 1_000_000_000
    protect_newer_than_ns: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min_dirty_ratio <= 1:
            raise ValueError("the dirty ratio must lie between 0 and 1")
        times = (self.min_lag_ns, self.tombstone_retention_ns, self.protect_newer_than_ns)
        if min(times) < 0 or (self.max_lag_ns is not None and self.max_lag_ns < 1):
            raise ValueError("times must not be negative, max_lag must be greater than 0")

    def horizon_ns(self, now_ns: int) -> int:
        """Return the time after which tombstones may be dropped, if a pass at `now_ns` is the first
        to keep them."""
        step = max(1, self.tombstone_retention_ns // _HORIZONS_PER_RETENTION)
        return -(-(now_ns + self.tombstone_retention_ns) // step) * step


class StoppedBy(StrEnum):
    """Reasons why a segment and all segments after it cannot be compacted yet."""

    BOUND = "it is active, or extends past the bound"
    PROTECTED = "it is younger than protect_newer_than"
    MIN_LAG = "it is younger than min_lag"


@dataclass(frozen=True, slots=True)
class CompactionBacklog:
    """The amount of data that could be compacted now, for `stream info` and the metrics.

    `stopped_by` is the reason why the next segment does not take part; None if there is no next
    segment.
    """

    dirty_bytes: int
    total_bytes: int
    stopped_by: StoppedBy | None = None

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The plan for one pass. Segments are identified by their index in the planner's argument.

    `sources` is the number of the oldest segments that take part. `groups` are half-open ranges of
    these segments; each group becomes one output. A segment outside of all groups is neither mapped
    nor rewritten. A group of one segment that loses no record does not change. The keys of
    [dirty_from, dirty_end) are mapped; if memory runs out earlier, the pass ends there and leaves
    the rest to the next pass. `drop_tombstones` has one entry per source. `horizon_ns` is the
    delete horizon of an output that keeps tombstones of a dirty source. Any other output with
    tombstones keeps the latest horizon of its sources. An output without tombstones has no horizon.
    """

    sources: int
    groups: tuple[tuple[int, int], ...]
    dirty_from: int
    dirty_end: int
    drop_tombstones: tuple[bool, ...]
    horizon_ns: int
    backlog: CompactionBacklog
    reasons: tuple[str, ...]


def plan_compaction(
    segments: Sequence[CompactableSegment],
    policy: CompactionPolicy,
    *,
    cleaned_below: int,
    log_start_offset: int,
    bound_offset: int,
    segment_max_bytes: int,
    now_ns: int,
    on_demand: bool = False,
    quarantined: Collection[int] = (),
    keep_tombstones_from: int | None = None,
    first_stamp_ns: Callable[[int], int] | None = None,
    newest_ns: Sequence[int] | None = None,
    listed_ns: Sequence[int] | None = None,
) -> CompactionPlan | None:
    """Plan a compaction of the stream, or return None if nothing is due.

    `segments` are in order, the oldest first. `bound_offset` is the high watermark, lowered by
    leases: no record from this offset on takes part. `quarantined` holds the base offsets of
    segments with a quarantined range, which are never touched. Tombstones from
    `keep_tombstones_from` on (the lowest start of a live lease) stay. `first_stamp_ns` returns the
    timestamp of the first record of a segment, given its index; without it, `max_lag` uses the
    newest record. `newest_ns` has the time of each segment's newest record, see
    `ages.newest_times`; without it, the largest timestamps are used. `listed_ns` has a time at
    which each segment already existed unchanged; it limits a delete horizon that a wrong clock has
    set too far ahead. Takes time linear in the number of segments.
    """
    if newest_ns is None:
        newest_ns = [segment.max_timestamp_ns for segment in segments]
    sources, stopped_by = _eligible(
        segments, newest_ns, policy, cleaned_below, bound_offset, now_ns
    )
    taken = segments[:sources]
    live = _live(taken, log_start_offset, quarantined)
    dirt = _backlog(taken, live, cleaned_below, stopped_by)
    horizons = _horizons(taken, policy, listed_ns, now_ns)
    drop = _tombstones_to_drop(
        taken, horizons, live, cleaned_below, log_start_offset, keep_tombstones_from, now_ns
    )

    def oldest_ns(i: int) -> int:
        return newest_ns[i] if first_stamp_ns is None else min(first_stamp_ns(i), newest_ns[i])

    reasons = _reasons(
        taken, live, policy, dirt, cleaned_below, now_ns, oldest_ns, on_demand=on_demand
    )
    if any(drop):
        reasons.append(f"expired tombstones in {sum(drop)} segments")
    if not reasons:
        return None
    # A clock that is behind the log's timestamps must not end the retention of tombstones early.
    stamps = [segment.max_timestamp_ns for segment in taken]
    horizon = policy.horizon_ns(max([now_ns, *stamps]))
    return CompactionPlan(
        sources=sources,
        groups=_groups(taken, live, drop, cleaned_below, segment_max_bytes, horizon),
        dirty_from=max(cleaned_below, log_start_offset),
        dirty_end=max(cleaned_below, log_start_offset, taken[-1].next_offset),
        drop_tombstones=drop,
        horizon_ns=horizon,
        backlog=dirt,
        reasons=tuple(reasons),
    )


def backlog(
    segments: Sequence[CompactableSegment],
    policy: CompactionPolicy,
    *,
    cleaned_below: int,
    log_start_offset: int,
    bound_offset: int,
    now_ns: int,
    quarantined: Collection[int] = (),
    newest_ns: Sequence[int] | None = None,
) -> CompactionBacklog:
    """Measure how dirty a stream is, even if no pass is due. The arguments are those of
    `plan_compaction`."""
    if newest_ns is None:
        newest_ns = [segment.max_timestamp_ns for segment in segments]
    sources, stopped_by = _eligible(
        segments, newest_ns, policy, cleaned_below, bound_offset, now_ns
    )
    taken = segments[:sources]
    live = _live(taken, log_start_offset, quarantined)
    return _backlog(taken, live, cleaned_below, stopped_by)


def _live(
    taken: Sequence[CompactableSegment], log_start_offset: int, quarantined: Collection[int]
) -> list[bool]:
    """Return a flag for each segment: True if a pass may map and rewrite it. Segments that
    retention will soon delete are excluded."""
    return [
        segment.next_offset > log_start_offset and segment.base_offset not in quarantined
        for segment in taken
    ]


def _backlog(
    taken: Sequence[CompactableSegment],
    live: Sequence[bool],
    cleaned_below: int,
    stopped_by: StoppedBy | None,
) -> CompactionBacklog:
    dirty_bytes = total_bytes = 0
    for segment, is_live in zip(taken, live, strict=True):
        if is_live:
            total_bytes += segment.size_bytes
            if segment.next_offset > cleaned_below:
                dirty_bytes += segment.size_bytes
    return CompactionBacklog(dirty_bytes, total_bytes, stopped_by)


def _eligible(
    segments: Sequence[CompactableSegment],
    newest_ns: Sequence[int],
    policy: CompactionPolicy,
    cleaned_below: int,
    bound_offset: int,
    now_ns: int,
) -> tuple[int, StoppedBy | None]:
    """Return the number of the oldest segments that may take part in a pass, and the reason why no
    further segment may."""
    protected_from = now_ns - policy.protect_newer_than_ns if policy.protect_newer_than_ns else None
    too_young_from = now_ns - policy.min_lag_ns if policy.min_lag_ns else None
    for i, (segment, newest) in enumerate(zip(segments, newest_ns, strict=True)):
        if not segment.sealed or segment.next_offset > bound_offset:
            return i, StoppedBy.BOUND
        if protected_from is not None and newest > protected_from:
            return i, StoppedBy.PROTECTED
        dirty = segment.next_offset > cleaned_below
        if dirty and too_young_from is not None and newest > too_young_from:
            return i, StoppedBy.MIN_LAG
    return len(segments), None


def _reasons(
    taken: Sequence[CompactableSegment],
    live: Sequence[bool],
    policy: CompactionPolicy,
    dirt: CompactionBacklog,
    cleaned_below: int,
    now_ns: int,
    oldest_ns: Callable[[int], int],
    *,
    on_demand: bool,
) -> list[str]:
    if not dirt.dirty_bytes:
        return []
    reasons = []
    if on_demand:
        reasons.append("on demand")
    if dirt.dirty_ratio >= policy.min_dirty_ratio:
        reasons.append(f"dirty ratio {dirt.dirty_ratio:.2f}")
    if policy.max_lag_ns is not None:
        for i, segment in enumerate(taken):
            if live[i] and segment.next_offset > cleaned_below:
                if now_ns - oldest_ns(i) >= policy.max_lag_ns:
                    reasons.append(f"max_lag: older than {policy.max_lag_ns / 1e9:g} s")
                break
    return reasons


def _horizons(
    taken: Sequence[CompactableSegment],
    policy: CompactionPolicy,
    listed_ns: Sequence[int] | None,
    now_ns: int,
) -> list[int | None]:
    """Return the delete horizon of each segment.

    If a horizon is later than the horizon that a pass would set now, it was set while the clock was
    ahead, or with a longer retention. In this case the horizon is computed from the first time at
    which the segment certainly existed.
    """
    found = [segment.delete_horizon_ns for segment in taken]
    if listed_ns is None:
        return found
    latest = policy.horizon_ns(now_ns)
    return [
        horizon if horizon is None or horizon <= latest else policy.horizon_ns(listed_ns[i])
        for i, horizon in enumerate(found)
    ]


def _tombstones_to_drop(
    taken: Sequence[CompactableSegment],
    horizons: Sequence[int | None],
    live: Sequence[bool],
    cleaned_below: int,
    log_start_offset: int,
    keep_from: int | None,
    now_ns: int,
) -> tuple[bool, ...]:
    drop = []
    untouched_before = False
    for segment, is_live, horizon in zip(taken, live, horizons, strict=True):
        if not is_live and segment.next_offset > log_start_offset:
            untouched_before = True  # quarantined: may hold a value that a tombstone deletes
        drop.append(
            is_live
            and not untouched_before
            and horizon is not None
            and horizon <= now_ns
            and segment.next_offset <= cleaned_below
            and (keep_from is None or segment.next_offset <= keep_from)
        )
    return tuple(drop)


def _groups(
    taken: Sequence[CompactableSegment],
    live: Sequence[bool],
    drop: Sequence[bool],
    cleaned_below: int,
    max_bytes: int,
    new_horizon_ns: int,
) -> tuple[tuple[int, int], ...]:
    """Group adjacent segments to merge. A large segment stays alone: rewriting it for each
    additional small segment would cost more than a smaller number of files saves."""
    groups: list[tuple[int, int]] = []
    size = 0
    horizon: int | None = None
    for i, segment in enumerate(taken):
        if not live[i]:
            continue
        # Only segments with the same horizon are merged; None means no tombstones.
        own = None if drop[i] else segment.delete_horizon_ns
        if segment.next_offset > cleaned_below:
            own = new_horizon_ns
        if groups and groups[-1][1] == i:
            first = taken[groups[-1][0]]
            fits = (
                size + segment.size_bytes <= max_bytes
                and max(size, segment.size_bytes) * 2 <= max_bytes
                and segment.next_offset - first.base_offset <= MAX_RELATIVE_OFFSET
            )
            if fits and (own is None or horizon is None or own == horizon):
                groups[-1] = (groups[-1][0], i + 1)
                size += segment.size_bytes
                horizon = own if horizon is None else horizon
                continue
        groups.append((i, i + 1))
        size, horizon = segment.size_bytes, own
    return tuple(groups)
