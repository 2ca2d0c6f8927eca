"""Decides when a stream is compacted, or gives the reason why it is not compacted. The rules are in
`compaction.planning`. This module provides the stream's settings, leases and segments."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from compaction.planning import (
    CompactionBacklog,
    CompactionPlan,
    CompactionPolicy,
    StoppedBy,
    backlog,
    plan_compaction,
)
from liftlog.errors import StorageError
from liftlog.log import Log
from liftlog.log.read.ages import first_stamp_ns, listed_times_of, newest_times_of
from liftlog.log.segment.segment import Segment
from liftlog.server.commits.configs import window_ns
from liftlog.settings import CompactionSettings, StreamSettings

logger = logging.getLogger("liftlog.server.cleaner")

_SECOND_NS = 1_000_000_000


def compaction_of(settings: StreamSettings) -> CompactionSettings | None:
    """Return the compaction settings of a stream; None if the stream is not compacted."""
    compaction = settings.compaction
    return compaction if compaction is not None and compaction.enabled else None


def policy_of(settings: StreamSettings) -> CompactionPolicy:
    compaction = settings.compaction or CompactionSettings()
    max_lag = compaction.max_lag_seconds
    return CompactionPolicy(
        min_dirty_ratio=compaction.min_dirty_ratio,
        min_lag_ns=int(compaction.min_lag_seconds * _SECOND_NS),
        max_lag_ns=None if max_lag is None else max(1, int(max_lag * _SECOND_NS)),
        tombstone_retention_ns=int(compaction.tombstone_retention_seconds * _SECOND_NS),
        protect_newer_than_ns=window_ns(settings),
    )


def plan_pass(
    log: Log,
    segments: Sequence[Segment],
    settings: StreamSettings,
    now_ns: int,
    *,
    on_demand: bool = False,
    keep_tombstones: bool = False,
) -> CompactionPlan | None:
    """Return the pass over `segments` (a snapshot of the log's segments) that is due now; None if
    no pass is due. The cost grows with the number of segments.

    If `keep_tombstones` is true, no tombstone is dropped, regardless of its age. A replicated
    stream keeps each tombstone until every replica has it. A replica without the tombstone may
    still have the records that the tombstone deletes.
    """
    try:
        leases = log.leases.live(now_ns)
    except StorageError as error:  # without the leases, the pass could change the range of a lease
        logger.warning("compaction-waits stream=%s error=%s", log.name, error)
        return None
    kept_from = [lease.low for lease in leases]
    if settings.replicas > 1:
        kept_from.append(log.leases.tombstone_bound)
    return plan_compaction(
        segments,
        policy_of(settings),
        cleaned_below=log.view.manifest.cleaned_below,
        log_start_offset=log.log_start_offset,
        bound_offset=min([log.high_watermark, *(lease.high for lease in leases)]),
        segment_max_bytes=settings.segment.max_bytes,
        now_ns=now_ns,
        on_demand=on_demand,
        quarantined=_damaged(log),
        first_stamp_ns=lambda number: _first_stamp_ns(log, segments[number]),
        newest_ns=newest_times_of(log.environment, segments, now_ns),
        listed_ns=listed_times_of(log.environment, segments, now_ns),
        keep_tombstones_from=0 if keep_tombstones else min(kept_from, default=None),
    )


def _first_stamp_ns(log: Log, segment: Segment) -> int:
    """Return the timestamp of the segment's first batch. If the batch cannot be read, return the
    timestamp of the segment's newest record."""
    return first_stamp_ns(log.environment, segment) or segment.max_timestamp_ns


def measure_backlog(
    log: Log,
    settings: StreamSettings,
    now_ns: int,
    *,
    bound_offset: int | None = None,
    after_roll: bool = False,
) -> CompactionBacklog:
    """Measure the data below `bound_offset` that could be compacted. The default is the high
    watermark, which ignores leases.

    If `after_roll` is true, the active segment counts as sealed, because a pass on demand seals it
    first.
    """
    segments = log.segments
    active = segments[-1]
    sealed = active.sealed_at(active.size_bytes, active.next_offset, active.record_count)
    return backlog(
        (*segments[:-1], sealed) if after_roll else segments,
        policy_of(settings),
        cleaned_below=log.view.manifest.cleaned_below,
        log_start_offset=log.log_start_offset,
        bound_offset=log.high_watermark if bound_offset is None else bound_offset,
        now_ns=now_ns,
        quarantined=_damaged(log),
        newest_ns=newest_times_of(log.environment, segments, now_ns),
    )


def why_idle(
    log: Log,
    settings: StreamSettings,
    could_be: CompactionBacklog,
    now_ns: int,
    *,
    on_demand: bool = False,
) -> str:
    """Return the reason why the stream is not being compacted; empty if a pass is due or nothing
    can be compacted.

    `could_be` is the result of `measure_backlog`. `on_demand` is True if an operator requested a
    pass; in this case the dirty ratio does not count.
    """
    policy = policy_of(settings)
    ratio = 0.0 if on_demand else policy.min_dirty_ratio
    now = could_be
    held = min(log.leases.live(now_ns), key=lambda lease: lease.high, default=None)
    if held is not None:
        now = measure_backlog(log, settings, now_ns, bound_offset=held.high)
        is_due = now.dirty_bytes > 0 and now.dirty_ratio >= ratio
        if now.dirty_bytes < could_be.dirty_bytes and not is_due:
            seconds = max(0, held.expires_ns - now_ns) // _SECOND_NS
            return (
                f"a lease of {held.holder or 'an unnamed reader'} holds the records from "
                f"offset {held.high:,} on, for {_span(seconds)} more unless it is renewed"
            )
    if on_demand and not now.dirty_bytes and now.stopped_by is StoppedBy.BOUND and held is None:
        now = measure_backlog(log, settings, now_ns, after_roll=True)
    if now.dirty_bytes:
        if now.dirty_ratio >= ratio:
            return ""
        return f"less than min_dirty_ratio, {policy.min_dirty_ratio:.0%}, is dirty"
    if now.stopped_by is StoppedBy.PROTECTED:
        window = policy.protect_newer_than_ns / 1e9
        return f"the dirty records are younger than dedupe_window, {window:g} s"
    if now.stopped_by is StoppedBy.MIN_LAG:
        return (
            f"the dirty records are younger than compaction.min_lag, {policy.min_lag_ns / 1e9:g} s"
        )
    return ""


def _span(seconds: int) -> str:
    minutes, left = divmod(seconds, 60)
    return f"{minutes} min {left} s" if minutes else f"{seconds} s"


def damaged_files(log: Log) -> frozenset[str]:
    """Return the names of the segment files with quarantined bytes. Such files are never
    rewritten."""
    return log.view.damaged_files if log.view.manifest.quarantined else frozenset()


def _damaged(log: Log) -> frozenset[int]:
    names = damaged_files(log)
    if not names:
        return frozenset()
    return frozenset(s.base_offset for s in log.segments if s.path.name in names)
