"""Writes the records that a rewrite keeps into new batches."""

from __future__ import annotations

import numpy as np

from liftlog.log.files.filesystem import Buffer
from liftlog.log.rewrite.job import TARGET_BATCH_BYTES
from liftlog.log.rewrite.segments import MAX_RELATIVE_OFFSET, SegmentWriter
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.records.columns.batch_columns import (
    can_share_batch,
    encode_columns,
)
from liftlog.records.columns.chunks import Chunk, with_range
from liftlog.records.columns.column_set import Columns, Offsets, concat
from liftlog.records.encode import encode_batch
from liftlog.records.format import MAX_TIMESTAMP_DELTA_US
from liftlog.records.header import BatchHeader, parse_header

MAX_MERGED_RECORDS = 4096
_OVERHEAD_BYTES = 256  # bytes per batch for its header, a few subjects and padding


class BatchMerger:
    """Joins the remaining records of small batches, and writes large batches unchanged.

    Offsets and timestamps of records do not change. Batches of different leader epochs are never
    joined, so the log keeps the offset at which each epoch begins. If all records of an epoch, or
    the first records of a segment, were removed, an empty batch replaces them.
    """

    def __init__(
        self,
        writer: SegmentWriter,
        *,
        target_bytes: int = TARGET_BATCH_BYTES,
        compression: str = "none",
    ) -> None:
        """Make a merger for `writer`. Joined batches get `compression`; other batches stay
        unchanged."""
        self._writer = writer
        self._codec = codec_named(compression)
        self._target_bytes = target_bytes - _OVERHEAD_BYTES
        self.batches_out = 0
        self._first: BatchHeader | None = None  # of the pending batch; its own records may be gone
        self._next_offset = 0
        self._parts: list[Columns] = []
        self._size = 0
        self._count = 0
        self._stamps = (0, 0)

    def add(self, chunk: Chunk) -> None:
        """Add a chunk whose records all stay."""
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
        """Add the remaining records, at least one, of the offset range of `header`.

        Records of one batch stay together. With `divisible` the records come from several batches,
        and may be divided.
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
        """Add the offsets of a batch whose records were all removed."""
        if self._first is not None:
            if self._is_near(header):
                self._next_offset = header.next_offset
                return
            self.flush()
        if not self._writer.extend(header):
            self._first = header
            self._next_offset = header.next_offset

    def flush(self) -> None:
        """Write the pending records."""
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
        """Return True if the pending batch can include the offset range of `header`."""
        first = self._first
        return first is not None and (
            first.leader_epoch == header.leader_epoch
            and header.last_offset - first.base_offset <= MAX_RELATIVE_OFFSET
        )

    def _divide(self, columns: Columns, header: BatchHeader) -> None:
        """Fill one batch after the other. Each batch ends before the first record that does not
        fit."""
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
        """Return how many of these records fit into the pending batch. If no record fits, return
        how many fit into a new batch."""
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
