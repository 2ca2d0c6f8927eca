"""The column codec gives the same result as the codec for rows, and loses nothing."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients.values import binary
from support.rounds import examples

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.records import RecordBatch, decode_batch, encode_batch
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.records.columns.batch_columns import (
    can_share_batch,
    cut_front,
    decode_columns,
    encode_columns,
)
from liftlog.records.columns.column_set import concat
from liftlog.records.columns.many import can_decode_together, decode_many

BASE_NS = 1_700_000_000_123_456_789
SUBJECTS = [b"a", b"b.c", b"\xff", "ü".encode(), b"a\\x41"]
HEADER = b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"


class Row(NamedTuple):
    subject: bytes
    value: bytes | None
    key: bytes | None
    headers: bytes
    step: int
    tick_us: int


sizes = st.sampled_from([0, 1, 7, 40, 300])
values = st.none() | binary() | sizes.map(lambda n: b"v" * n)
row = st.builds(
    Row,
    st.sampled_from(SUBJECTS) | st.binary(max_size=6),
    values,
    st.none() | binary(10),
    st.sampled_from([b"", HEADER]),
    st.integers(1, 5),
    st.integers(0, 10**7),
)
plain = st.builds(Row, st.just(b"a"), sizes.map(lambda n: b"v" * n), st.just(b"k"), st.just(b""),
                  st.just(1), st.just(0))  # fmt: skip
rows = st.lists(row, min_size=1, max_size=40) | st.lists(plain, min_size=1, max_size=40)
shape = st.fixed_dictionaries(
    {"keyed": st.booleans(), "headed": st.booleans(), "holes": st.booleans()}
)


def batch_of(
    rows: list[Row], *, keyed: bool, headed: bool, holes: bool, base: int = 7, epoch: int = 3
) -> RecordBatch:
    offsets = list(accumulate([row.step for row in rows[:-1]], initial=base))
    times = accumulate([row.tick_us for row in rows[:-1]], initial=0)
    data = encode_batch(
        base_offset=base,
        leader_epoch=epoch,
        commit_group=9,
        stamps=[(BASE_NS + 1000 * time, 1) for time in times],
        subjects=[row.subject for row in rows],
        values=[row.value for row in rows],
        keys=[row.key for row in rows] if keyed else None,
        headers=[row.headers for row in rows] if headed else None,
        has_tombstones=any(row.value is None for row in rows),
        offsets=offsets if holes else None,
        last_offset=offsets[-1] + 3 if holes else None,
    )
    return decode_batch(data)


def content(batch: RecordBatch) -> list[tuple[Any, ...]]:
    """Return everything that a reader gets of each record."""
    escaped = batch.escaped_subjects()
    subjects = [(name, name in escaped) for name in batch.subjects()]
    columns = (
        batch.offsets(), batch.timestamps_ns(), subjects, batch.keys(), batch.values(),
        batch.headers(),
    )  # fmt: skip
    return list(zip(*columns, strict=True))


def again(columns: Any, base: int, last: int) -> RecordBatch:
    raw = encode_columns(
        columns, base_offset=base, last_offset=last, leader_epoch=3, commit_group=9
    )
    return decode_batch(raw)


@settings(max_examples=examples(0.6))
@given(rows, shape)
def test_a_batch_comes_back_as_it_was(rows: list[Row], shape: dict[str, bool]) -> None:
    batch = batch_of(rows, **shape)
    header = batch.header
    copy = again(decode_columns(batch), header.base_offset, header.last_offset)
    assert content(copy) == content(batch)
    assert copy.header.max_timestamp_ns == header.max_timestamp_ns
    assert copy.next_offset == batch.next_offset
    assert len(copy.raw) <= len(batch.raw)  # columns without information are left out


@settings(max_examples=examples(0.6))
@given(rows, shape, st.data())
def test_taking_leaves_the_chosen_records(
    rows: list[Row], shape: dict[str, bool], data: st.DataObject
) -> None:
    batch = batch_of(rows, **shape)
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    below = data.draw(st.integers(0, 7))
    taken = decode_columns(batch).take(np.array(mask))
    copy = again(taken, below, batch.header.last_offset)
    expected = [row for row, flag in zip(content(batch), mask, strict=True) if flag]
    assert content(copy) == expected
    assert (copy.header.base_offset, copy.next_offset) == (below, batch.next_offset)
    assert copy.header.max_timestamp_ns == max([row[1] for row in expected], default=0)
    # Selected columns are ordinary columns.
    assert content(again(decode_columns(copy), below, batch.header.last_offset)) == expected


@settings(max_examples=examples())
@given(rows, shape, st.sampled_from(["none", "lz4", "zstd"]), st.data())
def test_a_batch_cut_in_front_holds_what_is_left(
    rows: list[Row], shape: dict[str, bool], codec: str, data: st.DataObject
) -> None:
    batch = batch_of(rows, **shape)
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    if data.draw(st.booleans()):  # compacted, so that records are missing anywhere, or all of them
        batch = again(decode_columns(batch).take(np.array(mask)), 7, batch.header.last_offset)
    if (chosen := codec_named(codec)) is not None:
        batch = decode_batch(compress_batch(bytearray(batch.stored), chosen))
    offset = data.draw(st.integers(5, batch.header.last_offset))
    cut = decode_batch(cut_front(batch, offset))
    header, before = cut.header, batch.header
    assert content(cut) == [row for row in content(batch) if row[0] >= offset]
    assert (header.base_offset, header.next_offset) == (max(offset, 7), before.next_offset)
    assert (header.leader_epoch, header.commit_group) == (before.leader_epoch, before.commit_group)
    assert header.max_timestamp_ns == max(cut.timestamps_ns(), default=0) or offset <= 7
    with pytest.raises(ValueError, match="cannot stand for"):
        cut_front(batch, batch.next_offset)


@settings(max_examples=examples(0.4))
@given(st.lists(st.tuples(rows, shape), min_size=1, max_size=4), st.data())
def test_joined_batches_hold_the_records_of_all(
    groups: list[tuple[list[Row], dict[str, bool]]], data: st.DataObject
) -> None:
    parts, expected = [], []
    base = 7
    for rows, shape in groups:
        batch = batch_of(rows, base=base, **shape)
        mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
        parts.append(decode_columns(batch).take(np.array(mask)))
        expected += [row for row, flag in zip(content(batch), mask, strict=True) if flag]
        base = batch.next_offset
    joined = concat(parts)
    assert content(again(joined, 7, base - 1)) == expected


@settings(max_examples=examples(0.6))
@given(rows, shape, st.data())
def test_damage_raises_nothing_but_its_own_errors(
    rows: list[Row], shape: dict[str, bool], data: st.DataObject
) -> None:
    good = bytes(batch_of(rows, **shape).raw)
    at = data.draw(st.integers(64, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(min_size=1, max_size=9)) + good[at + 1 :]
    try:
        batch = decode_batch(bad, verify=False)
        columns = decode_columns(batch)
        again(columns, batch.header.base_offset, batch.header.last_offset)
    except (CorruptBatch, UnsupportedFormat, ValueError):
        pass


def test_one_record_of_many_subjects_needs_no_ids() -> None:
    rows = [Row(b"s%d" % i, b"v", None, b"", 1, 0) for i in range(20)]
    columns = decode_columns(batch_of(rows, keyed=False, headed=False, holes=False))
    mask = np.arange(20) == 13
    copy = again(columns.take(mask), 7, 26)
    assert copy.subjects() == ["s13"]
    assert copy.header.attributes == 0x10  # a hole in front, nothing else


def test_an_empty_batch_stands_for_its_offsets() -> None:
    batch = batch_of([Row(b"a", b"v", b"k", HEADER, 1, 0)], keyed=True, headed=True, holes=False)
    empty = again(decode_columns(batch).take(np.zeros(1, np.bool_)), 3, 11)
    assert (len(empty), empty.header.base_offset, empty.next_offset) == (0, 3, 12)
    assert len(empty.raw) == 88
    assert empty.records() == []
    assert len(decode_columns(empty)) == 0


def test_stamps_that_ran_backwards_are_kept() -> None:
    first = [Row(b"a", b"1", None, b"", 1, 5000), Row(b"a", b"2", None, b"", 1, 0)]
    later = decode_columns(batch_of(first, keyed=False, headed=False, holes=False))
    earlier = decode_columns(batch_of(first, keyed=False, headed=False, holes=False, base=9))
    copy = again(concat([later, earlier]), 7, 10)
    assert copy.timestamps_ns() == [BASE_NS, BASE_NS + 5_000_000] * 2
    assert copy.header.base_timestamp_ns == BASE_NS


@pytest.mark.parametrize(
    ("other_ns", "fits"),
    [(0, True), (1, False), (-1000, True), (1000 * (2**32 - 1), True), (1000 * 2**32, False)],
)
def test_stamps_share_a_batch_only_unchanged(other_ns: int, fits: bool) -> None:
    one = decode_columns(
        batch_of([Row(b"a", b"1", None, b"", 1, 0)], keyed=False, headed=False, holes=False)
    )
    rows = [Row(b"a", b"1", None, b"", 1, 0)]
    other = batch_of(rows, keyed=False, headed=False, holes=False, base=8)
    columns = decode_columns(other)
    columns.timestamps_ns[:] += other_ns
    assert can_share_batch((BASE_NS,) * 2, (BASE_NS + other_ns,) * 2) is fits
    if fits:
        assert again(concat([one, columns]), 7, 8).timestamps_ns() == [BASE_NS, BASE_NS + other_ns]
    else:
        with pytest.raises(ValueError, match="stamps"):
            again(concat([one, columns]), 7, 8)


def test_offsets_outside_the_range_are_refused() -> None:
    batch = batch_of([Row(b"a", b"1", None, b"", 1, 0)], keyed=False, headed=False, holes=False)
    columns = decode_columns(batch)
    for base, last in ((8, 20), (1, 6), (9, 8), (7, 7 + 2**32)):
        with pytest.raises(ValueError, match=r"offsets|stand for"):
            again(columns, base, last)


@settings(max_examples=examples(0.6))
@given(st.lists(rows, min_size=1, max_size=6), shape, st.booleans())
def test_many_batches_at_once_are_what_they_are_one_by_one(
    groups: list[list[Row]], shape: dict[str, bool], tombstones: bool
) -> None:
    batches = []
    base = 7
    for group in groups:
        same = [row._replace(subject=group[0].subject) for row in group]
        if not tombstones:
            same = [row._replace(value=row.value or b"") for row in same]
        batch = batch_of(same, base=base, **shape)
        base = batch.next_offset
        if not batches or can_decode_together(batches[0], batch):
            batches.append(batch)
    if not can_decode_together(batches[0], batches[0]):
        return
    together = decode_many(batches)
    expected = [record for batch in batches for record in content(batch)]
    assert content(again(together, 7, base - 1)) == expected
    half = len(together) // 2
    parts = [together.part(0, half), together.part(half, len(together))]
    assert content(again(concat(parts), 7, base - 1)) == expected
    assert together.sizes()[-1] == together.size_bytes
    assert half == 0 or together.sizes()[half - 1] == parts[0].size_bytes


@settings(max_examples=examples(0.6))
@given(rows, shape, st.data())
def test_damage_among_many_raises_nothing_but_its_own_errors(
    rows: list[Row], shape: dict[str, bool], data: st.DataObject
) -> None:
    same = [row._replace(subject=b"a") for row in rows]
    batch = batch_of(same, **shape)
    good = bytes(batch.raw)
    at = data.draw(st.integers(64, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(min_size=1, max_size=1)) + good[at + 1 :]
    try:
        decode_many([batch, decode_batch(bad, verify=False), batch])
    except (CorruptBatch, UnsupportedFormat):
        pass
