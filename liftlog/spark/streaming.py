"""Structured streaming: `spark.readStream.format("liftlog")`.

Spark stores each position before it reads the records up to this position, and after a crash
requests the same range again. A position contains the identity of the stream's history, so that a
query detects a stream that was deleted and created again.

For the first micro-batch Spark stores only the end, and requests the initial offset again after a
restart. By then `earliest` and `latest` can be other offsets. So the end of each micro-batch also
contains the offset at which the micro-batch begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from liftlog.errors import Diverged, LiftlogError, StaleIncarnation
from liftlog.spark.batch import RangePartition, read_partition
from liftlog.spark.options import EARLIEST, ScanOptions
from liftlog.spark.scan import first_offset, limit_bytes, open_transport, split, step_of
from liftlog.spark.transport import Losses, StreamState, Transport

OFFSET, IDENTITY, EPOCH = "offset", "incarnation", "epoch"
FROM = "from"
"""Key in the position at the end of a micro-batch. Its value is the offset at which the micro-batch
begins."""
INITIAL = "initial"
"""Key that marks a position as initial: no micro-batch has reached it yet."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. It runs in a process on the driver's host; only `read` runs in the
    executors.

    The reader keeps one transport between calls. Spark pickles the reader before it opens the
    transport.
    """

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        self._transport: Transport | None = None
        self._target: int | None = None  # the end of the query with availableNow

    # --- positions ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        state = self._state()
        assert self._transport is not None
        first = first_offset(self._transport, state, self._options)
        return _position(state, first) | {INITIAL: True}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        state = self._state()
        first = self._check(state, start)
        if INITIAL in start and self._options.start == EARLIEST:
            first = max(
                first, state.log_start_offset
            )  # not a loss: retention removed them before the first micro-batch
        end = state.end_offset
        if self._target is not None:
            end = min(end, self._target)
        if end <= first:
            # An unchanged position means that there are no new records. The initial position needs
            # FROM, because Spark stores it.
            return start if INITIAL not in start else _position(state, first) | {FROM: first}
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(state, first, end, limit)
        return _position(state, end) | {FROM: first}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        # Spark accepts only one limit per source. `_limited` applies the other one.
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        state = self._state()
        return _position(state, state.end_offset)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._state().end_offset

    def _limited(self, state: StreamState, first: int, end: int, limit: ReadLimit) -> int:
        options = self._options
        most_offsets = options.max_offsets_per_trigger
        most_bytes = options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            most_offsets = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            most_bytes = limit.max_bytes
        if most_offsets is not None:
            end = min(end, max(first, state.log_start_offset) + most_offsets)
        if most_bytes is not None:
            assert self._transport is not None
            state = self._transport.measure(state, first, end, step_of(most_bytes))
            end = limit_bytes(state, first, end, most_bytes)
        return end

    def _check(self, state: StreamState, position: dict[str, Any]) -> int:
        """Return the offset of a stored position. Raises LiftlogError if the position belongs to
        another history of the stream."""
        try:
            offset, identity = int(position[OFFSET]), str(position[IDENTITY])
        except (KeyError, TypeError, ValueError):
            raise LiftlogError(
                f"{position!r} in the query's checkpoint is not a position in a liftlog stream",
                hint="use a separate checkpointLocation for each query",
            ) from None
        if identity != state.identity:
            raise StaleIncarnation(
                f"{state.stream!r} was created again since the query stored its position",
                hint="begin with a new checkpointLocation",
            )
        if offset > state.end_offset:
            raise Diverged(
                f"the query has read {state.stream!r} up to {offset}, but it ends at "
                f"{state.end_offset}: what followed was lost",
                hint="begin with a new checkpointLocation, and see `liftlog docs how-to/damage`",
            )
        epoch = position.get(EPOCH)
        if isinstance(epoch, int) and epoch != state.leader_epoch:
            self._check_history(state, offset, epoch)
        return offset

    def _check_history(self, state: StreamState, offset: int, epoch: int) -> None:
        """Check that the log still has the records before the position. The log may have lost its
        end, and may then have grown beyond the position. Raises LiftlogError otherwise."""
        assert self._transport is not None
        try:
            self._transport.check_history(offset, epoch)
        except Diverged as error:
            raise Diverged(
                f"the query has read {state.stream!r} up to {offset}, and not all of that is in "
                f"the stream any more: {error.message}",
                hint="begin with a new checkpointLocation, and see `liftlog docs how-to/damage`",
            ) from error

    # --- records ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        state = self._state()
        first, stop = self._check(state, start), self._check(state, end)
        begin = end.get(FROM)
        if isinstance(begin, int) and INITIAL in start:
            first = begin
        if first < state.log_start_offset and first < stop:
            losses = Losses(state.stream, fail=self._options.fail_on_data_loss)
            losses.removed(first, min(state.log_start_offset, stop))
            first = min(state.log_start_offset, stop)
        target = self._options.target_partition_bytes
        assert self._transport is not None
        state = self._transport.measure(state, first, stop, step_of(target))
        planned = split(state, first, stop, target)
        return [RangePartition(wanted) for wanted in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def stop(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _state(self) -> StreamState:
        if self._transport is None:
            self._transport = open_transport(self._options)
        return self._transport.state()


def _position(state: StreamState, offset: int) -> dict[str, Any]:
    return {OFFSET: offset, IDENTITY: state.identity, EPOCH: state.leader_epoch}
