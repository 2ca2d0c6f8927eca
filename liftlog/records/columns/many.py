"""Decodes many batches to one set of columns.

Every step processes all batches at once, also batches with different numbers of records. Batches
may have different columns; missing columns are filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, repeat
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.columns.column_set import BinaryColumn, Columns, Flags
from liftlog.records.columns.positions import (
    AnyArray,
    Apart,
    Batches,
    Joined,
    Positions,
    cut,
    locate,
)
from liftlog.records.columns.scattered import ScatteredColumn, ScatteredRecords, column_of
from liftlog.records.columns.small_batches import Numbers, SmallBatches
from liftlog.records.decode import Record, RecordBatch
from liftlog.records.format import (
    ESCAPED_SUBJECTS,
    HEADERS,
    KEYS,
    OFFSET_DELTAS,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
)
from liftlog.records.layout import Binary

Item = TypeVar("Item")

_new_tuple: Any = tuple.__new__


def records_of(some: SmallBatches) -> list[Record]:
    """Return one object per record. Raises CorruptBatch; the caller finds the bad batch by decoding
    the batches one by one."""
    fields = zip(*_fields_of(ManyBatches([some])), strict=True)
    return list(map(_new_tuple, repeat(Record), fields))


def _fields_of(found: ManyBatches) -> list[list[Any]]:
    """Return a list over all records for each field of Record."""
    entries, places = found.subjects()
    try:
        names = [raw.decode() for raw in entries.items()]
    except UnicodeDecodeError as error:
        raise CorruptBatch("a subject in the dictionary is not UTF-8") from error
    return [
        found.offsets().tolist(),
        found.timestamps_ns().tolist(),
        [names[i] for i in places.tolist()],
        _nullable(found.keys()),
        _nullable(found.values()),
        found.headers().items(),
    ]


def _nullable(column: BinaryColumn) -> list[bytes | None]:
    items: list[Any] = column.items()
    if column.valid is None:
        return items
    pairs = zip(items, column.valid.tolist(), strict=True)
    return [item if valid else None for item, valid in pairs]


def can_decode_together(one: RecordBatch, other: RecordBatch) -> bool:
    """Return True if `decode_many` accepts both batches in one call."""
    return one.header.attributes == other.header.attributes and _is_simple(one)


def _is_simple(batch: RecordBatch) -> bool:
    header = batch.header
    return header.record_count > 0 and not header.attributes & SUBJECT_IDS


def decode_many(batches: Sequence[RecordBatch]) -> Columns:
    """Decode verified batches that follow each other, like `decode_columns` and `concat`.

    All batches have the same attributes, at least one record, and one subject each. Raises
    CorruptBatch.
    """
    found = ManyBatches(batches)
    subjects, ids = _distinct_subjects(found)
    values = found.values()
    keys = found.keys() if batches[0].header.attributes & KEYS else None
    headers = found.headers() if batches[0].header.attributes & HEADERS else None
    return Columns(found.offsets(), found.timestamps_ns(), subjects, ids, keys, headers, values)


def scatter(batches: Sequence[Batches], most_subjects: int) -> ScatteredRecords | None:
    """Locate all records of verified batches that follow each other. Returns None if their
    dictionaries together have more than `most_subjects` entries. Raises CorruptBatch."""
    found = ManyBatches(batches, in_one=True)
    if found.entry_count > most_subjects:
        return None
    subjects, ids = _distinct_subjects(found)
    keys, headers, values = found.scattered()
    return ScatteredRecords(
        found.offsets(), found.timestamps_ns(), subjects, ids, keys, headers, values
    )


def _distinct_subjects(
    found: ManyBatches,
) -> tuple[tuple[tuple[bytes, bool], ...], NDArray[np.uint16] | None]:
    names, places = found.subjects()
    items, escaped = names.items(), found.escaped()
    if not escaped.any():
        plain, ids = _numbered(items)
        entries = tuple([(name, False) for name in plain])
    else:
        marked, ids = _numbered([*zip(items, escaped.tolist(), strict=True)])
        entries = tuple(marked)
    return entries, None if len(entries) == 1 else ids[places]


def _numbered(items: list[Item]) -> tuple[list[Item], NDArray[np.uint16]]:
    """Return the distinct items, and for each item its index among them."""
    numbers = dict(zip(dict.fromkeys(items), count(), strict=False))
    return list(numbers), np.fromiter(map(numbers.__getitem__, items), np.uint16, len(items))


class ManyBatches:
    """Many verified, whole batches with at least one record each and less than 2 GiB in total.

    The constructor and the methods raise CorruptBatch. Results do not refer to the bytes of the
    batches.
    """

    def __init__(self, batches: Sequence[Batches], *, in_one: bool = False) -> None:
        """Locate the columns. `in_one` joins all batches in one buffer, which `scattered`
        requires."""
        self._hold(*locate(batches, in_one=in_one))

    def _hold(self, at: Positions, octets: Apart | Joined) -> None:
        self._at, self._octets = at, octets
        self._layout = self._at.layout
        self._counts = self._at.counts
        stops = np.cumsum(self._counts)
        self._firsts = stops - self._counts
        self._lasts = stops - 1
        self._total = int(stops[-1])
        self._all = int(np.bitwise_and.reduce(self._at.attributes))
        self._some = int(np.bitwise_or.reduce(self._at.attributes))

    def __len__(self) -> int:
        return self._total

    @property
    def entry_count(self) -> int:
        """Number of entries in the dictionaries of all batches."""
        return int(self._layout.entries.sum())

    def offsets(self) -> Numbers:
        bases = np.repeat(self._at.base_offsets - self._firsts, self._counts)
        offsets: Numbers = np.arange(self._total, dtype=np.int64)
        if not self._some & OFFSET_DELTAS:
            offsets += bases
            return offsets
        deltas = self._numbers(self._layout.offset_deltas, OFFSET_DELTAS)
        offsets += bases
        given = np.repeat(self._at.attributes & OFFSET_DELTAS != 0, self._counts)
        np.add(np.repeat(self._at.base_offsets, self._counts), deltas, out=offsets, where=given)
        ascends = offsets[1:] > offsets[:-1]
        ascends[self._firsts[1:] - 1] = True  # the next batch begins at it
        lasts = offsets[self._lasts] - self._at.base_offsets
        if (lasts > self._at.last_deltas).any() or not ascends.all():
            raise CorruptBatch("the offset deltas do not ascend inside the batch")
        return offsets

    def timestamps_ns(self) -> Numbers:
        base: Numbers = np.repeat(self._at.base_ns, self._counts)
        if self._some & TIMESTAMP_DELTAS:
            deltas = self._numbers(self._layout.time_deltas, TIMESTAMP_DELTAS)
            deltas *= 1000
            base += deltas
        return base

    def subjects(self) -> tuple[BinaryColumn, NDArray[np.int32]]:
        """Return the joined dictionary of all batches, and the index of each record into it.

        Does not check that the names are UTF-8 or that they differ.
        """
        entries = self._layout.entries
        names = self._items(self._layout.dictionary, entries, None)
        first = np.repeat((np.cumsum(entries) - entries).astype(np.int32), self._counts)
        if not self._some & SUBJECT_IDS:
            return names, first
        present = self._present(SUBJECT_IDS)
        ids = self._octets.stretches(np.uint16, self._layout.ids, self._counts, present)
        if present is not None:
            ids = self._spread(ids, present)
        if (ids >= np.repeat(entries, self._counts)).any():
            raise CorruptBatch("a subject id points outside the dictionary")
        first += ids
        return names, first

    def escaped(self) -> Flags:
        """Return True for each entry of the dictionaries that is escaped."""
        if not self._some & ESCAPED_SUBJECTS:
            return np.zeros(int(self._layout.entries.sum()), np.bool_)
        present = self._present(ESCAPED_SUBJECTS)
        flags = self._bits(self._layout.dictionary.bitmap, self._layout.entries, present)
        if present is None:
            return flags
        found = np.zeros(int(self._layout.entries.sum()), np.bool_)
        found[np.repeat(present, self._layout.entries)] = flags
        return found

    def keys(self) -> BinaryColumn:
        """Return the keys; null for records without a key."""
        at = self._layout.keys
        if at is None:
            return self._nothing(np.zeros(self._total, np.bool_))
        column = self._items(at, self._counts, self._present(KEYS))
        return BinaryColumn(column.ends, column.data, self._has_key(at))

    def headers(self) -> BinaryColumn:
        """Return the headers; empty for records without headers."""
        at = self._layout.headers
        if at is None:
            return self._nothing(None)
        return self._items(at, self._counts, self._present(HEADERS))

    def values(self) -> BinaryColumn:
        """Return the values; null for tombstones."""
        column = self._items(self._layout.values, self._counts, None)
        return BinaryColumn(column.ends, column.data, self._has_value())

    def scattered(self) -> tuple[ScatteredColumn | None, ScatteredColumn | None, ScatteredColumn]:
        """Return keys, headers and values that refer to the bytes of the batches. Keys or headers
        are None if no record has them."""
        at = self._layout
        keys = headers = None
        if at.keys is not None:
            keys = self._in_place(at.keys, self._present(KEYS), self._has_key(at.keys))
        if at.headers is not None:
            headers = self._in_place(at.headers, self._present(HEADERS), None)
        return keys, headers, self._in_place(at.values, None, self._has_value())

    # --- pieces ---

    def _has_key(self, at: Binary[Numbers]) -> Flags:
        present = self._present(KEYS)
        valid = self._bits(at.bitmap, self._counts, present)
        return valid if present is None else self._spread(valid, present)

    def _has_value(self) -> Flags | None:
        if not self._some & TOMBSTONES:
            return None
        present = self._present(TOMBSTONES)
        valid = self._bits(self._layout.values.bitmap, self._counts, present)
        return valid if present is None else ~self._spread(~valid, present)

    def _in_place(
        self, column: Binary[Numbers], present: Flags | None, valid: Flags | None
    ) -> ScatteredColumn:
        assert isinstance(self._octets, Joined)
        ends = self._octets.stretches(np.int32, column.ends + 4, self._counts, present)
        begin, counts = column.data, self._counts
        if present is not None:
            begin, counts = begin[present], counts[present]
        stops = ends + np.repeat(begin, counts)
        starts = np.empty_like(stops)
        starts[1:] = stops[:-1]
        starts[np.cumsum(counts) - counts] = begin
        # The first and the last offset of each batch were checked; this checks all other offsets.
        if (stops < starts).any():
            raise CorruptBatch("the offsets of a column run backwards")
        if present is not None:
            starts, stops = self._spread(starts, present), self._spread(stops, present)
        return column_of(starts, stops, self._octets.all, valid)

    def _present(self, bit: int) -> Flags | None:
        """Return a flag for each batch: True if it has this attribute; None if all batches have
        it."""
        if self._all & bit:
            return None
        present: Flags = self._at.attributes & bit != 0
        return present

    def _numbers(self, begin: Numbers, bit: int) -> Numbers:
        """Return the numbers of a u32 column; 0 where a batch lacks the column."""
        present = self._present(bit)
        raw = self._octets.stretches(np.uint32, begin, self._counts, present)
        found: Numbers = raw.astype(np.int64)
        return found if present is None else self._spread(found, present)

    def _spread(self, items: AnyArray, present: Flags) -> AnyArray:
        """Return one item per record: `items` for the batches that are `present`, 0 for the
        others."""
        found: Any = np.zeros(self._total, items.dtype)
        found[np.repeat(present, self._counts)] = items
        return found  # type: ignore[no-any-return]

    def _nothing(self, valid: Flags | None) -> BinaryColumn:
        return BinaryColumn(np.zeros(self._total + 1, np.int32), np.empty(0, np.uint8), valid)

    def _items(
        self, column: Binary[Numbers], counts: Numbers, present: Flags | None
    ) -> BinaryColumn:
        """Return the items of a binary column: `counts[i]` items of batch i, empty items if the
        batch lacks the column."""
        # The first offset of each batch is 0, the end of the previous batch, so the ends suffice.
        stops = self._octets.stretches(np.int32, column.ends + 4, counts, present)
        lasts = self._lasts if counts is self._counts else np.cumsum(counts) - 1
        ends = np.empty(int(lasts[-1]) + 2, np.int32)
        ends[0] = 0
        if present is None:
            ends[1:] = stops
        else:
            ends[1:] = 0
            ends[1:][np.repeat(present, counts)] = stops
        sizes = ends[1:][lasts].astype(np.int64)
        if len(counts) > 1:
            before = np.cumsum(sizes) - sizes
            ends[1:] += np.repeat(before.astype(np.int32), counts)
        # The first and the last offset of each batch were checked; this checks all other offsets.
        if (ends[1:] < ends[:-1]).any():
            raise CorruptBatch("the offsets of a column run backwards")
        data = self._octets.stretches(np.uint8, column.data, sizes, None)
        return BinaryColumn(ends, data, None)

    def _bits(self, begin: Numbers, counts: Numbers, present: Flags | None) -> Flags:
        """Return the bits of the bitmaps of the batches that are `present`: `counts[i]` bits of
        batch i."""
        sizes = (counts + 7) // 8
        octets = self._octets.stretches(np.uint8, begin, sizes, present)
        bits: Flags = np.unpackbits(octets, bitorder="little").view(np.bool_)
        if present is not None:
            counts, sizes = counts[present], sizes[present]
        return cut(bits, 8 * (np.cumsum(sizes) - sizes), counts)
