"""A record batch as numpy columns, for those who work on whole batches: compaction, exports.

`decode_columns` gives views into the batch; nothing is copied but what has to be widened.
`encode_columns` is its inverse. No step runs per record in Python. This needs numpy, as do
column_set.py, many.py, positions.py, selection.py and the two for Arrow; nothing else in the
package imports them before it is asked to, so a client does not need it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.column_set import (
    BinaryColumn,
    Columns,
    Flags,
    KeyedRecords,
    Offsets,
)
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
    numbers,
    timestamps_position,
)

_HEADER_PLACE = bytes(HEADER_SIZE)


# --- bytes to columns ---


def decode_columns(batch: RecordBatch) -> Columns:
    """All records of a verified batch (trimming it does not matter here).

    The arrays are views into the batch's buffer where they can be, so they must not be written
    to. Raises CorruptBatch when the columns contradict the header or each other.
    """
    view, header = batch.raw, batch.header
    count = header.record_count
    dictionary = find_dictionary(view, header)
    found = find_columns(view, header, dictionary)
    ids = None
    if header.attributes & SUBJECT_IDS:
        ids = np.frombuffer(view, np.uint16, count, dictionary.end)
        if count and int(ids.max()) >= len(dictionary.ends) - 1:
            raise CorruptBatch("a subject id points outside the dictionary")
    return Columns(
        offsets_of(view, header),
        timestamps_of(view, header),
        _subject_entries(view, dictionary),
        ids,
        _binary_column(view, found[KEYS], count) if KEYS in found else None,
        _binary_column(view, found[HEADERS], count) if HEADERS in found else None,
        _binary_column(view, found[TOMBSTONES], count),
    )


def decode_keys(batch: RecordBatch) -> KeyedRecords | None:
    """The keys of a verified batch, for half the price of all columns; None if it has none."""
    view, header = batch.raw, batch.header
    if not header.attributes & KEYS or not header.record_count:
        return None
    count = header.record_count
    found = find_columns(view, header)
    bitmap = found[TOMBSTONES].bitmap
    return KeyedRecords(
        offsets_of(view, header),
        _binary_column(view, found[KEYS], count),
        None if bitmap is None else _flags(bitmap, count),
    )


def _flags(bitmap: memoryview, count: int) -> Flags:
    raw = np.frombuffer(bitmap, np.uint8)
    return np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)


def offsets_of(view: memoryview, header: BatchHeader) -> Offsets:
    """Of all records. Raises CorruptBatch."""
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


def timestamps_of(view: memoryview, header: BatchHeader) -> Offsets:
    """Of all records, in nanoseconds. Raises CorruptBatch."""
    count = header.record_count
    if not header.attributes & TIMESTAMP_DELTAS:
        return np.full(count, header.base_timestamp_ns, np.int64)
    deltas: NDArray[np.uint32] = np.asarray(numbers(view, timestamps_position(header), count, "I"))
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


def _append_numbers(parts: list[Any], items: NDArray[Any]) -> None:
    parts.append(np.ascontiguousarray(items).data)
    parts.append(padding_for(items.nbytes))
