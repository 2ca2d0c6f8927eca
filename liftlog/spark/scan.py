"""One read: plans its ranges, and reads the rows of each. Does not import Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa

from liftlog.errors import InvalidArgument, OffsetOutOfRange
from liftlog.log.read.measuring import Extent
from liftlog.spark.daemon_transport import PLANNING_SECONDS, READING_SECONDS, DaemonTransport
from liftlog.spark.decoder import RowDecoder
from liftlog.spark.file_transport import FileTransport
from liftlog.spark.options import EARLIEST, LATEST, Narrowing, Position, ScanOptions
from liftlog.spark.transport import (
    FAIL_ON_DATA_LOSS,
    Losses,
    OnLoss,
    ScanRange,
    StreamState,
    Transport,
)

_STEPS_PER_PART = 16


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def open_transport(
    options: ScanOptions, *, patience_seconds: float = PLANNING_SECONDS
) -> Transport:
    """Open a transport for a read. Waits at most `patience_seconds` for a daemon that cannot be
    reached. Raises LiftlogError."""
    if options.path is not None:
        return FileTransport(options)
    return DaemonTransport(options, patience_seconds=patience_seconds)


def plan(options: ScanOptions) -> list[ScanRange]:
    """Return the ranges of a batch read, for the stream as it is now. Raises LiftlogError."""
    with open_transport(options) as transport:
        state, first = _held(transport, options)
        end = _end_offset(transport, state, options)
        if isinstance(options.start, int) and isinstance(options.end, int) and first > end:
            raise InvalidArgument(f"startingOffset={first} lies after endingOffset={end}")
        first, end = _narrow(transport, options.narrowing, first, end)
        target = options.target_partition_bytes
        state = transport.measure(state, first, end, step_of(target))
        return transport.held(split(state, first, end, target))


def _held(transport: Transport, options: ScanOptions) -> tuple[StreamState, int]:
    """Protect the stream for the read. Returns the state for planning, and the offset at which the
    read begins."""
    state = transport.state()
    first = first_offset(transport, state, options)
    while True:
        try:
            if options.start == EARLIEST:
                state = transport.hold(state, None)
                return state, state.log_start_offset
            return transport.hold(state, first), first
        except OffsetOutOfRange:
            before = first
            state = transport.state()
            first = first_offset(transport, state, options)
            if first <= before:  # retention has moved the log start: try again
                raise


def read(
    options: ScanOptions,
    wanted: ScanRange,
    *,
    on_loss: OnLoss | None = None,
    loss_hint: str = FAIL_ON_DATA_LOSS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range, in batches of `rowsPerBatch`. With `failOnDataLoss=false`,
    `on_loss` is called for each range of offsets that is skipped. Otherwise lost records raise an
    error with the hint `loss_hint`. Raises LiftlogError."""
    if wanted.servers:
        options = replace(options, server=",".join(wanted.servers))
    with open_transport(options, patience_seconds=READING_SECONDS) as transport:
        decoder = RowDecoder(
            options.columns,
            stream=wanted.stream,
            rows_per_batch=options.rows_per_batch,
            subject=options.subject,
            compact=options.compact,
        )
        losses = Losses(
            wanted.stream, fail=options.fail_on_data_loss, on_loss=on_loss, hint=loss_hint
        )
        batches = transport.batches(wanted, losses)
        yield from decoder.rows(batches)


def _narrow(transport: Transport, narrowing: Narrowing, first: int, end: int) -> tuple[int, int]:
    first = max(first, narrowing.first_offset)
    if narrowing.end_offset is not None:
        end = min(end, narrowing.end_offset)
    if narrowing.not_before is not None and first < end:
        first = max(first, _offset_at(transport, narrowing.not_before))
    return first, end


def first_offset(transport: Transport, state: StreamState, options: ScanOptions) -> int:
    """Return the offset at which the read begins, between the log start and the end. Raises
    LiftlogError."""
    start = _resolve(transport, state, options.start)
    if start > state.end_offset:
        raise InvalidArgument(
            f"startingOffset={start} is beyond the end of {state.stream!r}, {state.end_offset}"
        )
    if start < state.log_start_offset and options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"{state.stream!r} begins at {state.log_start_offset}: retention has removed the "
            f"records from startingOffset={start} on",
            hint="use startingOffset=earliest, or set failOnDataLoss=false",
            log_start_offset=state.log_start_offset,
        )
    return max(start, state.log_start_offset)


def _end_offset(transport: Transport, state: StreamState, options: ScanOptions) -> int:
    end = _resolve(transport, state, options.end)
    if isinstance(options.end, int) and end > state.end_offset:
        raise InvalidArgument(
            f"endingOffset={end} is beyond the high watermark of {state.stream!r}, "
            f"{state.end_offset}: records there can still change",
            hint="use endingOffset=latest, or wait until these records are committed",
        )
    return min(end, state.end_offset)


def _resolve(transport: Transport, state: StreamState, position: Position) -> int:
    if position == EARLIEST:
        return state.log_start_offset
    if position == LATEST:
        return state.end_offset
    if isinstance(position, datetime):
        found = _offset_at(transport, position)
        return min(max(found, state.log_start_offset), state.end_offset)
    return position


def _offset_at(transport: Transport, when: datetime) -> int:
    most_us = (2**63 - 1) // 1000  # a request contains 63 bits of ns
    us = (when - _EPOCH) // timedelta(microseconds=1)
    return transport.offset_at(max(0, min(us, most_us)) * 1000)


# --- how the offsets are divided; pure ---


def split(
    state: StreamState, first_offset: int, end_offset: int, target_bytes: int
) -> list[ScanRange]:
    """Split [first_offset, end_offset) into ranges of about equal size. No range is much larger
    than `target_bytes`.

    No range is empty. For an empty interval the result is an empty list.
    """
    if first_offset >= end_offset:
        return []
    parts = _clip(state.extents, first_offset, end_offset)
    total = sum(part.size_bytes for part in parts)
    count = min(max(-(-total // target_bytes), 1), end_offset - first_offset)
    cuts = [_offset_after(parts, total * i // count) for i in range(1, count)]
    borders = sorted({first_offset, *cuts, end_offset})
    return [
        ScanRange(
            state.stream, state.identity, state.leader_epoch, first, end, servers=state.servers
        )
        for first, end in pairwise(borders)
        if first_offset <= first < end <= end_offset
    ]


def step_of(target_bytes: int) -> int:
    """Return the size of the extents to measure, in bytes, for a stream that is to be divided into
    parts of `target_bytes`."""
    return max(1, target_bytes // _STEPS_PER_PART)


def limit_bytes(state: StreamState, first_offset: int, end_offset: int, most_bytes: int) -> int:
    """Return the offset that is about `most_bytes` after `first_offset`. The result is at least one
    record after `first_offset`, and at most `end_offset`."""
    parts = _clip(state.extents, first_offset, end_offset)
    if sum(part.size_bytes for part in parts) <= most_bytes:
        return end_offset
    return min(max(_offset_after(parts, most_bytes), first_offset + 1), end_offset)


def _clip(extents: Iterable[Extent], first_offset: int, end_offset: int) -> list[Extent]:
    """Return the part of each extent that is in the range. The computation assumes that all records
    of an extent are equally large."""
    found = []
    for extent in extents:
        first = max(extent.first_offset, first_offset)
        end = min(extent.next_offset, end_offset)
        if first < end:
            whole = extent.next_offset - extent.first_offset
            found.append(Extent(first, end, extent.size_bytes * (end - first) // whole))
    return found


def _offset_after(parts: Sequence[Extent], size_bytes: int) -> int:
    """Return an offset such that the parts below it have about `size_bytes` bytes."""
    left = size_bytes
    for part in parts:
        if left < part.size_bytes:
            width = part.next_offset - part.first_offset
            return part.first_offset + (2 * width * left + part.size_bytes) // (2 * part.size_bytes)
        left -= part.size_bytes
    return parts[-1].next_offset if parts else 0
