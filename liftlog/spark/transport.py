"""Where batches come from, whichever way they come.

Whoever opens a transport closes it; several may read one stream at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from liftlog.errors import CorruptRange, OffsetOutOfRange, SegmentsChanged
from liftlog.log.extents import Extent
from liftlog.records.positions import Batches

logger = logging.getLogger("liftlog.spark")

_HINT = "set failOnDataLoss=false to go on without them"


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


OnLoss: TypeAlias = Callable[[int, int, str], None]
"""Is told of the records [first offset, next offset), and why they were skipped."""


class Losses:
    """Fails, or logs a warning, tells `on_loss` and lets the read go on."""

    def __init__(self, stream: str, *, fail: bool, on_loss: OnLoss | None = None) -> None:
        self._stream = stream
        self._fail = fail
        self._on_loss = on_loss

    def removed(self, first_offset: int, next_offset: int) -> None:
        """Raises OffsetOutOfRange."""
        if self._fail:
            raise OffsetOutOfRange(
                f"retention has removed the records [{first_offset}, {next_offset}) of "
                f"{self._stream!r}",
                hint=_HINT,
                log_start_offset=next_offset,
            )
        self._skip("removed", first_offset, next_offset, "removed by retention before it was read")

    def damaged(self, error: CorruptRange) -> None:
        """Raises CorruptRange."""
        if self._fail:
            raise CorruptRange(
                error.message,
                hint=_HINT,
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
