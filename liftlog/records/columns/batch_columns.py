"""Converts record batches to numpy columns and back, for compaction, exports and other bulk work.

`decode_columns` returns views into the batch and copies only numbers that it has to widen.
`encode_columns` is its inverse. No Python code runs per record. All modules of this folder need
numpy. The other modules of the package import them only on demand, so a client does not need numpy.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.codecs import codec_of, compress_batch
from liftlog.records.columns.column_set import (
    BinaryColumn,
    Columns,
    Flags,
    KeyedRecords,
    Offsets,
    offsets_of,
    timestamps_of,
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
from liftlog.records.layout import Binary, bitmap_of, ends_of

_HEADER_PLACE = bytes(HEADER_SIZE)


# --- bytes to columns ---


def decode_columns(batch: RecordBatch) -> Columns:
    """Return all records of a verified batch, including those that a trim has hidden.

    The arrays are views into the batch's buffer where possible, so callers must not write to them.
    Raises CorruptBatch if the columns contradict the header or each other.
    """
    view, header, layout = batch.raw, batch.header, batch._layout
    count, attributes = header.record_count, header.attributes
    ids = None
    if attributes & SUBJECT_IDS:
        ids = np.frombuffer(view, np.uint16, count, layout.ids)
        if count and int(ids.max()) >= layout.entries:
            raise CorruptBatch("a subject id points outside the dictionary")
    keys, headers = layout.keys, layout.headers
    return Columns(
        offsets_of(view, header),
        timestamps_of(view, header, layout),
        _subject_entries(batch),
        ids,
        None if keys is None else _binary_column(view, keys, count, KEYS),
        None if headers is None else _binary_column(view, headers, count, 0),
        _binary_column(view, layout.values, count, attributes & TOMBSTONES),
    )


def decode_keys(batch: RecordBatch) -> KeyedRecords | None:
    """Return the keys of a verified batch; None if the batch has no keys. Takes half the time of
    `decode_columns`."""
    view, header = batch.raw, batch.header
    count = header.record_count
    if not header.attributes & KEYS or not count:
        return None
    layout = batch._layout
    assert layout.keys is not None
    has_value = None
    if header.attributes & TOMBSTONES:
        has_value = _flags(view, layout.values.bitmap, count)
    keys = _binary_column(view, layout.keys, count, KEYS)
    return KeyedRecords(offsets_of(view, header), keys, has_value)


def _flags(view: memoryview, position: int, count: int) -> Flags:
    raw = np.frombuffer(view, np.uint8, (count + 7) // 8, position)
    return np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)


def _subject_entries(batch: RecordBatch) -> tuple[tuple[bytes, bool], ...]:
    view, layout = batch.raw, batch._layout
    column, count = layout.dictionary, layout.entries
    ends = ends_of(view, column, count)
    raw = view[column.data : column.data + ends[-1]].tobytes()
    names = [raw[a:b] for a, b in pairwise(ends)]
    if not batch.header.attributes & ESCAPED_SUBJECTS:
        return tuple([(name, False) for name in names])
    return tuple(zip(names, bitmap_of(view, column.bitmap, count), strict=True))


def _binary_column(
    view: memoryview, found: Binary[int], count: int, has_bitmap: int
) -> BinaryColumn:
    ends = np.frombuffer(view, np.int32, count + 1, found.ends)
    if not np.all(ends[1:] >= ends[:-1]):
        raise CorruptBatch("the offsets of a column run backwards")
    valid = _flags(view, found.bitmap, count) if has_bitmap else None
    return BinaryColumn(ends, np.frombuffer(view, np.uint8, int(ends[-1]), found.data), valid)


# --- columns to bytes ---


def encode_columns(
    columns: Columns, *, base_offset: int, last_offset: int, leader_epoch: int, commit_group: int
) -> bytearray:
    """Encode one batch that covers [base_offset, last_offset] and holds these records.

    Omits columns without information (no key, no header, no tombstone, no hole, equal timestamps),
    and subjects that no record has. Raises ValueError if the records do not fit into one batch;
    `can_share_batch` checks their timestamps.
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


def cut_front(batch: RecordBatch, offset: int) -> bytearray | memoryview:
    """Return the part of a batch from `offset` on; see `cut_out`."""
    return cut_out(batch, offset, batch.header.next_offset)


def cut_out(batch: RecordBatch, first: int, end: int) -> bytearray | memoryview:
    """Return the part of a verified batch with the offsets [first, end), as a batch of its own.

    Returns the batch itself if the range covers it. The result covers the batch's offsets in the
    range and may have no records. Records keep their offsets and timestamps; the result has the
    leader epoch, commit group and codec of the batch. Raises CorruptBatch. Raises ValueError if no
    offset of the batch lies in the range.
    """
    header = batch.header
    first, end = max(first, header.base_offset), min(end, header.next_offset)
    if (first, end) == (header.base_offset, header.next_offset):
        return batch.stored
    columns = decode_columns(batch)
    raw = encode_columns(
        columns.part(*(int(one) for one in np.searchsorted(columns.offsets, (first, end)))),
        base_offset=first,
        last_offset=end - 1,
        leader_epoch=header.leader_epoch,
        commit_group=header.commit_group,
    )
    codec = codec_of(header)
    return raw if codec is None else compress_batch(raw, codec)


def can_share_batch(some: tuple[int, int], others: tuple[int, int]) -> bool:
    """Return True if the records of two batches fit into one batch without changing a timestamp.
    Each argument is the oldest and the newest timestamp of one batch.

    A batch stores microseconds since its oldest timestamp, in 32 bits.
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
        return 0  # the range can have a hole only at its end, and the header shows it
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
