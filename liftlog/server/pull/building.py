"""Record batches made for one answer: records of many batches of the log, put together."""

from __future__ import annotations

import numpy as np

from liftlog.protocol.limits import KIB
from liftlog.records.column_set import Columns, Offsets, concat
from liftlog.records.columns import encode_columns
from liftlog.records.format import MAX_TIMESTAMP_DELTA_US
from liftlog.records.header import BatchHeader

_BATCH_BYTES = 256 * KIB
_BATCH_RECORDS = 4096
_OVERHEAD_BYTES = 128  # of a batch: header, padding
_MAX_RANGE = 0xFFFF_FFFF


class AnswerBuilder:
    """Takes records in the order of their offsets, up to `max_bytes` or one record.

    Where records are left out the batches have holes, as after compaction; each reaches to where
    the next one begins.
    """

    def __init__(self, max_bytes: int) -> None:
        self.first_offset: int | None = None  # of the first record
        self.record_count = 0
        self._max_bytes = max_bytes
        self._done: list[bytearray] = []
        self._done_bytes = 0
        self._end = 0  # where the last batch in `_done` ends
        self._parts: list[Columns] = []  # what will be the next batch
        self._size = 0
        self._count = 0
        self._base = 0  # offset of its first record
        self._header: BatchHeader | None = None  # of the batch that this one came from
        self._stamps = (0, 0)  # oldest and newest

    def add(self, records: Columns, header: BatchHeader) -> int:
        """How many of these records were taken; fewer than there are means that it is full."""
        first, count = 0, len(records)
        while first < count:
            rest = records.part(first, count) if first else records
            joining = self._joining(rest, header)
            if joining:
                self._append(rest.part(0, joining), header)
                first += joining
            elif not self._parts:
                return first
            else:
                offset = int(rest.offsets[0])
                self._flush(offset)
                if self._end < offset:
                    return first  # so far away that no batch reaches there
        return count

    def finish(self, end_offset: int) -> int:
        """Let the last batch reach to `end_offset`, or as far as a batch can; returns where."""
        if self._parts:
            self._flush(end_offset)
        return self._end if self._done else end_offset

    def body(self) -> bytes:
        return b"".join(self._done)

    def _joining(self, records: Columns, header: BatchHeader) -> int:
        """How many of these may be added to the batch that waits, or begin one."""
        left = self._max_bytes - self._done_bytes - self._size - _OVERHEAD_BYTES
        sizes = records.sizes()
        count = int(sizes.searchsorted(min(_BATCH_BYTES - self._size, left), "right"))
        base = self._base
        if self._header is None:
            base = int(records.offsets[0])
            # What is larger than a batch should be gets one of its own.
            count = max(count, 1 if sizes[0] <= left or not self._done else 0)
        elif self._header.leader_epoch != header.leader_epoch:
            return 0
        count = min(count, _BATCH_RECORDS - self._count)
        count = int(records.offsets[:count].searchsorted(base + _MAX_RANGE))
        return self._with_fitting_stamps(records.timestamps_ns[:count])

    def _with_fitting_stamps(self, timestamps_ns: Offsets) -> int:
        """How many of these stamps can be written exactly in one batch with those that wait."""
        if not len(timestamps_ns):
            return 0
        oldest, newest = self._stamps if self._parts else (int(timestamps_ns[0]),) * 2
        since = timestamps_ns - oldest
        lowest = np.minimum(np.minimum.accumulate(since), 0)
        highest = np.maximum(np.maximum.accumulate(since), newest - oldest)
        fits = (since % 1000 == 0) & (highest - lowest <= 1000 * MAX_TIMESTAMP_DELTA_US)
        return len(fits) if fits.all() else int(fits.argmin())

    def _append(self, records: Columns, header: BatchHeader) -> None:
        if self._header is None:
            self._header = header
            self._base = int(records.offsets[0])
            if self.first_offset is None:
                self.first_offset = self._base
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
        self._end = min(end_offset, self._base + _MAX_RANGE)
        encoded = encode_columns(
            concat(self._parts),
            base_offset=self._base,
            last_offset=self._end - 1,
            leader_epoch=self._header.leader_epoch,
            commit_group=self._header.commit_group,
        )
        self._done.append(encoded)
        self._done_bytes += len(encoded)
        self._header = None
        self._parts, self._size, self._count = [], 0, 0


def _subjects_size(records: Columns) -> int:
    """Of the entries of the dictionary that these records need."""
    if records.subject_ids is None:
        return len(records.subjects[0][0]) if records.subjects else 0
    used = np.bincount(records.subject_ids, minlength=len(records.subjects))
    return sum([len(records.subjects[i][0]) for i in np.flatnonzero(used).tolist()])
