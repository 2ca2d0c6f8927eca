"""One compaction pass over one stream: from its settings and segments to a job for the worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from compaction.planning import (
    CompactionBacklog,
    CompactionPlan,
    CompactionPolicy,
    backlog,
    plan_compaction,
)
from liftlog.errors import CorruptBatch, StorageError, UnsupportedFormat
from liftlog.log import Log
from liftlog.log.rewrite import CompactJob
from liftlog.log.segment import Segment
from liftlog.records import HEADER_SIZE, parse_header
from liftlog.server.stream_configs import window_ns
from liftlog.settings import CompactionSettings, StreamSettings

logger = logging.getLogger("liftlog.server.cleaner")

_SECOND_NS = 1_000_000_000


def compaction_of(settings: StreamSettings) -> CompactionSettings | None:
    """The compaction settings of a stream that is compacted, else None."""
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
    """What a pass over `segments`, a snapshot of the log's, would do now; None when none is due.

    `keep_tombstones` however old they seem. Linear in the number of segments.
    """
    try:
        leases = log.leases.live(now_ns)
    except StorageError as error:  # what they hold must not change for that
        logger.warning("compaction-waits stream=%s error=%s", log.name, error)
        return None
    return plan_compaction(
        segments,
        policy_of(settings),
        cleaned_below=log.cleaned_below,
        log_start_offset=log.log_start_offset,
        bound_offset=min([log.high_watermark, *(lease.high for lease in leases)]),
        segment_max_bytes=settings.segment.max_bytes,
        now_ns=now_ns,
        on_demand=on_demand,
        quarantined=_damaged(log),
        first_stamp_ns=lambda number: _first_stamp_ns(log, segments[number]),
        keep_tombstones_from=(
            0 if keep_tombstones else min((lease.low for lease in leases), default=None)
        ),
    )


def _first_stamp_ns(log: Log, segment: Segment) -> int:
    """Of its first batch; where that cannot be read, of its newest record."""
    pool = log.environment.pool
    try:
        pooled = pool.acquire(segment.path)
        try:
            return parse_header(pooled.file.pread(HEADER_SIZE, 0)).base_timestamp_ns
        finally:
            pool.release(pooled)
    except (OSError, CorruptBatch, UnsupportedFormat):
        return segment.max_timestamp_ns


def measure_backlog(log: Log, settings: StreamSettings, now_ns: int) -> CompactionBacklog:
    return backlog(
        log.segments,
        policy_of(settings),
        cleaned_below=log.cleaned_below,
        log_start_offset=log.log_start_offset,
        bound_offset=log.high_watermark,
        now_ns=now_ns,
        quarantined=_damaged(log),
    )


def damaged_files(log: Log) -> frozenset[str]:
    """Segment files that hold quarantined bytes; they are never rewritten."""
    return log.damaged_files if log.quarantined else frozenset()


def _damaged(log: Log) -> frozenset[int]:
    names = damaged_files(log)
    if not names:
        return frozenset()
    return frozenset(s.base_offset for s in log.segments if s.path.name in names)


def make_job(
    log: Log,
    segments: Sequence[Segment],
    plan: CompactionPlan,
    *,
    memory_bytes: int,
    compression: str = "none",
) -> CompactJob:
    """`segments` are those that were planned for."""
    return CompactJob.from_plan(
        plan,
        str(log.directory),
        [segment.entry() for segment in segments[: plan.sources]],
        log_start_offset=log.log_start_offset,
        memory_bytes=memory_bytes,
        compression=compression,
    )
