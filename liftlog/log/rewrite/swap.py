"""Applying the outcome of a job, in the order that keeps every crash between two steps safe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from liftlog.log.filesystem import FileSystem
from liftlog.log.index import index_path
from liftlog.log.log import Log
from liftlog.log.rewrite.job import CompactJob, CompactResult, RebatchJob, RebatchResult


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


def leftover_files(fs: FileSystem, job: CompactJob | RebatchJob) -> list[str]:
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
    """Unlink segment files and their indexes; errors are ignored.

    For files that no manifest ever listed. What remains is removed when the log is opened next.
    """
    for name in names:
        for path in (directory / name, index_path(directory / name)):
            try:
                fs.unlink(path)
            except OSError:
                continue
