"""Many small batches as one set of columns.

Publishers that wait for each ack leave batches of a record or two. Decoding these one by one costs
some fifty steps each; here every step is done for all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.column_set import BinaryColumn, Columns, Flags, gather
from liftlog.records.decode import RecordBatch
from liftlog.records.format import (
    ESCAPED_SUBJECTS,
    HEADER_SIZE,
    HEADERS,
    KEYS,
    OFFSET_DELTAS,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
)

Numbers = NDArray[np.int64]


def can_decode_together(one: RecordBatch, other: RecordBatch) -> bool:
    """Whether `decode_many` takes both in one call."""
    return one.header.attributes == other.header.attributes and _is_simple(one)


def _is_simple(batch: RecordBatch) -> bool:
    header = batch.header
    return header.record_count > 0 and not header.attributes & SUBJECT_IDS


def decode_many(batches: Sequence[RecordBatch]) -> Columns:
    """All records of verified batches that follow each other, as `decode_columns` and `concat`
    would give them.

    All have the same attributes, at least one record, and one subject each. Raises CorruptBatch.
    """
    return _Walk(batches).columns()


class _Walk:
    """Goes through the columns of all batches in step. `_at` is where it stands in each."""

    def __init__(self, batches: Sequence[RecordBatch]) -> None:
        self._headers = headers = [batch.header for batch in batches]
        self._attributes = headers[0].attributes
        self._raw = b"".join([batch.raw for batch in batches])
        self._octets = np.frombuffer(self._raw, np.uint8)
        self._words = np.frombuffer(self._raw, np.int32)
        lengths = np.array([len(batch.raw) for batch in batches], np.int64)
        self._limits = np.cumsum(lengths)
        self._at = self._limits - lengths + HEADER_SIZE
        self._counts = np.array([header.record_count for header in headers], np.int64)
        # Of each record: which batch it is in, and the how manieth there.
        self._batch_of = np.repeat(np.arange(len(headers)), self._counts)
        self._place = _places(self._counts)

    def columns(self) -> Columns:
        has = self._attributes
        offsets = self._offsets()
        timestamps = self._column_of([header.base_timestamp_ns for header in self._headers])
        if has & TIMESTAMP_DELTAS:
            timestamps += 1000 * self._numbers()
        subjects, ids = self._subjects()
        keys = self._binary(nullable=True) if has & KEYS else None
        headers = self._binary(nullable=False) if has & HEADERS else None
        values = self._binary(nullable=has & TOMBSTONES != 0)
        if not np.array_equal(self._at, self._limits):
            raise CorruptBatch("the columns do not end where the batch does")
        return Columns(offsets, timestamps, subjects, ids, keys, headers, values)

    def _column_of(self, per_batch: list[int]) -> Numbers:
        found: Numbers = np.array(per_batch, np.int64)[self._batch_of]
        return found

    def _step(self, sizes: NDArray[Any] | int) -> Numbers:
        """Go on by these sizes, padded; returns where that part begins."""
        begin = self._at
        self._at = begin + (sizes + 7 & ~7)
        if np.any(self._at > self._limits):
            raise CorruptBatch("a column reaches past the end of the batch")
        return begin

    def _numbers(self) -> Numbers:
        begin = self._step(4 * self._counts)
        raw = self._words[(begin >> 2)[self._batch_of] + self._place]
        found: Numbers = raw.view(np.uint32).astype(np.int64)
        return found

    def _offsets(self) -> Numbers:
        first = self._column_of([header.base_offset for header in self._headers])
        if not self._attributes & OFFSET_DELTAS:
            return first + self._place
        deltas = self._numbers()
        offsets = first + deltas
        last = self._column_of([header.last_offset_delta for header in self._headers])
        if np.any(deltas > last) or np.any(offsets[1:] <= offsets[:-1]):
            raise CorruptBatch("the offset deltas do not ascend inside the batch")
        return offsets

    def _subjects(self) -> tuple[tuple[tuple[bytes, bool], ...], NDArray[np.uint16] | None]:
        word = self._step(16) >> 2
        sizes = self._words[word + 3].astype(np.int64)
        head_is_right = (self._words[word] == 1) & (self._words[word + 1] == 0)
        if not np.all(head_is_right & (self._words[word + 2] == 0) & (sizes >= 0)):
            raise CorruptBatch("the subject dictionary does not fit the batch")
        escaped = np.zeros(len(sizes), np.bool_)
        if self._attributes & ESCAPED_SUBJECTS:
            escaped = (self._octets[self._step(8)] & 1).view(np.bool_)
        begin = self._step(sizes)
        raw = self._raw
        places = zip(begin.tolist(), (begin + sizes).tolist(), escaped.tolist(), strict=True)
        known: dict[tuple[bytes, bool], int] = {}
        ids = [known.setdefault((raw[a:b], flag), len(known)) for a, b, flag in places]
        if len(known) == 1:
            return tuple(known), None
        return tuple(known), np.array(ids, np.uint16)[self._batch_of]

    def _binary(self, *, nullable: bool) -> BinaryColumn:
        counts = self._counts + 1
        begin = self._step(4 * counts)
        ends = self._words[np.repeat(begin >> 2, counts) + _places(counts)].astype(np.int64)
        lasts = np.cumsum(counts) - 1
        inner = np.ones(len(ends), np.bool_)
        inner[lasts] = False
        starts = ends[inner]
        inner[lasts] = True
        inner[lasts - self._counts] = False
        stops = ends[inner]
        if np.any(ends[lasts - self._counts]) or np.any(stops < starts):
            raise CorruptBatch("the offsets of a column run backwards")
        valid = self._bits() if nullable else None
        data = self._step(ends[lasts])[self._batch_of]
        together = np.zeros(len(starts) + 1, np.int32)
        np.cumsum(stops - starts, out=together[1:])
        return BinaryColumn(
            together, gather(self._octets, data + starts, data + stops, together), valid
        )

    def _bits(self) -> Flags:
        begin = self._step((self._counts + 7) // 8)
        octets = self._octets[begin[self._batch_of] + (self._place >> 3)]
        return (octets >> (self._place & 7).astype(np.uint8) & np.uint8(1)).view(np.bool_)


def _places(counts: Numbers) -> Numbers:
    """0, 1, 2, ... anew for each count."""
    firsts = np.cumsum(counts) - counts
    return np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(firsts, counts)
