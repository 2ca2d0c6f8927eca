"""The fast paths through a batch (equal items, one subject) give the same result as the general
path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.clients.values import binary

from liftlog.records.decode import decode_batch
from liftlog.records.encode import encode_batch

equal = st.tuples(st.integers(0, 40), st.integers(1, 30)).flatmap(
    lambda shape: st.lists(
        st.binary(min_size=shape[0], max_size=shape[0]), min_size=shape[1], max_size=shape[1]
    )
)
mixed = st.lists(binary(), min_size=1, max_size=30)


@given(equal | mixed, st.integers(0, 31), st.integers(0, 31), st.integers(1, 3), st.booleans())
def test_values_are_what_was_encoded(
    values: list[bytes], first: int, stop: int, subjects: int, with_keys: bool
) -> None:
    data = encode_batch(
        base_offset=100,
        leader_epoch=1,
        commit_group=1,
        stamps=[(5, len(values))],
        subjects=[b"s%d" % (i % subjects) for i in range(len(values))],
        values=list(values),
        keys=list(values) if with_keys else None,
    )
    batch = decode_batch(b"front of it" + bytes(data), len(b"front of it"))
    trimmed = batch.trim(100 + first, 100 + stop)
    for row, value in enumerate(values):
        assert trimmed.record_at(100 + row) == (
            batch.record_at(100 + row) if first <= row < stop else None
        )
        found = batch.record_at(100 + row)
        assert found is not None
        assert found.value == value
    for one, expected in ((batch, values), (trimmed, values[first:stop])):
        assert one.values() == expected
        assert [bytes(view or b"") for view in one.value_views()] == expected
        assert len(one) == len(expected)
        if with_keys:
            assert one.keys() == expected
