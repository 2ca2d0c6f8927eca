"""The input and the result of a rewriting job, which are sent between processes, and the functions
that apply a result to the log.

Jobs read sealed segments and write new files next to them; they change no existing file. `epochs`
are the epochs of the manifest; they help to detect misplaced batches. `incarnation` is the
incarnation of the log, which the indexes of its segments contain. A job without an incarnation
accepts the indexes of any log, and the daemon later rebuilds the indexes that this job writes.
`erased` are erased records of the sources (`ErasedSet.to_plain`): the job leaves them out, and the
swap takes their offsets out of the erased set. The daemon either applies the result with
`LogStructure.replace_segments`, in an order that makes a crash between two steps safe, or discards
the new files.

`to_dict` and `from_dict` convert all values to and from a form that JSON can represent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import TypeAdapter

from compaction import CompactionPlan
from liftlog.log.erased import ErasedSet
from liftlog.log.files.filesystem import FileSystem
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry
from liftlog.log.log import Log
from liftlog.log.segment.derived import files_of

TARGET_BATCH_BYTES = 64 * 1024
"""Size in bytes to which small batches are joined."""

Epochs = tuple[tuple[int, int], ...]
PlainErased = tuple[tuple[int, str], ...]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class _CrossesProcesses:
    """A dataclass that one process converts to plain values, and another process converts back."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        kind: Any = type(self)
        content: dict[str, Any] = _adapter(kind).dump_python(self, mode="json")
        return content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """Build the object from plain values. Raises pydantic.ValidationError."""
        kind: Any = cls
        value: Self = _adapter(kind).validate_python(content)
        return value


class Progress(NamedTuple):
    """Progress of a job. `phase` is one of "map", "rewrite", "verify", "sketch"."""

    phase: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]
"""A callback that the job calls from time to time. If it raises an exception, the job ends and
removes its files."""

Throttle = Callable[[int], None]
"""A callback that the job calls with the number of bytes to be read or just written. The function
sleeps to limit the rate. If it raises an exception, the job ends."""


@dataclass(frozen=True, slots=True)
class CompactJob(_CrossesProcesses):
    """A job that keeps only the newest record of each key of one stream.

    `plan` is the result of `compaction.plan_compaction`; `sources` are the segments that take part.
    They are sealed and consecutive, and begin with the oldest segment in the manifest.
    """

    directory: str
    plan: CompactionPlan
    sources: tuple[SegmentEntry, ...]
    log_start_offset: int
    memory_bytes: int
    compression: str = "none"
    epochs: Epochs = ()
    incarnation: str = ""
    erased: PlainErased = ()

    def __post_init__(self) -> None:
        if len(self.sources) != self.plan.sources:
            raise ValueError("sources needs one entry for each source of the plan")

    @property
    def generation(self) -> int:
        """Generation of all files that this job writes."""
        return _next_generation(self.sources)


@dataclass(frozen=True, slots=True)
class RebatchJob(_CrossesProcesses):
    """A job that rewrites one sealed segment with its small batches joined. No record changes, but
    erased ones are removed."""

    directory: str
    source: SegmentEntry
    target_bytes: int = TARGET_BATCH_BYTES
    compression: str = "none"
    epochs: Epochs = ()
    incarnation: str = ""
    erased: PlainErased = ()

    @property
    def generation(self) -> int:
        return _next_generation([self.source])


@dataclass(frozen=True, slots=True)
class ScrubJob(_CrossesProcesses):
    """A job that verifies one sealed segment; `quarantined` are its damaged ranges that are already
    recorded."""

    directory: str
    source: SegmentEntry
    quarantined: tuple[QuarantinedRange, ...] = ()
    epochs: Epochs = ()
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class SketchJob(_CrossesProcesses):
    """A job that makes the sketch and the subject index of one sealed, undamaged segment; `lineage`
    is the lineage of the log."""

    directory: str
    source: SegmentEntry
    lineage: str
    epochs: Epochs = ()
    with_subjects: bool = True


@dataclass(frozen=True, slots=True)
class SketchResult(_CrossesProcesses):
    """Result of a SketchJob. `size_bytes` is the total size of the new files; 0 if the segment is
    damaged, or already had its sketch and its subject index."""

    file: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The place, in a patch, of the batches for the offsets [first_offset, next_offset)."""

    first_offset: int
    next_offset: int
    position: int
    end_position: int


@dataclass(frozen=True, slots=True)
class MendJob(_CrossesProcesses):
    """A job that writes one sealed segment again, with data of another replica in place of the
    damaged parts. This data is in the `pieces` of the file `patch` in the directory of the
    segment."""

    directory: str
    source: SegmentEntry
    patch: str
    pieces: tuple[Piece, ...]
    epochs: Epochs = ()
    incarnation: str = ""

    @property
    def generation(self) -> int:
        return _next_generation([self.source])


@dataclass(frozen=True, slots=True)
class Swap:
    """The files to replace, consecutive in the manifest, and the segments that replace them."""

    old: tuple[str, ...]
    new: tuple[SegmentEntry, ...]

    @property
    def new_files(self) -> tuple[str, ...]:
        return tuple(entry.file_name for entry in self.new)


@dataclass(frozen=True, slots=True)
class CompactResult(_CrossesProcesses):
    """Result of a CompactJob.

    `apply_compaction` applies `swaps` in order. It stores `tombstones_removed_below` with the first
    swap, and `cleaned_below` and `horizons` with or after the last swap.

    `horizons` contains the delete_horizon_ns of each segment that is not rewritten, by file name;
    None if the segment has no tombstone left. `complete` is false if the memory was used up before
    `dirty_end`. In this case another pass continues from `cleaned_below`. `records_in` and
    `bytes_in` count the examined segments before the pass, `records_out` and `bytes_out` after it.
    """

    swaps: tuple[Swap, ...]
    horizons: dict[str, int | None]
    cleaned_below: int
    tombstones_removed_below: int
    complete: bool
    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    distinct_keys: int
    map_bytes: int

    @property
    def new_files(self) -> tuple[str, ...]:
        return tuple(name for swap in self.swaps for name in swap.new_files)


@dataclass(frozen=True, slots=True)
class RebatchResult(_CrossesProcesses):
    """Result of a RebatchJob. `swaps` is empty if rewriting would not improve the segment."""

    swaps: tuple[Swap, ...]
    records: int
    batches_in: int
    batches_out: int
    bytes_in: int
    bytes_out: int

    @property
    def new_files(self) -> tuple[str, ...]:
        return tuple(name for swap in self.swaps for name in swap.new_files)


@dataclass(frozen=True, slots=True)
class MendResult(_CrossesProcesses):
    """Result of a MendJob. `mended` are the ranges of offsets that came from the patch."""

    swaps: tuple[Swap, ...]
    mended: tuple[tuple[int, int], ...]
    bytes_in: int
    bytes_out: int

    @property
    def new_files(self) -> tuple[str, ...]:
        return tuple(name for swap in self.swaps for name in swap.new_files)


@dataclass(frozen=True, slots=True)
class ScrubResult(_CrossesProcesses):
    """Result of a ScrubJob.

    `damaged` are new ranges for `LogStructure.quarantine`. `lifted` are recorded ranges that are
    now readable, at least in part, and `still` are the damaged parts of these ranges
    (`readable_again`). `index_damaged` means that the index file is missing, belongs to another
    segment or contradicts the segment; the daemon can rebuild it.
    """

    file: str
    damaged: tuple[QuarantinedRange, ...]
    index_damaged: bool
    batches: int
    bytes_read: int
    lifted: tuple[QuarantinedRange, ...] = ()
    still: tuple[QuarantinedRange, ...] = ()


def _next_generation(sources: Sequence[SegmentEntry]) -> int:
    """Return the generation after the highest one of these segments. Each rewrite raises the
    generation, so no file for these offsets has ever had this one."""
    return max(source.generation for source in sources) + 1


def path_of(directory: str | Path, entry: SegmentEntry) -> Path:
    return Path(directory) / entry.file_name


def no_progress(progress: Progress) -> None:
    """Ignore the progress. The default for callers that do not show progress."""


def no_throttle(size_bytes: int) -> None:
    """Do not limit the rate. This is the default."""


def apply_compaction(
    log: Log, result: CompactResult, lineage: str | None = None, erased: PlainErased = ()
) -> int:
    """Swap in the files of `compact`; returns the bytes freed. Blocking. Raises the log's errors.

    `erased` is the value of the job.

    Swaps the oldest segments first, so that the older records of a key are removed before its
    tombstone. The manifest records the removal of tombstones with the first swap, and the compacted
    range only with the last swap. So after a crash between two swaps the next pass completes the
    work. If a swap is rejected, the caller discards the files of the swaps that were not made.
    """
    freed = 0
    applied = _applied(erased)
    removed_below = result.tombstones_removed_below or None
    for swap in result.swaps:
        freed += log.structure.replace_segments(
            swap.old,
            swap.new,
            tombstones_removed_below=removed_below,
            lineage=lineage,
            erased=applied,
        )
    log.structure.replace_segments(
        (),
        (),
        horizons=result.horizons,
        cleaned_below=result.cleaned_below,
        tombstones_removed_below=removed_below,
        lineage=lineage,
    )
    return freed


def apply_rebatch(
    log: Log, result: RebatchResult, lineage: str | None = None, erased: PlainErased = ()
) -> int:
    """Swap in the files of `rebatch`; returns the bytes freed. `erased` is the value of the job."""
    applied = _applied(erased)
    return sum(
        log.structure.replace_segments(swap.old, swap.new, lineage=lineage, erased=applied)
        for swap in result.swaps
    )


def _applied(erased: PlainErased) -> ErasedSet | None:
    return ErasedSet.from_plain(erased) if erased else None


def apply_mending(log: Log, result: MendResult, lineage: str | None = None) -> int:
    """Swap in the files of `mend`; returns how many damaged ranges are readable again."""
    return sum(
        log.structure.mend_segment(swap.old[0], swap.new, lineage=lineage) for swap in result.swaps
    )


def leftover_files(fs: FileSystem, job: CompactJob | RebatchJob | MendJob) -> list[str]:
    """Return the names of segment files that a killed job has written but not reported.

    The names are for `LogStructure.discard_files`. Call this function after the job has ended, and
    only while the manifest still lists the sources of the job.
    """
    sources = job.sources if isinstance(job, CompactJob) else (job.source,)
    first, end = sources[0].base_offset, sources[-1].next_offset
    found = []
    for name in fs.list_directory(Path(job.directory)):
        base, _, rest = name.partition(".")
        if base.isdecimal() and first <= int(base) < end and rest == f"{job.generation}.log":
            found.append(name)
    return found


def remove_files(fs: FileSystem, directory: Path, names: Sequence[str]) -> None:
    """Unlink segment files and the files that belong to them; ignores errors.

    Only for files that no manifest ever listed. The next opening of the log removes files that
    cannot be removed now.
    """
    for name in names:
        for path in files_of(directory / name):
            try:
                fs.unlink(path)
            except OSError:
                continue
