"""The age of a segment by its witnesses; delete horizons that a wrong clock has set."""

from __future__ import annotations

import pytest

from compaction.ages import Witness, newest_times
from compaction.planning import CompactionPolicy, plan_compaction

HOUR = 3600 * 10**9
NOW = 1_800_000_000 * 10**9


AHEAD = NOW + 2 * HOUR


def right(hours: float) -> Witness:
    return Witness(NOW - int(hours * HOUR))


def times(*segments: Witness, **asked: dict[int, int]) -> list[int]:
    """`first` and `file` have what is known of some segments, by their index."""
    first, file = asked.get("first", {}), asked.get("file", {})
    return newest_times(
        segments, NOW, first_ns=lambda i: first.get(i, 0), file_ns=lambda i: file.get(i, 0)
    )


def test_credible_stamps_are_believed() -> None:
    assert times(right(3), right(2), right(1)) == [NOW - 3 * HOUR, NOW - 2 * HOUR, NOW - HOUR]


def test_what_was_stored_later_judges_a_stamp_that_is_ahead() -> None:
    found = times(Witness(AHEAD), Witness(AHEAD), right(1), first={2: NOW - 2 * HOUR})
    assert found[:2] == [NOW - 2 * HOUR] * 2


def test_the_time_of_the_file_judges_it_if_that_is_less() -> None:
    assert times(Witness(AHEAD), right(1), file={0: NOW - 5 * HOUR})[0] == NOW - 5 * HOUR
    assert times(Witness(AHEAD), right(1), file={0: AHEAD})[0] == NOW - HOUR


def test_without_a_witness_it_is_young() -> None:
    assert times(Witness(AHEAD), Witness(AHEAD)) == [NOW, NOW]
    assert times(Witness(AHEAD, HOUR), Witness(AHEAD)) == [NOW - HOUR, NOW]


@pytest.mark.parametrize("stamp", [10**9, NOW - 24 * HOUR])
def test_a_later_stamp_that_is_lower_makes_no_record_old(stamp: int) -> None:
    """A machine that boots in 1970, or with a slow clock, stores a record."""
    assert times(right(1), Witness(stamp), right(0.5), first={1: stamp})[0] == NOW - HOUR


def test_a_clock_that_was_never_set_does_not_make_its_records_old() -> None:
    assert times(Witness(10**9), right(1), first={1: NOW - 2 * HOUR})[0] == NOW - 2 * HOUR


def test_what_this_process_has_written_is_as_old_as_it_knows() -> None:
    for stamp in (10**9, NOW - 40 * HOUR, NOW, AHEAD):
        assert times(Witness(stamp, 3 * HOUR, is_timed=True), right(1))[0] == NOW - 3 * HOUR


def test_no_file_is_read_while_stamps_are_credible() -> None:
    def refuse(index: int) -> int:
        raise AssertionError("read")

    many = [right(3 - i / 1000) for i in range(1000)]
    assert len(newest_times(many, NOW, first_ns=refuse, file_ns=refuse)) == 1000


def test_each_header_is_read_at_most_once() -> None:
    read: list[int] = []

    def first(index: int) -> int:
        read.append(index)
        return AHEAD

    many = [Witness(AHEAD)] * 1000
    newest_times(many, NOW, first_ns=first)
    assert len(read) == len(set(read)) == 999


class Segment:
    base_offset, next_offset, size_bytes, sealed = 1, 10, 100, True
    max_timestamp_ns = NOW - 100 * HOUR

    def __init__(self, horizon_ns: int) -> None:
        self.delete_horizon_ns = horizon_ns


@pytest.mark.parametrize(("listed_hours", "drops"), [(3, True), (1, False)])
def test_a_horizon_that_a_wrong_clock_has_set_counts_from_when_the_file_was_there(
    listed_hours: int, drops: bool
) -> None:
    policy = CompactionPolicy(tombstone_retention_ns=2 * HOUR)
    plan = plan_compaction(
        [Segment(NOW + 5000 * HOUR)],
        policy,
        cleaned_below=10,
        log_start_offset=1,
        bound_offset=10,
        segment_max_bytes=1000,
        now_ns=NOW,
        listed_ns=[NOW - listed_hours * HOUR],
    )
    assert (plan is not None) is drops
