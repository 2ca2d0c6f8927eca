"""Retention of one stream: decides from its settings and segments which records to delete. Leases
delay the deletion.

A decision only reads, and can run at the same time as appends. The functions that change a log
(`remove_decided`, `truncate_before`, `grant_lease`) run in an exclusive call. So no lease is
granted between the check of the leases and the deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from compaction.retention import RetentionDecision, RetentionPolicy, decide
from liftlog.errors import Conflict, OffsetOutOfRange, StorageError
from liftlog.log import Log
from liftlog.log.files.leases import Lease
from liftlog.log.read.ages import held_times_of, newest_times_of
from liftlog.log.segment.segment import Segment
from liftlog.log.state import ReadView
from liftlog.server.commits.configs import window_ns
from liftlog.server.replication.log_start import plan_log_start
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server")

_SECOND_NS = 1_000_000_000


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * _SECOND_NS)


def decide_retention(
    log: Log,
    settings: StreamSettings,
    now_ns: int,
    *,
    by_time: bool = True,
    after_leases: bool = False,
) -> RetentionDecision | None:
    """Return the decision about records to remove now. Return None if no record is to be removed.
    May read batch headers, and leases that were not read yet. If `after_leases` is true, decide as
    if all leases had ended.

    Raises StorageError if the leases cannot be read, so that no record with a lease is deleted.
    """
    log.leases.load()
    retention = settings.retention
    gives_way = retention.discard == "old"
    policy = RetentionPolicy(
        max_age_ns=_nanoseconds(retention.max_age_seconds) if by_time else None,
        max_bytes=retention.max_bytes if gives_way else None,
        max_messages=retention.max_messages if gives_way else None,
        protect_newer_than_ns=window_ns(settings),
    )
    view = log.view
    segments = view.segments
    times_of = newest_times_of if by_time else held_times_of
    decision = decide(
        _counted(view),
        policy,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.high_watermark,
        now_ns=now_ns,
        offset_of_record=lambda segment, number: _offset_of_record(log, segment, number),
        held_from=None if after_leases else log.leases.low_bound(now_ns if by_time else None),
        newest_ns=times_of(log.environment, segments, now_ns),
    )
    if not decision.delete_segments and decision.log_start_offset == log.log_start_offset:
        return None
    return decision


def first_of_newest(log: Log, count: int) -> int:
    """Return the offset of the first of the newest `count` records; the log start if there are
    fewer. Blocking: reads the batch headers of one segment. Raises StorageError."""
    view = log.view
    decision = decide(
        _counted(view),
        RetentionPolicy(max_messages=count),
        log_start_offset=view.manifest.log_start_offset,
        log_end_offset=view.committed.offset,
        now_ns=0,
        offset_of_record=lambda segment, number: _offset_of_record(log, segment, number),
        newest_ns=[0] * len(view.segments),
    )
    return decision.log_start_offset


def _counted(view: ReadView) -> Sequence[Segment | _Remaining]:
    """Return the segments with the numbers of records that are not erased."""
    if view.erased is None:
        return view.segments
    return [_Remaining(one, view.remaining_records(one)) for one in view.segments]


class _Remaining:
    """A segment, for a decision that counts only the records that are not erased."""

    __slots__ = ("record_count", "segment")

    def __init__(self, segment: Segment, record_count: int) -> None:
        self.segment = segment
        self.record_count = record_count

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def next_offset(self) -> int:
        return self.segment.next_offset

    @property
    def size_bytes(self) -> int:
        return self.segment.size_bytes

    @property
    def max_timestamp_ns(self) -> int:
        return self.segment.max_timestamp_ns

    @property
    def sealed(self) -> bool:
        return self.segment.sealed


def _offset_of_record(log: Log, counted: Segment | _Remaining, number: int) -> int:
    segment = counted.segment if isinstance(counted, _Remaining) else counted
    try:
        return log.offset_of_record(segment, number)
    except StorageError as error:
        # The file may have been deleted, or the disk may have failed. Retention then keeps a few
        # records too many, which is safe.
        logger.warning("records-not-counted segment=%s error=%s", segment.path, error)
        return segment.base_offset + number


def remove_decided(
    log: Log, decision: RetentionDecision, now_ns: int, *, delete_segments: int | None = None
) -> int:
    """Carry out a decision. Keeps the records of leases that were granted after the decision.
    Returns the number of bytes freed. `delete_segments` limits the number of files that are
    deleted. Raises StorageError, DiskFull."""
    count = decision.delete_segments if delete_segments is None else delete_segments
    start, held_from = decision.log_start_offset, log.leases.low_bound(now_ns)
    if held_from is not None and held_from < start:
        start = max(held_from, log.log_start_offset)
        kept_from = [segment.next_offset > start for segment in log.segments].index(True)
        count = min(count, kept_from)
    return log.structure.remove_before(start, count, delete_below=decision.delete_below)


def grant_lease(
    log: Log,
    low: int,
    *,
    duration_ns: int,
    now_ns: int,
    holder: str = "",
    principal: str = "",
    for_export: bool = False,
) -> Lease:
    """Grant a lease on all records from `low` to the high watermark; durable on return.

    Raises OffsetOutOfRange, InvalidArgument, LimitExceeded, DiskFull, StorageError.
    """
    if not log.log_start_offset <= low <= log.high_watermark:
        raise OffsetOutOfRange(
            f"offset {low} is outside [{log.log_start_offset}, {log.high_watermark}] of stream "
            f"{log.name}",
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )
    return log.leases.acquire(
        low,
        log.high_watermark,
        duration_ns=duration_ns,
        now_ns=now_ns,
        holder=holder,
        principal=principal,
        for_export=for_export,
    )


def removes_too_much(log: Log, settings: StreamSettings, now_ns: int) -> bool:
    """Return True if retention would remove more than a tenth of the readable records, now or after
    the leases have ended."""
    try:
        decision = decide_retention(log, settings, now_ns, after_leases=True)
    except StorageError:  # in this case retention deletes nothing either
        return False
    return decision is not None and is_large(log, decision)


def is_large(log: Log, decision: RetentionDecision) -> bool:
    """Return True if the decision removes more than a tenth of the readable records."""
    readable = log.high_watermark - log.log_start_offset
    return readable > 0 and (decision.log_start_offset - log.log_start_offset) * 10 > readable


def truncate_before(
    log: Log, offset: int, settings: StreamSettings, now_ns: int, *, delete_files: bool = True
) -> int:
    """Make `offset` the log start; returns the number of bytes freed. Durable on return.

    Files that are still needed to recognise duplicates stay until retention removes them. If
    `delete_files` is False, all files stay. Does nothing if `offset` is at or below the current log
    start. Raises OffsetOutOfRange above the high watermark, Conflict while a lease holds records
    below `offset`, StorageError, DiskFull.
    """
    if offset <= log.log_start_offset:
        return 0
    check_truncation(log, offset, now_ns)
    decision = plan_log_start(log, offset, settings, now_ns)
    count = decision.delete_segments if delete_files else 0
    return log.structure.remove_before(offset, count, delete_below=decision.delete_below)


def check_truncation(log: Log, offset: int, now_ns: int) -> None:
    """Raise OffsetOutOfRange if `offset` is above the high watermark. Raise Conflict while a lease
    covers records below `offset`, and StorageError if the leases cannot be read."""
    if offset > log.high_watermark:
        raise OffsetOutOfRange(
            f"offset {offset} is above the high watermark {log.high_watermark} of stream "
            f"{log.name}",
            hint="truncate at the high watermark to delete everything",
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )
    log.leases.load()
    holding = [lease for lease in log.leases.live(now_ns) if lease.low < offset]
    if holding:
        holders = ", ".join(sorted({lease.holder or lease.lease_id for lease in holding}))
        raise Conflict(
            f"leases hold records of stream {log.name} below {offset}: {holders}",
            hint="wait until they end, or release them (`liftlog stream lease`)",
            leases=len(holding),
            low=min(lease.low for lease in holding),
        )
