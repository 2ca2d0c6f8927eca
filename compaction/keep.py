"""Decides which records of a compacted stream stay. No other code decides that.

A record stays if it has no key, or if no newer record with its key is mapped. A tombstone stays
like any other record until its retention time has passed; the plan's `drop_tombstones` says for
which sources this is the case.
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
    """Return True for each record that stays, in the order given.

    `newest` is the result of `KeyMap.newest` for the records' keys. A record newer than the mapped
    one stays: it is not part of the mapped range. `is_tombstone` has an effect only with a key: a
    record with neither key nor value always stays.
    """
    # An unknown key gives -1, and no offset is below that.
    keep = offsets >= newest
    if drop_tombstones:
        keep &= ~is_tombstone
    keep |= ~has_key
    return keep
