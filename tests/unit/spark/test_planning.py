"""Ranges cover the requested offsets without gaps, and have about equal sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftlog.log.read.measuring import Extent
from liftlog.spark.scan import limit_bytes, split
from liftlog.spark.transport import StreamState


@st.composite
def states(draw: st.DrawFn) -> StreamState:
    at = draw(st.integers(0, 100))
    extents = []
    for _ in range(draw(st.integers(0, 5))):
        width = draw(st.integers(1, 1000))
        extents.append(Extent(at, at + width, draw(st.integers(0, 100_000))))
        at += width
    start = extents[0].first_offset if extents else at
    return StreamState("orders", "id", 3, draw(st.integers(start, at)), at, tuple(extents))


@given(states(), st.integers(1, 200_000), st.data())
def test_ranges_tile_what_was_asked_for(
    state: StreamState, target: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(state.log_start_offset, state.end_offset))
    end = data.draw(st.integers(first, state.end_offset))
    found = split(state, first, end, target)
    reached = first
    for one in found:
        assert (one.stream, one.identity, one.leader_epoch) == ("orders", "id", 3)
        assert one.first_offset == reached < one.end_offset
        reached = one.end_offset
    assert reached == end
    assert bool(found) == (first < end)


def test_sizes_count_and_not_offsets() -> None:
    """A part from which compaction has removed many records gets fewer tasks."""
    extents = (Extent(1, 1_000_001, 1000), Extent(1_000_001, 1_000_101, 9000))
    state = StreamState("orders", "id", 1, 1, 1_000_101, extents)
    found = [(one.first_offset, one.end_offset) for one in split(state, 1, 1_000_101, 2500)]
    assert len(found) == 4
    assert found[0] == (1, 1_000_018)  # all of the thin part, and what it lacks to a fourth
    widths = [end - first for first, end in found[1:]]
    assert max(widths) - min(widths) <= 1


def test_no_more_tasks_than_offsets() -> None:
    state = StreamState("orders", "id", 1, 1, 4, (Extent(1, 4, 1_000_000),))
    assert [one.first_offset for one in split(state, 1, 4, 10)] == [1, 2, 3]


@given(states(), st.integers(1, 500_000), st.data())
def test_a_limit_of_bytes_goes_on_and_not_too_far(
    state: StreamState, most: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(state.log_start_offset, state.end_offset))
    end = limit_bytes(state, first, state.end_offset, most)
    if first == state.end_offset:
        assert end == first
        return
    assert first < end <= state.end_offset
    size = sum(
        extent.size_bytes
        * (min(extent.next_offset, end - 1) - max(extent.first_offset, first))
        / (extent.next_offset - extent.first_offset)
        for extent in state.extents
        if extent.next_offset > first and extent.first_offset < end - 1
    )
    assert end == first + 1 or size <= most + len(state.extents)
