"""Computes the slot of each record in a consumer group: `crc32c(key) * count >> 32`.

A record without a key uses its subject instead. No Python code runs per record, unless keys are
long.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from liftlog.records.columns.column_set import Bytes, Columns, Flags
from liftlog.records.columns.scattered import ScatteredRecords

Slots = NDArray[np.uint16]
Sums = NDArray[np.uint32]

_FEW_ITEMS = 128
_LONG_ITEM = 40
"""A number of items, and a number of bytes per item. With fewer or longer items, one call per item
is faster than one step per byte position."""


@dataclass(frozen=True)
class WantedSlots:
    """Some of the slots to which a consumer group maps the records of a stream; `numbers`
    ascend."""

    slot_count: int
    numbers: tuple[int, ...]

    @cached_property
    def bits(self) -> int:
        """An integer whose bit n is set if slot n is wanted; the size of the integer depends only
        on `slot_count`."""
        return int.from_bytes(np.packbits(self.flags, bitorder="little").tobytes(), "little")

    @property
    def flags(self) -> Flags:
        """A flag for each slot of the group: True if the slot is wanted."""
        wanted = np.zeros(self.slot_count, np.bool_)
        wanted[list(self.numbers)] = True
        return wanted


def flags_of(bits: int, count: int) -> Flags:
    """Convert `WantedSlots.bits` to `WantedSlots.flags`, for a group of `count` slots."""
    raw = np.frombuffer(bits.to_bytes((count + 7) // 8, "little"), np.uint8)
    return np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)


def slots_of(records: Columns | ScatteredRecords, count: int) -> Slots:
    """Return the slot of each record in a group of `count` slots."""
    keys = records.keys
    if keys is None:
        sums = _subject_sums(records)
    else:
        sums = sums_of(keys.data, keys.starts, keys.stops)
        if keys.valid is not None and not keys.valid.all():
            sums = np.where(keys.valid, sums, _subject_sums(records))
    return (sums.astype(np.uint64) * np.uint64(count) >> np.uint64(32)).astype(np.uint16)


def _subject_sums(records: Columns | ScatteredRecords) -> Sums:
    sums = np.array([crc32c(name) for name, _ in records.subjects], np.uint32)
    if records.subject_ids is not None:
        return sums[records.subject_ids]
    return np.full(len(records), sums[0] if len(sums) else 0, np.uint32)


def sums_of(data: Bytes, starts: NDArray[Any], stops: NDArray[Any]) -> Sums:
    """Return the CRC-32C of each item `data[start:stop]`."""
    lengths = stops - starts
    longest = int(lengths.max()) if len(lengths) else 0
    if len(lengths) < _FEW_ITEMS or longest > _LONG_ITEM:
        view = data.data
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        return np.fromiter([crc32c(view[a:b]) for a, b in pairs], np.uint32, len(lengths))
    order = None
    ends = stops
    if int(lengths.min()) < longest:
        order = np.argsort(lengths.astype(np.uint8), kind="stable")[::-1]  # the longest items first
        ends = stops[order]
    reaching = len(lengths) - np.cumsum(np.bincount(lengths))
    found = np.zeros(len(lengths), np.uint32)
    for distance in range(longest):
        some = int(reaching[distance])
        found[:some] ^= _part_of(distance).take(data[ends[:some] - (distance + 1)])
    if order is None:
        found ^= _sums_of_zeros()[longest]
        return found
    sums = np.empty_like(found)
    sums[order] = found
    sums ^= _sums_of_zeros()[lengths]
    return sums


@lru_cache(maxsize=_LONG_ITEM)
def _part_of(distance: int) -> Sums:
    """Return a table with an entry for each byte value: the contribution of this byte to the
    checksum, at this distance from the end of an item. Except for the checksum of zeros, CRC-32C is
    linear, so the contributions of all bytes are combined by XOR."""
    behind = bytes(distance)
    of_zeros = crc32c(bytes(1) + behind)
    sums = [crc32c(bytes((octet,)) + behind) ^ of_zeros for octet in range(256)]
    return np.asarray(sums, np.uint32)


@lru_cache(maxsize=1)
def _sums_of_zeros() -> Sums:
    return np.asarray([crc32c(bytes(length)) for length in range(_LONG_ITEM + 1)], np.uint32)
