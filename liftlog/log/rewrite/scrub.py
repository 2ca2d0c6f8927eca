"""Verifies a sealed segment, to find damage before a reader needs the records. Also checks whether
quarantined ranges of the segment have become readable.

Unreadable bytes (a bad sector) count as damage; the good batches around them are still found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from liftlog.log.files.filesystem import Buffer, File, FileSystem
from liftlog.log.rewrite.job import (
    OnProgress,
    Progress,
    ScrubJob,
    ScrubResult,
    Throttle,
    no_progress,
    no_throttle,
    path_of,
)
from liftlog.log.rewrite.segments import WINDOW_BYTES
from liftlog.log.segment.index import IndexEntry, SparseIndex, read_index
from liftlog.log.segment.walk import (
    Found,
    Missing,
    damage_in_walk,
    is_covered,
    readable_again,
    walk,
)


def scrub(
    job: ScrubJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> ScrubResult:
    """Check every byte of a sealed segment against its checksums. Writes nothing.

    Raises OSError if the file cannot be opened, UnsupportedFormat for data of a newer liftlog.
    """
    entry = job.source
    path = path_of(job.directory, entry)
    file = _Throttled(fs.open(path, writable=False), throttle)
    try:
        index = read_index(fs, file, entry, job.incarnation)
        size = min(file.size(), entry.size_bytes)
        seen = _Seen(index, progress, entry.size_bytes)
        items = walk(
            file,
            entry.base_offset,
            size,
            size,
            index,
            end_offset=entry.next_offset if size == entry.size_bytes else None,
            epochs=job.epochs,
        )
        damaged = damage_in_walk(seen.passing(items), entry)
    finally:
        file.close()
    lifted, still = readable_again(job.quarantined, damaged, entry)
    known = [*(bad for bad in job.quarantined if bad not in lifted), *still]
    return ScrubResult(
        file=entry.file_name,
        damaged=tuple(
            bad for bad in damaged if not is_covered(bad.first_offset, bad.next_offset, known)
        ),
        index_damaged=index is None or seen.index_contradicts,
        batches=seen.batches,
        bytes_read=size,
        lifted=tuple(lifted),
        still=tuple(still),
    )


class _Seen:
    """Counts the batches that a walk finds, and compares them with the index."""

    def __init__(self, index: SparseIndex | None, progress: OnProgress, total_bytes: int) -> None:
        self._index = index
        self._progress = progress
        self._total = total_bytes
        self._reported = 0
        self.batches = 0
        self.index_contradicts = False

    def passing(self, items: Iterator[Found | Missing]) -> Iterator[Found | Missing]:
        for item in items:
            end = item.position
            if isinstance(item, Found):
                self.batches += 1
                end += item.batch.header.length
                if self._index is not None and not self._is_right(self._index, item, end):
                    self.index_contradicts = True
            if end - self._reported >= WINDOW_BYTES:
                self._reported = end
                self._progress(Progress("verify", end, self._total))
            yield item

    def _is_right(self, index: SparseIndex, found: Found, end: int) -> bool:
        """Return True if no index entry contradicts this batch: no entry points into its middle, or
        to its start with a wrong offset."""
        last = index.floor_position(end - 1)
        return last.position < found.position or last == IndexEntry(
            found.batch.header.base_offset, found.position
        )


class _Throttled:
    """A file that is read at a limited rate."""

    def __init__(self, file: File, throttle: Throttle) -> None:
        self._file = file
        self._throttle = throttle
        self.path = file.path

    def pread(self, length: int, position: int) -> bytes:
        self._throttle(length)
        return self._file.pread(length, position)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()

    # A scrub job only reads. The following methods only implement the protocol.

    def fileno(self) -> int:
        return self._file.fileno()

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        raise NotImplementedError

    def fdatasync(self) -> None:
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        raise NotImplementedError

    def allocate(self, size: int) -> None:
        raise NotImplementedError
