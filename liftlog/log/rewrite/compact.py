"""Key compaction of sealed segments.

A pass reads twice:

    map      the dirty part, once: the newest offset of each key
    rewrite  group by group (see compaction/planning.py): first what stays of each source and
             whether anything goes at all; then, only if so, the sources again into the new file

Between the two readings of a group what stays is held as one bit per record. When memory for keys
is used up, the pass ends at the offset reached: it is a whole pass over a shorter dirty part, and
the next one goes on from there, to the same end.

A source is always read to its end before anything is made of it, so a damaged one can not pass
for a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compaction.keep import keep_mask
from compaction.keymap import KeyMap
from compaction.keys import KeyColumn
from liftlog.log.filesystem import FileSystem
from liftlog.log.manifest import SegmentEntry
from liftlog.log.rewrite.job import (
    CompactJob,
    CompactResult,
    OnProgress,
    Progress,
    Swap,
    Throttle,
    no_progress,
    no_throttle,
)
from liftlog.log.rewrite.source import WINDOW_BYTES, read_batches
from liftlog.log.rewrite.swap import remove_files
from liftlog.log.rewrite.writer import BatchMerger, SegmentWriter
from liftlog.records.columns import BinaryColumn, Columns, decode_columns
from liftlog.records.format import KEYS

Flags = NDArray[np.bool_]


def compact(
    job: CompactJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> CompactResult:
    """Write what stays of `job.sources` into new files. They and the directory are fsynced.

    Changes no file that was there. Raises SourceDamaged when a source cannot be read to its end,
    OSError when a file operation fails (ENOSPC among them); then it has removed what it wrote.
    """
    written: list[str] = []
    with ExitStack() as on_error:
        on_error.callback(lambda: remove_files(fs, Path(job.directory), written))
        result = _Pass(job, fs, progress, throttle, written).run()
        on_error.pop_all()
    return result


class _Survivors:
    """What stays of one source."""

    __slots__ = ("bits", "dying", "kept_tombstones", "records", "removed_below")

    def __init__(self) -> None:
        self.bits = bytearray()  # of each batch one bit per record, filled up to whole bytes
        self.records = 0
        self.dying = 0
        self.kept_tombstones = 0
        self.removed_below = 0  # the offset behind the newest tombstone whose time is over

    def note(self, keep: Flags) -> None:
        self.records += len(keep)
        self.dying += len(keep) - int(np.count_nonzero(keep))
        self.bits += np.packbits(keep, bitorder="little").tobytes()


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
        self._fs = fs
        self._directory = Path(job.directory)
        self._throttle = throttle
        self._progress = _Meter(job, progress)
        self._written = written
        self._map = KeyMap(job.memory_bytes)
        self._mapped_end = job.dirty_from
        self._swaps: list[Swap] = []
        self._horizons: dict[str, int | None] = {}
        self._removed_below = 0
        self._records_in = self._records_out = 0
        self._bytes_in = self._bytes_out = 0

    def run(self) -> CompactResult:
        self._map_dirty_part()
        for first, end in self._job.groups:
            if self._job.sources[first].base_offset < self._mapped_end:
                self._rewrite_group(range(first, end))
        if self._swaps:
            self._fs.fsync_directory(self._directory)
        return CompactResult(
            swaps=tuple(self._swaps),
            horizons=self._horizons,
            cleaned_below=self._mapped_end,
            tombstones_removed_below=self._removed_below,
            complete=self._mapped_end == self._job.dirty_end,
            records_in=self._records_in,
            records_out=self._records_out,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            distinct_keys=len(self._map),
            map_bytes=self._map.memory_used_bytes,
        )

    # --- the map ---

    def _map_dirty_part(self) -> None:
        for source in dirty_sources(self._job):
            if not self._map_source(source):
                return
        self._mapped_end = self._job.dirty_end

    def _map_source(self, source: SegmentEntry) -> bool:
        """False when memory is used up; `_mapped_end` then says where."""
        job = self._job
        for batch in read_batches(self._fs, self._directory, source, self._throttle):
            header = batch.header
            self._progress.advance("map", header.length)
            if not header.attributes & KEYS or header.next_offset <= job.dirty_from:
                continue
            if header.base_offset >= job.dirty_end:
                continue
            columns = decode_columns(batch)
            first, end = np.searchsorted(columns.offsets, (job.dirty_from, job.dirty_end)).tolist()
            keys = key_column(columns).rows(first, end)
            offsets = columns.offsets[first:end]
            taken = self._map.add(keys, offsets)
            if taken < len(offsets):
                self._mapped_end = int(offsets[taken])
                return False
        return True

    # --- the rewriting ---

    def _rewrite_group(self, group: range) -> None:
        sources = [self._job.sources[i] for i in group]
        survivors = [self._judge(i) for i in group]
        size = sum(source.size_bytes for source in sources)
        self._records_in += sum(one.records for one in survivors)
        self._bytes_in += size
        horizon = self._horizon(sources, survivors)
        if len(sources) == 1 and not survivors[0].dying:
            # Nothing goes: the file stays, only how long its tombstones do may have changed.
            if horizon != sources[0].delete_horizon_ns:
                self._horizons[sources[0].file_name] = horizon
            self._progress.advance("rewrite", size)
            self._records_out += survivors[0].records
            self._bytes_out += size
            return
        entries = self._write(sources, survivors, horizon)
        self._swaps.append(Swap(tuple(source.file_name for source in sources), entries))
        self._removed_below = max([self._removed_below] + [one.removed_below for one in survivors])
        self._records_out += sum(entry.record_count for entry in entries)
        self._bytes_out += sum(entry.size_bytes for entry in entries)

    def _horizon(
        self, sources: Sequence[SegmentEntry], survivors: Sequence[_Survivors]
    ) -> int | None:
        """When the tombstones that these sources keep may go; None without tombstones."""
        horizon: int | None = None
        for source, one in zip(sources, survivors, strict=True):
            if not one.kept_tombstones:
                continue
            own = source.delete_horizon_ns
            if own is None or source.next_offset > self._job.dirty_from:
                own = self._job.horizon_ns
            horizon = own if horizon is None else max(horizon, own)
        return horizon

    def _judge(self, number: int) -> _Survivors:
        """Read a source to its end and decide on each of its records."""
        job, survivors = self._job, _Survivors()
        drop = job.drop_tombstones[number]
        for batch in read_batches(self._fs, self._directory, job.sources[number], self._throttle):
            header = batch.header
            self._progress.advance("rewrite", header.length)
            if not header.attributes & KEYS:
                survivors.note(np.ones(header.record_count, np.bool_))
                continue
            columns = decode_columns(batch)
            keys = key_column(columns)
            newest = self._map.newest(keys)
            values = columns.values.valid
            deletes = keys.valid & ~values if values is not None else np.zeros_like(keys.valid)
            keep = keep_mask(newest, columns.offsets, keys.valid, deletes, drop_tombstones=drop)
            if deletes.any():
                survivors.kept_tombstones += int(np.count_nonzero(deletes & keep))
                over = deletes & ~keep & (columns.offsets >= newest)
                if over.any():
                    survivors.removed_below = int(columns.offsets[over][-1]) + 1
            survivors.note(keep)
        return survivors

    def _write(
        self,
        sources: Sequence[SegmentEntry],
        survivors: Sequence[_Survivors],
        horizon: int | None,
    ) -> tuple[SegmentEntry, ...]:
        job = self._job
        writer = SegmentWriter(
            self._fs,
            self._directory,
            sources[0].base_offset,
            job.generation,
            throttle=self._throttle,
            names=self._written,
        )
        try:
            merger = BatchMerger(writer)
            for source, one in zip(sources, survivors, strict=True):
                self._copy(source, memoryview(one.bits), merger)
            merger.flush()
            return writer.finish(horizon)
        finally:
            writer.close()

    def _copy(self, source: SegmentEntry, bits: memoryview, merger: BatchMerger) -> None:
        """Hand the records that stay to `merger`; those that readers cannot see stay behind."""
        start = self._job.log_start_offset
        at = 0
        for batch in read_batches(self._fs, self._directory, source, self._throttle):
            header = batch.header
            self._progress.advance("rewrite", header.length)
            count = header.record_count
            raw = np.frombuffer(bits, np.uint8, (count + 7) // 8, at)
            at += len(raw)
            keep = np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)
            if header.next_offset <= start or not keep.any():
                merger.skip(header)
            elif header.base_offset >= start and keep.all():
                merger.add(batch)
            else:
                columns = decode_columns(batch)
                left = columns.take(keep & (columns.offsets >= start))
                if len(left):
                    merger.add_records(left, header)
                else:
                    merger.skip(header)


class _Meter:
    """Sums up bytes, and reports now and then."""

    def __init__(self, job: CompactJob, progress: OnProgress) -> None:
        self._report = progress
        self._done = self._reported = 0
        self._total = sum(source.size_bytes for source in dirty_sources(job))
        # Read once to judge and, if anything goes, once more to copy.
        self._total += 2 * sum(
            job.sources[i].size_bytes for a, b in job.groups for i in range(a, b)
        )

    def advance(self, phase: str, size_bytes: int) -> None:
        self._done += size_bytes
        if self._done - self._reported >= WINDOW_BYTES:
            self._reported = self._done
            self._report(Progress(phase, self._done, self._total))


def dirty_sources(job: CompactJob) -> list[SegmentEntry]:
    """The sources that hold some of the dirty part, oldest first."""
    return [
        source
        for first, end in job.groups
        for source in job.sources[first:end]
        if source.next_offset > job.dirty_from and source.base_offset < job.dirty_end
    ]


def key_column(columns: Columns) -> KeyColumn:
    """The keys as the key map takes them; the batch has the column."""
    keys = columns.keys
    assert isinstance(keys, BinaryColumn)
    assert keys.valid is not None
    return KeyColumn(keys.ends, keys.data, keys.valid)
