"""When a node's clock may decide what is too old, while the clocks of others are being measured."""

from __future__ import annotations

import pytest

from liftlog.server.replication.clocks import NodeClocks
from liftlog.server.vitals.clock_guard import ClockGuard

SECOND = 1_000_000_000


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


def test_a_node_waits_for_the_clocks_of_most_but_not_for_long() -> None:
    clock = HandSetClock()
    clocks = NodeClocks(clock, lambda: ["b", "c"])
    assert not clocks.may_decide(), "none has answered"
    clock.monotonic += 59 * SECOND
    assert not clocks.may_decide()
    clock.monotonic += 2 * SECOND
    assert clocks.may_decide(), "they may be older, and tell no clock"


def test_what_is_measured_decides_at_once() -> None:
    clock = HandSetClock()
    clocks = NodeClocks(clock, lambda: ["b", "c"])
    clocks.answered("b", clocks.asked(), clock.wall, is_doubted=False)
    assert clocks.may_decide()
    ahead = NodeClocks(clock, lambda: ["b", "c"])
    for node in ("b", "c"):
        ahead.answered(node, ahead.asked(), clock.wall - 3600 * SECOND, is_doubted=False)
    clock.monotonic += 5 * SECOND
    assert not ahead.may_decide()
    (condition,) = [one for one in ahead.conditions() if one.kind.name == "clock"]
    assert "set the clock of this node" in condition.text


def found_ahead(clock: HandSetClock, guard: ClockGuard) -> NodeClocks:
    clocks = NodeClocks(clock, lambda: ["b", "c"], guard)
    for node in ("b", "c"):
        clocks.answered(node, clocks.asked(), clock.wall - 3600 * SECOND, is_doubted=False)
    return clocks


def test_a_node_that_was_found_ahead_stays_in_doubt_while_the_others_are_silent() -> None:
    """Also after a restart. It ends when the clock is measured right, or somebody says so."""
    clock = HandSetClock()
    guard = ClockGuard(clock, boot_id="one")
    clocks = found_ahead(clock, guard)
    clock.pass_seconds(86_400)
    assert not clocks.may_decide()
    (condition,) = [one for one in clocks.conditions() if one.kind.name == "clock"]
    assert "set the clock of this node" in condition.text
    assert "have not answered since" in condition.text

    guard = ClockGuard(clock, guard.state(), "one")
    clocks = NodeClocks(clock, lambda: ["b", "c"], guard)
    clock.pass_seconds(86_400)
    assert not clocks.may_decide(), "a restart confirms nothing"
    guard.believe("a step that has lasted")
    assert not clocks.may_decide()
    clocks.answered("b", clocks.asked(), clock.wall, is_doubted=False)
    assert clocks.may_decide()
    clock.pass_seconds(86_400)
    assert clocks.may_decide(), "as it was last measured"

    clocks = found_ahead(clock, guard)
    clock.pass_seconds(86_400)
    guard.confirm()
    assert clocks.may_decide()
    clocks = found_ahead(clock, guard)
    guard.confirm()
    assert not clocks.may_decide(), "the other nodes answer, and have another time"


def test_one_answer_of_a_few_confirms_no_clock() -> None:
    clock = HandSetClock()
    clocks = NodeClocks(clock, lambda: ["b", "c", "d", "e"], ClockGuard(clock))
    for node in ("b", "c", "d"):
        clocks.answered(node, clocks.asked(), clock.wall - 3600 * SECOND, is_doubted=False)
    clock.pass_seconds(3600)
    clocks.answered("b", clocks.asked(), clock.wall, is_doubted=False)
    assert not clocks.may_decide()
    clocks.answered("c", clocks.asked(), clock.wall, is_doubted=False)
    assert clocks.may_decide()


def test_a_node_that_is_left_alone_has_no_one_to_differ_from() -> None:
    clock, others = HandSetClock(), ["b", "c"]
    guard = ClockGuard(clock)
    found_ahead(clock, guard)
    clocks = NodeClocks(clock, lambda: others, guard)
    others.clear()  # they were removed from the cluster
    assert clocks.may_decide()


def test_a_look_before_the_other_nodes_are_known_ends_no_doubt() -> None:
    """A health probe comes while the metadata is still being read."""
    clock, others = HandSetClock(), list[str]()
    guard = ClockGuard(clock)
    guard.dispute = "most of the nodes have another time"  # before the restart
    clocks = NodeClocks(clock, lambda: others, guard)
    list(clocks.conditions())
    others += ["b", "c"]
    clock.pass_seconds(61)
    assert not clocks.may_decide()


def test_a_node_on_its_own_waits_for_no_one() -> None:
    assert NodeClocks(HandSetClock(), list).may_decide()


def measured(clock: HandSetClock, answers: int = 8) -> NodeClocks:
    """Both other nodes have answered so often, the first time at once and then more slowly."""
    clocks = NodeClocks(clock, lambda: ["b", "c"])
    for number in range(answers):
        answer(clocks, clock, delay_ms=number)
    assert clocks.verdict().confirmed
    return clocks


def answer(clocks: NodeClocks, clock: HandSetClock, *, ahead: int = 0, delay_ms: int = 5) -> None:
    """Both have the wall clock of this node, or one that is so many seconds ahead of it."""
    for node in ("b", "c"):
        asked = clocks.asked()
        clock.wall += delay_ms * 1_000_000
        clock.monotonic += delay_ms * 1_000_000
        their_ns = clock.wall - delay_ms * 500_000 + ahead * SECOND
        clocks.answered(node, asked, their_ns, is_doubted=False)
    clock.pass_seconds(1)


def test_a_jump_of_this_clock_counts_before_the_others_answer_again() -> None:
    """Else the answers from before would confirm the wrong clock, and records would be deleted."""
    clock = HandSetClock()
    clocks = measured(clock)
    clock.wall += 5 * 3600 * SECOND
    assert not clocks.verdict().confirmed
    assert not clocks.may_decide()
    answer(clocks, clock, ahead=-5 * 3600)
    assert not clocks.may_decide(), "a slow answer is as good as the quick ones from before"
    clock.wall -= 5 * 3600 * SECOND
    assert clocks.verdict().confirmed, "it was set right"
    assert clocks.may_decide()


def test_a_jump_of_the_other_clocks_counts_with_the_next_answer() -> None:
    clock = HandSetClock()
    clocks = measured(clock)
    answer(clocks, clock, ahead=-3600)
    assert not clocks.may_decide()
    assert clocks.shown_seconds("b") == -3600.0
    answer(clocks, clock)
    assert clocks.may_decide()


@pytest.mark.parametrize("jumps", [1, 20])
def test_small_jumps_count_while_the_others_are_silent(jumps: int) -> None:
    """Each is too small for the guard of a lone daemon; together they may be hours."""
    clock = HandSetClock()
    clocks = measured(clock)
    clock.pass_seconds(61)
    assert clocks.may_decide()
    for _ in range(jumps):
        clock.wall += 599 * SECOND
    assert not clocks.may_decide()
    clock.wall -= jumps * 599 * SECOND
    assert not clocks.may_decide(), "nobody has measured it since"
    answer(clocks, clock)
    assert clocks.may_decide()
