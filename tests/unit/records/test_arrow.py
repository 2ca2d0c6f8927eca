"""The binary columns lie in the batch as Arrow lays them out: no byte has to be copied."""

from __future__ import annotations

import pyarrow as pa
import pytest

from liftlog.records import decode_batch, encode_batch
from liftlog.records.format import KEYS, TOMBSTONES

VALUES: list[bytes | None] = [b"one", None, b"", b"\xff" * 100, None] * 13
KEY_COLUMN: list[bytes | None] = [b"k%d" % i if i % 3 else None for i in range(65)]


@pytest.mark.parametrize("tombstones", [False, True])
def test_a_binary_array_over_the_bytes_of_the_batch(tombstones: bool) -> None:
    values = VALUES if tombstones else [value or b"" for value in VALUES]
    data = bytes(
        encode_batch(
            base_offset=1,
            leader_epoch=1,
            commit_group=0,
            stamps=[(1, 65)],
            subjects=[b"s.%d" % (i % 4) for i in range(65)],
            values=values,
            keys=KEY_COLUMN,
            has_tombstones=tombstones,
        )
    )
    whole = pa.py_buffer(data)
    batch = decode_batch(data)
    for bit, expected in ((TOMBSTONES, values), (KEYS, KEY_COLUMN)):
        column = batch._column(bit)
        size = 4 * 66
        bitmap_size = 16 if column.bitmap is not None else 0
        start = column.data - bitmap_size - (size + 7 & ~7)
        assert start % 8 == 0
        assert column.data % 8 == 0
        bitmap = whole.slice(column.data - 16, 9) if column.bitmap is not None else None
        array = pa.Array.from_buffers(
            pa.binary(),
            65,
            [bitmap, whole.slice(start, size), whole.slice(column.data, column.ends[-1])],
        )
        array.validate(full=True)
        assert array.to_pylist() == expected
        assert array.buffers()[2].address == whole.address + column.data
