"""From a commit group to batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.values import binary

from liftlog.records import RecordBatch, decode_batch
from liftlog.sequencing import CommitGroup


def group_of(
    values: list[bytes | None],
    *,
    subjects: list[bytes] | None = None,
    headers: list[bytes] | None = None,
    keys: list[bytes | None] | None = None,
    stamps: list[tuple[int, int]] | None = None,
) -> CommitGroup:
    group = CommitGroup(100, b"")
    group.values = values
    group.subjects = subjects or [b"s"] * len(values)
    group.headers = headers
    group.keys = keys
    group.has_tombstones = None in values
    group.stamps = stamps or [(10**18, len(values))]
    group.received = len(values)
    group.size_bytes = sum(
        len(item or b"") for column in (values, headers or [], keys or []) for item in column
    )
    return group


def encode(group: CommitGroup, max_records: int, max_bytes: int) -> list[RecordBatch]:
    batches = []
    at = group.base_offset
    for data, base, end, count, first, largest in group.encode(
        leader_epoch=3, commit_group=9, max_records=max_records, max_bytes=max_bytes
    ):
        batch = decode_batch(bytes(data))
        assert (batch.base_offset, batch.next_offset, len(batch)) == (base, end, count)
        assert base == at
        assert batch.header.commit_group == 9
        assert batch.header.leader_epoch == 3
        assert batch.header.base_timestamp_ns == first
        assert batch.header.max_timestamp_ns == largest
        assert count <= max_records
        assert len(data) <= max_bytes or count == 1
        at = end
        batches.append(batch)
    assert at == group.next_offset
    return batches


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), binary(), st.just(b"x" * 3000)),
            st.sampled_from([b"a", b"b" * 200, b"\xff" * 150]),
            st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
            st.one_of(st.none(), binary(5)),
        ),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 70),
    st.integers(400, 5000),
)
def test_splitting_loses_nothing_and_keeps_the_limits(
    rows: list[tuple[bytes | None, bytes, bytes, bytes | None]], max_records: int, max_bytes: int
) -> None:
    values, subjects, headers, keys = (list(column) for column in zip(*rows, strict=True))
    group = group_of(values, subjects=subjects, headers=headers, keys=keys)  # type: ignore[arg-type]
    batches = encode(group, max_records, max_bytes)
    assert [value for batch in batches for value in batch.values()] == values
    assert [block for batch in batches for block in batch.headers()] == headers
    columns = (batch.keys() for batch in batches)
    assert [key for column in columns for key in column] == keys
    wanted = [subject.decode("utf-8", "backslashreplace") for subject in subjects]  # type: ignore[union-attr]
    assert [subject for batch in batches for subject in batch.subjects()] == wanted


def test_distinct_long_subjects_count() -> None:
    subjects = [b"%d." % i + b"x" * 250 for i in range(4000)]
    group = group_of([b""] * 4000, subjects=subjects)
    batches = encode(group, 4096, 1 << 20)
    assert len(batches) == 2
    assert [s for batch in batches for s in batch.subjects()] == [s.decode() for s in subjects]


def test_batches_are_filled() -> None:
    group = group_of([b"x" * 1000] * 2000)
    assert len(encode(group, 4096, 1 << 20)) == 2
    assert len(encode(group_of([b"x"] * 4097), 4096, 1 << 20)) == 2


def test_stamps_follow_their_records_into_the_batches() -> None:
    second = 1_000_000_000
    group = group_of([b"v"] * 5, stamps=[(second, 2), (2 * second, 3)])
    batches = encode(group, 3, 1 << 20)
    stamps = [stamp for batch in batches for stamp in batch.timestamps_ns()]
    assert stamps == [second, second, 2 * second, 2 * second, 2 * second]
    assert batches[0].header.max_timestamp_ns == 2 * second
    assert batches[1].header.base_timestamp_ns == 2 * second


@pytest.mark.parametrize("column", ["headers", "keys"])
def test_columns_that_began_late_are_filled_up(column: str) -> None:
    group = group_of([b"a", b"b"])
    if column == "headers":
        group.pad_headers().append(b"NATS/1.0\r\n\r\n")
    else:
        group.pad_keys().append(b"k")
    group.values.append(b"c")
    group.subjects.append(b"s")
    group.values.append(b"d")
    group.subjects.append(b"s")
    group.stamps = [(1, 4)]
    [batch] = encode(group, 10, 4096)
    if column == "headers":
        assert batch.headers() == [b"", b"", b"NATS/1.0\r\n\r\n", b""]
    else:
        assert batch.keys() == [None, None, b"k", None]


def test_empty_messages_weigh_something() -> None:
    group = group_of([b""] * 1000)
    assert group.size_bytes == 0
    assert group.memory_bytes >= 100_000
