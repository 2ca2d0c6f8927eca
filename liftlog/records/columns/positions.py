"""Finds the columns of many batches at once.

Decoding one batch alone takes about fifty steps, regardless of its size. Small batches are joined
in one buffer, so that each step is one numpy operation for all of them. Large batches stay in their
buffers, because a copy would take more time than it saves. In both cases every length is checked
before it is used: see layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.records.columns.column_set import Bytes, Flags
from liftlog.records.columns.small_batches import Numbers, SmallBatches, heads_at
from liftlog.records.decode import RecordBatch
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import BatchHeader
from liftlog.records.layout import PROBLEMS, Binary, Layout, walk

AnyArray = TypeVar("AnyArray", bound=NDArray[Any])
Batches: TypeAlias = RecordBatch | SmallBatches
"""The result of one step of a walk over batches: one batch, or many small ones."""

_JOIN_BELOW_BYTES = 16 * 1024
"""Average size, in bytes, below which batches are joined."""

_CUT_FROM_ITEMS = 24
"""Ranges of at least this average length are sliced one by one. Shorter ranges are gathered by
index."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The header fields and the positions of the columns of each batch.

    A column is present if any batch has it. For a batch without the column, the positions are
    undefined.
    """

    attributes: Numbers
    counts: Numbers
    base_offsets: Numbers
    last_deltas: Numbers
    base_ns: Numbers
    layout: Layout[Numbers]


def count_batches(found: Sequence[Batches]) -> int:
    together = [some.batch_count - 1 for some in found if isinstance(some, SmallBatches)]
    return len(found) + sum(together)


def one_by_one(found: Sequence[Batches]) -> list[RecordBatch]:
    """Return the batches of `found` as a list of single batches."""
    batches: list[RecordBatch] = []
    for some in found:
        if isinstance(some, RecordBatch):
            batches.append(some)
        else:
            batches += some.batches()
    return batches


def locate(found: Sequence[Batches], *, in_one: bool = False) -> tuple[Positions, Apart | Joined]:
    """Return the positions and the bytes of verified batches.

    The batches have at least one record each, and less than 2 GiB in total. With `in_one`, all
    batches are joined, so the positions refer to one buffer. Raises CorruptBatch if columns reach
    past the end of their batch, or if offsets exceed 63 bits.
    """
    total = sum([len(some.raw) for some in found])
    octets: Apart | Joined
    if in_one or total < _JOIN_BELOW_BYTES * count_batches(found):
        octets = joined = Joined(found)
        positions = joined.positions()
    else:
        batches = one_by_one(found)
        octets, positions = Apart(batches), _positions_one_by_one(batches)
    check_offsets(positions)
    return positions, octets


def check_offsets(positions: Positions) -> None:
    """Raise CorruptBatch if offsets exceed 63 bits, because they have then become negative."""
    offsets = positions.base_offsets
    if min(offsets.min(), (offsets + positions.last_deltas).min()) < 0:
        raise CorruptBatch("offsets beyond 63 bits")


def cut(items: AnyArray, first: Numbers, sizes: Numbers) -> AnyArray:
    """Copy the ranges of items, each `sizes[i]` items from `first[i]` on, and return the joined
    ranges."""
    total = int(sizes.sum())
    if total >= _CUT_FROM_ITEMS * len(sizes):
        pairs = zip(first.tolist(), (first + sizes).tolist(), strict=True)
        return np.concatenate([items[a:b] for a, b in pairs])  # type: ignore[return-value]
    places = np.arange(total, dtype=np.int64)
    places += np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
    return items[places]  # type: ignore[return-value]


# --- large batches ---


class Apart:
    """Batches that stay in their own buffers."""

    def __init__(self, batches: Sequence[RecordBatch]) -> None:
        self._octets = [np.frombuffer(batch.raw, np.uint8) for batch in batches]
        self._items: dict[type[np.generic], list[NDArray[Any]]] = {np.uint8: list(self._octets)}

    def stretches(
        self, kind: type[np.generic], begin: Numbers, sizes: Numbers, present: Flags | None
    ) -> NDArray[Any]:
        """Copy one range of each batch i, `sizes[i]` items from byte `begin[i]` on, and return the
        joined ranges. If `present` is not None, batches with a flag of False are omitted."""
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
    layouts = [batch._layout for batch in batches]
    rows = [_row_of(batch.header, layout) for batch, layout in zip(batches, layouts, strict=True)]
    try:
        columns = np.array(rows, np.int64).T
    except OverflowError as error:
        raise CorruptBatch("offsets beyond 63 bits") from error
    attributes, counts, base_offsets, last_deltas, base_ns = columns[:5]
    offset_deltas, time_deltas, entries, ids, *binary = columns[5:]
    dictionary, keys, headers, values = [Binary(*binary[i : i + 3]) for i in range(0, 12, 3)]
    layout = Layout(
        offset_deltas,
        time_deltas,
        entries,
        dictionary,
        ids,
        keys if any(one.keys for one in layouts) else None,
        headers if any(one.headers for one in layouts) else None,
        values,
    )
    return Positions(attributes, counts, base_offsets, last_deltas, base_ns, layout)


def _row_of(header: BatchHeader, layout: Layout[int]) -> tuple[int, ...]:
    """Return the row of Positions for one batch."""
    offset_deltas, time_deltas, entries, dictionary, ids, keys, headers, values = layout
    return (
        header.attributes,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp_ns,
        offset_deltas,
        time_deltas,
        entries,
        ids,
        *dictionary,
        *(keys or _NOTHING),
        *(headers or _NOTHING),
        *values,
    )


_NOTHING = Binary(0, 0, 0)


# --- small batches ---


class Joined:
    """Batches in one buffer. The batches are copied, unless one buffer already contains all of
    them."""

    def __init__(self, found: Sequence[Batches]) -> None:
        self._raw: bytes | memoryview = found[0].raw
        if len(found) > 1:
            self._raw = b"".join([some.raw for some in found])
        begin: list[Numbers] = []
        lengths: list[Numbers] = []
        at = 0
        for kind, run in groupby(found, type):
            if kind is RecordBatch:
                sizes = np.array([len(one.raw) for one in run], np.int64)
                stops = at + np.cumsum(sizes)
                begin.append(stops - sizes)
                lengths.append(sizes)
                at = int(stops[-1])
                continue
            for some in run:
                assert isinstance(some, SmallBatches)
                begin.append(some.starts + at)
                lengths.append(some.lengths)
                at += some.size_bytes
        self._lie(np.concatenate(begin), np.concatenate(lengths))

    def _lie(self, begin: Numbers, lengths: Numbers) -> None:
        self._begin = begin
        self._limits = begin + lengths

    def stretches(
        self, kind: type[np.generic], begin: Numbers, sizes: Numbers, present: Flags | None
    ) -> NDArray[Any]:
        """Return the same as `Apart.stretches`; `begin` counts from the start of the buffer."""
        items = np.frombuffer(self._raw, kind)
        first = begin // np.dtype(kind).itemsize
        if present is not None:
            first, sizes = first[present], sizes[present]
        return cut(items, first, sizes)

    @property
    def all(self) -> Bytes:
        return np.frombuffer(self._raw, np.uint8)

    def positions(self) -> Positions:
        heads = heads_at(self._raw, self._begin)
        attributes = heads["attributes"].astype(np.int64)
        counts = heads["record_count"].astype(np.int64)
        return Positions(
            attributes=attributes,
            counts=counts,
            base_offsets=heads["base_offset"].astype(np.int64),
            last_deltas=heads["last_offset_delta"].astype(np.int64),
            base_ns=heads["base_timestamp_ns"].astype(np.int64),
            layout=self._layout(attributes, counts),
        )

    def _layout(self, attributes: Numbers, counts: Numbers) -> Layout[Numbers]:
        """Walk batches with the same attributes together, because they have the same columns."""
        kinds = np.unique(attributes).tolist()
        if len(kinds) == 1:
            return self._walk(kinds[0], counts, self._begin, self._limits)
        alike = [np.flatnonzero(attributes == kind) for kind in kinds]
        parts = [
            self._walk(kind, counts[which], self._begin[which], self._limits[which])
            for kind, which in zip(kinds, alike, strict=True)
        ]

        def gathered(pieces: Sequence[Numbers | None]) -> Numbers:
            whole = np.zeros(len(counts), np.int64)
            for which, piece in zip(alike, pieces, strict=True):
                if piece is not None:
                    whole[which] = piece
            return whole

        def column(name: str) -> Binary[Numbers] | None:
            found: list[Binary[Numbers] | None] = [getattr(part, name) for part in parts]
            if not any(found):
                return None
            return Binary(*[gathered([one and one[i] for one in found]) for i in range(3)])

        dictionary, values = column("dictionary"), column("values")
        assert dictionary is not None
        assert values is not None
        return Layout(
            gathered([part.offset_deltas for part in parts]),
            gathered([part.time_deltas for part in parts]),
            gathered([part.entries for part in parts]),
            dictionary,
            gathered([part.ids for part in parts]),
            column("keys"),
            column("headers"),
            values,
        )

    def _walk(
        self, attributes: int, counts: Numbers, begin: Numbers, limits: Numbers
    ) -> Layout[Numbers]:
        words = _Words(self._raw)
        try:
            found, end, *problems = walk(words, attributes, counts, begin + HEADER_SIZE)
        except IndexError as error:
            raise CorruptBatch(PROBLEMS[-1]) from error
        for problem, text in zip(problems, PROBLEMS, strict=True):
            if np.any(problem):
                raise CorruptBatch(text)
        if not np.array_equal(end, limits):
            raise CorruptBatch("the columns do not end where the batch does")
        return found


class _Words:
    """The i32 numbers of the joined bytes, widened so that their sums do not overflow."""

    def __init__(self, raw: bytes | memoryview) -> None:
        self._words = np.frombuffer(raw, np.int32)

    def __getitem__(self, place: Numbers) -> Numbers:
        return self._words[place].astype(np.int64)
