"""Which node deletes nothing for its age, by the clocks of all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.cluster.clocks import MAX_SKEW_SECONDS, Offset, judge_clock

HOUR = 3600.0


def at(seconds: float | None, *, doubted: bool = False) -> Offset | None:
    return None if seconds is None else Offset(seconds, 0.01, doubted)


@pytest.mark.parametrize(
    ("others", "may_delete"),
    [
        ([], True),
        ([None], True),
        ([0], True),
        ([59], True),
        ([-HOUR], False),  # of two nodes, the one that is ahead
        ([HOUR], True),
        ([0, HOUR], True),
        ([0, -HOUR], True),
        ([-HOUR, -HOUR], False),
        ([HOUR, HOUR], False),
        ([HOUR, 2 * HOUR], True),  # three times: only the last of them never deletes early
        ([-HOUR, 2 * HOUR], False),
        ([None, -HOUR], False),
        ([None, HOUR], True),
        ([None, None, -HOUR, -HOUR], False),
        ([None, 0, 0, -HOUR], True),
    ],
)
def test_who_may_delete(others: list[float | None], may_delete: bool) -> None:
    verdict = judge_clock({f"n{i}": at(one) for i, one in enumerate(others)})
    assert (not verdict.reason) is may_delete


@pytest.mark.parametrize(
    ("others", "is_measured"),
    [
        ([], True),
        ([None], False),
        ([HOUR], True),
        ([None, None], False),
        ([None, 0], True),
        ([None, None, None, HOUR], False),
        ([None, None, HOUR, HOUR], True),
    ],
)
def test_few_known_clocks_are_no_measure(others: list[float | None], is_measured: bool) -> None:
    verdict = judge_clock({f"n{i}": at(one) for i, one in enumerate(others)})
    assert verdict.is_measured is is_measured


def test_the_reason_says_which_clock_to_set() -> None:
    assert "set the clock of this node" in judge_clock({"b": at(HOUR), "c": at(HOUR)}).reason
    assert "ahead of that of b" in judge_clock({"b": at(-HOUR)}).reason


def test_an_error_is_no_difference() -> None:
    assert not judge_clock({"b": Offset(-HOUR, HOUR)}).reason


@pytest.mark.parametrize(
    ("others", "confirmed"),
    [
        ({}, False),
        ({"b": at(None)}, False),
        ({"b": at(0)}, True),
        ({"b": at(0), "c": at(None)}, True),
        ({"b": at(0, doubted=True), "c": at(None)}, False),
        ({"b": at(0, doubted=True), "c": at(0, doubted=True)}, False),
        ({"b": at(0), "c": at(0, doubted=True)}, True),
        ({"b": at(HOUR), "c": at(HOUR)}, False),
    ],
)
def test_who_confirms_a_clock_that_stepped(
    others: dict[str, Offset | None], confirmed: bool
) -> None:
    assert judge_clock(others).confirmed is confirmed


@given(st.lists(st.integers(-3, 3).map(lambda hours: hours * HOUR), min_size=1, max_size=7))
def test_whoever_may_delete_is_not_ahead_of_most(clocks: list[float]) -> None:
    """Each node judges by what it measures of the others, and all is measured."""
    for i, own in enumerate(clocks):
        others = {f"n{j}": at(one - own) for j, one in enumerate(clocks) if j != i}
        if not judge_clock(others).reason:
            alike = sum(abs(one - own) <= MAX_SKEW_SECONDS for one in clocks)
            assert 2 * alike > len(clocks) or own == min(clocks)
