"""The request for an export, and the decision about the beginning of a run. The decision depends on
the content of the table and on the state of the stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from liftlog.errors import (
    Conflict,
    Diverged,
    InvalidArgument,
    LiftlogError,
    OffsetOutOfRange,
    StaleIncarnation,
)
from liftlog.names import check_consumer_name, check_stream_name
from liftlog.spark.columns import DEFAULT, DEFAULT_WITH_HEADERS
from liftlog.spark.export.snapshot import Layout, Lost, Mode, Snapshot

Format: TypeAlias = Literal["parquet", "delta"]

DEFAULT_KEEP_SECONDS = 3600.0
CHECKPOINT_PREFIX = "export-"
SKIP_LOST_HINT = "continue after them with --skip-lost, which records the gap"
FULL_HINT = (
    "replace the table with --full, and add --discard-rows to remove its rows that the stream no "
    "longer has"
)


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The arguments of one run. If `mode` is None, the run uses the mode of the table, or compacted
    for a new table. If `layout` is None, it uses the layout of the table, or copy-on-write for a
    new table.

    With `full`, the run reads the whole stream again and replaces the table. With `discard_rows`,
    the run does so even if the stream no longer has all rows of the table. With `skip_lost`, the
    run continues after records that are damaged or were removed. With `optimize`, the run merges
    small files. For `keep_seconds`, files of superseded snapshots are kept for their readers.
    """

    stream: str
    to: str
    mode: Mode | None = None
    format: Format = "parquet"
    layout: Layout | None = None
    full: bool = False
    discard_rows: bool = False
    optimize: bool = False
    headers: bool = True
    skip_lost: bool = False
    name: str | None = None
    dry_run: bool = False
    keep_seconds: float = DEFAULT_KEEP_SECONDS
    lease_seconds: int = 120
    partition_bytes: int | None = None

    def __post_init__(self) -> None:
        check_stream_name(self.stream, may_be_system=True)
        check_consumer_name(self.consumer)
        if self.discard_rows and not self.full:
            raise InvalidArgument("--discard-rows permits --full to remove rows: use both")
        if self.layout == "merge-on-read" and self.format == "delta":
            raise InvalidArgument(
                "--merge-on-read is for Parquet tables",
                hint="a Delta table would need deletion vectors, which delta-rs cannot write",
            )
        if self.optimize and self.format == "delta":
            raise InvalidArgument(
                "--optimize is for Parquet tables",
                hint="run OPTIMIZE on a Delta table, with any Delta tool",
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return DEFAULT_WITH_HEADERS if self.headers else DEFAULT

    @property
    def consumer(self) -> str:
        """The name of the export's checkpoint: `export-` and `name`, by default the last part of
        `to`."""
        name = self.name
        if name is None:
            last = self.to.rstrip("/").rpartition("/")[2]
            name = re.sub(r"[^A-Za-z0-9_-]+", "-", last)[:64] or self.stream
        elif not name:
            raise InvalidArgument("the name of the checkpoint is empty")
        return CHECKPOINT_PREFIX + name


@dataclass(frozen=True, slots=True)
class StreamView:
    """The state of a stream at one moment, as far as the decision depends on it."""

    stream: str
    incarnation: str
    log_start_offset: int
    high_watermark: int
    tombstones_removed_below: int
    cleaned_below: int = 0
    diverged: str = ""
    """The reason why the exported records are no longer part of this stream's history; empty if
    they are still part of it."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a run. `from_offset` is the first offset to read. If `full` is True, the run
    ignores the content of the table."""

    mode: Mode
    from_offset: int
    full: bool
    reason: str
    lost: tuple[Lost, ...] = ()
    discards: str = ""
    """A description of the rows that the run will remove from the table although the stream no
    longer has them."""


def layout_of(request: ExportRequest, previous: Snapshot | None, mode: Mode) -> Layout:
    """Return the layout of the table after a run that leaves it in `mode`. Mode append has only one
    layout, because no row is ever replaced."""
    if mode == "append":
        return "copy-on-write"
    return request.layout or ("copy-on-write" if previous is None else previous.layout)


def decide(request: ExportRequest, previous: Snapshot | None, view: StreamView) -> Beginning:
    """Decide where the run begins. Raises Conflict, StaleIncarnation, Diverged, OffsetOutOfRange or
    InvalidArgument if the user has to decide."""
    beginning = _decide(request, previous, view)
    if beginning.mode == "append" and request.layout == "merge-on-read":
        raise InvalidArgument(
            "--merge-on-read is for mode compacted: mode append writes no row twice"
        )
    return beginning


def _decide(request: ExportRequest, previous: Snapshot | None, view: StreamView) -> Beginning:
    start = view.log_start_offset
    if previous is not None and previous.stream != request.stream:
        raise Conflict(
            f"{request.to} holds stream {previous.stream!r}, not {request.stream!r}",
            hint="export each stream into its own directory",
        )
    if previous is None:
        return Beginning(request.mode or "compacted", start, True, "the first export")
    if request.full:
        mode = request.mode or previous.mode
        discards = _discarded(previous, mode, view)
        if discards and not request.discard_rows:
            raise refused_full(request.to, discards)
        return Beginning(mode, start, True, "asked for with --full", discards=discards)
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
    return Beginning(mode, reached, False, f"new records since offset {reached}")


def refused_full(where: str, discards: str) -> Conflict:
    return Conflict(
        f"--full would remove rows from {where} that cannot be exported again: {discards}",
        hint="run it without --full, which keeps them (--optimize merges small files); or add "
        "--discard-rows to remove them",
    )


def check_replaces_unknown(request: ExportRequest, problem: str) -> None:
    """Check the request for a run on a table whose newest snapshot cannot be read. The mode of such
    a table is unknown. Raises Conflict unless the request gives the mode, and permits the removal
    of rows."""
    if not request.discard_rows or request.mode is None:
        raise Conflict(
            f"{problem}; so it is not known which rows --full would remove, nor the mode of the "
            "table",
            hint="restore that file from a copy, export into another directory, or use both "
            "--discard-rows and --mode",
        )


def check_full_keeps_rows(
    request: ExportRequest, previous: Snapshot | None, lost: Sequence[Lost]
) -> None:
    """Check, after the scan of a full run, that the table has no records that this run could not
    read. Raises Conflict otherwise."""
    if not request.full or request.discard_rows or previous is None:
        return
    for one in lost:
        known = any(
            old.first_offset <= one.first_offset and one.next_offset <= old.next_offset
            for old in previous.lost
        )
        if one.first_offset < previous.to_offset and not known:
            span = f"[{one.first_offset}, {one.next_offset})"
            raise refused_full(request.to, f"the records {span} are now lost or damaged")


def is_up_to_date(previous: Snapshot | None, beginning: Beginning, view: StreamView) -> bool:
    """Return True if a run would not change the table."""
    if previous is None or beginning.full or beginning.lost:
        return False
    if beginning.from_offset < view.high_watermark:
        return False
    if beginning.mode == "append":
        return True
    if view.log_start_offset <= previous.log_start_offset:
        return True
    return all(file.min_offset >= view.log_start_offset for file in previous.files)


def _discarded(previous: Snapshot, mode: Mode, view: StreamView) -> str:
    """Return a description of the rows of the table that a full run into `mode` could not export
    again; empty if there are no such rows.

    A compacted table has no such rows: it has no rows below the log start, and compaction keeps the
    records of the table's other rows.
    """
    if not previous.rows:
        return ""
    whole = f"the table has {previous.rows} rows"
    if previous.incarnation != view.incarnation:
        return f"{whole} of a stream that was deleted and created again since"
    if view.diverged:
        return f"{whole}, and some are no longer in the stream: {view.diverged}"
    if previous.mode == "compacted":
        return ""
    reasons = []
    if mode == "compacted":
        reasons.append("a compacted table leaves out superseded records and tombstones")
    first = min([file.min_offset for file in previous.files])
    if first < view.log_start_offset:
        reasons.append(f"retention has removed the records below {view.log_start_offset}")
    if first < view.cleaned_below:
        reasons.append(f"compaction may have removed records below {view.cleaned_below}")
    return f"{whole}, and {'; '.join(reasons)}" if reasons else ""


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
        error, why = StaleIncarnation, "it was deleted and created again since"
    elif view.diverged:
        error, why = Diverged, view.diverged
    if error is not None:
        raise error(
            f"what was exported from {view.stream!r} is no longer in the stream: {why}",
            hint=f"keep the table as it is and export into another directory, or {FULL_HINT}",
        )


def _behind_retention(request: ExportRequest, mode: Mode, reached: int, start: int) -> Beginning:
    what = f"retention has removed the records [{reached}, {start})"
    if mode == "compacted":
        # A full export would not contain these records either.
        return Beginning(mode, start, True, f"{what} before they were exported")
    if request.skip_lost:
        lost = (Lost(reached, start, "removed by retention before it was exported"),)
        return Beginning(mode, start, False, f"new records since offset {start}", lost)
    raise OffsetOutOfRange(
        f"{what} of {request.stream!r} before they were exported",
        hint=SKIP_LOST_HINT,
        log_start_offset=start,
    )
