"""Decodes some records of many batches from their heads, which are all bytes before the values.

As in many.py, each step processes all batches at once, but only the chosen records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.columns.column_set import NO_SUBJECT, BinaryColumn, Columns, Flags, gather
from liftlog.records.columns.many import ManyBatches
from liftlog.records.columns.positions import Joined, check_offsets
from liftlog.records.columns.small_batches import Numbers
from liftlog.records.format import (
    HEADERS,
    KEYS,
    OFFSET_DELTAS,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
)
from liftlog.records.layout import Binary

_LITERALS = 8
"""Up to this number of names, each name is compared with all entries at once. With more names, the
entries are checked one by one."""


class WantedSubjects(NamedTuple):
    """A condition on stored subjects: `matches` must return True for the subject. If `literals` is
    not None, it must contain the subject."""

    literals: tuple[bytes, ...] | None
    matches: Callable[[bytes], bool] | None

    def hold(self, name: bytes) -> bool:
        """Return True if this subject is wanted."""
        if self.literals is not None and name not in self.literals:
            return False
        return self.matches is None or self.matches(name)


class Some(NamedTuple):
    """Chosen records, by column. `batches` and `rows` are the batch of each record and its row in
    the batch. `values` are the positions of the values, from the first value of the batch."""

    batches: NDArray[np.intp]
    rows: Numbers
    offsets: Numbers
    timestamps_ns: Numbers
    keys: BinaryColumn | None
    headers: BinaryColumn | None
    values: tuple[Numbers, Numbers]
    has_value: Flags | None

    def part(self, first: int, end: int) -> Some:
        """Return the records [first, end), counted from the first chosen record."""
        starts, stops = self.values
        return Some(
            self.batches[first:end],
            self.rows[first:end],
            self.offsets[first:end],
            self.timestamps_ns[first:end],
            None if self.keys is None else self.keys.part(first, end),
            None if self.headers is None else self.headers.part(first, end),
            (starts[first:end], stops[first:end]),
            None if self.has_value is None else self.has_value[first:end],
        )


class _Heads(Joined):
    """Heads in one buffer. After each head the next head follows, and not the values of the batch,
    so no step may read values."""

    def __init__(self, raw: memoryview, begin: Numbers, lengths: Numbers) -> None:
        self._raw = raw
        self._lie(begin, lengths)


class ManyHeads(ManyBatches):
    """The heads of many batches. Their checksums are verified, and each batch has at least one
    record. The constructor and the methods raise CorruptBatch."""

    def __init__(self, raw: memoryview, begin: Numbers, lengths: Numbers, sizes: Numbers) -> None:
        """Locate the columns. `begin` has the start of each head in `raw`, and `sizes` has
        the size of each head; `lengths` are the lengths of the whole batches."""
        heads = _Heads(raw, begin, lengths)
        at = heads.positions()
        check_offsets(at)
        if not np.array_equal(at.layout.values.data, begin + sizes):
            raise CorruptBatch("the values begin elsewhere")
        self._hold(at, heads)
        self._bytes = heads.all
        self._words = np.frombuffer(raw, np.int32)

    def marked(self) -> Columns:
        """Return all records with only their offsets and tombstone marks."""
        values = self._nothing(self._has_value())
        stamps = np.zeros(len(self), np.int64)
        return Columns(self.offsets(), stamps, NO_SUBJECT, None, None, None, values)

    def on(self, wanted: WantedSubjects) -> tuple[NDArray[np.intp], tuple[bytes, ...], Numbers]:
        """Find the records on these subjects. Return the numbers of the records, the subjects, and
        the index of each record's subject."""
        entries = self._layout.entries
        ends = self._octets.stretches(np.int32, self._layout.dictionary.ends + 4, entries, None)
        firsts = np.cumsum(entries) - entries
        stops = ends + np.repeat(self._layout.dictionary.data, entries)
        starts = np.empty_like(stops)
        starts[1:] = stops[:-1]
        starts[firsts] = self._layout.dictionary.data
        if (stops < starts).any():
            raise CorruptBatch("the offsets of a column run backwards")
        number, names = self._judged(starts, stops, wanted)
        if not names:
            nothing = np.empty(0, np.intp)
            return nothing, (), nothing
        if len(names) == 1 and self._all & SUBJECT_IDS:
            chosen = self._with_one(np.flatnonzero(number >= 0), firsts)
            if chosen is not None:
                return chosen, names, np.zeros(len(chosen), np.int64)
        if self._some & SUBJECT_IDS:
            present = self._present(SUBJECT_IDS)
            ids = self._octets.stretches(np.uint16, self._layout.ids, self._counts, present)
            if present is not None:
                ids = self._spread(ids, present)
            if (ids >= np.repeat(entries, self._counts)).any():
                raise CorruptBatch("a subject id points outside the dictionary")
            places = np.repeat(firsts, self._counts)
            places += ids
        else:
            places = np.repeat(firsts, self._counts)
        found = number[places]
        chosen = np.flatnonzero(found >= 0)
        return chosen, names, found[chosen].astype(np.int64)

    def _with_one(self, some: NDArray[np.intp], firsts: Numbers) -> NDArray[np.intp] | None:
        """Return the records whose subject is one of the dictionary entries `some`, in fewer steps
        than `on`. Returns None if a batch has several of these entries, or if the index of an entry
        is too large for an id."""
        batches = firsts.searchsorted(some, "right") - 1
        places = some - firsts[batches]
        if (batches[1:] == batches[:-1]).any() or (places > 0xFFFF).any():
            return None
        entries = self._layout.entries
        ids = self._octets.stretches(np.uint16, self._layout.ids, self._counts, None)
        largest = np.minimum(entries - 1, 0xFFFF).astype(np.uint16)
        if (ids > np.repeat(largest, self._counts)).any():
            raise CorruptBatch("a subject id points outside the dictionary")
        wanted = np.zeros(len(entries), np.uint16)
        wanted[batches] = places
        found = ids == np.repeat(wanted, self._counts)
        if len(batches) < len(entries):
            has = np.zeros(len(entries), np.bool_)
            has[batches] = True
            found &= np.repeat(has, self._counts)
        return np.flatnonzero(found)

    def _judged(
        self, starts: Numbers, stops: Numbers, wanted: WantedSubjects
    ) -> tuple[NDArray[np.int32], tuple[bytes, ...]]:
        """Return the number of the name of each dictionary entry, or -1 for an unwanted entry. Also
        return the names."""
        number = np.full(len(starts), -1, np.int32)
        names: dict[bytes, int] = {}
        if wanted.literals is not None and len(wanted.literals) <= _LITERALS:
            for name in wanted.literals:
                if wanted.matches is None or wanted.matches(name):
                    some = self._named(starts, stops, name)
                    if len(some):
                        number[some] = names.setdefault(name, len(names))
            return number, tuple(names)
        raw = self._bytes.data
        known: dict[bytes, int] = {}
        for i, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            name = bytes(raw[start:stop])
            place = known.get(name)
            if place is None:
                place = known[name] = len(names) if wanted.hold(name) else -1
                if place >= 0:
                    names[name] = place
            number[i] = place
        return number, tuple(names)

    def _named(self, starts: Numbers, stops: Numbers, name: bytes) -> NDArray[np.intp]:
        """Return the entries that equal `name`. Compares the last bytes first, because most names
        differ in them."""
        some = np.flatnonzero(stops - starts == len(name))
        for at in range(len(name) - 1, -1, -1):
            if not len(some):
                break
            some = some[self._bytes[starts[some] + at] == name[at]]
        return some

    def some(self, chosen: NDArray[np.intp]) -> Some:
        """Return the records with the numbers `chosen`, which ascend."""
        batches = self._firsts.searchsorted(chosen, "right") - 1
        rows: Numbers = chosen - self._firsts[batches]
        at = self._at
        deltas = self._given(self._layout.offset_deltas, OFFSET_DELTAS, batches, rows, rows)
        if (deltas > at.last_deltas[batches]).any():
            raise CorruptBatch("the offset deltas do not ascend inside the batch")
        offsets = at.base_offsets[batches] + deltas
        if (offsets[1:] <= offsets[:-1]).any():
            raise CorruptBatch("the offset deltas do not ascend inside the batch")
        zeros = np.zeros(len(rows), np.int64)
        stamps = self._given(self._layout.time_deltas, TIMESTAMP_DELTAS, batches, rows, zeros)
        headers = keys = None
        if self._layout.keys is not None:
            keys = self._items_of(self._layout.keys, KEYS, batches, rows)
            valid = self._bits_of(self._layout.keys, KEYS, batches, rows, missing=False)
            keys = BinaryColumn(keys.ends, keys.data, valid)
        if self._layout.headers is not None:
            headers = self._items_of(self._layout.headers, HEADERS, batches, rows)
        values = self._layout.values
        starts, stops = self._stretches_of(values, batches, rows)
        has_value = None
        if self._some & TOMBSTONES:
            has_value = self._bits_of(values, TOMBSTONES, batches, rows, missing=True)
        return Some(
            batches,
            rows,
            offsets,
            at.base_ns[batches] + 1000 * stamps,
            keys,
            headers,
            (starts, stops),
            has_value,
        )

    def _given(
        self, begin: Numbers, bit: int, batches: NDArray[np.intp], rows: Numbers, otherwise: Numbers
    ) -> Numbers:
        """Return the numbers of a column. Where the batch lacks the column, return the numbers in
        `otherwise`."""
        if not self._some & bit:
            return otherwise
        has = self._at.attributes[batches] & bit != 0
        found = otherwise.copy()
        places = (begin[batches[has]] >> 2) + rows[has]
        found[has] = self._words.view(np.uint32)[places]
        return found

    def _items_of(
        self, column: Binary[Numbers], bit: int, batches: NDArray[np.intp], rows: Numbers
    ) -> BinaryColumn:
        """Return items of a binary column; empty items where the batch lacks the column."""
        has = self._at.attributes[batches] & bit != 0
        starts = np.zeros(len(rows), np.int64)
        stops = np.zeros(len(rows), np.int64)
        begin = column.data[batches[has]]
        some = self._stretches_of(column, batches[has], rows[has])
        starts[has], stops[has] = some[0] + begin, some[1] + begin
        ends = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(stops - starts, out=ends[1:])
        return BinaryColumn(ends, gather(self._bytes, starts, stops, ends), None)

    def _stretches_of(
        self, column: Binary[Numbers], batches: NDArray[np.intp], rows: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Return the start and end of each item in the column data of its batch."""
        place = column.ends[batches] >> 2
        starts = self._words[place + rows].astype(np.int64)
        stops = self._words[place + rows + 1].astype(np.int64)
        sizes = self._words[place + self._counts[batches]]
        if ((starts < 0) | (stops < starts) | (stops > sizes)).any():
            raise CorruptBatch("the offsets of a column run backwards")
        return starts, stops

    def _bits_of(
        self,
        column: Binary[Numbers],
        bit: int,
        batches: NDArray[np.intp],
        rows: Numbers,
        *,
        missing: bool,
    ) -> Flags:
        """Return True for each item that is not null, and `missing` where the batch has no
        bitmap."""
        has = self._at.attributes[batches] & bit != 0
        found = np.full(len(rows), missing, np.bool_)
        octets = self._bytes[column.bitmap[batches[has]] + (rows[has] >> 3)]
        found[has] = octets >> (rows[has] & 7).astype(np.uint8) & 1 != 0
        return found
