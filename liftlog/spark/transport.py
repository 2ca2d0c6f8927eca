"""The interface to the source of a read's batches, and the handling of records that cannot be read.

The caller that opens a transport also closes it. Several transports can read one stream at the same
time. The option `failOnDataLoss` defines the handling of lost records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from liftlog.errors import CorruptRange, OffsetOutOfRange, SegmentsChanged
from liftlog.log.read.measuring import Extent
from liftlog.records.columns.positions import Batches

logger = logging.getLogger("liftlog.spark")

FAIL_ON_DATA_LOSS = "set failOnDataLoss=false to continue without them"


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of a stream at one moment. All records below `end_offset` are committed.

    `identity` identifies one history of offsets. `extents` cover the offsets without gaps, oldest
    first, and can begin before `log_start_offset`. `servers` are the known addresses of nodes, if
    the stream is read from a daemon.
    """

    stream: str
    identity: str
    leader_epoch: int
    log_start_offset: int
    end_offset: int
    extents: tuple[Extent, ...]
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionMark:
    """The limits within which compaction does not change the result of a read.

    The mark holds as long as compaction has not processed records from `end_offset` on, and has
    removed no tombstones since the read was planned.
    """

    end_offset: int
    tombstones_removed_below: int

    def still_holds(self, compaction: Mapping[str, Any]) -> bool:
        """Return True if the mark still holds. `compaction` is the field of this name in the
        stream's description."""
        removed_below = compaction.get("tombstones_removed_below", 0)
        counted_below = compaction.get("cleaned_below", 0)
        return bool(
            counted_below <= self.end_offset and removed_below == self.tombstones_removed_below
        )


@dataclass(frozen=True, slots=True)
class ScanRange:
    """The range of one task: the offsets [first_offset, end_offset) of the stream for which it was
    planned."""

    stream: str
    identity: str
    leader_epoch: int
    first_offset: int
    end_offset: int
    files: tuple[str, ...] | None = None
    """The files that hold the range; None unless a compacted stream is read from files."""
    lease_id: str | None = None
    """The lease of the read, if the stream is read from a daemon."""
    part: tuple[int, int] | None = None
    """The number of this range, from 0, and the total number of ranges under the lease."""
    mark: CompactionMark | None = None
    """The mark of the compaction; None unless a compacted stream is read from a daemon."""
    cleaned_below: int | None = None
    """For a stream without compaction: the end of the last compaction before compaction was
    switched off, or 0; None for a compacted stream."""
    servers: tuple[str, ...] = ()
    """Addresses of nodes that can serve the read. If empty, the addresses in the options are
    used."""


OnLoss: TypeAlias = Callable[[int, int, str], None]
"""A callback that receives a range of skipped records [first offset, next offset), and the
reason."""


class Losses:
    """Handles records that cannot be read: raises an error with `hint`, or logs a warning, calls
    `on_loss` and continues."""

    def __init__(
        self,
        stream: str,
        *,
        fail: bool,
        on_loss: OnLoss | None = None,
        hint: str = FAIL_ON_DATA_LOSS,
    ) -> None:
        self._hint = hint
        self._stream = stream
        self._fail = fail
        self._on_loss = on_loss

    def removed(self, first_offset: int, next_offset: int) -> None:
        """Handle records that retention removed. Raises OffsetOutOfRange."""
        if self._fail:
            raise OffsetOutOfRange(
                f"retention has removed the records [{first_offset}, {next_offset}) of "
                f"{self._stream!r}",
                hint=self._hint,
                log_start_offset=next_offset,
            )
        self._skip("removed", first_offset, next_offset, "removed by retention before it was read")

    def damaged(self, error: CorruptRange) -> None:
        """Handle damaged records. Raises CorruptRange."""
        if self._fail:
            raise CorruptRange(
                error.message,
                hint=self._hint,
                first_offset=error.first_offset,
                next_offset=error.next_offset,
            ) from error
        self._skip("damaged", error.first_offset, error.next_offset, "damaged")

    def _skip(self, what: str, first_offset: int, next_offset: int, reason: str) -> None:
        logger.warning(
            "%s-range-skipped stream=%s first_offset=%d next_offset=%d",
            what,
            self._stream,
            first_offset,
            next_offset,
        )
        if self._on_loss is not None:
            self._on_loss(first_offset, next_offset, reason)


class Transport(Protocol):
    """Plans and reads one stream. Methods raise LiftlogError."""

    def state(self) -> StreamState: ...

    def offset_at(self, timestamp_ns: int) -> int:
        """Return the offset of the first record whose timestamp is `timestamp_ns` or later. If
        there is no such record, return the end."""
        ...

    def check_history(self, offset: int, leader_epoch: int) -> None:
        """Check that the log still has the same records before `offset` as in `leader_epoch`.
        Raises Diverged otherwise."""
        ...

    def hold(self, state: StreamState, first_offset: int | None) -> StreamState:
        """Protect the stream, so that a read in parts from `first_offset` on returns the records of
        one state of the stream.

        If `first_offset` is None, the range begins at the first record that retention would keep.
        Returns the state for planning. Raises OffsetOutOfRange if retention has already removed
        `first_offset`.
        """
        ...

    def measure(
        self, state: StreamState, first_offset: int, end_offset: int, step_bytes: int
    ) -> StreamState:
        """Return the same state with `extents` for [first_offset, end_offset), each of about
        `step_bytes` bytes, so that the offsets can be divided by size."""
        ...

    def held(self, planned: list[ScanRange]) -> list[ScanRange]:
        """Add to the ranges the data with which tasks ensure that records are unchanged: a lease,
        or the names of files."""
        ...

    def batches(self, wanted: ScanRange, losses: Losses) -> Iterator[Batches]:
        """Yield checked batches, singly or several together. They contain exactly the records of
        the range.

        Raises StaleIncarnation if the stream was deleted and created again. `losses` handles
        records that are damaged, lost, or were removed during the read: it raises CorruptRange or
        OffsetOutOfRange, or the read continues without these records.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def compacted_meanwhile(stream: str, hint: str = "read again") -> SegmentsChanged:
    return SegmentsChanged(
        f"{stream!r} was compacted since the read was planned: the newest value of a key may have "
        "moved beyond the end of the read",
        hint=hint,
    )


def is_compacted(settings: Mapping[str, Any] | None) -> bool:
    """Return True if a stream with these settings is compacted."""
    compaction = (settings or {}).get("compaction")
    return isinstance(compaction, Mapping) and compaction.get("enabled", True) is not False
