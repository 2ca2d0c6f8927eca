"""Where the columns of many batches lie, found for all of them at once.

Decoding batches one by one costs some fifty steps each, whatever they hold. Small batches are
joined, so that each step is one operation of numpy for all of them; large ones are left where they
are, since copying them would cost more. Either way every length is checked before it is used: see
layout.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.column_set import Flags
from liftlog.records.decode import RecordBatch
from liftlog.records.format import (
    ATTRIBUTES_POSITION,
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
AnyArray = TypeVar("AnyArray", bound=NDArray[Any])

_JOIN_BELOW_BYTES = 16 * 1024
"""Batches below this mean size are joined."""

_CUT_FROM_ITEMS = 24
"""Stretches of this mean length are cut out one by one; shorter ones are gathered by index."""

_COUNT = struct.Struct("<II")
_END = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class BinaryPositions:
    """Of a binary column in each batch: where it begins and how many octets it holds.

    Where a batch lacks the column, `sizes` is 0 and the positions say nothing.
    """

    ends: Numbers
    bits: Numbers
    data: Numbers
    sizes: Numbers


@dataclass(frozen=True, slots=True)
class Positions:
    """Of each batch what its header says, and where its columns begin, in octets."""

    attributes: Numbers
    counts: Numbers
    base_offsets: Numbers
    last_deltas: Numbers
    base_ns: Numbers
    offset_deltas: Numbers
    time_deltas: Numbers
    entries: Numbers
    entry_escapes: Numbers
    dictionary: BinaryPositions
    ids: Numbers
    keys: BinaryPositions
    headers: BinaryPositions
    values: BinaryPositions


class Octets(Protocol):
    """The bytes of all batches, wherever they are."""

    def stretches(
        self, kind: type[np.generic], begin: Numbers, sizes: Numbers, present: Flags | None
    ) -> NDArray[Any]:
        """Of each batch, or of those that are `present`, `sizes[i]` items from the octet `begin[i]`
        on, one stretch after the other. A copy."""
        ...


def locate(batches: Sequence[RecordBatch]) -> tuple[Positions, Octets]:
    """Of verified batches with a record or more each, less than 2 GiB in all.

    Raises CorruptBatch when columns reach past the end of their batch, or offsets beyond 63 bits.
    """
    total = sum([len(batch.raw) for batch in batches])
    octets: Octets
    if total < _JOIN_BELOW_BYTES * len(batches):
        octets = joined = _Joined(batches)
        found = joined.positions()
    else:
        octets, found = _Apart(batches), _positions_one_by_one(batches)
    # What passes 63 bits has become negative.
    if min(found.base_offsets.min(), (found.base_offsets + found.last_deltas).min()) < 0:
        raise CorruptBatch("offsets beyond 63 bits")
    return found, octets


def cut(items: AnyArray, first: Numbers, sizes: Numbers) -> AnyArray:
    """`sizes[i]` items from `first[i]` on, one stretch after the other; a copy."""
    total = int(sizes.sum())
    if total >= _CUT_FROM_ITEMS * len(sizes):
        pairs = zip(first.tolist(), (first + sizes).tolist(), strict=True)
        return np.concatenate([items[a:b] for a, b in pairs])  # type: ignore[return-value]
    places = np.arange(total, dtype=np.int64)
    places += np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
    return items[places]  # type: ignore[return-value]


# --- large batches ---


class _Apart:
    def __init__(self, batches: Sequence[RecordBatch]) -> None:
        self._octets = [np.frombuffer(batch.raw, np.uint8) for batch in batches]
        self._items: dict[type[np.generic], list[NDArray[Any]]] = {np.uint8: list(self._octets)}

    def stretches(
        self, kind: type[np.generic], begin: Numbers, sizes: Numbers, present: Flags | None
    ) -> NDArray[Any]:
        items = self._items.get(kind)
        if items is None:
            items = self._items[kind] = [octets.view(kind) for octets in self._octets]
        first = begin // np.dtype(kind).itemsize
        cuts = zip(items, first.tolist(), (first + sizes).tolist(), strict=True)
        if present is None:
            return np.concatenate([item[a:b] for item, a, b in cuts])
        chosen = zip(cuts, present.tolist(), strict=True)
        return np.concatenate([item[a:b] for (item, a, b), wanted in chosen if wanted])


def _positions_one_by_one(batches: Sequence[RecordBatch]) -> Positions:
    try:
        rows = [_positions_of(batch) for batch in batches]
        found = np.array(rows, np.int64).T
    except struct.error as error:
        raise CorruptBatch("a column reaches past the end of the batch") from error
    except OverflowError as error:
        raise CorruptBatch("offsets beyond 63 bits") from error
    return Positions(
        attributes=found[0],
        counts=found[1],
        base_offsets=found[2],
        last_deltas=found[3],
        base_ns=found[4],
        offset_deltas=found[5],
        time_deltas=found[6],
        entries=found[7],
        entry_escapes=found[8],
        dictionary=BinaryPositions(found[9], found[9], found[10], found[11]),
        ids=found[12],
        keys=BinaryPositions(*found[13:17]),
        headers=BinaryPositions(*found[17:21]),
        values=BinaryPositions(*found[21:25]),
    )


def _positions_of(batch: RecordBatch) -> tuple[int, ...]:
    view, header = batch.raw, batch.header
    has, count = header.attributes, header.record_count
    at = HEADER_SIZE
    offset_deltas = at
    if has & OFFSET_DELTAS:
        at += 4 * count + 7 & ~7
    time_deltas = at
    if has & TIMESTAMP_DELTAS:
        at += 4 * count + 7 & ~7
    entries, reserved = _COUNT.unpack_from(view, at)
    entry_ends = at + 8
    at = entry_ends + (4 * entries + 11 & ~7)
    escapes = at
    if has & ESCAPED_SUBJECTS:
        at += (entries + 7) // 8 + 7 & ~7
    (first,), (entry_size,) = (
        _END.unpack_from(view, entry_ends),
        _END.unpack_from(view, entry_ends + 4 * entries),
    )
    if reserved or first or not entries or entry_size < 0:
        raise CorruptBatch("the subject dictionary does not fit the batch")
    entry_data = at
    ids = at = at + (entry_size + 7 & ~7)
    if has & SUBJECT_IDS:
        at += 2 * count + 7 & ~7
    elif entries > 1:
        raise CorruptBatch("several subjects, but no column says which record has which")
    found = []
    for present, nullable in (
        (has & KEYS, has & KEYS),
        (has & HEADERS, 0),
        (1, has & TOMBSTONES),
    ):
        if not present:
            found += [0, 0, 0, 0]
            continue
        bits = at + (4 * count + 11 & ~7)
        data = bits + ((count + 7) // 8 + 7 & ~7 if nullable else 0)
        (first,), (size,) = _END.unpack_from(view, at), _END.unpack_from(view, at + 4 * count)
        if first or size < 0:
            raise CorruptBatch("a column reaches past the end of the batch")
        found += [at, bits, data, size]
        at = data + (size + 7 & ~7)
    if at != len(view):
        raise CorruptBatch(f"the columns end at {at}, the batch at {len(view)}")
    return (
        has,
        count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ns,
        offset_deltas,
        time_deltas,
        entries,
        escapes,
        entry_ends,
        entry_data,
        entry_size,
        ids,
        *found,
    )


# --- small batches ---


class _Joined:
    """`_at` is how far the walk has come in each batch."""

    def __init__(self, batches: Sequence[RecordBatch]) -> None:
        self._raw = raw = b"".join([batch.raw for batch in batches])
        self._words = np.frombuffer(raw, np.int32)
        self._unsigned = np.frombuffer(raw, np.uint32)
        lengths = np.array([len(batch.raw) for batch in batches], np.int64)
        self._limits = np.cumsum(lengths)
        self._begin = self._limits - lengths
        self._at = self._begin + HEADER_SIZE
        self._attributes = self._words[(self._begin + ATTRIBUTES_POSITION) >> 2] & 0xFFFF
        self._all = int(np.bitwise_and.reduce(self._attributes))
        self._some = int(np.bitwise_or.reduce(self._attributes))

    def stretches(
        self, kind: type[np.generic], begin: Numbers, sizes: Numbers, present: Flags | None
    ) -> NDArray[Any]:
        items = np.frombuffer(self._raw, kind)
        first = begin // np.dtype(kind).itemsize
        if present is not None:
            first, sizes = first[present], sizes[present]
        return cut(items, first, sizes)

    def positions(self) -> Positions:
        # Where these fields of the header lie: format.py.
        begin, longs = self._begin, np.frombuffer(self._raw, np.int64)
        counts = self._unsigned[(begin + 20) >> 2].astype(np.int64)
        base_offsets = longs[(begin + 8) >> 3]
        offset_deltas = self._step(4 * counts, OFFSET_DELTAS)
        time_deltas = self._step(4 * counts, TIMESTAMP_DELTAS)
        entries, escapes, dictionary = self._dictionaries()
        ids = self._step(2 * counts, SUBJECT_IDS)
        found = Positions(
            attributes=self._attributes.astype(np.int64),
            counts=counts,
            base_offsets=base_offsets,
            last_deltas=self._unsigned[(begin + 16) >> 2].astype(np.int64),
            base_ns=longs[(begin + 24) >> 3],
            offset_deltas=offset_deltas,
            time_deltas=time_deltas,
            entries=entries,
            entry_escapes=escapes,
            dictionary=dictionary,
            ids=ids,
            keys=self._binary(counts, KEYS, KEYS),
            headers=self._binary(counts, HEADERS, 0),
            values=self._binary(counts, None, TOMBSTONES),
        )
        if not np.array_equal(self._at, self._limits):
            raise CorruptBatch("the columns do not end where the batch does")
        return found

    def _step(self, sizes: Numbers | int, bit: int | None = None) -> Numbers:
        """Go on by these sizes, padded, in the batches that have that column; returns where it
        begins."""
        begin = self._at
        if bit is not None and not self._some & bit:
            return begin
        padded = sizes + 7 & ~7
        if bit is not None and not self._all & bit:
            padded = np.where(self._attributes & bit, padded, 0)
        self._at = begin + padded
        if (self._at > self._limits).any():
            raise CorruptBatch("a column reaches past the end of the batch")
        return begin

    def _dictionaries(self) -> tuple[Numbers, Numbers, BinaryPositions]:
        word = self._step(8) >> 2
        entries = self._unsigned[word].astype(np.int64)
        if self._words[word + 1].any() or not entries.all():
            raise CorruptBatch("the subject dictionary does not fit the batch")
        if ((entries > 1) & (self._attributes & SUBJECT_IDS == 0)).any():
            raise CorruptBatch("several subjects, but no column says which record has which")
        ends = self._step(4 * (entries + 1))
        first, last = self._words[ends >> 2], self._words[(ends >> 2) + entries]
        escapes = self._step((entries + 7) // 8, ESCAPED_SUBJECTS)
        if first.any() or (last < 0).any():
            raise CorruptBatch("the subject dictionary does not fit the batch")
        sizes = last.astype(np.int64)
        return entries, escapes, BinaryPositions(ends, ends, self._step(sizes), sizes)

    def _binary(self, counts: Numbers, bit: int | None, null_bit: int) -> BinaryPositions:
        if bit is not None and not self._some & bit:
            nothing = np.zeros(len(counts), np.int64)
            return BinaryPositions(nothing, nothing, nothing, nothing)
        ends = self._step(4 * (counts + 1), bit)
        word = ends >> 2
        last_word = word + counts
        if bit is not None and not self._all & bit:
            # A batch that lacks it may end here, so look at something that is 0: the field of the
            # header that is reserved.
            lacks = self._attributes & bit == 0
            zero = (self._begin + 48) >> 2
            word, last_word = np.where(lacks, zero, word), np.where(lacks, zero, last_word)
        first, last = self._words[word], self._words[last_word]
        bits = self._step((counts + 7) // 8, null_bit) if null_bit else ends
        if first.any() or (last < 0).any():
            raise CorruptBatch("a column reaches past the end of the batch")
        sizes = last.astype(np.int64)
        return BinaryPositions(ends, bits, self._step(sizes), sizes)
