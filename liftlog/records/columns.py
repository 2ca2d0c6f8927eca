"""A record batch as numpy columns, for those who work on whole batches: compaction, exports.

`decode_columns` gives views into the batch; nothing is copied but what has to be widened.
`encode_columns` is its inverse. No step runs per record in Python. numpy is imported here and
nowhere else in this package, so that a client does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.decode import RecordBatch
from liftlog.records.encode import fill_header
from liftlog.records.format import (
    ESCAPED_SUBJECTS,
    HEADER_SIZE,
    HEADERS,
    KEYS,
    MAX_BATCH_LENGTH,
    MAX_BATCH_RECORDS,
    MAX_TIMESTAMP_DELTA_US,
    OFFSET_DELTAS,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
    padding_for,
)
from liftlog.records.header import BatchHeader
from liftlog.records.layout import (
    Binary,
    Dictionary,
    bits,
    find_columns,
    find_dictionary,
    timestamps_position,
)

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Offsets = NDArray[np.int64]

_HEADER_PLACE = bytes(HEADER_SIZE)
_JOIN_FROM_BYTES = 48
"""Stretches of this mean length are cut and joined; shorter ones are gathered byte by byte."""


@dataclass(frozen=True, slots=True, eq=False)
class BinaryColumn:
    """Item i is `data[ends[i]:ends[i + 1]]`; it is null where `valid` is False.

    `ends` need not begin with 0. `valid` None: no item is null.
    """

    ends: NDArray[np.int32]
    data: Bytes
    valid: Flags | None

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def size_bytes(self) -> int:
        return int(self.ends[-1]) - int(self.ends[0])

    def content(self) -> Bytes:
        """The bytes of all items, one after another."""
        return self.data[self.ends[0] : self.ends[-1]]

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
        """The items [first, end); a view."""
        valid = None if self.valid is None else self.valid[first:end]
        return BinaryColumn(self.ends[first : end + 1], self.data, valid)


def gather(
    data: Bytes, starts: NDArray[Any], stops: NDArray[Any], ends: NDArray[np.int32]
) -> Bytes:
    """The stretches [start, stop) of `data` one after another; `ends` is where each will end."""
    total = int(ends[-1])
    if not total:
        return data[:0]
    # Neighbours are one stretch of bytes.
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

    `subjects` are the entries of the dictionary as they are stored, each with its flag "escaped";
    `subject_ids` None: all records have the first one. `keys` and `headers` None: no record has
    any. `values.valid` is False for tombstones.
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
        """How long the records will be when encoded, at most; header and subjects left out."""
        return self._fixed_bytes * len(self.offsets) + sum(
            [column.size_bytes for column in self._binary_columns]
        )

    @property
    def _binary_columns(self) -> list[BinaryColumn]:
        return [column for column in (self.keys, self.headers, self.values) if column is not None]

    @property
    def _fixed_bytes(self) -> int:
        """Of each record: its deltas, subject id and, in each other column, an end and a bit."""
        return 8 + (2 if self.subject_ids is not None else 0) + 5 * len(self._binary_columns)

    def take(self, mask: Flags) -> Columns:
        """The records where `mask` is True. Copies what it takes."""
        chosen = np.flatnonzero(mask)
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
        """The records [first, end) by their place; views."""
        return Columns(
            self.offsets[first:end],
            self.timestamps_ns[first:end],
            self.subjects,
            None if self.subject_ids is None else self.subject_ids[first:end],
            None if self.keys is None else self.keys.part(first, end),
            None if self.headers is None else self.headers.part(first, end),
            self.values.part(first, end),
        )

    def sizes(self) -> Offsets:
        """`size_bytes` of the first record, of the first two, and so on."""
        total = np.arange(1, len(self) + 1, dtype=np.int64) * self._fixed_bytes
        for column in self._binary_columns:
            total += column.ends[1:] - np.int64(column.ends[0])
        return total


# --- bytes to columns ---


def decode_columns(batch: RecordBatch) -> Columns:
    """All records of a verified batch (trimming it does not matter here).

    The arrays are views into the batch's buffer where they can be, so they must not be written
    to. Raises CorruptBatch when the columns contradict the header or each other.
    """
    view, header = batch.raw, batch.header
    count = header.record_count
    dictionary = find_dictionary(view, header)
    found = find_columns(view, header)
    ids = None
    if header.attributes & SUBJECT_IDS:
        ids = np.frombuffer(view, np.uint16, count, dictionary.end)
        if count and int(ids.max()) >= len(dictionary.ends) - 1:
            raise CorruptBatch("a subject id points outside the dictionary")
    return Columns(
        _offsets(view, header),
        _timestamps(view, header),
        _subject_entries(view, dictionary),
        ids,
        _binary_column(view, found[KEYS], count) if KEYS in found else None,
        _binary_column(view, found[HEADERS], count) if HEADERS in found else None,
        _binary_column(view, found[TOMBSTONES], count),
    )


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRecords:
    """What of a batch decides which of its records are superseded. `has_value` None: all have."""

    offsets: Offsets
    keys: BinaryColumn
    has_value: Flags | None

    def __len__(self) -> int:
        return len(self.offsets)


def decode_keys(batch: RecordBatch) -> KeyedRecords | None:
    """The keys of a verified batch, for half the price of all columns; None if it has none."""
    view, header = batch.raw, batch.header
    if not header.attributes & KEYS or not header.record_count:
        return None
    count = header.record_count
    found = find_columns(view, header)
    bitmap = found[TOMBSTONES].bitmap
    return KeyedRecords(
        _offsets(view, header),
        _binary_column(view, found[KEYS], count),
        None if bitmap is None else _flags(bitmap, count),
    )


def _flags(bitmap: memoryview, count: int) -> Flags:
    raw = np.frombuffer(bitmap, np.uint8)
    return np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)


def _offsets(view: memoryview, header: BatchHeader) -> Offsets:
    count = header.record_count
    if not header.attributes & OFFSET_DELTAS:
        return np.arange(header.base_offset, header.base_offset + count, dtype=np.int64)
    deltas = np.frombuffer(view, np.uint32, count, HEADER_SIZE)
    if count and not (
        int(deltas[-1]) <= header.last_offset_delta and np.all(deltas[1:] > deltas[:-1])
    ):
        raise CorruptBatch("the offset deltas do not ascend inside the batch")
    return deltas + np.int64(header.base_offset)


def _timestamps(view: memoryview, header: BatchHeader) -> Offsets:
    count = header.record_count
    if not header.attributes & TIMESTAMP_DELTAS:
        return np.full(count, header.base_timestamp_ns, np.int64)
    deltas = np.frombuffer(view, np.uint32, count, timestamps_position(header))
    return deltas.astype(np.int64) * 1000 + header.base_timestamp_ns


def _subject_entries(view: memoryview, dictionary: Dictionary) -> tuple[tuple[bytes, bool], ...]:
    ends, data = dictionary.ends, dictionary.data
    names = [bytes(view[data + a : data + b]) for a, b in pairwise(ends)]
    if dictionary.escapes is None:
        return tuple([(name, False) for name in names])
    return tuple(zip(names, bits(dictionary.escapes, len(names)), strict=True))


def _binary_column(view: memoryview, found: Binary, count: int) -> BinaryColumn:
    ends = np.asarray(found.ends)
    if not np.all(ends[1:] >= ends[:-1]):
        raise CorruptBatch("the offsets of a column run backwards")
    valid = None if found.bitmap is None else _flags(found.bitmap, count)
    return BinaryColumn(ends, np.frombuffer(view, np.uint8, int(ends[-1]), found.data), valid)


# --- columns to columns ---


def concat(parts: Sequence[Columns]) -> Columns:
    """One set of columns with the records of all, in the order given; at least one part."""
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
    """One column with the items of all; at least one."""
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


# --- columns to bytes ---


def encode_columns(
    columns: Columns, *, base_offset: int, last_offset: int, leader_epoch: int, commit_group: int
) -> bytearray:
    """One batch that stands for [base_offset, last_offset] and holds these records.

    Columns that say nothing (no key, no header, no tombstone, no hole, equal stamps) are left
    out, and so are subjects that no record has. Raises ValueError when the records do not fit
    one batch; `can_share_batch` tells for stamps.
    """
    count = len(columns)
    if count > MAX_BATCH_RECORDS:
        raise ValueError(f"{count} records are more than a batch can hold")
    if last_offset < base_offset or last_offset - base_offset > 0xFFFF_FFFF:
        raise ValueError(f"a batch cannot stand for [{base_offset}, {last_offset}]")
    parts: list[Any] = [_HEADER_PLACE]
    attributes = _append_offsets(parts, columns.offsets, base_offset, last_offset)
    base_ns = max_ns = 0
    if count:
        base_ns, max_ns = int(columns.timestamps_ns.min()), int(columns.timestamps_ns.max())
    if base_ns != max_ns:
        attributes |= TIMESTAMP_DELTAS
        _append_timestamps(parts, columns.timestamps_ns, base_ns, max_ns)
    attributes |= _append_subjects(parts, columns)
    keys, headers, values = columns.keys, columns.headers, columns.values
    if keys is not None and (keys.valid is None or keys.valid.any()):
        attributes |= KEYS
        _append_binary(parts, keys, np.ones(count, np.bool_) if keys.valid is None else keys.valid)
    if headers is not None and headers.size_bytes:
        attributes |= HEADERS
        _append_binary(parts, headers, None)
    has_tombstones = values.valid is not None and not values.valid.all()
    if has_tombstones:
        attributes |= TOMBSTONES
    _append_binary(parts, values, values.valid if has_tombstones else None)
    batch = bytearray().join(parts)
    if len(batch) > MAX_BATCH_LENGTH:
        raise ValueError(f"{len(batch)} bytes are more than a batch can hold")
    fill_header(
        batch,
        base_offset=base_offset,
        last_offset_delta=last_offset - base_offset,
        record_count=count,
        base_timestamp_ns=base_ns,
        max_timestamp_ns=max_ns,
        leader_epoch=leader_epoch,
        attributes=attributes,
        commit_group=commit_group,
    )
    return batch


def can_share_batch(some: tuple[int, int], others: tuple[int, int]) -> bool:
    """Whether records of two batches fit into one with no stamp changed; of both the oldest and
    the newest stamp is given.

    A batch stores microseconds since its oldest stamp, in 32 bits.
    """
    span = max(some[1], others[1]) - min(some[0], others[0])
    return (others[0] - some[0]) % 1000 == 0 and span // 1000 <= MAX_TIMESTAMP_DELTA_US


def _append_offsets(parts: list[Any], offsets: Offsets, base_offset: int, last_offset: int) -> int:
    count = len(offsets)
    if not count:
        return 0
    first, last = int(offsets[0]), int(offsets[-1])
    if first < base_offset or last > last_offset or not np.all(offsets[1:] > offsets[:-1]):
        raise ValueError("the offsets do not ascend inside the batch")
    if first == base_offset and last - first == count - 1:
        return 0  # at most the end of the range is empty, and the header says so
    _append_numbers(parts, (offsets - base_offset).astype(np.uint32))
    return OFFSET_DELTAS


def _append_timestamps(parts: list[Any], timestamps_ns: Offsets, base_ns: int, max_ns: int) -> None:
    since = timestamps_ns - base_ns
    deltas = since // 1000
    if (max_ns - base_ns) // 1000 > MAX_TIMESTAMP_DELTA_US or not np.array_equal(
        deltas * 1000, since
    ):
        raise ValueError("the stamps do not fit one batch")
    _append_numbers(parts, deltas.astype(np.uint32))


def _append_subjects(parts: list[Any], columns: Columns) -> int:
    entries, ids = columns.subjects, columns.subject_ids
    if not len(columns):
        entries, ids = (), None
    elif ids is None:
        entries = entries[:1]
    else:
        used = np.bincount(ids, minlength=len(entries)) > 0
        if not used.all():
            places = np.cumsum(used, dtype=np.uint16) - np.uint16(1)
            ids = places[ids]
            entries = tuple([entries[i] for i in np.flatnonzero(used).tolist()])
    attributes = 0
    parts.append(len(entries).to_bytes(8, "little"))
    names = [name for name, _ in entries]
    ends = np.zeros(len(names) + 1, np.int32)
    np.cumsum([len(name) for name in names], out=ends[1:])
    _append_numbers(parts, ends)
    escaped = [flag for _, flag in entries]
    if any(escaped):
        attributes |= ESCAPED_SUBJECTS
        _append_numbers(parts, np.packbits(escaped, bitorder="little"))
    parts += names
    parts.append(padding_for(int(ends[-1])))
    if len(entries) > 1:
        assert ids is not None
        attributes |= SUBJECT_IDS
        _append_numbers(parts, ids)
    return attributes


def _append_binary(parts: list[Any], column: BinaryColumn, valid: Flags | None) -> None:
    ends = column.ends if not column.ends[0] else column.ends - column.ends[0]
    _append_numbers(parts, ends)
    if valid is not None:
        _append_numbers(parts, np.packbits(valid, bitorder="little"))
    _append_numbers(parts, column.content())


def _append_numbers(parts: list[Any], numbers: NDArray[Any]) -> None:
    parts.append(np.ascontiguousarray(numbers).data)
    parts.append(padding_for(numbers.nbytes))
