"""What counts as a step of the wall clock, and what time ages are judged by meanwhile."""

from __future__ import annotations

import pytest

from liftlog.server.vitals.clock_guard import ClockGuard

SECOND = 10**9


class HandSetClock:
    def __init__(self) -> None:
        self.wall = 1_700_000_000 * SECOND
        self.monotonic = 5 * SECOND

    def now_ns(self) -> int:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.monotonic

    def pass_seconds(self, seconds: int) -> None:
        self.wall += seconds * SECOND
        self.monotonic += seconds * SECOND


@pytest.fixture
def clock() -> HandSetClock:
    return HandSetClock()


def test_time_that_passes_is_no_step(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    clock.pass_seconds(86_400)
    assert guard.wall_clock_is_trusted()
    assert guard.now_ns() == clock.wall


def test_a_step_ahead_makes_nothing_older_for_an_hour(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    before = clock.wall
    clock.wall += 86_400 * SECOND
    assert guard.now_ns() == before
    assert not guard.wall_clock_is_trusted()
    clock.pass_seconds(3600)
    assert guard.now_ns() == before + 3600 * SECOND
    clock.pass_seconds(1)
    assert guard.wall_clock_is_trusted()
    assert guard.now_ns() == clock.wall


def test_a_step_back_is_followed_at_once(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    clock.wall -= 86_400 * SECOND
    assert guard.now_ns() == clock.wall
    assert not guard.wall_clock_is_trusted()


def test_a_step_that_is_taken_back_leaves_no_trace(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    clock.wall += 86_400 * SECOND
    assert not guard.wall_clock_is_trusted()
    clock.wall -= 86_400 * SECOND
    assert guard.now_ns() == clock.wall


def test_small_corrections_are_believed(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    clock.wall += 600 * SECOND
    assert guard.wall_clock_is_trusted()
    assert guard.now_ns() == clock.wall
