"""Which offsets a job reads, and how they are divided among its tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from liftlog.log.measuring import Extent
from liftlog.spark.transport import ScanRange, StreamState

_STEPS_PER_PART = 16


def split(
    state: StreamState, first_offset: int, end_offset: int, target_bytes: int
) -> list[ScanRange]:
    """[first_offset, end_offset) in ranges of about equal size, none much above `target_bytes`.

    No range is empty; an empty interval gives no range.
    """
    if first_offset >= end_offset:
        return []
    parts = _clip(state.extents, first_offset, end_offset)
    total = sum(part.size_bytes for part in parts)
    count = min(max(-(-total // target_bytes), 1), end_offset - first_offset)
    cuts = [_offset_after(parts, total * i // count) for i in range(1, count)]
    borders = sorted({first_offset, *cuts, end_offset})
    return [
        ScanRange(state.stream, state.identity, state.leader_epoch, first, end)
        for first, end in pairwise(borders)
        if first_offset <= first < end <= end_offset
    ]


def step_of(target_bytes: int) -> int:
    """How finely to measure a stream that is divided into parts of `target_bytes`."""
    return max(1, target_bytes // _STEPS_PER_PART)


def limit_bytes(state: StreamState, first_offset: int, end_offset: int, most_bytes: int) -> int:
    """The offset about `most_bytes` after `first_offset`; at least one record further, and at most
    `end_offset`."""
    parts = _clip(state.extents, first_offset, end_offset)
    if sum(part.size_bytes for part in parts) <= most_bytes:
        return end_offset
    return min(max(_offset_after(parts, most_bytes), first_offset + 1), end_offset)


def _clip(extents: Iterable[Extent], first_offset: int, end_offset: int) -> list[Extent]:
    """The part of each extent that is in the range; records of an extent count as equally large."""
    found = []
    for extent in extents:
        first = max(extent.first_offset, first_offset)
        end = min(extent.next_offset, end_offset)
        if first < end:
            whole = extent.next_offset - extent.first_offset
            found.append(Extent(first, end, extent.size_bytes * (end - first) // whole))
    return found


def _offset_after(parts: Sequence[Extent], size_bytes: int) -> int:
    """The offset that has about `size_bytes` before it."""
    left = size_bytes
    for part in parts:
        if left < part.size_bytes:
            width = part.next_offset - part.first_offset
            return part.first_offset + (2 * width * left + part.size_bytes) // (2 * part.size_bytes)
        left -= part.size_bytes
    return parts[-1].next_offset if parts else 0
