"""Opening a log that is one of several replicas.

A log that is alone keeps whatever may have been acked, and skips offsets that may be in use. A
replica does neither: what its disk does not give, another replica has. Its active segment is cut at
the first damage, the rest is fetched again, and it never gives an offset or an epoch a meaning of
its own. But the others must know when that cost something that they count on. A replica has
confirmed (R13 of the protocol: append, fdatasync, slot, and only then the confirmation) no more
than what its slot, its recovery points and its manifest name. If it holds less than one of these it
is `incomplete`, and neither leads nor counts before it has caught up. Killed processes and power
cuts leave no replica incomplete: what an fdatasync has returned for is there, and the slot on the
disk may be behind it, but never ahead.

The reason is written to the manifest before anything of the damage is changed, since a start may be
interrupted and the next one would find a file that ends well. It stays there until the others have
been told (`Log.note_complete`).

What a damaged sealed segment has lost is quarantined, as in a log that is alone: sealed segments
may be compacted, and those are mended, never cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from liftlog.log.active_segment import ActiveSegment, LogEnd
from liftlog.log.environment import LogEnvironment
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.files.slot import SlotState
from liftlog.log.segment.index import IndexEntry, SparseIndex
from liftlog.log.segment.segment import Segment, walk_batches


def what_is_missing(
    end: int, *, slot: SlotState | None, durable_end: int, high_watermark: int
) -> str:
    """What a replica that ends at `end` had confirmed and does not hold; empty when it has all.

    `slot` is None when it holds nothing of this log, as a power cut may leave it. `durable_end` is
    what recovery point and clean marker name.
    """
    confirmed = max(slot.acked_end if slot else 0, durable_end, high_watermark)
    if end >= confirmed:
        return ""
    return f"the log ends at offset {end}, and up to {confirmed - 1} was confirmed"


def ends_from(
    environment: LogEnvironment,
    incarnation: str,
    quarantined: Sequence[QuarantinedRange],
    sealed: Sequence[Segment],
    active: ActiveSegment,
    offset: int,
) -> list[LogEnd]:
    """The batch ends of a log from the last one at or below `offset` on, up to the log end.

    Reads the headers after `offset`. Raises OSError.
    """
    if offset >= active.end.offset:
        return [active.end]
    segments = [*sealed, active.segment]
    first = max(bisect_right(segments, offset, key=lambda one: one.base_offset) - 1, 0)
    ends = []
    for segment in segments[first:]:
        index = active.index if segment is active.segment else None
        ends += _ends_in(environment, incarnation, quarantined, segment, index, offset)
    at = bisect_right(ends, offset, key=lambda end: end.offset)
    if not at:  # in the hole with which the log begins
        return [LogEnd(offset, segments[0].base_offset, 0), *ends]
    return ends[at - 1 :]


def _ends_in(
    environment: LogEnvironment,
    incarnation: str,
    quarantined: Sequence[QuarantinedRange],
    segment: Segment,
    index: SparseIndex | None,
    offset: int,
) -> list[LogEnd]:
    """Those of one segment, from its start or the index entry below `offset` on."""
    base, end = segment.base_offset, IndexEntry(segment.next_offset, segment.size_bytes)
    start = IndexEntry(base, 0)
    if not end.position:
        return [LogEnd(base, base, 0)]
    known = [bad for bad in quarantined if bad.segment == segment.path.name]
    if any(bad.first_offset <= base and bad.next_offset >= end.offset for bad in known):
        return [LogEnd(base, base, 0), LogEnd.of(segment)]  # the file itself may be missing
    pooled = environment.pool.acquire(segment.path)
    try:
        file = pooled.file
        if index is None:
            index = environment.indexes.get(segment, file, incarnation, known)
        start = max(start, index.floor(offset))
        headers = list(walk_batches(file, start, end, index=index, quarantined=known))
    finally:
        environment.pool.release(pooled)
    counts = [header.record_count for _, header in headers]
    before = segment.record_count - sum(counts)
    totals = accumulate(counts, initial=max(before, 0))
    ends = [LogEnd(start.offset, base, start.position, next(totals))]
    for (position, header), total in zip(headers, totals, strict=True):
        ends.append(LogEnd(header.next_offset, base, position + header.length, total))
    return ends
