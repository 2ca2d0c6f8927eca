"""Key compaction of sealed segments.

A pass reads segments twice. First it reads the dirty part, to map each key to its newest offset.
Then it reads the sources, group by group (see compaction/planning.py), and writes the records that
stay. It creates a file only after it has found the first record to drop, so it does not rewrite a
segment if all records stay.

Erased records are left out. They still supersede the older records of their key: the map contains
them.

When the memory for keys is used up, the dirty part ends at the offset reached. The pass then
compacts only this shorter part, and the next pass continues from its end. Both passes together have
the same result as one pass.

A source is always read to its end before its records are used, so a damaged source does not count
as a short source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compaction.keep import UNKNOWN, keep_mask
from compaction.keymap import KeyMap
from compaction.keys import KeyColumn
from liftlog.log.erased import ErasedSet
from liftlog.log.files.filesystem import FileSystem
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.rewrite.batches import BatchMerger
from liftlog.log.rewrite.job import (
    CompactJob,
    CompactResult,
    OnProgress,
    Progress,
    Swap,
    Throttle,
    no_progress,
    no_throttle,
    remove_files,
)
from liftlog.log.rewrite.segments import SegmentWriter, blaming, read_windows
from liftlog.records.columns.chunks import Chunk, chunks_of
from liftlog.records.columns.column_set import KeyedRecords, concat_binary
from liftlog.records.decode import RecordBatch

Flags = NDArray[np.bool_]
Offsets = NDArray[np.int64]


def compact(
    job: CompactJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> CompactResult:
    """Write the remaining records of `job.sources` to new files; fsyncs the files and the
    directory.

    Changes no existing file. Raises SourceDamaged if a source cannot be read to its end, OSError if
    a file operation fails (for example ENOSPC). Removes its new files before it raises an error.
    """
    written: list[str] = []
    with ExitStack() as on_error:
        on_error.callback(lambda: remove_files(fs, Path(job.directory), written))
        result = _Pass(job, fs, progress, throttle, written).run()
        on_error.pop_all()
    return result


class _Tally:
    """The counts and findings for the sources of a group."""

    __slots__ = ("horizon_ns", "records", "removed_below")

    def __init__(self) -> None:
        self.records = 0
        self.horizon_ns: int | None = None  # when the remaining tombstones may be removed
        self.removed_below = 0  # the offset after the newest expired tombstone

    def keeps_tombstones(self, horizon_ns: int) -> None:
        self.horizon_ns = max(self.horizon_ns or horizon_ns, horizon_ns)


class _Pass:
    def __init__(
        self,
        job: CompactJob,
        fs: FileSystem,
        progress: OnProgress,
        throttle: Throttle,
        written: list[str],
    ) -> None:
        self._job = job
        self._erased = ErasedSet.from_plain(job.erased) if job.erased else None
        self._plan = job.plan
        self._fs = fs
        self._directory = Path(job.directory)
        self._throttle = throttle
        self._progress = _Meter(job, progress)
        self._written = written
        # A bitmap with one bit per offset takes at most a quarter of the memory. Later offsets are
        # looked up in the key map.
        reach = job.plan.dirty_from + 8 * (job.memory_bytes // 4)
        self._superseded = OffsetMarks(job.plan.dirty_from, min(job.plan.dirty_end, reach))
        self._map = KeyMap(max(job.memory_bytes - self._superseded.memory_used_bytes, 1))
        self._mapped_end = job.plan.dirty_from
        self._swaps: list[Swap] = []
        self._horizons: dict[str, int | None] = {}
        self._removed_below = 0
        self._records_in = self._records_out = 0
        self._bytes_in = self._bytes_out = 0

    def run(self) -> CompactResult:
        self._map_dirty_part()
        for group in _without_gaps(self._job):
            if self._job.sources[group[0]].base_offset < self._mapped_end:
                self._rewrite_group(group)
        if self._swaps:
            self._fs.fsync_directory(self._directory)
        return CompactResult(
            swaps=tuple(self._swaps),
            horizons=self._horizons,
            cleaned_below=self._mapped_end,
            tombstones_removed_below=self._removed_below,
            complete=self._mapped_end == self._plan.dirty_end,
            records_in=self._records_in,
            records_out=self._records_out,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            distinct_keys=len(self._map),
            map_bytes=self._map.memory_used_bytes + self._superseded.memory_used_bytes,
        )

    def _windows(
        self, source: SegmentEntry, erased: ErasedSet | None = None
    ) -> Iterator[list[RecordBatch]]:
        return read_windows(
            self._fs, self._directory, source, self._throttle, self._job.epochs, erased
        )

    def _has_erased(self, window: list[RecordBatch]) -> bool:
        first, end = window[0].header.base_offset, window[-1].header.next_offset
        return self._erased is not None and self._erased.count_in(first, end) > 0

    # --- the map ---

    def _map_dirty_part(self) -> None:
        for source in dirty_sources(self._job):
            with blaming(source):
                if not self._map_source(source):
                    return
        self._mapped_end = self._plan.dirty_end

    def _map_source(self, source: SegmentEntry) -> bool:
        """Add the keys of a source to the map. Returns False, and sets `_mapped_end`, if the memory
        is used up."""
        job = self._job
        for window in self._windows(source):
            self._progress.advance("map", window)
            keyed = [found for one in chunks_of(window) if (found := one.keyed()) is not None]
            if not keyed:
                continue
            keys, offsets = key_column(keyed), offset_column(keyed)
            first, end = np.searchsorted(
                offsets, (job.plan.dirty_from, job.plan.dirty_end)
            ).tolist()
            taken = self._map.add(keys.rows(first, end), offsets[first:end], self._superseded.mark)
            if taken < end - first:
                self._mapped_end = int(offsets[first + taken])
                return False
        return True

    # --- the rewriting ---

    def _rewrite_group(self, group: range) -> None:
        sources = [self._job.sources[i] for i in group]
        size = sum(source.size_bytes for source in sources)
        tally = _Tally()
        writer = SegmentWriter(
            self._fs,
            self._directory,
            sources[0].base_offset,
            self._job.generation,
            throttle=self._throttle,
            names=self._written,
            incarnation=self._job.incarnation,
        )
        try:
            if self._copy_group(
                group, tally, BatchMerger(writer, compression=self._job.compression)
            ):
                entries = writer.finish(tally.horizon_ns)
                self._swaps.append(Swap(tuple(one.file_name for one in sources), entries))
            else:
                entries = tuple(sources)
                if tally.horizon_ns != sources[0].delete_horizon_ns:
                    self._horizons[sources[0].file_name] = tally.horizon_ns
        finally:
            writer.close()
        self._removed_below = max(self._removed_below, tally.removed_below)
        self._records_in += tally.records
        self._bytes_in += size
        self._records_out += sum(entry.record_count for entry in entries)
        self._bytes_out += sum(entry.size_bytes for entry in entries)

    def _copy_group(self, group: range, tally: _Tally, merger: BatchMerger) -> bool:
        """Pass the remaining records to `merger`. If all records stay, pass nothing and return
        False."""
        writing = len(group) > 1
        for number in group:
            with blaming(self._job.sources[number]):
                writing = self._copy_source(number, tally, merger, writing)
        if writing:
            merger.flush()
        return writing

    def _copy_source(self, number: int, tally: _Tally, merger: BatchMerger, writing: bool) -> bool:
        source = self._job.sources[number]
        for window in self._windows(source, self._erased):
            self._progress.advance("rewrite", window)
            chunks = chunks_of(window)
            keeps = self._judge(chunks, number, tally)
            if not writing:
                all_stay = all(keep is None or keep.all() for keep in keeps)
                if all_stay and not self._has_erased(window):
                    continue
                writing = True
                self._copy_start(source, window[0].header.base_offset, merger)
            for chunk, keep in zip(chunks, keeps, strict=True):
                self._hand_over(chunk, keep, merger)
        return writing

    def _copy_start(self, source: SegmentEntry, end_offset: int, merger: BatchMerger) -> None:
        """Pass the batches before `end_offset` to `merger`. All records of these batches stay."""
        if end_offset > source.base_offset:
            for window in self._windows(source, self._erased):
                if window[0].header.base_offset >= end_offset:
                    break
                for chunk in chunks_of(window):
                    self._hand_over(chunk, None, merger)

    def _judge(self, chunks: list[Chunk], number: int, tally: _Tally) -> list[Flags | None]:
        """Return, for each chunk, a flag for each record: True if the record stays. Returns None in
        place of the flags for a chunk without keys, because all its records stay."""
        source, drop = self._job.sources[number], self._plan.drop_tombstones[number]
        tally.records += sum([chunk.record_count for chunk in chunks])
        keeps: list[Flags | None] = [None] * len(chunks)
        keyed = {i: found for i, one in enumerate(chunks) if (found := one.keyed()) is not None}
        if not keyed:
            return keeps
        parts = list(keyed.values())
        keys, offsets = key_column(parts), offset_column(parts)
        deletes = tombstones(parts, keys)
        newest = self._newest(keys, offsets)
        keep = keep_mask(newest, offsets, keys.valid, deletes, drop_tombstones=drop)
        if deletes.any():
            if (deletes & keep).any():
                own = source.delete_horizon_ns
                is_dirty = source.next_offset > self._plan.dirty_from
                tally.keeps_tombstones(self._plan.horizon_ns if is_dirty or own is None else own)
            over = deletes & ~keep & (offsets >= newest)
            if over.any():
                tally.removed_below = int(offsets[over][-1]) + 1
        first = 0
        for i, one in keyed.items():
            keeps[i] = keep[first : first + len(one)]
            first += len(one)
        return keeps

    def _newest(self, keys: KeyColumn, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each record an offset to compare with its own offset: the newest offset of its
        key, or another offset with which the comparison has the same result.

        For a record in the mapped part, a mark already shows if a newer record of its key exists,
        so the key is not looked up again. The result is then the record's own offset, or the next
        offset if there is a mark.
        """
        if int(offsets[-1]) < self._plan.dirty_from:
            return self._map.newest(keys)
        marks = self._superseded
        first, mapped, marked = np.searchsorted(
            offsets, (marks.first_offset, self._mapped_end, marks.end_offset)
        ).tolist()
        marked = min(mapped, marked)
        newest = np.full(len(offsets), UNKNOWN, np.int64)
        newest[:first] = self._map.newest(keys.rows(0, first))
        newest[first:marked] = offsets[first:marked] + marks.marked(offsets[first:marked])
        newest[marked:mapped] = self._map.newest(keys.rows(marked, mapped))
        return newest

    def _hand_over(self, chunk: Chunk, keep: Flags | None, merger: BatchMerger) -> None:
        """Pass to `merger` the records that stay, without those below the log start."""
        header, start = chunk.header, self._job.log_start_offset
        if header.next_offset <= start or (keep is not None and not keep.any()):
            merger.skip(header)
        elif header.base_offset >= start and (keep is None or keep.all()):
            merger.add(chunk)
        else:
            columns = chunk.columns()
            visible = columns.offsets >= start
            columns = columns.take(visible if keep is None else keep & visible)
            if len(columns):
                merger.add_records(columns, header, divisible=not chunk.is_one_batch)
            else:
                merger.skip(header)


class _Meter:
    """Counts the bytes that were read, and reports progress."""

    def __init__(self, job: CompactJob, progress: OnProgress) -> None:
        self._report = progress
        self._done = 0
        self._total = sum(source.size_bytes for source in dirty_sources(job)) + sum(
            source.size_bytes for first, end in job.plan.groups for source in job.sources[first:end]
        )

    def advance(self, phase: str, window: list[RecordBatch]) -> None:
        self._done += sum([batch.header.length for batch in window])
        self._report(Progress(phase, self._done, self._total))


def _without_gaps(job: CompactJob) -> Iterator[range]:
    """Yield the groups, divided where offsets are missing between two sources. The records at
    missing offsets were lost. A new segment that covered these offsets would hide the loss, because
    a reader would take the records for removed ones."""
    for first, end in job.plan.groups:
        start = first
        for i in range(first + 1, end):
            if job.sources[i - 1].next_offset != job.sources[i].base_offset:
                yield range(start, i)
                start = i
        yield range(start, end)


def dirty_sources(job: CompactJob) -> list[SegmentEntry]:
    """Return the sources that overlap the dirty part, oldest first."""
    return [
        source
        for first, end in job.plan.groups
        for source in job.sources[first:end]
        if source.next_offset > job.plan.dirty_from and source.base_offset < job.plan.dirty_end
    ]


def key_column(parts: Sequence[KeyedRecords]) -> KeyColumn:
    """Return the keys in the form that the key map expects."""
    keys = concat_binary([part.keys for part in parts])
    assert keys.valid is not None
    return KeyColumn(keys.ends, keys.data, keys.valid)


def offset_column(parts: Sequence[KeyedRecords]) -> NDArray[np.int64]:
    return np.concatenate([part.offsets for part in parts])


def tombstones(parts: Sequence[KeyedRecords], keys: KeyColumn) -> Flags:
    """Return a flag for each record: True for tombstones, which have a key and no value."""
    if all(part.has_value is None for part in parts):
        return np.zeros(len(keys.valid), np.bool_)
    has_value = [
        np.ones(len(part), np.bool_) if part.has_value is None else part.has_value for part in parts
    ]
    return keys.valid & ~np.concatenate(has_value)


class OffsetMarks:
    """One bit for each offset in [first_offset, end_offset). Later offsets are ignored, and earlier
    offsets are not allowed."""

    def __init__(self, first_offset: int, end_offset: int) -> None:
        self.first_offset = first_offset
        self.end_offset = max(first_offset, end_offset)
        self._bits = np.zeros((self.end_offset - first_offset + 7) // 8, np.uint8)

    @property
    def memory_used_bytes(self) -> int:
        return self._bits.nbytes

    def mark(self, offsets: Offsets) -> None:
        """Mark offsets, in any order and with repetitions."""
        relative = offsets - self.first_offset
        relative = relative.compress(offsets < self.end_offset)
        places, bits = relative >> 3, relative & 7
        for bit in range(8):
            # A byte may occur twice in one assignment, but with the same bit, so that bit is set.
            chosen = places.compress(bits == bit)
            self._bits[chosen] = self._bits.take(chosen) | np.uint8(1 << bit)

    def marked(self, offsets: Offsets) -> Flags:
        """Return which of these offsets are marked; all must lie in the range."""
        relative = offsets - self.first_offset
        bits = self._bits.take(relative >> 3) >> (relative & 7).astype(np.uint8)
        return (bits & np.uint8(1)).view(np.bool_)
