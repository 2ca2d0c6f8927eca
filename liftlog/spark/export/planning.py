"""Where a run begins, decided from what is in the table and what the stream is now. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from liftlog.errors import Conflict, Diverged, LiftlogError, OffsetOutOfRange, StaleIncarnation
from liftlog.spark.export.request import ExportRequest
from liftlog.spark.export.snapshot import Lost, Mode, Snapshot

FULL_HINT = "export the stream anew with --full, which replaces what is in the table"


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream at one moment, as far as this decision goes."""

    stream: str
    incarnation: str
    log_start_offset: int
    high_watermark: int
    tombstones_removed_below: int
    diverged: str = ""
    """Why what was exported is not this stream's history any more; empty: it is."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """`from_offset` is where to read from; `full`: what is in the table does not count."""

    mode: Mode
    from_offset: int
    full: bool
    reason: str
    lost: tuple[Lost, ...] = ()


def decide(request: ExportRequest, previous: Snapshot | None, view: StreamView) -> Beginning:
    """Raises Conflict, StaleIncarnation, Diverged, OffsetOutOfRange: whoever asks has to say what
    is wanted."""
    start = view.log_start_offset
    if previous is not None and previous.stream != request.stream:
        raise Conflict(
            f"{request.to} holds stream {previous.stream!r}, not {request.stream!r}",
            hint="export each stream into a directory of its own",
        )
    if request.full or previous is None:
        reason = "asked for with --full" if request.full else "the first export"
        return Beginning(request.mode or "compacted", start, True, reason)
    mode = previous.mode
    _check_same_table(request, previous)
    _check_same_history(previous, view)
    reached = previous.to_offset
    if reached < start:
        return _behind_retention(request, mode, reached, start)
    if mode == "compacted" and view.tombstones_removed_below > reached:
        return Beginning(
            mode,
            start,
            True,
            f"compaction has removed tombstones below {view.tombstones_removed_below} that the "
            f"table, which ends at {reached}, may not have seen",
        )
    return Beginning(mode, reached, False, f"what came since offset {reached}")


def is_up_to_date(previous: Snapshot | None, beginning: Beginning, view: StreamView) -> bool:
    """Whether a run would change nothing."""
    if previous is None or beginning.full or beginning.lost:
        return False
    if beginning.from_offset < view.high_watermark:
        return False
    if beginning.mode == "append":
        return True
    return all(file.min_offset >= view.log_start_offset for file in previous.files)


def _check_same_table(request: ExportRequest, previous: Snapshot) -> None:
    differences = []
    if request.mode is not None and request.mode != previous.mode:
        differences.append(f"its mode is {previous.mode}, not {request.mode}")
    if request.columns != previous.columns:
        differences.append(
            f"its columns are {', '.join(previous.columns)}, not {', '.join(request.columns)}"
        )
    if differences:
        raise Conflict(
            f"{request.to} holds another table: {'; '.join(differences)}",
            hint=FULL_HINT,
            differences=differences,
        )


def _check_same_history(previous: Snapshot, view: StreamView) -> None:
    error: type[LiftlogError] | None = None
    if previous.incarnation != view.incarnation:
        error, why = StaleIncarnation, "it was deleted and created anew since"
    elif view.diverged:
        error, why = Diverged, view.diverged
    if error is not None:
        raise error(
            f"what was exported of {view.stream!r} is not in the stream any more: {why}",
            hint=f"keep the table for what it is and use another directory, or {FULL_HINT}",
        )


def _behind_retention(request: ExportRequest, mode: Mode, reached: int, start: int) -> Beginning:
    what = f"retention has removed the records from {reached} to below {start}"
    if mode == "compacted":
        # They would be no part of a full export either.
        return Beginning(mode, start, True, f"{what} before they were exported")
    if request.skip_lost:
        lost = (Lost(reached, start, "removed by retention before it was exported"),)
        return Beginning(mode, start, False, f"what came since offset {start}", lost)
    raise OffsetOutOfRange(
        f"{what} of {request.stream!r} before they were exported",
        hint="go on after them with --skip-lost, which notes the gap, or begin a new table with "
        "--full",
        log_start_offset=start,
    )
