"""Which record of a compacted stream stays: the one place that decides it.

A record stays if it has no key, or if no newer record with its key is known. A tombstone stays
like any other record until its time is over; the plan says where that is so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""In place of an offset: no record with this key was seen, or the record has no key."""


def keep_mask(
    newest: NDArray[np.int64],
    offsets: NDArray[np.int64],
    has_key: NDArray[np.bool_],
    is_tombstone: NDArray[np.bool_],
    *,
    drop_tombstones: bool,
) -> NDArray[np.bool_]:
    """For each record, in the order given, whether it stays.

    `newest` is what `KeyMap.newest` answered for the records' keys. A record newer than what the
    map knows stays: it comes after what was mapped. `is_tombstone` counts only with a key: a
    record with neither key nor value always stays.
    """
    # An unknown key gives -1, which no offset is below.
    keep = offsets >= newest
    if drop_tombstones:
        keep &= ~is_tombstone
    keep |= ~has_key
    return keep
