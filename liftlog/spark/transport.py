"""Where batches come from, whichever way they come.

Whoever opens a transport closes it; several may read one stream at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from liftlog.errors import SegmentsChanged
from liftlog.records.positions import Batches
from liftlog.spark.losses import Losses


@dataclass(frozen=True, slots=True)
class Extent:
    """The records [first_offset, next_offset) take up about this much."""

    first_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream at one moment. Below `end_offset` everything is committed.

    `identity` names one history of offsets. `extents` tile the offsets, oldest first, and may begin
    before `log_start_offset`.
    """

    stream: str
    identity: str
    leader_epoch: int
    log_start_offset: int
    end_offset: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class CompactionMark:
    """What compaction may have done to a stream without a change to what a read of it finds: it has
    counted no record from `end_offset` on, and has removed no tombstones since the read was
    planned."""

    end_offset: int
    tombstones_removed_below: int

    def still_holds(self, compaction: Mapping[str, Any]) -> bool:
        """`compaction`: of the stream's description."""
        removed_below = compaction.get("tombstones_removed_below", 0)
        counted_below = compaction.get("cleaned_below", 0)
        return bool(
            counted_below <= self.end_offset and removed_below == self.tombstones_removed_below
        )


@dataclass(frozen=True, slots=True)
class ScanRange:
    """What one task reads: [first_offset, end_offset) of the stream that was planned for."""

    stream: str
    identity: str
    leader_epoch: int
    first_offset: int
    end_offset: int
    files: tuple[str, ...] | None = None
    """Of a compacted stream that is read from files: those that hold the range."""
    lease_id: str | None = None
    """Of the read, if it is from a daemon."""
    part: tuple[int, int] | None = None
    """Which of how many ranges under that lease this is, counted from 0."""
    mark: CompactionMark | None = None
    """Of a compacted stream that is read from a daemon."""
    cleaned_below: int | None = None
    """Of a stream without compaction: how far it was compacted, if ever, before that ended."""


class Transport(Protocol):
    """What plans and reads a stream. Methods raise LiftlogError."""

    def state(self) -> StreamState: ...

    def offset_at(self, timestamp_ns: int) -> int:
        """Of the first record stamped at or after that time; the end if there is none."""
        ...

    def check_history(self, offset: int, leader_epoch: int) -> None:
        """Whether what lay before `offset` in that epoch still does. Raises Diverged."""
        ...

    def hold(self, state: StreamState, first_offset: int | None) -> StreamState:
        """Make sure that a read of all from `first_offset` on sees one state of the stream, though
        it is read in parts; None: from the first record that retention leaves. The state returned
        is the one to plan with. Raises OffsetOutOfRange when retention was quicker."""
        ...

    def measure(
        self, state: StreamState, first_offset: int, end_offset: int, step_bytes: int
    ) -> StreamState:
        """The same, with `extents` of about `step_bytes` each for [first_offset, end_offset), so
        that it can be shared out by size."""
        ...

    def held(self, planned: list[ScanRange]) -> list[ScanRange]:
        """The ranges with what their tasks have to know of that."""
        ...

    def batches(self, wanted: ScanRange, losses: Losses) -> Iterator[Batches]:
        """Checked batches with the records of that range and no others, one by one or together.

        Raises StaleIncarnation when the stream is another one by now. `losses` decides about
        records that are damaged, lost or removed since: CorruptRange, OffsetOutOfRange, or going
        on without them.
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
        "moved behind the end of the read",
        hint=hint,
    )


def is_compacted(settings: Mapping[str, Any] | None) -> bool:
    """Whether these settings of a stream let compaction remove records."""
    compaction = (settings or {}).get("compaction")
    return isinstance(compaction, Mapping) and compaction.get("enabled", True) is not False
