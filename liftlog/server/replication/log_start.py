"""Moves the log start of a follower. The leader determines the log start."""

from __future__ import annotations

from compaction.retention import RetentionDecision, RetentionPolicy, decide
from liftlog.log import Log
from liftlog.log.read.ages import newest_times_of
from liftlog.server.commits.configs import window_ns
from liftlog.settings import StreamSettings


def follow_log_start(log: Log, offset: int, settings: StreamSettings, now_ns: int) -> None:
    """Make `offset` the log start, because the metadata or the leader require it. `offset` is at
    most the high watermark. As on the leader, files that are needed to recognise duplicates are
    kept until the dedupe window has passed. This node may need them if it becomes the leader.
    Blocking. Raises StorageError, DiskFull."""
    decision = plan_log_start(log, offset, settings, now_ns)
    if decision.delete_segments or offset > log.log_start_offset:
        log.structure.remove_before(
            offset, decision.delete_segments, delete_below=decision.delete_below
        )


def plan_log_start(
    log: Log, offset: int, settings: StreamSettings, now_ns: int
) -> RetentionDecision:
    """Return the files that can be deleted if `offset` becomes the log start. Files that are needed
    for recent message ids are excluded. Rolls the active file if all its records would be deleted.
    Blocking. Raises StorageError, DiskFull."""
    if offset == log.log_end_offset:
        # Otherwise the active file would remain, although all its records are below the log start.
        log.writer.roll()
    segments = log.segments
    return decide(
        segments,
        RetentionPolicy(protect_newer_than_ns=window_ns(settings)),
        log_start_offset=offset,
        log_end_offset=log.high_watermark,
        now_ns=now_ns,
        newest_ns=newest_times_of(log.environment, segments, now_ns),
    )
