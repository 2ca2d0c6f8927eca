"""Writing rewritten segments: first batches into a file, then records into batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from liftlog.log.filesystem import Buffer, File, FileSystem, write_all
from liftlog.log.index import SparseIndex, write_index
from liftlog.log.manifest import SegmentEntry
from liftlog.log.rewrite.chunks import Chunk, with_range
from liftlog.log.rewrite.job import Throttle, no_throttle
from liftlog.log.segment import MAX_POSITION
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.records.column_set import Columns, Offsets, concat
from liftlog.records.columns import can_share_batch, encode_columns
from liftlog.records.encode import encode_batch, extend_batch
from liftlog.records.format import MAX_TIMESTAMP_DELTA_US
from liftlog.records.header import BatchHeader, parse_header

TARGET_BATCH_BYTES = 64 * 1024
MAX_MERGED_RECORDS = 4096
_OVERHEAD_BYTES = 256  # of a batch: header, a subject or a few, padding
MAX_RELATIVE_OFFSET = 0xFFFF_FFFF
_WRITE_BYTES = 1024 * 1024
_SYNC_BYTES = 4 * 1024 * 1024
"""Synced this often, a job never makes the daemon's own syncs wait for much of its data."""


class SegmentWriter:
    """Writes batches that tile offsets from `base_offset` on into new files.

    Into one file, normally: another is begun where positions would not fit an index any more.
    `finish` makes the files durable; until then, and if it is never called, they mean nothing.
    The caller fsyncs the directory. Methods raise OSError.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        base_offset: int,
        generation: int,
        *,
        throttle: Throttle = no_throttle,
        names: list[str] | None = None,
        max_bytes: int = MAX_POSITION,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._generation = generation
        self._throttle = throttle
        self._max_bytes = max_bytes
        self._done: list[SegmentEntry] = []
        self._file: File | None = None
        self.names = [] if names is None else names  # gets those of all files that are begun
        self.next_offset = base_offset
        self._last: BatchHeader | None = None
        self._records = self._newest_ns = 0
        self._reset()

    def write(self, raw: Buffer, header: BatchHeader) -> None:
        """Add a batch; `raw` must not change until the next one was added."""
        if header.base_offset != self.next_offset:
            raise ValueError(f"batch at offset {header.base_offset}, {self.next_offset} is due")
        if self._file is None:
            self._begin()
        elif self._position + len(raw) > self._max_bytes:
            self._seal()
            self._begin()
        elif self._buffered >= _WRITE_BYTES:
            self._flush()
        self._newest_ns = max(self._newest_ns, header.max_timestamp_ns)
        self._index.maybe_add(header.base_offset, self._position, self._newest_ns)
        self._buffers.append(raw)
        self._buffered += len(raw)
        self._position += len(raw)
        self._records += header.record_count
        self._last = header
        self.next_offset = header.next_offset

    def extend(self, header: BatchHeader) -> bool:
        """Let the last batch stand for the offsets of this one too, which is gone.

        False when it cannot: there is none, or it is of another epoch.
        """
        before = self._last
        if (
            before is None
            or before.leader_epoch != header.leader_epoch
            or header.last_offset - before.base_offset > MAX_RELATIVE_OFFSET
        ):
            return False
        last = self._buffers[-1]
        if not isinstance(last, bytearray):
            self._buffers[-1] = last = bytearray(last)
        extend_batch(last, header.last_offset)
        self.next_offset = header.next_offset
        return True

    def finish(self, delete_horizon_ns: int | None) -> tuple[SegmentEntry, ...]:
        """Make everything durable but the directory; the segments for the manifest."""
        self._seal()
        return tuple(replace(one, delete_horizon_ns=delete_horizon_ns) for one in self._done)

    def close(self) -> None:
        """Let go of the file that is being written, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        self._reset()
        entry = SegmentEntry(base_offset=self.next_offset, generation=self._generation)
        self.names.append(entry.file_name)
        self._path = self._directory / entry.file_name
        self._file = self._fs.open(self._path, create=True)

    def _reset(self) -> None:
        self._base_offset = self.next_offset
        self._index = SparseIndex(self.next_offset)
        self._buffers: list[Buffer] = []
        self._last = None
        self._buffered = self._position = self._unsynced = 0
        self._records = self._newest_ns = 0

    def _flush(self) -> None:
        assert self._file is not None
        self._throttle(self._buffered)
        write_all(self._file, self._buffers, self._position - self._buffered)
        self._unsynced += self._buffered
        self._buffers, self._buffered = [], 0
        if self._unsynced >= _SYNC_BYTES:
            self._file.fdatasync()
            self._unsynced = 0

    def _seal(self) -> None:
        assert self._file is not None, "a segment without a batch"
        self._flush()
        self._file.fdatasync()
        self.close()
        write_index(self._fs, self._path, self._index)
        self._done.append(
            SegmentEntry(
                base_offset=self._base_offset,
                generation=self._generation,
                size_bytes=self._position,
                next_offset=self.next_offset,
                record_count=self._records,
                max_timestamp_ns=self._newest_ns,
            )
        )


class BatchMerger:
    """Puts what is left of small batches together, and writes large ones as they are.

    No record changes: neither offset nor stamp. Batches of different epochs are never put
    together, so that where an epoch begins stays in the log; where all records of an epoch are
    gone, or the first ones of a segment, an empty batch keeps their place.
    """

    def __init__(
        self,
        writer: SegmentWriter,
        *,
        target_bytes: int = TARGET_BATCH_BYTES,
        compression: str = "none",
    ) -> None:
        """`compression` is for batches that are put together; others stay as they are."""
        self._writer = writer
        self._codec = codec_named(compression)
        self._target_bytes = target_bytes - _OVERHEAD_BYTES
        self.batches_out = 0
        self._first: BatchHeader | None = None  # of what waits; its records may be gone
        self._next_offset = 0
        self._parts: list[Columns] = []
        self._size = 0
        self._count = 0
        self._stamps = (0, 0)

    def add(self, chunk: Chunk) -> None:
        """A chunk of which every record stays."""
        if not chunk.is_one_batch:
            self.add_records(chunk.columns(), chunk.header, divisible=True)
        elif not chunk.header.record_count:
            self.skip(chunk.header)
        elif 2 * len(chunk.batches[0].raw) >= self._target_bytes:
            self.flush()
            self._write(chunk.batches[0].stored, chunk.header)
        else:
            self.add_records(chunk.columns(), chunk.header)

    def add_records(
        self, columns: Columns, header: BatchHeader, *, divisible: bool = False
    ) -> None:
        """What is left, at least one record, of the offsets of this header.

        Records of one batch stay together. Those of several are `divisible`.
        """
        if self._first is not None and not self._is_near(header):
            self.flush()
        if divisible:
            self._divide(columns, header)
            return
        stamps = _span(columns.timestamps_ns)
        if self._parts and not (
            self._size + columns.size_bytes <= self._target_bytes
            and self._count + len(columns) <= MAX_MERGED_RECORDS
            and can_share_batch(self._stamps, stamps)
        ):
            self.flush()
        self._append(columns, header, stamps)

    def skip(self, header: BatchHeader) -> None:
        """A batch of which nothing is left."""
        if self._first is not None:
            if self._is_near(header):
                self._next_offset = header.next_offset
                return
            self.flush()
        if not self._writer.extend(header):
            self._first = header
            self._next_offset = header.next_offset

    def flush(self) -> None:
        """Write what waits."""
        first = self._first
        if first is None:
            return
        raw: bytearray | memoryview
        if self._parts:
            raw = encode_columns(
                concat(self._parts),
                base_offset=first.base_offset,
                last_offset=self._next_offset - 1,
                leader_epoch=first.leader_epoch,
                commit_group=first.commit_group,
            )
        else:
            raw = encode_batch(
                base_offset=first.base_offset,
                last_offset=self._next_offset - 1,
                leader_epoch=first.leader_epoch,
                commit_group=first.commit_group,
                stamps=[],
                subjects=[],
                values=[],
            )
        self._first = None
        self._parts, self._size, self._count = [], 0, 0
        if self._codec is not None:
            raw = compress_batch(raw, self._codec)
        self._write(raw, parse_header(raw))

    def _is_near(self, header: BatchHeader) -> bool:
        """Whether what waits may become one batch with these offsets."""
        first = self._first
        return first is not None and (
            first.leader_epoch == header.leader_epoch
            and header.last_offset - first.base_offset <= MAX_RELATIVE_OFFSET
        )

    def _divide(self, columns: Columns, header: BatchHeader) -> None:
        """Fill up batches one after the other, each up to the record that does not fit."""
        count, sizes, offsets = len(columns), columns.sizes(), columns.offsets
        first = 0
        while first < count:
            room = self._target_bytes - self._size + (int(sizes[first - 1]) if first else 0)
            end = min(
                int(np.searchsorted(sizes, room, "right")),
                first + MAX_MERGED_RECORDS - self._count,
            )
            if not self._parts:
                end = max(end, first + 1)
            end = first + self._fitting_stamps(columns.timestamps_ns[first:end])
            if end == first:
                self.flush()
                continue
            part = columns.part(first, end)
            base = int(offsets[first]) if first else header.base_offset
            last = int(offsets[end]) - 1 if end < count else header.last_offset
            self._append(part, with_range(header, base, last), _span(part.timestamps_ns))
            first = end

    def _fitting_stamps(self, timestamps_ns: Offsets) -> int:
        """How many of these records can go into the batch that waits, or into one of their own."""
        if not len(timestamps_ns):
            return 0
        waiting = self._stamps if self._parts else (int(timestamps_ns[0]),) * 2
        since = timestamps_ns - waiting[0]
        fits = since % 1000 == 0
        lowest = np.minimum(np.minimum.accumulate(since), 0)
        highest = np.maximum(np.maximum.accumulate(since), waiting[1] - waiting[0])
        fits &= highest - lowest <= MAX_TIMESTAMP_DELTA_US * 1000
        return len(fits) if fits.all() else int(fits.argmin())

    def _append(self, columns: Columns, header: BatchHeader, stamps: tuple[int, int]) -> None:
        if self._first is None:
            self._first = header
        if self._parts:
            stamps = min(self._stamps[0], stamps[0]), max(self._stamps[1], stamps[1])
        self._stamps = stamps
        self._parts.append(columns)
        self._size += columns.size_bytes
        self._count += len(columns)
        self._next_offset = header.next_offset

    def _write(self, raw: Buffer, header: BatchHeader) -> None:
        self._writer.write(raw, header)
        self.batches_out += 1


def _span(timestamps_ns: Offsets) -> tuple[int, int]:
    return int(timestamps_ns.min()), int(timestamps_ns.max())
