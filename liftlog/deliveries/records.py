"""Records that the daemon has read for a consumer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from liftlog.deliveries.columns import Bools, Index, Ints

_STAMP_DIGITS = 19
"""Digits of a time in ns since 1970, from 2001 to 2286."""
_TENS = 10 ** np.arange(1, 19, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Records:
    """Committed records in offset order. `sizes` has the bytes of subject, headers and payload."""

    offsets: Ints
    sizes: Ints
    stamps_ns: Ints

    def after(self, count: int) -> Records:
        """Return the records without the first `count`."""
        if not count:
            return self
        return Records(self.offsets[count:], self.sizes[count:], self.stamps_ns[count:])

    def find(self, asked: Ints) -> tuple[Bools, Index]:
        """Return a mask of the offsets in `asked` that have records, and the indices of these
        records."""
        places = np.searchsorted(self.offsets, asked)
        is_there = places < len(self.offsets)
        is_there[is_there] = self.offsets[places[is_there]] == asked[is_there]
        return is_there, places[is_there]


@dataclass(frozen=True, slots=True)
class Scan:
    """All matching records from `start` up to `end`, exclusive.

    `is_at_end` is true if the log has no committed record from `end` on. `epoch` is the leader
    epoch of the record before `end`.
    """

    start: int
    end: int
    records: Records
    is_at_end: bool
    epoch: int = 0


def reply_sizes(
    prefix_bytes: int, counts: Ints, offsets: Ints, sequences: Ints, pendings: Ints
) -> Ints:
    """Return the lengths of the reply subjects of deliveries, in bytes."""
    digits = [_digits(column) for column in (counts, offsets, sequences, pendings)]
    total: Ints = np.sum(digits, axis=0)
    return total + (prefix_bytes + _STAMP_DIGITS + 4)


def _digits(numbers: Ints) -> Ints:
    return np.searchsorted(_TENS, numbers, side="right").astype(np.int64) + 1
