"""Records as numpy columns: defines them, selects some records, joins several sets.

No Python code runs per record. batch_columns.py decodes batches to columns and encodes columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.format import HEADER_SIZE, OFFSET_DELTAS, TIMESTAMP_DELTAS
from liftlog.records.header import BatchHeader
from liftlog.records.layout import Layout, numbers

NO_SUBJECT = ((b"", False),)
"""The subjects of records whose subject was not requested."""

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Offsets = NDArray[np.int64]

_JOIN_FROM_BYTES = 48
"""Byte ranges of at least this average length are sliced and joined. For shorter ranges, each byte
is gathered by its index."""

_MANY_SUBJECTS = 64
_SUBJECTS_PER_RECORD = 16


@dataclass(frozen=True, slots=True, eq=False)
class BinaryColumn:
    """A column whose item i is `data[ends[i]:ends[i + 1]]`. It is null where `valid` is False.

    `ends` need not begin with 0. If `valid` is None, no item is null.
    """

    ends: NDArray[np.int32]
    data: Bytes
    valid: Flags | None

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def size_bytes(self) -> int:
        return int(self.ends[-1]) - int(self.ends[0])

    @property
    def starts(self) -> NDArray[np.int32]:
        return self.ends[:-1]

    @property
    def stops(self) -> NDArray[np.int32]:
        return self.ends[1:]

    def content(self) -> Bytes:
        """Return the bytes of all items, one after another."""
        return self.data[self.ends[0] : self.ends[-1]]

    def items(self) -> list[bytes]:
        """Return one bytes object per item, an empty one for a null item."""
        raw, first = self.content().tobytes(), int(self.ends[0])
        return [raw[a:b] for a, b in pairwise((self.ends - first).tolist())]

    def take(self, chosen: NDArray[np.intp]) -> BinaryColumn:
        starts, stops = self.ends[:-1][chosen], self.ends[1:][chosen]
        ends = np.zeros(len(chosen) + 1, np.int32)
        np.cumsum(stops - starts, out=ends[1:])
        valid = None if self.valid is None else self.valid[chosen]
        return BinaryColumn(ends, self._gather(chosen, starts, stops, ends), valid)

    def _gather(
        self,
        chosen: NDArray[np.intp],
        starts: NDArray[np.int32],
        stops: NDArray[np.int32],
        ends: NDArray[np.int32],
    ) -> Bytes:
        total, count = int(ends[-1]), len(self)
        if not total:
            return self.data[:0]
        length = self.size_bytes // count
        if self.size_bytes == length * count and np.all(np.diff(self.ends) == length):
            rows: Bytes = self.content().reshape(count, length)[chosen].reshape(total)
            return rows
        return gather(self.data, starts, stops, ends)

    def part(self, first: int, end: int) -> BinaryColumn:
        """Return the items [first, end), as a view."""
        valid = None if self.valid is None else self.valid[first:end]
        return BinaryColumn(self.ends[first : end + 1], self.data, valid)


def gather(
    data: Bytes, starts: NDArray[Any], stops: NDArray[Any], ends: NDArray[np.int32]
) -> Bytes:
    """Join the ranges [start, stop) of `data`; `ends` are the ends of the ranges in the result."""
    total = int(ends[-1])
    if not total:
        return data[:0]
    # Adjacent items form one range of bytes.
    is_first = np.empty(len(starts), np.bool_)
    is_first[0] = True
    np.not_equal(starts[1:], stops[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    if total >= _JOIN_FROM_BYTES * len(firsts):
        lasts = np.append(firsts[1:], len(starts)) - 1
        view = data.data
        pairs = zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True)
        return np.frombuffer(b"".join([view[a:b] for a, b in pairs]), np.uint8)
    positions = np.arange(total, dtype=np.int64)
    positions += np.repeat(starts - ends[:-1], stops - starts)
    return data[positions]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The records of a batch, or of several, by column; all columns have the same length.

    `subjects` are the stored entries of the subject dictionary, each with its flag "escaped". If
    `subject_ids` is None, all records have the first subject. If `keys` or `headers` is None, no
    record has a key or a header. `values.valid` is False for tombstones.
    """

    offsets: Offsets
    timestamps_ns: Offsets
    subjects: tuple[tuple[bytes, bool], ...]
    subject_ids: NDArray[np.uint16] | None
    keys: BinaryColumn | None
    headers: BinaryColumn | None
    values: BinaryColumn

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        """Return an upper bound of the encoded size of the records, without header and subjects."""
        return self._fixed_bytes * len(self.offsets) + sum(
            [column.size_bytes for column in self._binary_columns]
        )

    @property
    def _binary_columns(self) -> list[BinaryColumn]:
        return [column for column in (self.keys, self.headers, self.values) if column is not None]

    @property
    def _fixed_bytes(self) -> int:
        """Return the number of bytes per record that do not depend on its content: deltas, a
        subject id and, for each other column, an end and a bit."""
        return 8 + (2 if self.subject_ids is not None else 0) + 5 * len(self._binary_columns)

    def take(self, mask: Flags) -> Columns:
        """Return a copy of the records where `mask` is True."""
        return self.at(np.flatnonzero(mask))

    def at(self, chosen: NDArray[np.intp]) -> Columns:
        """Return a copy of the records with these numbers, in this order."""
        return Columns(
            self.offsets[chosen],
            self.timestamps_ns[chosen],
            self.subjects,
            None if self.subject_ids is None else self.subject_ids[chosen],
            None if self.keys is None else self.keys.take(chosen),
            None if self.headers is None else self.headers.take(chosen),
            self.values.take(chosen),
        )

    def part(self, first: int, end: int) -> Columns:
        """Return views of the records [first, end), counted from the first of these columns."""
        return Columns(
            self.offsets[first:end],
            self.timestamps_ns[first:end],
            self.subjects,
            None if self.subject_ids is None else self.subject_ids[first:end],
            None if self.keys is None else self.keys.part(first, end),
            None if self.headers is None else self.headers.part(first, end),
            self.values.part(first, end),
        )

    def with_own_subjects(self) -> Columns:
        """Return the same records. If `subjects` has many entries, drops the entries that no record
        has. So a step per subject never takes longer than a step per record."""
        if self.subject_ids is None or len(self.subjects) <= _MANY_SUBJECTS:
            return self
        if len(self.subjects) <= _SUBJECTS_PER_RECORD * len(self):
            # A step for each subject is cheaper than sorting the records.
            flags = np.zeros(len(self.subjects), np.bool_)
            flags[self.subject_ids] = True
            used = np.flatnonzero(flags)
            places = np.empty(len(flags), np.uint16)
            places[used] = np.arange(len(used), dtype=np.uint16)
            ids = places.take(self.subject_ids)
        else:
            used, inverse = np.unique(self.subject_ids, return_inverse=True)
            ids = inverse.astype(np.uint16)
        subjects = tuple(map(self.subjects.__getitem__, used.tolist()))
        return replace(self, subjects=subjects, subject_ids=ids)

    def sizes(self) -> Offsets:
        """Return `size_bytes` of the first record, of the first two, and so on."""
        total = np.arange(1, len(self) + 1, dtype=np.int64) * self._fixed_bytes
        for column in self._binary_columns:
            total += column.ends[1:] - np.int64(column.ends[0])
        return total


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRecords:
    """The columns that show which records are superseded. If `has_value` is None, all records have
    a value."""

    offsets: Offsets
    keys: BinaryColumn
    has_value: Flags | None

    def __len__(self) -> int:
        return len(self.offsets)


def without(records: Columns, gone: Offsets) -> Columns:
    """Return the records that are not at the offsets `gone`, which has at least one offset. Both
    `gone` and the offsets of the records ascend."""
    keep = gone.take(gone.searchsorted(records.offsets), mode="clip") != records.offsets
    return records if keep.all() else records.take(keep)


# --- the columns of numbers, from a batch ---


def offsets_of(view: memoryview, header: BatchHeader) -> Offsets:
    """Return the offsets of all records of a batch. Raises CorruptBatch."""
    count = header.record_count
    if header.last_offset >> 63:
        raise CorruptBatch("offsets beyond 63 bits")
    if not header.attributes & OFFSET_DELTAS:
        return np.arange(header.base_offset, header.base_offset + count, dtype=np.int64)
    deltas: NDArray[np.uint32] = np.asarray(numbers(view, HEADER_SIZE, count, "I"))
    if count and not (
        int(deltas[-1]) <= header.last_offset_delta and np.all(deltas[1:] > deltas[:-1])
    ):
        raise CorruptBatch("the offset deltas do not ascend inside the batch")
    return deltas + np.int64(header.base_offset)


def timestamps_of(view: memoryview, header: BatchHeader, layout: Layout[int]) -> Offsets:
    """Return the timestamps of all records of a batch, in nanoseconds. Raises CorruptBatch."""
    count = header.record_count
    if not header.attributes & TIMESTAMP_DELTAS:
        return np.full(count, header.base_timestamp_ns, np.int64)
    deltas: NDArray[np.uint32] = np.asarray(numbers(view, layout.time_deltas, count, "I"))
    return deltas.astype(np.int64) * 1000 + header.base_timestamp_ns


# --- joining ---


def concat(parts: Sequence[Columns]) -> Columns:
    """Join the records of all parts, in their order; needs at least one part."""
    if len(parts) == 1:
        return parts[0]
    subjects, ids = _concat_subjects(parts)
    return Columns(
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.timestamps_ns for part in parts]),
        subjects,
        ids,
        _concat_optional(parts, [part.keys for part in parts], absent_is_null=True),
        _concat_optional(parts, [part.headers for part in parts], absent_is_null=False),
        concat_binary([part.values for part in parts]),
    )


def _concat_subjects(
    parts: Sequence[Columns],
) -> tuple[tuple[tuple[bytes, bool], ...], NDArray[np.uint16] | None]:
    first = parts[0].subjects
    if len(first) == 1 and all(part.subjects == first for part in parts):
        return first, None
    known: dict[tuple[bytes, bool], int] = {}
    ids = []
    for part in parts:
        places = [known.setdefault(entry, len(known)) for entry in part.subjects]
        if part.subject_ids is None:
            ids.append(np.full(len(part), places[0] if places else 0, np.uint16))
        elif places == list(range(len(places))):
            ids.append(part.subject_ids)
        else:
            ids.append(np.asarray(places, np.uint16)[part.subject_ids])
    return tuple(known), np.concatenate(ids)


def _concat_optional(
    parts: Sequence[Columns], columns: Sequence[BinaryColumn | None], *, absent_is_null: bool
) -> BinaryColumn | None:
    if all(column is None for column in columns):
        return None
    filled = [
        _nothing(len(part), absent_is_null) if column is None else column
        for part, column in zip(parts, columns, strict=True)
    ]
    return concat_binary(filled)


def _nothing(count: int, null: bool) -> BinaryColumn:
    valid = np.zeros(count, np.bool_) if null else None
    return BinaryColumn(np.zeros(count + 1, np.int32), np.empty(0, np.uint8), valid)


def concat_binary(columns: Sequence[BinaryColumn]) -> BinaryColumn:
    """Join the items of all columns; needs at least one column."""
    if len(columns) == 1:
        return columns[0]
    ends = [np.zeros(1, np.int32)]
    end = 0
    for column in columns:
        ends.append(column.ends[1:] + np.int32(end - int(column.ends[0])))
        end += column.size_bytes
    valid = None
    if any(column.valid is not None for column in columns):
        valid = np.concatenate(
            [
                np.ones(len(column), np.bool_) if column.valid is None else column.valid
                for column in columns
            ]
        )
    data = np.concatenate([column.content() for column in columns])
    return BinaryColumn(np.concatenate(ends), data, valid)
