"""The truth table of keep_mask."""

import numpy as np
import pytest

from compaction.keep import UNKNOWN, keep_mask


def stays(newest: int, *, key: bool = True, tombstone: bool = False, drop: bool = False) -> bool:
    """Whether the record at offset 10 stays."""
    mask = keep_mask(
        np.array([newest]),
        np.array([10]),
        np.array([key]),
        np.array([tombstone]),
        drop_tombstones=drop,
    )
    return bool(mask[0])


@pytest.mark.parametrize("drop", [False, True])
def test_a_value_stays_unless_a_newer_record_is_known(drop: bool) -> None:
    assert stays(10, drop=drop)
    assert stays(9, drop=drop), "the map ended before this record"
    assert stays(UNKNOWN, drop=drop)
    assert not stays(11, drop=drop)


def test_a_tombstone_stays_until_its_time_is_over() -> None:
    assert stays(10, tombstone=True)
    assert stays(UNKNOWN, tombstone=True)
    assert not stays(11, tombstone=True), "a newer record makes it pointless"
    assert not stays(10, tombstone=True, drop=True)
    assert not stays(UNKNOWN, tombstone=True, drop=True)


@pytest.mark.parametrize("tombstone", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_without_a_key_it_always_stays(tombstone: bool, drop: bool) -> None:
    assert stays(UNKNOWN, key=False, tombstone=tombstone, drop=drop)
    # Whatever that field contains.
    assert stays(99, key=False, tombstone=tombstone, drop=drop)
