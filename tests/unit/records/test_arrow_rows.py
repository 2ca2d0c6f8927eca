"""Many batches as one piece of Arrow: equal to what each of them holds by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.values import binary

from liftlog.errors import CorruptBatch, InvalidArgument
from liftlog.records import RecordBatch, decode_batch, encode_batch
from liftlog.records.columns import positions
from liftlog.records.columns.arrow_rows import ROWS_SCHEMA, rows_of
from liftlog.records.encode import fill_header
from liftlog.records.format import HEADER_SIZE

BASE_NS = 1_700_000_000_000_000_000

record = st.tuples(
    st.sampled_from([b"a", b"a.b", "ü".encode(), b"\xff"]),
    st.none() | binary(5),
    st.none() | binary(5),
    st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
)


def make(base: int, rows: list[tuple[Any, ...]], *, step: int = 1, stamp: int = 0) -> RecordBatch:
    offsets = [base + step * i for i in range(len(rows))]
    keys = [row[2] for row in rows]
    headers = [row[3] for row in rows]
    data = encode_batch(
        base_offset=base,
        leader_epoch=1,
        commit_group=0,
        stamps=[(BASE_NS + 1000 * stamp, 1), (BASE_NS + 1000 * stamp + 7000, len(rows) - 1)][
            : len(rows)
        ],
        subjects=[row[0] for row in rows],
        values=[row[1] for row in rows],
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        has_tombstones=any(row[1] is None for row in rows),
        offsets=offsets if step > 1 else None,
        last_offset=offsets[-1] + 2 if step > 1 else None,
    )
    return decode_batch(bytes(data))


@st.composite
def runs(draw: st.DrawFn) -> list[RecordBatch]:
    """Neighbours of few kinds, so that some can be decoded together."""
    base, found = 1, []
    kinds = draw(st.lists(st.lists(record, min_size=1, max_size=3), min_size=1, max_size=3))
    for i, kind in enumerate(draw(st.lists(st.sampled_from(kinds), max_size=12))):
        many = kind * draw(st.sampled_from([1, 1, 1, 40]))
        batch = make(base, many, step=draw(st.sampled_from([1, 1, 3])), stamp=i)
        base = batch.next_offset
        if draw(st.integers(0, 4)) == 0:
            batch = batch.trim(batch.header.base_offset + 1)
        found.append(batch)
    return found


@contextmanager
def small_or_large(small: bool) -> Iterator[None]:
    """All batches are small enough to be joined, or none is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "_JOIN_BELOW_BYTES", 1 << 30 if small else 0)
        yield


@given(runs(), st.booleans())
def test_rows_are_those_of_the_batches(batches: list[RecordBatch], small: bool) -> None:
    with small_or_large(small):
        found = rows_of(batches, ROWS_SCHEMA.names)
    found.validate(full=True)
    assert found.schema.equals(ROWS_SCHEMA)
    expected = [
        (r.offset, r.timestamp_ns, r.subject, r.key, r.headers.raw, r.value)
        for batch in batches
        for r in batch.records()
    ]
    columns = [
        found.column(name).cast(pa.int64()) if name == "timestamp" else found.column(name)
        for name in found.schema.names
    ]
    assert list(zip(*(column.to_pylist() for column in columns), strict=True)) == expected


def tuples(batch: RecordBatch) -> list[tuple[Any, ...]] | None:
    """From the pure codec; None if it finds that the batch is damaged."""
    try:
        return [
            (r.offset, r.timestamp_ns, r.subject, r.key, r.headers.raw, r.value)
            for r in batch.records()
        ]
    except CorruptBatch:
        return None


@pytest.mark.parametrize("small", [True, False])
def test_damage_is_found_as_in_a_batch_by_itself(small: bool) -> None:
    """Whatever a writer that is out of its mind put into the columns, nothing is read that lies
    elsewhere. (Checksums are not looked at: it could have computed them.)"""
    rows = [(b"abc", b"v", b"k", b""), (b"\xff", None, None, b"N\r\n"), (b"abc", b"", b"", b"")]
    batch = make(1, rows, step=3)
    beside = make(100, [(b"beside", b"beside" * 3, b"beside", b"beside")] * 9)
    verdicts = set()
    with small_or_large(small):
        for place in range(HEADER_SIZE, len(batch.raw), 4):
            for flipped in (0, 1, 2, 3, 4, 7, 8, 16, 17, 24, 30, 31):
                bad = bytearray(batch.raw)
                bad[place + flipped // 8] ^= 1 << flipped % 8
                damaged = decode_batch(bytes(bad), verify=False)
                expected = tuples(damaged)
                try:
                    found = rows_of([beside, damaged, beside], ROWS_SCHEMA.names)
                except CorruptBatch:
                    assert expected is None, (place, flipped)
                    verdicts.add("damaged")
                    continue
                found.validate(full=True)
                stamps = found.column("timestamp").cast(pa.int64())
                at = found.schema.get_field_index("timestamp")
                found = found.set_column(at, "timestamp", stamps).slice(9, 3)
                columns = [column.to_pylist() for column in found.columns]
                assert list(zip(*columns, strict=True)) == expected, (place, flipped)
                verdicts.add("another value")
    assert len(verdicts) == 2


def test_nothing_refers_to_the_batches() -> None:
    """Their buffers are used again for the next answer."""
    raw = bytearray(make(1, [(b"a", b"v" * 100, b"key", b"")] * 50).raw)
    for small in (True, False):
        with small_or_large(small):
            found = rows_of([decode_batch(raw)], ROWS_SCHEMA.names)
        before = found.to_pylist()
        kept = bytes(raw)
        raw[HEADER_SIZE:] = bytes(len(raw) - HEADER_SIZE)
        assert found.to_pylist() == before
        raw[:] = kept


def test_chosen_columns_in_the_chosen_order() -> None:
    batches = [make(1, [(b"a", b"v", b"k", b"")] * 2), make(3, [(b"b", None, None, b"")] * 100)]
    found = rows_of(batches, ["value", "subject"])
    assert found.schema.names == ["value", "subject"]
    assert found.column("subject").to_pylist() == ["a"] * 2 + ["b"] * 100
    assert rows_of([], ["key"]).num_rows == 0
    for wrong in ([], ["valu"]):
        with pytest.raises(InvalidArgument, match="no columns"):
            rows_of(batches, wrong)


def test_small_batches_whose_subjects_are_not_text_are_damage() -> None:
    bad = bytearray(make(1, [(b"abc", b"v", None, b"")]).raw)
    place = bad.index(b"abc", HEADER_SIZE)
    bad[place] = 0xFF
    header = decode_batch(bytes(bad), verify=False).header
    fill_header(
        bad,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        record_count=header.record_count,
        base_timestamp_ns=header.base_timestamp_ns,
        max_timestamp_ns=header.max_timestamp_ns,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes,
        commit_group=header.commit_group,
    )
    batches = [make(1, [(b"abc", b"v", None, b"")]), decode_batch(bytes(bad))]
    with pytest.raises(CorruptBatch, match="contradict"):
        rows_of(batches, ["subject"])
