"""Retention decides how far the log start moves, and how many of the oldest files are deleted.

These are two decisions. The *log start offset* is the first offset that can be read; it can be the
offset of any record. *Files* are deleted segment by segment, the oldest first, when the log start
has passed the whole file. The log start is authoritative; files are deleted as soon as possible.

    max_age       deletes whole sealed segments by the time of their newest record (see `ages`), the
                  oldest first, up to the first that is new enough. A segment without records has
                  no age; it is deleted together with the next one that has records
    max_bytes     deletes a segment only if at least max_bytes remain without it, as in Kafka: the
                  limit is a minimum that is kept, and up to one segment more may stay
    max_messages  is exact: the log start moves into a segment, even the active one, right past the
                  newest record to drop. If compaction left holes in that segment, the caller
                  must look up the offset there (`offset_of_record`)

Three kinds of files are never deleted: the active segment, the last segment, and a file whose
newest record is newer than the dedupe window, because the message ids are rebuilt from it after a
crash. The log start may pass such a file. The file is then deleted later. The log start never
passes a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


class SegmentView(Protocol):
    """The properties of a segment that retention needs. `next_offset` is the start of the next
    segment."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def max_timestamp_ns(self) -> int: ...
    @property
    def sealed(self) -> bool: ...


_Segment = TypeVar("_Segment", bound=SegmentView)

OffsetOfRecord = Callable[[_Segment, int], int]
"""Returns the offset of record number n (from 0) in a segment with holes."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """All limits apply together; None switches a limit off.

    To suspend retention by time (a clock that jumped), pass a policy without `max_age_ns`.
    """

    max_age_ns: int | None = None
    max_bytes: int | None = None
    max_messages: int | None = None
    protect_newer_than_ns: int = 0

    def __post_init__(self) -> None:
        for limit in (self.max_age_ns, self.max_bytes, self.max_messages):
            if limit is not None and limit < 1:
                raise ValueError("a retention limit must be greater than 0")
        if self.protect_newer_than_ns < 0:
            raise ValueError("the protected time must not be negative")


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """The decision. `delete_segments` is a number of segments, from the oldest on. `reasons` is
    empty if the log start does not move."""

    log_start_offset: int
    delete_segments: int
    reasons: tuple[str, ...] = ()
    delete_below: int = 0
    """End of the last segment to delete. The number `delete_segments` alone is no longer valid if
    segments are merged after the decision."""


def decide(
    segments: Sequence[_Segment],
    policy: RetentionPolicy,
    *,
    log_start_offset: int,
    log_end_offset: int,
    now_ns: int,
    offset_of_record: OffsetOfRecord[_Segment] | None = None,
    held_from: int | None = None,
    newest_ns: Sequence[int] | None = None,
) -> RetentionDecision:
    """Apply `policy` to `segments`, which are in order, the oldest first.

    The new log start is never below `log_start_offset` and never above `log_end_offset`; pass the
    high watermark as `log_end_offset`, so that only committed records are counted and dropped.
    Files that the log start has already passed are included in the decision even if no limit is
    set. The log start never moves past `held_from`, where the oldest lease begins.
    `offset_of_record` is called at most once, for a segment with holes; without it, max_messages
    keeps slightly too many records in such a segment. `newest_ns` has the time of each segment's
    newest record, see `newest_times`; without it, the largest timestamps are used. Takes time
    linear in the number of segments.
    """
    if newest_ns is None:
        newest_ns = [segment.max_timestamp_ns for segment in segments]
    new_start = log_start_offset
    last_start = log_end_offset if held_from is None else min(held_from, log_end_offset)
    reasons = []

    def move(start: int, reason: str) -> None:
        nonlocal new_start
        start = min(start, last_start)
        if start > log_start_offset:
            reasons.append(f"{reason}, log start from {log_start_offset} to {start}")
            new_start = max(new_start, start)

    if policy.max_messages is not None:
        start = _start_by_messages(segments, policy.max_messages, log_end_offset, offset_of_record)
        move(start, f"max_messages: more than {policy.max_messages} messages")
    if policy.max_bytes is not None:
        start = _start_by_bytes(segments, policy.max_bytes, log_start_offset)
        move(start, f"max_bytes: more than {policy.max_bytes} bytes")
    if policy.max_age_ns is not None:
        # This limit is applied last, and begins at the log start that the other limits have found.
        # This log start may be past a segment that is too new, and older segments may follow it.
        # One decision must find everything that can be deleted.
        start = _start_by_age(segments, newest_ns, now_ns - policy.max_age_ns, new_start)
        if start > new_start:
            move(start, f"max_age: older than {policy.max_age_ns / 1e9:g} s")
    protected = policy.protect_newer_than_ns
    protected_from_ns = now_ns - protected if protected else None
    deletable = _deletable(segments, newest_ns, new_start, protected_from_ns)
    below = segments[deletable - 1].next_offset if deletable else 0
    return RetentionDecision(new_start, deletable, tuple(reasons), below)


def _start_by_age(
    segments: Sequence[SegmentView], newest_ns: Sequence[int], oldest_ns: int, log_start: int
) -> int:
    start = log_start
    for segment, newest in zip(segments, newest_ns, strict=True):
        if segment.next_offset <= log_start:
            continue  # the log start has passed it; its file is kept for another reason
        if segment.sealed and not segment.record_count:
            # Compaction has emptied this segment, so it has no age. A reader in this hole continues
            # after it, so the log start passes it only together with records that are too old.
            continue
        if not segment.sealed or newest >= oldest_ns:
            break
        start = segment.next_offset
    return start


def _start_by_bytes(segments: Sequence[SegmentView], max_bytes: int, log_start: int) -> int:
    # Files that the log start has passed do not count, because moving it further does not delete
    # them.
    live = [segment for segment in segments if segment.next_offset > log_start]
    remaining = sum(segment.size_bytes for segment in live)
    start = log_start
    for segment in live:
        remaining -= segment.size_bytes
        if not segment.sealed or remaining < max_bytes:
            break
        start = segment.next_offset
    return start


def _start_by_messages(
    segments: Sequence[_Segment],
    max_messages: int,
    log_end: int,
    offset_of_record: OffsetOfRecord[_Segment] | None,
) -> int:
    missing = max_messages
    for segment in reversed(segments):
        # At most this many records of the segment lie at or past the log end. So `count` is not too
        # high. If it is too low, retention keeps too much rather than too little.
        count = max(0, segment.record_count - max(0, segment.next_offset - log_end))
        if count <= missing:
            missing -= count
            continue
        # The new log start directly follows the newest dropped record. It is not the offset of the
        # oldest remaining record, because a reader in the hole between the two has lost nothing.
        if not missing:
            return segment.next_offset
        gone = count - missing  # number of the segment's oldest records to drop
        has_holes = segment.record_count < segment.next_offset - segment.base_offset
        if has_holes and offset_of_record is not None:
            return offset_of_record(segment, gone - 1) + 1
        # Without holes this offset is exact. With holes, fewer than `gone` records lie below it, so
        # retention never drops too many.
        return segment.base_offset + gone
    return segments[0].base_offset if segments else 0


def _deletable(
    segments: Sequence[SegmentView],
    newest_ns: Sequence[int],
    log_start: int,
    protected_from_ns: int | None,
) -> int:
    deletable = 0
    for segment, newest in zip(segments[:-1], newest_ns[:-1], strict=True):
        if not segment.sealed or segment.next_offset > log_start:
            break
        if protected_from_ns is not None and newest > protected_from_ns:
            break
        deletable += 1
    return deletable
