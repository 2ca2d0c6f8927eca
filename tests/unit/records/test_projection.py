"""Batches without some columns, against decoding, leaving out and encoding again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.errors import CorruptBatch
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.records.columns.batch_columns import decode_columns, encode_columns
from liftlog.records.columns.selection import ALL_COLUMNS, Selection
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.encode import encode_batch
from liftlog.records.layout import find_layout
from liftlog.records.projection import project_batch

BASE_NS = 1_700_000_000_000_000_000
BLOCK = b"NATS/1.0\r\nA: 1\r\n\r\n"


@st.composite
def batches(draw: st.DrawFn) -> RecordBatch:
    count = draw(st.integers(1, 40))

    def some(what: st.SearchStrategy[bytes | None]) -> list[bytes | None]:
        return draw(st.lists(what, min_size=count, max_size=count))

    gaps = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    offsets = [100 + sum(gaps[:i]) for i in range(count)]
    values = some(st.none() | st.binary(max_size=30))
    names = st.sampled_from([b"orders.eu", b"orders.us", b"odd.\xff"])
    with_holes = draw(st.booleans())
    data = encode_batch(
        base_offset=100,
        leader_epoch=7,
        commit_group=3,
        stamps=draw(
            st.sampled_from([[(BASE_NS, count)], [(BASE_NS, 1), (BASE_NS + 5000, count - 1)]])
        ),
        subjects=draw(st.lists(names, min_size=count, max_size=count)),
        values=values,
        keys=draw(st.none() | st.just([b"k%d" % i if i % 3 else None for i in range(count)])),
        headers=draw(st.none() | st.just([BLOCK if i % 2 else b"" for i in range(count)])),
        has_tombstones=None in values,
        offsets=offsets if with_holes else None,
        last_offset=offsets[-1] + 2 if with_holes else None,
    )
    codec = draw(st.sampled_from([None, "lz4", "zstd"]))
    return decode_batch(data if codec is None else compress_batch(data, codec_named(codec)))


CHOICES = st.sets(st.sampled_from(sorted(ALL_COLUMNS)), min_size=1).map(frozenset)


@given(batch=batches(), columns=CHOICES)
def test_nothing_else_changes(batch: RecordBatch, columns: frozenset[str]) -> None:
    found = decode_batch(project_batch(batch, columns))
    slowly = decode_batch(
        encode_columns(
            Selection(columns=columns).project(decode_columns(batch)),
            base_offset=batch.header.base_offset,
            last_offset=batch.header.last_offset,
            leader_epoch=7,
            commit_group=3,
        )
    )
    assert list(found) == list(slowly)
    assert list(found.offsets()) == list(batch.offsets())
    assert found.values() == slowly.values()
    assert found.escaped_subjects() == slowly.escaped_subjects()
    kept = ("base_offset", "last_offset_delta", "record_count", "leader_epoch", "commit_group")
    for field in kept:
        assert getattr(found.header, field) == getattr(batch.header, field)
    stamps = found.timestamps_ns()
    assert (found.header.base_timestamp_ns, found.header.max_timestamp_ns) == (
        min(stamps),
        max(stamps),
    )


@pytest.mark.parametrize(("keyed", "headed"), [(False, False), (True, True)])
def test_what_is_left_out_takes_no_place(keyed: bool, headed: bool) -> None:
    batch = decode_batch(
        encode_batch(
            base_offset=1,
            leader_epoch=1,
            commit_group=0,
            stamps=[(BASE_NS, 500)],
            subjects=[b"s.%d" % (i % 100) for i in range(500)],
            values=[b"x" * 200] * 500,
            keys=[b"customer-%08d" % i for i in range(500)] if keyed else None,
            headers=[BLOCK] * 500 if headed else None,
        )
    )
    assert len(project_batch(batch, {"offset"})) == 64 + 16 + 4 * 502
    assert len(project_batch(batch, ALL_COLUMNS)) == batch.header.length


def test_columns_that_do_not_lie_in_the_batch_are_damage() -> None:
    data = encode_batch(
        base_offset=1,
        leader_epoch=1,
        commit_group=0,
        stamps=[(BASE_NS, 3)],
        subjects=[b"s"] * 3,
        values=[b"one", b"two", b"three"],
    )
    header = decode_batch(data).header
    place = find_layout(memoryview(data), header).values.ends + 4 * 3
    data[place : place + 4] = (1 << 20).to_bytes(4, "little")
    with pytest.raises(CorruptBatch, match=r"past the end|columns end at"):
        project_batch(decode_batch(data, verify=False), {"offset"})
