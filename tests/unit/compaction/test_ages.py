"""The age of a segment by its witnesses; delete horizons that a wrong clock has set."""

from __future__ import annotations

import pytest

from compaction.ages import Witnesses, newest_times
from compaction.planning import CompactionPolicy, plan_compaction

HOUR = 3600 * 10**9
NOW = 1_800_000_000 * 10**9


def ahead(**known: object) -> Witnesses:
    return Witnesses(NOW + 2 * HOUR, **known)  # type: ignore[arg-type]


def right(hours: float, **known: object) -> Witnesses:
    return Witnesses(NOW - int(hours * HOUR), **known)  # type: ignore[arg-type]


def test_credible_stamps_are_believed() -> None:
    assert newest_times([right(3), right(2), right(1)], NOW) == [
        NOW - 3 * HOUR,
        NOW - 2 * HOUR,
        NOW - HOUR,
    ]


def test_what_was_stored_later_judges_a_stamp_that_is_ahead() -> None:
    later = right(1, first_ns=lambda: NOW - 2 * HOUR)
    assert newest_times([ahead(), ahead(), later], NOW)[:2] == [NOW - 2 * HOUR] * 2


def test_the_time_of_the_file_judges_it_if_that_is_less() -> None:
    found = newest_times([ahead(file_ns=lambda: NOW - 5 * HOUR), right(1)], NOW)
    assert found[0] == NOW - 5 * HOUR
    found = newest_times([ahead(file_ns=lambda: NOW + 2 * HOUR), right(1)], NOW)
    assert found[0] == NOW - HOUR


def test_without_a_witness_it_is_young() -> None:
    assert newest_times([ahead(), ahead()], NOW) == [NOW, NOW]
    assert newest_times([ahead(held_ns=HOUR), ahead()], NOW) == [NOW - HOUR, NOW]


@pytest.mark.parametrize("stamp", [10**9, NOW - 24 * HOUR])
def test_a_later_stamp_that_is_lower_makes_no_record_old(stamp: int) -> None:
    """A machine that boots in 1970, or with a slow clock, stores a record."""
    slow = Witnesses(stamp, first_ns=lambda: stamp)
    assert newest_times([right(1), slow, right(0.5)], NOW)[0] == NOW - HOUR


def test_a_clock_that_was_never_set_does_not_make_its_records_old() -> None:
    found = newest_times([Witnesses(10**9), right(1, first_ns=lambda: NOW - 2 * HOUR)], NOW)
    assert found[0] == NOW - 2 * HOUR


def test_what_this_process_has_written_is_as_old_as_it_knows() -> None:
    for stamp in (10**9, NOW - 40 * HOUR, NOW, NOW + 2 * HOUR):
        one = Witnesses(stamp, 3 * HOUR, is_timed=True)
        assert newest_times([one, right(1)], NOW)[0] == NOW - 3 * HOUR


def test_no_file_is_read_while_stamps_are_credible() -> None:
    def refuse() -> int:
        raise AssertionError("read")

    many = [right(3 - i / 1000, first_ns=refuse, file_ns=refuse) for i in range(1000)]
    assert len(newest_times(many, NOW)) == 1000


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
