"""Records cut out of the bytes of a batch: the result equals an encoding of the other records.

The tests compare the result, byte by byte, with that of `encode_others`, which works on columns.
They also compare the decoded records with the rows that the batch was made from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients.values import binary
from support.rounds import examples

from liftlog.errors import CorruptBatch
from liftlog.records import Record, RecordBatch, decode_batch, encode_batch, iter_batches
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.records.columns import cutting
from liftlog.records.columns.cutting import cut_rows, encode_others, without_rows
from liftlog.records.encode import fill_header
from liftlog.records.format import CODEC_MASK, KEYS
from liftlog.records.layout import find_layout

BASE_NS = 1_700_000_000_123_456_000
BASE = 1_000
HEADER = b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"
SUBJECTS = [b"a", b"b.c", "ü".encode(), b"d.e.f", b"\xff", b"a\\x41"]


class Row(NamedTuple):
    subject: bytes
    value: bytes | None
    key: bytes | None
    headers: bytes
    step: int
    tick_us: int


def rows_of(
    subjects: Any, values: Any, keys: Any, headers: Any, steps: Any, ticks: Any
) -> st.SearchStrategy[list[Row]]:
    row = st.builds(Row, subjects, values, keys, headers, steps, ticks)
    return st.lists(row, min_size=1, max_size=40)


sizes = st.sampled_from([0, 1, 7, 40, 300]).map(lambda n: b"v" * n)
plain = rows_of(
    st.just(b"a"), st.just(b"12345678") | sizes, st.none(), st.just(b""), st.just(1), st.just(0)
)
same_size = rows_of(
    st.sampled_from(SUBJECTS[:4]), st.just(b"value"), st.just(b"key"), st.just(HEADER), st.just(1),
    st.sampled_from([0, 0, 1, 1000]),
)  # fmt: skip
varied = rows_of(
    st.sampled_from(SUBJECTS), st.none() | binary() | sizes, st.none() | binary(10),
    st.sampled_from([b"", HEADER]), st.integers(1, 5), st.integers(0, 10**7),
)  # fmt: skip
shapes = st.fixed_dictionaries(
    {
        "keyed": st.booleans(),
        "headed": st.booleans(),
        "holes": st.booleans(),
        "after": st.sampled_from([0, 0, 1, 9]),
        "codec": st.sampled_from(["none", "none", "lz4", "zstd"]),
    }
)


def batch_of(rows: list[Row], shape: dict[str, Any]) -> RecordBatch:
    offsets, at = [], BASE
    for row in rows:
        offsets.append(at)
        at += row.step if shape["holes"] else 1
    ticks = [row.tick_us for row in rows]
    stamps = [(BASE_NS + 1000 * tick, 1) for tick in ticks]
    if len(set(ticks)) == 1:
        stamps = [(stamps[0][0], len(rows))]
    values = [row.value for row in rows]
    raw = encode_batch(
        base_offset=BASE,
        leader_epoch=3,
        commit_group=9,
        stamps=stamps,
        subjects=[row.subject for row in rows],
        values=values,
        keys=[row.key for row in rows] if shape["keyed"] else None,
        headers=[row.headers for row in rows] if shape["headed"] else None,
        has_tombstones=None in values,
        offsets=offsets if shape["holes"] else None,
        last_offset=offsets[-1] + shape["after"],
    )
    codec = codec_named(shape["codec"])
    return decode_batch(raw if codec is None else compress_batch(raw, codec))


def check(batch: RecordBatch, gone: list[int]) -> None:
    """Cut the records at these offsets; the batch may have only some of them."""
    before: list[Record] = batch.records()
    wanted = np.array(gone, np.int64)
    made = cut_rows(batch, wanted)
    rows = [row for row, record in enumerate(before) if record.offset in set(gone)]
    if not rows:
        assert made is None
        assert without_rows(batch, wanted) is batch
        return
    assert made is not None
    (after,) = iter_batches(made)  # verifies both checksums
    assert after.records() == [record for record in before if record.offset not in set(gone)]
    assert after.escaped_subjects() <= batch.escaped_subjects()
    for name in ("base_offset", "last_offset_delta", "leader_epoch", "commit_group"):
        assert getattr(after.header, name) == getattr(batch.header, name)
    assert (after.header.attributes ^ batch.header.attributes) & CODEC_MASK in (
        0,
        batch.header.attributes & CODEC_MASK,  # it did not become smaller
    )
    judge = encode_others(batch, rows)
    assert bytes(after.raw)[64:] == bytes(judge)[64:]
    if not after.header.attributes & CODEC_MASK:
        assert bytes(made) == bytes(judge)
    assert cut_rows(batch, wanted, compress=False) == judge
    subjects = set(after.raw_subjects())
    assert find_layout(after.raw, after.header).entries == len(subjects), "and no other subject"


@settings(max_examples=examples(2))
@given(plain | same_size | varied, shapes, st.data())
def test_what_is_left(rows: list[Row], shape: dict[str, Any], data: st.DataObject) -> None:
    batch = batch_of(rows, shape)
    places = st.integers(BASE - 2, batch.header.next_offset + 2)
    which = data.draw(st.sampled_from(["some", "some", "first", "last", "all", "all but one"]))
    offsets = list(batch.offsets())
    gone = {
        "some": lambda: sorted(data.draw(st.sets(places, min_size=1, max_size=12))),
        "first": lambda: offsets[:1],
        "last": lambda: offsets[-1:],
        "all": lambda: offsets,
        "all but one": lambda: [
            one for one in offsets if one != data.draw(st.sampled_from(offsets), label="kept")
        ][: len(offsets) - 1],
    }[which]()
    check(batch, gone)


@settings(max_examples=examples(0.5))
@given(varied, shapes, st.data())
def test_one_after_the_other(rows: list[Row], shape: dict[str, Any], data: st.DataObject) -> None:
    """A batch that was cut can be cut again, down to nothing, and the order does not matter."""
    batch = first = batch_of(rows, shape)
    order = data.draw(st.permutations(list(batch.offsets())))
    for number, offset in enumerate(order):
        gone = np.array([offset], np.int64)
        batch = without_rows(batch, gone)
        together = without_rows(first, np.array(sorted(order[: number + 1]), np.int64))
        assert batch.records() == together.records()
        assert bytes(batch.raw)[64:] == bytes(together.raw)[64:]
    assert len(batch) == 0


def test_many_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(b"s%d" % (n % 7), b"v" * (n % 11), None, b"", 1, n) for n in range(900)]
    batch = batch_of(rows, {"keyed": False, "headed": False, "holes": False, "after": 0,
                            "codec": "none"})  # fmt: skip
    every_other = list(batch.offsets())[::2]
    by_encoding = cut_rows(batch, np.array(every_other, np.int64))
    monkeypatch.setattr(cutting, "MOST_STRETCHES", 10_000)
    assert cut_rows(batch, np.array(every_other, np.int64)) == by_encoding
    check(batch, every_other)


@pytest.mark.parametrize("where", ["offsets", "ends", "ids"])
def test_columns_that_contradict_each_other(where: str) -> None:
    """The checksums are correct, as from a defective writer or an attacker. Nothing is cut."""
    rows = [Row(b"s%d" % (n % 3), b"v" * (n % 5), b"k", b"", 2, 0) for n in range(30)]
    batch = batch_of(rows, {"keyed": False, "headed": False, "holes": True, "after": 0,
                            "codec": "none"})  # fmt: skip
    raw, layout = bytearray(batch.raw), find_layout(batch.raw, batch.header)
    if where == "offsets":
        raw[layout.offset_deltas + 40 : layout.offset_deltas + 44] = b"\xff\xff\xff\x00"
    elif where == "ends":
        at = layout.values.ends + 40
        raw[at : at + 4] = b"\xff\xff\xff\x7f"
        raw[at + 4 : at + 8] = b"\x00\x00\x00\x80"
    else:
        raw[layout.ids + 10 : layout.ids + 12] = b"\xff\xff"
    header = batch.header
    fill_header(
        raw,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        record_count=header.record_count,
        base_timestamp_ns=header.base_timestamp_ns,
        max_timestamp_ns=header.max_timestamp_ns,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes,
        commit_group=header.commit_group,
    )
    with pytest.raises(CorruptBatch):
        cut_rows(decode_batch(raw), np.array([BASE], np.int64))


def test_a_column_without_information_is_left_out() -> None:
    rows = [Row(b"a", b"v", b"k" if n == 4 else None, b"", 1, 0) for n in range(9)]
    batch = batch_of(rows, {"keyed": True, "headed": False, "holes": False, "after": 0,
                            "codec": "none"})  # fmt: skip
    made = without_rows(batch, np.array([BASE + 4], np.int64))
    assert batch.header.attributes & KEYS
    assert not made.header.attributes & KEYS
    assert made.keys() == [None] * 8
