"""Records that stay in the bytes of their batches, for code that sends some of them to each of many
readers.

`Columns` join the items of each column, so building them copies every record. `ScatteredRecords`
only contain positions; `take` copies the chosen records once, into columns from which the records
are then encoded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liftlog.records.columns.column_set import BinaryColumn, Bytes, Columns, Flags, Offsets, gather
from liftlog.records.columns.small_batches import Numbers


@dataclass(frozen=True, slots=True, eq=False)
class ScatteredColumn:
    """A column whose item i is `data[starts[i]:stops[i]]`. An item is null, and empty, if `valid`
    is False for it. `length` is the length of every item; None if the lengths differ."""

    starts: Numbers
    stops: Numbers
    data: Bytes
    valid: Flags | None
    length: int | None

    def take(self, chosen: NDArray[np.intp]) -> BinaryColumn:
        """Return a copy of the chosen items, joined."""
        valid = None if self.valid is None else self.valid[chosen]
        starts, length = self.starts[chosen], self.length
        if length is not None:
            ends = np.arange(len(starts) + 1, dtype=np.int32) * np.int32(length)
            return BinaryColumn(ends, _rows(self.data, starts, length), valid)
        stops = self.stops[chosen]
        ends = np.zeros(len(starts) + 1, np.int32)
        np.cumsum(stops - starts, out=ends[1:])
        return BinaryColumn(ends, gather(self.data, starts, stops, ends), valid)


def column_of(starts: Numbers, stops: Numbers, data: Bytes, valid: Flags | None) -> ScatteredColumn:
    lengths = stops - starts
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    return ScatteredColumn(starts, stops, data, valid, longest if shortest == longest else None)


def _rows(data: Bytes, starts: Numbers, length: int) -> Bytes:
    """Return the byte ranges of `length` bytes that begin at `starts`, one after another."""
    if not length or not len(starts):
        return data[:0]
    # A numpy item begins at each byte. The items overlap, which is allowed for reading.
    every: NDArray[np.void] = np.ndarray(len(data) - length + 1, f"V{length}", data, strides=(1,))
    return every[starts].view(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class ScatteredRecords:
    """Records as columns whose items stay in the bytes of their batches, without one joined buffer.
    The fields are those of `Columns`."""

    offsets: Offsets
    timestamps_ns: Offsets
    subjects: tuple[tuple[bytes, bool], ...]
    subject_ids: NDArray[np.uint16] | None
    keys: ScatteredColumn | None
    headers: ScatteredColumn | None
    values: ScatteredColumn

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, chosen: NDArray[np.intp]) -> Columns:
        """Return a copy of the records with these numbers."""
        return Columns(
            self.offsets[chosen],
            self.timestamps_ns[chosen],
            self.subjects,
            None if self.subject_ids is None else self.subject_ids[chosen],
            None if self.keys is None else self.keys.take(chosen),
            None if self.headers is None else self.headers.take(chosen),
            self.values.take(chosen),
        )
