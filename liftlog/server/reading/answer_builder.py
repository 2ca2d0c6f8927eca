"""Builds the batches of an answer from records that were found in the log."""

from __future__ import annotations

import numpy as np

from liftlog.protocol.limits import KIB
from liftlog.records.columns.batch_columns import can_share_batch, encode_columns
from liftlog.records.columns.column_set import Columns, Offsets, concat
from liftlog.records.encode import extend_batch
from liftlog.records.format import MAX_TIMESTAMP_DELTA_US
from liftlog.records.header import BatchHeader
from liftlog.server.reading.pieces import Stamps

BATCH_BYTES = 512 * KIB

_ENOUGH_BYTES = 64 * KIB  # a batch of at least this size is not joined, which saves the copy
_OVERHEAD_BYTES = 128  # header and padding of a batch
_MAX_RANGE = 0xFFFF_FFFF


class AnswerBuilder:
    """Encodes records into batches of at most `max_bytes` in total. If the first record is larger,
    the answer has only this record. The records arrive in the order of their offsets.

    Each batch extends to the beginning of the next batch. If records are left out between two
    batches, the first batch has a hole at its end, as after compaction.
    """

    def __init__(self, max_bytes: int, most_records: int) -> None:
        self.first_offset: int | None = None  # of the first record
        self.record_count = 0
        self._max_bytes = max_bytes
        self._most_records = most_records
        self._done: list[bytearray] = []
        self._done_bytes = 0
        self._last_base = 0  # base offset of the last batch in `_done`
        self._end = 0  # end of the last batch in `_done`
        self._parts: list[Columns] = []  # records for the next batch
        self._size = 0
        self._count = 0
        self._base = 0  # offset of the first record in `_parts`
        self._header: BatchHeader | None = None  # header of the batch that held this record
        self._stamps = (0, 0)  # oldest and newest timestamp, or bounds of them

    def add(self, records: Columns, header: BatchHeader, stamps: Stamps | None = None) -> int:
        """Add as many of the records as the answer can hold. Returns the number of added records.
        `stamps` are bounds of the timestamps; they are given if all timestamps fit into one
        batch."""
        first, count = 0, len(records)
        while first < count:
            # Only as many records as fit, because encoding all remaining records at each step would
            # become slower with each step.
            end = min(first + self._most_records, count)
            rest = records.part(first, end) if end - first < count else records
            joining = self._joining(rest, header, stamps)
            if joining:
                self._append(rest.part(0, joining), header, stamps)
                first += joining
            elif not self._parts:
                return first
            else:
                offset = int(rest.offsets[0])
                self._flush(offset)
                if self._end < offset:
                    return first  # no batch reaches that far
        return count

    def add_batch(self, made: bytearray, header: BatchHeader) -> bool:
        """Add an encoded batch with the range of `header`; return False if the answer is full."""
        if self._parts:
            self._flush(header.base_offset)
        if not self._reaches(header.base_offset) or (
            self._done and self._done_bytes + len(made) > self._max_bytes
        ):
            return False
        if self.first_offset is None:
            self.first_offset = header.base_offset
        self.record_count += header.record_count
        self._keep(made, header.base_offset, header.next_offset)
        return True

    @property
    def size_bytes(self) -> int:
        """Approximate size of the answer so far."""
        return self._done_bytes + self._size

    def finish(self, end_offset: int) -> int:
        """Extend the last batch to `end_offset`, or as far as a batch can reach; return its end."""
        if self._parts:
            self._flush(end_offset)
        self._reaches(end_offset)
        return self._end if self._done else end_offset

    def batches(self) -> tuple[bytearray, ...]:
        return tuple(self._done)

    def _joining(self, records: Columns, header: BatchHeader, stamps: Stamps | None) -> int:
        """Return the number of these records that can join the current batch, or that can begin
        one."""
        left = self._max_bytes - self._done_bytes - self._size - _OVERHEAD_BYTES
        room, base, count = min(BATCH_BYTES - self._size, left), self._base, len(records)
        if self._header is not None:
            if self._header.leader_epoch != header.leader_epoch or self._size >= _ENOUGH_BYTES:
                return 0
            if count > self._most_records - self._count or records.size_bytes > room:
                count = min(int(records.sizes().searchsorted(room, "right")),
                            self._most_records - self._count)  # fmt: skip
        else:
            base = int(records.offsets[0])
            if count > self._most_records or records.size_bytes > room:
                sizes = records.sizes()
                # A record that is larger than the usual batch gets its own batch.
                least = 1 if sizes[0] <= left or not self._done else 0
                count = min(max(int(sizes.searchsorted(room, "right")), least), self._most_records)
            if not self._reaches(base):
                return 0
        if count and records.offsets[count - 1] >= base + _MAX_RANGE:
            count = int(records.offsets[:count].searchsorted(base + _MAX_RANGE))
        if stamps is not None and (not self._parts or can_share_batch(self._stamps, stamps)):
            return count
        return self._with_fitting_stamps(records.timestamps_ns[:count])

    def _with_fitting_stamps(self, timestamps_ns: Offsets) -> int:
        """Return the number of these timestamps that fit, without loss, into one batch with the
        timestamps of the current batch."""
        if not len(timestamps_ns):
            return 0
        oldest, newest = self._stamps if self._parts else (int(timestamps_ns[0]),) * 2
        since = timestamps_ns - oldest
        lowest = np.minimum(np.minimum.accumulate(since), 0)
        highest = np.maximum(np.maximum.accumulate(since), newest - oldest)
        fits = (since % 1000 == 0) & (highest - lowest <= 1000 * MAX_TIMESTAMP_DELTA_US)
        return len(fits) if fits.all() else int(fits.argmin())

    def _append(self, records: Columns, header: BatchHeader, stamps: Stamps | None) -> None:
        if self._header is None:
            self._header = header
            self._base = int(records.offsets[0])
            if self.first_offset is None:
                self.first_offset = self._base
        if stamps is None:
            stamps = int(records.timestamps_ns.min()), int(records.timestamps_ns.max())
        if self._parts:
            stamps = min(stamps[0], self._stamps[0]), max(stamps[1], self._stamps[1])
        self._stamps = stamps
        self._parts.append(records)
        self._size += records.size_bytes + _subjects_size(records)
        self._count += len(records)
        self.record_count += len(records)

    def _flush(self, end_offset: int) -> None:
        assert self._header is not None
        end = min(end_offset, self._base + _MAX_RANGE)
        encoded = encode_columns(
            concat(self._parts),
            base_offset=self._base,
            last_offset=end - 1,
            leader_epoch=self._header.leader_epoch,
            commit_group=self._header.commit_group,
        )
        self._keep(encoded, self._base, end)
        self._header = None
        self._parts, self._size, self._count = [], 0, 0

    def _keep(self, encoded: bytearray, base_offset: int, end: int) -> None:
        self._done.append(encoded)
        self._done_bytes += len(encoded)
        self._last_base, self._end = base_offset, end

    def _reaches(self, offset: int) -> bool:
        """Extend the last finished batch to `offset`; return False if no batch can reach that
        far."""
        if self._done and self._end < offset:
            self._end = min(offset, self._last_base + _MAX_RANGE)
            extend_batch(self._done[-1], self._end - 1)
        return not self._done or self._end >= offset


def _subjects_size(records: Columns) -> int:
    """Return an upper bound of the size of the dictionary entries that these records need."""
    if records.subject_ids is None:
        return len(records.subjects[0][0]) if records.subjects else 0
    if len(records.subjects) <= len(records):
        return sum([len(name) for name, _ in records.subjects])
    used = np.bincount(records.subject_ids, minlength=len(records.subjects))
    return sum([len(records.subjects[i][0]) for i in np.flatnonzero(used).tolist()])
