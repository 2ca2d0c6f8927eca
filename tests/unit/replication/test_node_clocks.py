"""When a node's clock may decide what is too old, while the clocks of others are being measured."""

from __future__ import annotations

from liftlog.server.replication.clocks import NodeClocks

SECOND = 1_000_000_000


class HandSetClock:
    def __init__(self) -> None:
        self.wall = 1_700_000_000 * SECOND
        self.monotonic = 5 * SECOND

    def now_ns(self) -> int:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.monotonic


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


def test_a_node_on_its_own_waits_for_no_one() -> None:
    assert NodeClocks(HandSetClock(), list).may_decide()
