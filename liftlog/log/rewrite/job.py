"""Input and outcome of a rewriting job, plain values that cross a process border; and applying the
outcome.

Jobs read sealed segments and write new files beside them; they change nothing that is there.
`epochs` are those of the manifest: they help to tell batches that do not belong there. The indexes
of segments name the `incarnation` of the log; of a job that knows none, those that it writes are
rebuilt, and those of any log will do.
The daemon applies the outcome with `Log.replace_segments`, in the order that keeps every crash
between two steps safe, or discards the new files.

All of it goes through `to_dict` and `from_dict` as values that JSON can carry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import TypeAdapter

from compaction import CompactionPlan
from liftlog.log.files.filesystem import FileSystem
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry
from liftlog.log.log import Log
from liftlog.log.segment.derived import files_of

TARGET_BATCH_BYTES = 64 * 1024
"""What small batches are put together to."""

Epochs = tuple[tuple[int, int], ...]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class _CrossesProcesses:
    """A dataclass that becomes plain values on one side and itself again on the other."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        kind: Any = type(self)
        content: dict[str, Any] = _adapter(kind).dump_python(self, mode="json")
        return content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """Raises pydantic.ValidationError."""
        kind: Any = cls
        value: Self = _adapter(kind).validate_python(content)
        return value


class Progress(NamedTuple):
    """How far a job is. `phase` is one of "map", "rewrite", "verify", "sketch"."""

    phase: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]
"""Called now and then from within the job. Raising from it ends the job and removes its files."""

Throttle = Callable[[int], None]
"""Called with bytes that are about to be read or were written; sleeps to hold a rate. May raise."""


@dataclass(frozen=True, slots=True)
class CompactJob(_CrossesProcesses):
    """Keep the newest record of each key, in one stream.

    `plan` is what `compaction.plan_compaction` decided; `sources` are the segments that take part:
    consecutive and sealed, oldest first, beginning with the oldest that the manifest lists.
    """

    directory: str
    plan: CompactionPlan
    sources: tuple[SegmentEntry, ...]
    log_start_offset: int
    memory_bytes: int
    compression: str = "none"
    epochs: Epochs = ()
    incarnation: str = ""

    def __post_init__(self) -> None:
        if len(self.sources) != self.plan.sources:
            raise ValueError("sources needs one entry for each source of the plan")

    @property
    def generation(self) -> int:
        """The generation of all files that this job writes."""
        return _next_generation(self.sources)


@dataclass(frozen=True, slots=True)
class RebatchJob(_CrossesProcesses):
    """Rewrite one sealed segment with its small batches put together. No record changes."""

    directory: str
    source: SegmentEntry
    target_bytes: int = TARGET_BATCH_BYTES
    compression: str = "none"
    epochs: Epochs = ()
    incarnation: str = ""

    @property
    def generation(self) -> int:
        return _next_generation([self.source])


@dataclass(frozen=True, slots=True)
class ScrubJob(_CrossesProcesses):
    """Verify one sealed segment; `quarantined` is what is known to be damaged in it."""

    directory: str
    source: SegmentEntry
    quarantined: tuple[QuarantinedRange, ...] = ()
    epochs: Epochs = ()
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class SketchJob(_CrossesProcesses):
    """Make the sketch of one sealed, undamaged segment, and its subject index; `lineage` is the
    log's."""

    directory: str
    source: SegmentEntry
    lineage: str
    epochs: Epochs = ()
    with_subjects: bool = True


@dataclass(frozen=True, slots=True)
class SketchResult(_CrossesProcesses):
    """`size_bytes`, of what was written, is 0 if the segment is damaged, or nothing was missing."""

    file: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Where in a patch the batches for [first_offset, next_offset) lie."""

    first_offset: int
    next_offset: int
    position: int
    end_position: int


@dataclass(frozen=True, slots=True)
class MendJob(_CrossesProcesses):
    """Write one sealed segment again, with what another replica has in the place of what is
    damaged: the `pieces` of the file `patch`, which lies beside the segment."""

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
    """Files that give way, consecutive in the manifest, and the segments in their place."""

    old: tuple[str, ...]
    new: tuple[SegmentEntry, ...]

    @property
    def new_files(self) -> tuple[str, ...]:
        return tuple(entry.file_name for entry in self.new)


@dataclass(frozen=True, slots=True)
class CompactResult(_CrossesProcesses):
    """Apply `swaps` in order, `tombstones_removed_below` with the first of them and
    `cleaned_below` and `horizons` with or after the last; `swap.apply_compaction` does.

    `horizons` are of segments that stay as they are: file name -> delete_horizon_ns, None when no
    tombstone is left to wait for. `complete` is false when memory was used up before `dirty_end`:
    another pass, from `cleaned_below` on, does the rest. Records and bytes count the segments
    that were looked at, before and after.
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
    """`swaps` is empty when the segment would not become any better."""

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
    """`mended` are the ranges of offsets that came from the patch."""

    swaps: tuple[Swap, ...]
    mended: tuple[tuple[int, int], ...]
    bytes_in: int
    bytes_out: int

    @property
    def new_files(self) -> tuple[str, ...]:
        return tuple(name for swap in self.swaps for name in swap.new_files)


@dataclass(frozen=True, slots=True)
class ScrubResult(_CrossesProcesses):
    """`damaged` are ranges that were not known before, ready for `Log.quarantine`.

    `damaged` was not known before. `lifted` are known ranges that read well now, in part at least,
    and `still` is what of them is damaged (`readable_again`). `index_damaged`: the index file is
    missing, of another segment or contradicts this one; it can be rebuilt.
    """

    file: str
    damaged: tuple[QuarantinedRange, ...]
    index_damaged: bool
    batches: int
    bytes_read: int
    lifted: tuple[QuarantinedRange, ...] = ()
    still: tuple[QuarantinedRange, ...] = ()


def _next_generation(sources: Sequence[SegmentEntry]) -> int:
    """A generation that no file of these offsets ever had: each rewriting takes a higher one."""
    return max(source.generation for source in sources) + 1


def path_of(directory: str | Path, entry: SegmentEntry) -> Path:
    return Path(directory) / entry.file_name


def no_progress(progress: Progress) -> None:
    """For callers that do not show progress."""


def no_throttle(size_bytes: int) -> None:
    """As fast as the machine goes."""


def apply_compaction(log: Log, result: CompactResult, lineage: str | None = None) -> int:
    """Swap in what `compact` wrote; returns the bytes freed. Blocking; raises what the log raises.

    Oldest first: a tombstone goes at the earliest with the swap that removes its key from the
    segments before it. That tombstones are gone is on disk before the first of them is, and that
    the range is compacted only when all of it is. So after a crash between two swaps the next pass
    does the rest. When a swap is refused, the files of the swaps not made are to be discarded.
    """
    freed = 0
    removed_below = result.tombstones_removed_below or None
    for swap in result.swaps:
        freed += log.replace_segments(
            swap.old, swap.new, tombstones_removed_below=removed_below, lineage=lineage
        )
    log.replace_segments(
        (),
        (),
        horizons=result.horizons,
        cleaned_below=result.cleaned_below,
        tombstones_removed_below=removed_below,
        lineage=lineage,
    )
    return freed


def apply_rebatch(log: Log, result: RebatchResult, lineage: str | None = None) -> int:
    """Swap in what `rebatch` wrote; returns the bytes freed."""
    return sum(log.replace_segments(swap.old, swap.new, lineage=lineage) for swap in result.swaps)


def apply_mending(log: Log, result: MendResult, lineage: str | None = None) -> int:
    """Swap in what `mend` wrote; returns how many damaged ranges are readable again."""
    return sum(log.mend_segment(swap.old[0], swap.new, lineage=lineage) for swap in result.swaps)


def leftover_files(fs: FileSystem, job: CompactJob | RebatchJob | MendJob) -> list[str]:
    """Names of the segment files that a job wrote which was killed before it could answer.

    For `Log.discard_files`; only while the sources are still listed, and the job is over.
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
    """Unlink segment files and what lies beside them; errors are ignored.

    For files that no manifest ever listed. What remains is removed when the log is opened next.
    """
    for name in names:
        for path in files_of(directory / name):
            try:
                fs.unlink(path)
            except OSError:
                continue
