"""Columns whose items all have one length are cut in steps of many items."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from liftlog.errors import CorruptBatch
from liftlog.records.decode import decode_batch
from liftlog.records.encode import encode_batch
from liftlog.records.format import HEADER_SIZE


def encoded(values: list[bytes]) -> bytearray:
    return encode_batch(
        base_offset=1, leader_epoch=1, commit_group=1, stamps=[(0, len(values))],
        subjects=[b"s"] * len(values), values=[*values],
    )  # fmt: skip


@pytest.mark.parametrize("count", [17, 127, 128, 129, 255, 256, 257, 1000])
@pytest.mark.parametrize("length", [1, 7, 300])
def test_all_items_are_found(count: int, length: int) -> None:
    values = [(b"%d " % number * length)[:length] for number in range(count)]
    assert decode_batch(encoded(values)).values() == values
    values[count // 2] += b"x"
    assert decode_batch(encoded(values)).values() == values


def test_items_too_long_for_the_table_of_multiples() -> None:
    values = [bytes((number,)) * (1 << 20) for number in range(33)]
    assert decode_batch(encoded(values)).values() == values


def test_ends_that_only_begin_like_those_of_equal_items() -> None:
    data = encoded([b"abcd"] * 200)
    ends = struct.pack("<201i", *range(0, 804, 4))
    place = data.index(ends)
    struct.pack_into("<i", data, place + 4 * 100, 500)
    data[56:60] = struct.pack("<I", crc32c(bytes(data[HEADER_SIZE:])))
    data[60:64] = struct.pack("<I", crc32c(bytes(data[:60])))
    with pytest.raises(CorruptBatch):
        decode_batch(data).values()
