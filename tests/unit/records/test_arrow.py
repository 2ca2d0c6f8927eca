"""The binary columns lie in the batch as Arrow lays them out: no byte has to be copied."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.client.connecting.buffers import BufferPool
from liftlog.errors import CorruptBatch, InvalidArgument
from liftlog.records import RecordBatch, decode_batch, encode_batch
from liftlog.records.format import KEYS, TOMBSTONES
from liftlog.records.layout import size_of

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
        column = batch._layout.keys if bit == KEYS else batch._layout.values
        assert column is not None
        has_bitmap = batch.header.attributes & bit != 0
        size = 4 * 66
        bitmap_size = 16 if has_bitmap else 0
        start = column.data - bitmap_size - (size + 7 & ~7)
        assert start % 8 == 0
        assert column.data % 8 == 0
        data_size = size_of(batch.raw, column, 65)
        bitmap = whole.slice(column.data - 16, 9) if has_bitmap else None
        array = pa.Array.from_buffers(
            pa.binary(),
            65,
            [bitmap, whole.slice(start, size), whole.slice(column.data, data_size)],
        )
        array.validate(full=True)
        assert array.to_pylist() == expected
        assert array.buffers()[2].address == whole.address + column.data


# --- RecordBatch.to_arrow ---

short = st.binary(max_size=5)
record = st.tuples(
    st.sampled_from([b"a", b"a.b", "ü".encode(), b"\xff"]),
    st.none() | short,
    st.none() | short,
    st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
)


@st.composite
def batches(draw: st.DrawFn) -> RecordBatch:
    rows = draw(st.lists(record, min_size=1, max_size=20))
    base = draw(st.sampled_from([1, 1000]))
    offsets = None
    if draw(st.booleans()):
        steps = draw(st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows)))
        offsets = [base + sum(steps[:i]) for i in range(1, len(rows) + 1)]
    second = draw(st.integers(0, len(rows)))
    stamps = [(1_700_000_000_000_000_000, second), (1_700_000_000_000_007_000, len(rows) - second)]
    data = encode_batch(
        base_offset=base,
        leader_epoch=1,
        commit_group=0,
        stamps=[stamp for stamp in stamps if stamp[1]],
        subjects=[row[0] for row in rows],
        values=[row[1] for row in rows],
        keys=[row[2] for row in rows] if draw(st.booleans()) else None,
        headers=[row[3] for row in rows] if draw(st.booleans()) else None,
        has_tombstones=any(row[1] is None for row in rows),
        offsets=offsets,
        last_offset=None if offsets is None else offsets[-1] + 2,
    )
    return decode_batch(bytes(data))


def rows_of(found: pa.RecordBatch) -> list[tuple[Any, ...]]:
    stamps = found.column("timestamp").cast(pa.int64()).to_pylist()
    names = ("offset", "subject", "key", "headers", "value")
    return list(zip(*(found.column(name).to_pylist() for name in names), stamps, strict=True))


def rows_expected(batch: RecordBatch) -> list[tuple[Any, ...]]:
    return [
        (r.offset, r.subject, r.key, r.headers.raw, r.value, r.timestamp_ns)
        for r in batch.records()
    ]


@given(batches(), st.integers(0, 250), st.none() | st.integers(0, 250))
def test_arrow_has_what_the_records_have(batch: RecordBatch, first: int, stop: int | None) -> None:
    base = batch.header.base_offset
    for asked in (batch, batch.trim(base + first, None if stop is None else base + stop)):
        found = asked.to_arrow()
        found.validate(full=True)
        assert rows_of(found) == rows_expected(asked)


def make(count: int = 3, **columns: Any) -> bytearray:
    fields: dict[str, Any] = {
        "base_offset": 5,
        "leader_epoch": 1,
        "commit_group": 0,
        "stamps": [(1, count)],
        "subjects": [b"s"] * count,
        "values": [b"v%d" % i for i in range(count)],
    }
    return encode_batch(**fields | columns)


def test_chosen_columns_in_the_chosen_order() -> None:
    found = decode_batch(make()).to_arrow(["value", "offset"])
    assert found.to_pydict() == {"value": [b"v0", b"v1", b"v2"], "offset": [5, 6, 7]}
    for wrong in (["valu"], []):
        with pytest.raises(InvalidArgument, match="no column"):
            decode_batch(make()).to_arrow(wrong)


def test_batches_of_all_kinds_fit_into_one_table() -> None:
    plain = decode_batch(make())
    other = decode_batch(make(subjects=[b"x", b"y", b"x"], keys=[b"k", None, b""]))
    empty = decode_batch(make(0, stamps=[], last_offset=9))
    table = pa.Table.from_batches([b.to_arrow() for b in (plain, other, empty)])
    assert table.num_rows == 6
    assert table.column("subject").to_pylist() == ["s", "s", "s", "x", "y", "x"]
    assert table.column("key").to_pylist() == [None, None, None, b"k", None, b""]


def test_values_lie_in_the_buffer_and_keep_it() -> None:
    data = make(3, values=[b"x" * 50_000] * 3, keys=[b"k"] * 3)
    pool = BufferPool()
    room = pool.allocate(len(data))
    room[:] = data
    address = pa.py_buffer(room).address
    found = decode_batch(room).to_arrow(["key", "value"])
    del room
    for column in found.columns:
        assert address < column.buffers()[2].address < address + len(data)
    del column
    assert pa.py_buffer(pool.allocate(len(data))).address != address, "given out while in use"
    assert found.column("value")[2].as_py() == b"x" * 50_000
    del found
    assert pa.py_buffer(pool.allocate(len(data))).address == address


def test_offsets_that_leave_the_batch_are_damage() -> None:
    """A checksum proves only that the writer wrote it; Arrow would read whatever lies there."""
    data = make(3, values=[b"aaaa", b"bbbb", b"cccc"])
    position = data.index(struct.pack("<4i", 0, 4, 8, 12))
    for bad in ((0, 9, 8, 12), (0, -5, 8, 12), (0, 1 << 30, 8, 12)):
        struct.pack_into("<4i", data, position, *bad)
        with pytest.raises(CorruptBatch):
            decode_batch(data, verify=False).to_arrow(["value"])


def test_a_subject_id_outside_the_dictionary_is_damage() -> None:
    data = make(3, subjects=[b"x", b"y", b"x"])
    position = data.index(struct.pack("<4H", 0, 1, 0, 0))
    struct.pack_into("<H", data, position, 2)
    with pytest.raises(CorruptBatch):
        decode_batch(data, verify=False).to_arrow(["subject"])


@pytest.mark.parametrize("deltas", [(0, 0, 1), (2, 1, 3), (0, 1, 9)])
def test_offset_deltas_that_do_not_ascend_are_damage(deltas: tuple[int, ...]) -> None:
    data = make(3, offsets=[5, 6, 7], last_offset=12)
    struct.pack_into("<3I", data, 64, *deltas)
    with pytest.raises(CorruptBatch):
        decode_batch(data, verify=False).to_arrow(["offset"])


def test_without_pyarrow_it_says_what_is_missing() -> None:
    code = """if True:
        import sys
        sys.modules["pyarrow"] = None
        from liftlog.errors import LiftlogError
        from liftlog.records import decode_batch
        batch = decode_batch(sys.stdin.buffer.read())
        assert batch.values() == [b"v0", b"v1", b"v2"]
        try:
            batch.to_arrow()
        except LiftlogError as error:
            print(error)
    """
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, input=bytes(make()), capture_output=True, check=True)
    assert b"need pyarrow" in run.stdout
    assert b"pip install pyarrow" in run.stdout
