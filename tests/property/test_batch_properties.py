"""A batch returns the content of any columns, and damage raises only the documented errors."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st
from support.clients.values import binary

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.records import decode_batch, encode_batch
from liftlog.records.encode import encode_single
from liftlog.records.format import escape_subject, unescape_subject

BASE_NS = 1_700_000_000_000_000_000

records = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b.c", b"\xff", "ü".encode(), b"a\\x41"]) | st.binary(max_size=6),
        st.none() | binary(),  # value
        st.none() | binary(10),  # key
        st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
        st.integers(1, 5),  # step to the next offset
        st.integers(0, 10**7),  # microseconds to the next stamp
    ),
    min_size=1,
    max_size=40,
)


@given(records, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**40))
def test_round_trip(
    rows: list[tuple[bytes, bytes | None, bytes | None, bytes, int, int]],
    keyed: bool,
    headed: bool,
    compacted: bool,
    base: int,
) -> None:
    subjects, values, keys, headers, steps, ticks = map(list, zip(*rows, strict=True))
    holes = list(accumulate(steps[:-1], initial=base))
    times = [BASE_NS + 1000 * tick for tick in accumulate(ticks[:-1], initial=0)]
    data = encode_batch(
        base_offset=base,
        leader_epoch=1,
        commit_group=2,
        stamps=[(time, 1) for time in times],
        subjects=subjects,
        values=values,
        keys=keys if keyed else None,
        headers=headers if headed else None,
        has_tombstones=None in values,
        offsets=holes if compacted else None,
        last_offset=holes[-1] + 3 if compacted else None,
    )
    batch = decode_batch(data)
    assert list(batch.offsets()) == (holes if compacted else list(range(base, base + len(rows))))
    assert batch.timestamps_ns() == times
    assert batch.header.max_timestamp_ns == times[-1]
    assert batch.values() == values
    assert [None if v is None else bytes(v) for v in batch.value_views()] == values
    assert batch.keys() == (keys if keyed else [None] * len(rows))
    assert batch.headers() == (headers if headed else [b""] * len(rows))
    end = batch.next_offset + 1
    by_offset = {record.offset: record for record in batch.records()}
    for offset in range(base - 1, end):
        assert batch.record_at(offset) == by_offset.get(offset)
    escaped = batch.escaped_subjects()
    for raw, name in zip(subjects, batch.subjects(), strict=True):
        try:
            assert name == raw.decode()
        except UnicodeDecodeError:
            assert name in escaped
            assert unescape_subject(name) == raw


@given(
    st.binary(min_size=1, max_size=40),
    st.binary(max_size=600),
    st.integers(0, 2**62),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
)
def test_the_short_way_to_a_batch_of_one_makes_the_same_bytes(
    subject: bytes, value: bytes, base_offset: int, stamp: int, epoch: int, group: int
) -> None:
    single = encode_single(
        base_offset=base_offset,
        leader_epoch=epoch,
        commit_group=group,
        timestamp_ns=stamp,
        subject=subject,
        value=value,
    )
    assert single.data == encode_batch(
        base_offset=base_offset,
        leader_epoch=epoch,
        commit_group=group,
        stamps=[(stamp, 1)],
        subjects=[subject],
        values=[value],
    )


@given(st.binary(max_size=200))
def test_escaping_is_reversible(raw: bytes) -> None:
    escaped = escape_subject(raw)
    assert unescape_subject(escaped) == raw
    escaped.encode()


@given(records, st.data())
def test_no_damage_raises_anything_but_its_own_errors(
    rows: list[tuple[bytes, bytes | None, bytes | None, bytes, int, int]], data: st.DataObject
) -> None:
    good = encode_batch(
        base_offset=1,
        leader_epoch=1,
        commit_group=0,
        stamps=[(BASE_NS, len(rows))],
        subjects=[row[0] for row in rows],
        values=[row[1] for row in rows],
        keys=[row[2] for row in rows],
        has_tombstones=True,
    )
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(min_size=1, max_size=9)) + good[at + 1 :]
    if bad == good:
        return
    try:
        decode_batch(bad, verify=False).records()
    except (CorruptBatch, UnsupportedFormat):
        pass
    for offset in range(1, len(rows) + 1):
        try:
            decode_batch(bad, verify=False).record_at(offset)
        except (CorruptBatch, UnsupportedFormat):
            pass
    if len(bad) == len(good):  # CRC-32C certainly detects one burst of at most 32 bits
        try:
            decode_batch(bad)
        except (CorruptBatch, UnsupportedFormat):
            return
        raise AssertionError("the damage went unnoticed")
