"""Decides which records of a compacted stream stay. No other code decides this.

A record stays if it has no key, or if the map contains no newer record with its key. A tombstone
stays like any other record until its retention time has passed. `drop_tombstones` of the plan names
the sources whose tombstones have passed this time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""Value in place of an offset if no record with this key was seen, or if the record has no key."""


def keep_mask(
    newest: NDArray[np.int64],
    offsets: NDArray[np.int64],
    has_key: NDArray[np.bool_],
    is_tombstone: NDArray[np.bool_],
    *,
    drop_tombstones: bool,
) -> NDArray[np.bool_]:
    """Return True for each record that stays, in the given order.

    `newest` is the result of `KeyMap.newest` for the keys of the records. A record with a higher
    offset than `newest` stays, because it is not in the mapped range. `is_tombstone` matters only
    for records with a key: a record with neither key nor value always stays.
    """
    # An unknown key gives -1, and no offset is below that.
    keep = offsets >= newest
    if drop_tombstones:
        keep &= ~is_tombstone
    keep |= ~has_key
    return keep
