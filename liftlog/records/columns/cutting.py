"""Cuts records out of a batch, in its bytes.

The bytes of the remaining records are copied unchanged, in stretches. Only the numbers that depend
on the records are computed again: the ends of items, the offset deltas, the header. So a cut takes
a few steps for each column and for each erased record, but none for a remaining record. The result
has the same bytes as `encode_columns` of the other records.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.codecs import codec_of, compress_batch
from liftlog.records.columns.batch_columns import decode_columns, encode_columns
from liftlog.records.columns.column_set import Flags, Offsets
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.encode import encode_batch, fill_header
from liftlog.records.format import (
    ESCAPED_SUBJECTS,
    HEADER_SIZE,
    HEADERS,
    KEYS,
    MAX_BATCH_RECORDS,
    OFFSET_DELTAS,
    PADDING,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
    padding_for,
)
from liftlog.records.header import BatchHeader
from liftlog.records.layout import Binary, all_set, equal_length

Items = TypeVar("Items", bound=NDArray[Any])

_HEADER_PLACE = bytes(HEADER_SIZE)
MOST_STRETCHES = 256
"""Maximum number of stretches for a cut. With more stretches, it is faster to encode the remaining
records again."""
_ROWS = memoryview(np.arange(MAX_BATCH_RECORDS, dtype=np.uint32).tobytes())
"""The offset deltas of a batch without holes."""


def without_rows(batch: RecordBatch, offsets: Offsets, *, compress: bool = True) -> RecordBatch:
    """Return a verified, untrimmed batch without the records at these offsets, which ascend.

    Returns the batch itself if it has none of them. See `cut_rows`. Raises CorruptBatch.
    """
    made = cut_rows(batch, offsets, compress=compress)
    return batch if made is None else decode_batch(made, 0, verify=False)


def cut_rows(batch: RecordBatch, offsets: Offsets, *, compress: bool = True) -> bytearray | None:
    """Return the bytes of a verified, untrimmed batch without the records at these offsets, which
    ascend; None if it has none of them.

    The result covers the same offsets and may have no records. Records keep their offsets and
    timestamps; the result has the leader epoch and commit group of the batch, and its codec unless
    `compress` is False. Compression takes several times as long as all other steps. Subjects that
    only the removed records have are not in the result. Raises CorruptBatch.
    """
    header, rows = batch.header, _rows_at(batch, offsets)
    if not rows:
        return None
    if len(rows) == header.record_count:
        return _empty(header)
    stretches = _stretches(rows, header.record_count)
    if len(stretches) > MOST_STRETCHES or header.attributes & ESCAPED_SUBJECTS:
        raw = encode_others(batch, rows)
    else:
        raw = _Cut(batch, rows, stretches).encode()
    codec = codec_of(header) if compress else None
    return raw if codec is None else compress_batch(raw, codec)


def encode_others(batch: RecordBatch, rows: Sequence[int]) -> bytearray:
    """Decode a batch, and encode it without these rows and without compression. Raises
    CorruptBatch."""
    header, columns = batch.header, decode_columns(batch)
    keep = np.ones(len(columns), np.bool_)
    keep[rows] = False
    return encode_columns(
        columns.take(keep),
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        leader_epoch=header.leader_epoch,
        commit_group=header.commit_group,
    )


def _rows_at(batch: RecordBatch, offsets: Offsets) -> list[int]:
    """Return the rows of the records at these offsets. Raises CorruptBatch."""
    header = batch.header
    count = header.record_count
    wanted = offsets - header.base_offset
    if not header.attributes & OFFSET_DELTAS:
        rows: list[int] = wanted.tolist()
        if rows and (rows[0] < 0 or rows[-1] >= count):
            rows = [row for row in rows if 0 <= row < count]
        return rows
    deltas = np.frombuffer(batch.raw, np.uint32, count, HEADER_SIZE)
    if not count:
        return []
    if int(deltas[-1]) > header.last_offset_delta or not np.all(deltas[1:] > deltas[:-1]):
        raise CorruptBatch("the offset deltas do not ascend inside the batch")
    places = deltas.searchsorted(wanted)
    places = places[places < count]
    found: list[int] = places[deltas[places] == wanted[: len(places)]].tolist()
    return found


def _stretches(rows: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Return the ranges [first, end) of the rows between these rows."""
    borders = [-1, *rows, count]
    return [(a + 1, b) for a, b in pairwise(borders) if b - a > 1]


def _empty(header: BatchHeader) -> bytearray:
    """Return a batch without records that covers the offsets of `header`."""
    return encode_batch(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        leader_epoch=header.leader_epoch,
        commit_group=header.commit_group,
        stamps=[],
        subjects=[],
        values=[],
    )


class _Cut:
    """One batch without some rows, as a list of parts, which grows column by column."""

    def __init__(
        self, batch: RecordBatch, rows: Sequence[int], stretches: Sequence[tuple[int, int]]
    ) -> None:
        self._header, self._layout, self._view = batch.header, batch._layout, batch.raw
        self._stretches = stretches
        self._rows = rows
        self._count = batch.header.record_count - len(rows)
        self._parts: list[Any] = [_HEADER_PLACE]
        self._attributes = 0
        self._base_ns = self._max_ns = batch.header.base_timestamp_ns

    def encode(self) -> bytearray:
        """Return the batch. Raises CorruptBatch."""
        header = self._header
        self._add_offsets()
        if header.attributes & TIMESTAMP_DELTAS:
            self._add_timestamps()
        self._add_subjects()
        self._add_items()
        batch = bytearray().join(self._parts)
        fill_header(
            batch,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            record_count=self._count,
            base_timestamp_ns=self._base_ns,
            max_timestamp_ns=self._max_ns,
            leader_epoch=header.leader_epoch,
            attributes=self._attributes,
            commit_group=header.commit_group,
        )
        return batch

    def _add_offsets(self) -> None:
        deltas, stretches = _ROWS, self._stretches
        if self._header.attributes & OFFSET_DELTAS:
            deltas = self._view[HEADER_SIZE : HEADER_SIZE + 4 * self._header.record_count]
        first, last = stretches[0][0], stretches[-1][1] - 1
        numbers = deltas.cast("I")
        if numbers[first] == 0 and numbers[last] == self._count - 1:
            return  # the batch can have a hole only at its end, and the header shows it
        self._attributes |= OFFSET_DELTAS
        self._parts += [deltas[4 * a : 4 * b] for a, b in stretches]
        self._parts.append(padding_for(4 * self._count))

    def _add_timestamps(self) -> None:
        view, count, at = self._view, self._header.record_count, self._layout.time_deltas
        raw = view[at : at + 4 * count]
        deltas = raw.cast("I")
        newest = (self._header.max_timestamp_ns - self._base_ns) // 1000
        if any(deltas[row] in (0, newest) for row in self._rows):
            others = _take(np.frombuffer(raw, np.uint32), self._stretches)
            oldest, newest = int(others.min()), int(others.max())
            self._base_ns += 1000 * oldest
            if oldest == newest:
                self._max_ns = self._base_ns
                return
            self._parts.append((others - np.uint32(oldest)).data if oldest else others.data)
            newest -= oldest
        else:
            self._parts += [raw[4 * a : 4 * b] for a, b in self._stretches]
        self._max_ns = self._base_ns + 1000 * newest
        self._attributes |= TIMESTAMP_DELTAS
        self._parts.append(padding_for(4 * self._count))

    def _add_subjects(self) -> None:
        view, layout, entries = self._view, self._layout, self._layout.entries
        stored = view[layout.dictionary.ends - 8 : layout.ids]
        if not self._header.attributes & SUBJECT_IDS:
            self._parts.append(stored)
            return
        ids = np.frombuffer(view, np.uint16, self._header.record_count, layout.ids)
        ids = _take(ids, self._stretches)
        counts: list[int] = np.bincount(ids, minlength=entries).tolist()
        if len(counts) > entries:
            raise CorruptBatch("a subject id points outside the dictionary")
        if 0 not in counts:
            self._parts.append(stored)
        else:
            used = [count > 0 for count in counts]
            rows = [number for number, is_used in enumerate(used) if not is_used]
            entries -= len(rows)
            self._parts.append(entries.to_bytes(8, "little"))
            stretches = _stretches(rows, len(used))
            self._parts += _binary(view, layout.dictionary, len(used), stretches, entries)
            ids = (np.cumsum(used) - 1).astype(np.uint16)[ids]
        if entries > 1:
            self._attributes |= SUBJECT_IDS
            self._parts += (ids.data, padding_for(ids.nbytes))

    def _add_items(self) -> None:
        """Add the keys, the headers and the values."""
        layout = self._layout
        if layout.keys is not None:
            flags = self._flags(layout.keys)
            if flags is None or flags.any():
                self._attributes |= KEYS
                self._parts += self._column(layout.keys, self._bitmap(flags))
        if layout.headers is not None:
            parts = self._column(layout.headers)
            if any(map(len, parts[2:])):  # an item has bytes
                self._attributes |= HEADERS
                self._parts += parts
        flags = None
        if self._header.attributes & TOMBSTONES:
            flags = self._flags(layout.values)
        if flags is None or flags.all():
            self._parts += self._column(layout.values)
        else:
            self._attributes |= TOMBSTONES
            self._parts += self._column(layout.values, self._bitmap(flags))

    def _column(self, column: Binary[int], bitmap: bytes = b"") -> list[Any]:
        count = self._header.record_count
        return _binary(self._view, column, count, self._stretches, self._count, bitmap)

    def _flags(self, column: Binary[int]) -> Flags | None:
        """Return the bits of the rows that stay; None if the bits of all rows are set."""
        count = self._header.record_count
        raw = self._view[column.bitmap : column.bitmap + (count + 7) // 8]
        if raw == all_set(count):
            return None
        bits = np.unpackbits(np.frombuffer(raw, np.uint8), count=count, bitorder="little")
        return _take(bits.view(np.bool_), self._stretches)

    def _bitmap(self, flags: Flags | None) -> bytes:
        if flags is None:
            return all_set(self._count)
        return np.packbits(flags, bitorder="little").tobytes()


def _binary(
    view: memoryview,
    column: Binary[int],
    before: int,
    stretches: Sequence[tuple[int, int]],
    count: int,
    bitmap: bytes = b"",
) -> list[Any]:
    """Return the parts of a binary column of `before` items with only the items in `stretches`,
    which are `count` items and have `bitmap`. Raises CorruptBatch."""
    at, data = column.ends, column.data
    raw = view[at : at + 4 * before + 4]
    ends = raw.cast("i")
    size = 4 * count + 4
    new_ends: Any
    length = equal_length(ends)
    if length:
        new_ends, total = raw[:size], length * count
    else:
        # The ufuncs are called directly, because their wrappers in Python take as long as they do.
        numbers = np.frombuffer(raw, np.int32)
        starts, stops = numbers[:-1], numbers[1:]
        if not np.logical_and.reduce(np.less_equal(starts, stops)):
            raise CorruptBatch("the offsets of a column run backwards")
        new_ends = np.empty(count + 1, np.int32)
        new_ends[0] = 0
        np.add.accumulate(_take(np.subtract(stops, starts), stretches), out=new_ends[1:])
        total = int(new_ends[-1])
    parts = [new_ends, PADDING[-size & 7]]
    if bitmap:
        parts += (bitmap, PADDING[-len(bitmap) & 7])
    parts += [view[data + ends[a] : data + ends[b]] for a, b in stretches]
    parts.append(PADDING[-total & 7])
    return parts


def _take(items: Items, stretches: Sequence[tuple[int, int]]) -> Items:
    return np.concatenate([items[a:b] for a, b in stretches])  # type: ignore[return-value]
