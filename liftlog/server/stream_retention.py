"""Retention of one stream: its settings and its segments in, the decision out."""

from __future__ import annotations

from compaction.retention import RetentionDecision, RetentionPolicy, decide
from liftlog.log import Log
from liftlog.settings import StreamSettings

_SECOND_NS = 1_000_000_000


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * _SECOND_NS)


def decide_retention(
    log: Log, settings: StreamSettings, now_ns: int, *, by_time: bool = True
) -> RetentionDecision | None:
    """What to remove now, or None when nothing is to be done."""
    retention = settings.retention
    policy = RetentionPolicy(
        max_age_ns=_nanoseconds(retention.max_age_seconds) if by_time else None,
        max_bytes=retention.max_bytes,
        max_messages=retention.max_messages,
        protect_newer_than_ns=int(settings.dedupe_window_seconds * _SECOND_NS),
    )
    decision = decide(
        log.segments,
        policy,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.high_watermark,
        now_ns=now_ns,
    )
    if not decision.delete_segments and decision.log_start_offset == log.log_start_offset:
        return None
    return decision


def removes_too_much(log: Log, settings: StreamSettings, now_ns: int) -> bool:
    """Whether retention would at once remove more than a tenth of what can be read."""
    decision = decide_retention(log, settings, now_ns)
    readable = log.high_watermark - log.log_start_offset
    if decision is None or not readable:
        return False
    return (decision.log_start_offset - log.log_start_offset) * 10 > readable
