"""Latencies: each message from its own arrival, however the runs share commits."""

from collections.abc import Callable

import pytest

from liftlog.server.commits import observations
from liftlog.server.commits.observations import StreamObservations
from liftlog.server.vitals.delays import SyncTimes
from liftlog.server.vitals.histogram import Histogram


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    times = [0.0]
    monkeypatch.setattr(observations.time, "perf_counter", lambda: times[0])

    def set_time(seconds: float) -> None:
        times[0] = seconds

    return set_time


def in_buckets(histogram: Histogram) -> dict[float, int]:
    bounds = [*histogram.bounds, float("inf")]
    return {b: n for b, n in zip(bounds, histogram.counts, strict=True) if n}


def test_each_run_is_measured_from_its_own_arrival(now: Callable[[float], None]) -> None:
    observed = StreamObservations()
    observed.arrived(10)
    now(0.9)
    observed.arrived(1)
    now(1.0)
    observed.answered(11, 9)  # two of them were duplicates
    assert in_buckets(observed.ack_seconds) == {1.0: 10, 0.1: 1}
    assert observed.ack_seconds.sum == pytest.approx(10.1)
    assert in_buckets(observed.group_records) == {16.0: 1}


def test_what_came_during_a_commit_belongs_to_the_next(now: Callable[[float], None]) -> None:
    observed = StreamObservations()
    observed.arrived(2)
    now(2.0)
    observed.arrived(3)
    observed.answered(2, 2)
    now(2.2)
    observed.answered(3, 3)
    assert in_buckets(observed.ack_seconds) == {2.5: 2, 0.25: 3}


def test_a_failed_group_takes_all_that_waited_along(now: Callable[[float], None]) -> None:
    observed = StreamObservations()
    observed.arrived(5)
    observed.failed("full")
    now(100.0)
    observed.arrived(1)
    observed.answered(1, 1)
    assert in_buckets(observed.ack_seconds) == {0.0001: 1}


def test_a_failed_group_leaves_those_that_wait_for_followers(now: Callable[[float], None]) -> None:
    observed = StreamObservations()
    for count in (2, 1, 4):
        observed.arrived(count)
    observed.failed("full", 3)
    now(2.0)
    observed.arrived(1)
    observed.answered(2, 2)
    observed.answered(1, 1)
    observed.answered(1, 1)
    assert in_buckets(observed.ack_seconds) == {2.5: 3, 0.0001: 1}


def test_how_long_the_oldest_message_without_an_answer_waits(now: Callable[[float], None]) -> None:
    observed = StreamObservations()
    observed.arrived(2)
    now(3.0)
    observed.arrived(1)
    now(5.0)
    assert observed.wait_seconds == 5.0
    observed.answered(2, 2)
    assert observed.wait_seconds == 2.0
    observed.answered(1, 1)
    assert observed.wait_seconds == 0.0


def test_a_group_of_refusals_has_no_records() -> None:
    observed = StreamObservations()
    observed.arrived(3)
    observed.answered(3, 0)
    assert observed.ack_seconds.count == 3
    assert observed.group_records.count == 0


def test_a_snapshot_of_sync_times_stays_as_it_is() -> None:
    times = SyncTimes()
    times.observe(0.2)
    before = times.snapshot()
    times.observe(0.2)
    assert (before.count, times.snapshot().count) == (1, 2)
