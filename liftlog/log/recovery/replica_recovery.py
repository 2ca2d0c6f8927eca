"""Recovery of a log that is one of several replicas.

A log without replicas keeps all records that may have been acked, and skips offsets that may be in
use. Recovery of a replica does neither, because other replicas have the records that its disk
cannot read. Recovery cuts the active segment of the replica at the first damage, and the replica
fetches the rest again. A replica never assigns an offset or an epoch itself.

But a replica that has lost confirmed records must report this to the other replicas, because they
rely on these records. A replica has confirmed at most the records that its slot, its recovery
points and its manifest show (R13 of the protocol: append, fdatasync, slot, and only then the
confirmation). If the log ends before one of these ends, the replica is `incomplete`: until it has
caught up, it does not lead, and does not count for commits. A killed process or a power cut does
not make a replica incomplete: all bytes for which an fdatasync returned are on disk, and the slot
on disk may be behind these bytes, but never ahead.

The reason is written to the manifest before the damaged bytes are changed. Otherwise, after an
interruption of this start, the next start would find a file with a valid end. The reason stays in
the manifest until the other replicas were informed (`LogStructure.note_complete`).

Lost records of a damaged sealed segment are quarantined, as in a log without replicas. Sealed
segments may be compacted, so they are repaired from another replica (`mend`) and never cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from liftlog.log.active_segment import ActiveSegment, LogEnd
from liftlog.log.environment import LogEnvironment
from liftlog.log.files.acked_end import AckedEnd
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.segment.index import IndexEntry, SparseIndex
from liftlog.log.segment.segment import Segment, walk_batches


def what_is_missing(
    end: int, *, slot: AckedEnd | None, durable_end: int, high_watermark: int
) -> str:
    """Describe the confirmed records that a replica with the log end `end` lacks; empty if no
    confirmed record is missing.

    `slot` is None if the slot has no entry for this log, for example after a power cut.
    `durable_end` comes from the recovery point and the clean marker.
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
    """Return the batch ends of a log, from the last end at or below `offset` to the log end.

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
    if not at:  # `offset` is in a hole at the beginning of the log
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
    """Return the batch ends of one segment, from its start or from the index entry below
    `offset`."""
    base, end = segment.base_offset, IndexEntry(segment.next_offset, segment.size_bytes)
    start = IndexEntry(base, 0)
    if not end.position:
        return [LogEnd(base, base, 0)]
    known = [bad for bad in quarantined if bad.segment == segment.path.name]
    if any(bad.first_offset <= base and bad.next_offset >= end.offset for bad in known):
        return [LogEnd(base, base, 0), LogEnd.of(segment)]  # the file may be missing
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
