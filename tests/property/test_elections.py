"""Elections in simulated time, with processes that die or hang, lines that are cut in one
direction, and a store that cannot be reached. Every rule is necessary.

SIMULATE_RUNS makes the test longer. A failure names its seed; the same seed gives the same run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.rounds import fewer
from support.worlds.election_world import PATIENCE, SESSION, ElectionWorld, Misjudged, Node

from liftlog.cluster.election import Elections, Opinion
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamMetadata

RUNS = int(os.environ.get("SIMULATE_RUNS") or fewer(4))
FIRST_SEED = int(os.environ.get("SIMULATE_SEED", "0"))


def one_fault(world: ElectionWorld, fault: Callable[[Node], None], name: str) -> None:
    """Run without faults for a while, and then cause only this fault of the leader."""
    world.run(SESSION + 5 + world.random.random() * 3)
    assert world.stats["elections"] == 0, "a leader was deposed for nothing"
    leader = world.nodes[world.record.leader or ""]
    world.calm_since, world.fault = world.now, name
    fault(leader)
    world.run(2 * SESSION)


@pytest.mark.parametrize("replicas", [3, 4, 5])
@pytest.mark.parametrize("name", ["killed", "hung"])
def test_a_leader_that_died_or_hangs_is_replaced_in_time(name: str, replicas: int) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed, replicas=replicas)

        def hang(node: Node, world: ElectionWorld = world) -> None:
            node.hung_until = world.now + 3 * SESSION

        one_fault(world, world.kill if name == "killed" else hang, name)
        assert world.record.leader != "a"
        assert world.stats["elections"] == 1


def test_of_two_nodes_the_one_that_is_left_waits_for_the_end_of_the_session() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed, replicas=2)
        one_fault(world, world.kill, "")
        assert world.record.leader == "b"


def test_a_leader_that_no_one_hears_goes_on_until_its_session_ends() -> None:
    """The others depose it earlier if they reach each other. It receives this or stops."""
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed)

        def isolate(node: Node, world: ElectionWorld = world) -> None:
            node.store = False
            for other in world.nodes:
                world.cuts |= {(node.name, other), (other, node.name)}

        one_fault(world, isolate, "")
        assert world.record.leader != "a"
        assert world.nodes["a"].stopped


def test_a_store_that_is_out_of_reach_stops_and_deposes_no_one() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed)
        one_fault(world, world.lose_store, "")
        leader = world.nodes["a"]
        assert leader.leader is not None
        assert not leader.stopped
        assert not leader.elections.has_session(world.now)
        world.calm_since = world.now
        world.lose_store(leader)
        world.run(2 * SESSION)
        assert world.record.leader == "a"
        assert world.stats["elections"] == 0


def sleeps(world: ElectionWorld) -> None:
    """Run without faults for a while, and then suspend the machine of all nodes three times."""
    world.run(SESSION + 3)
    for _ in range(3):
        world.calm_since = world.now
        world.stall(world.nodes["a"])
        world.run(world.awake_at - world.now + 6)


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_a_machine_that_slept_deposes_no_one(replicas: int) -> None:
    """Its processes do not continue at the same moment."""
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed, replicas=replicas)
        sleeps(world)
        assert world.record.leader == "a"
        assert world.stats["elections"] == 0


def lines_break_in_turn(world: ElectionWorld) -> None:
    """Of five nodes, two do not receive the leader's data at any time: e, first together with b,
    which e then does not reach either, and then together with c."""
    world.run(SESSION + 3)
    for cuts in ({("a", "e"), ("a", "b")}, {("a", "e"), ("b", "e")}):
        world.cuts, world.calm_since = cuts, world.now
        world.run(3)
    world.cuts, world.calm_since = {("a", "e"), ("b", "e"), ("a", "c")}, world.now
    world.run(8)


def test_what_a_node_said_before_does_not_count() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed, replicas=5)
        lines_break_in_turn(world)
        assert world.record.leader == "a"
        assert world.stats["elections"] == 0


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_a_leader_without_nats_hands_over(replicas: int) -> None:
    """It has no other fault. The next leader has NATS, and the one after it, too."""
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed, replicas=replicas)
        one_fault(world, world.detach, "")
        assert world.record.leader != "a"
        assert world.stats["handed over"] == 1
        assert world.stats["elections"] == 0
        assert set(world.record.isr) == set(world.record.replicas), "it has come back as a follower"


def test_without_nats_anywhere_no_one_takes_over() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed)

        def no_nats(_: Node, world: ElectionWorld = world) -> None:
            for node in world.nodes.values():
                node.attached = False

        one_fault(world, no_nats, "")
        assert world.record.leader == "a"
        assert world.stats["handed over"] == 0


def leader_dies_while(world: ElectionWorld, other: str) -> None:
    """The next candidate stops or has no NATS. It is skipped, and not waited for."""
    world.run(SESSION + 5)
    second = world.nodes["b"]
    second.attached = other != "has no NATS"
    second.elections.is_stopping = other == "stops"
    world.run(1)
    one_fault(world, world.kill, "killed" if other == "stops" else "")
    assert world.record.leader == "c"
    assert world.stats["handed over"] == 0, "b has led first"


@pytest.mark.parametrize("other", ["stops", "has no NATS"])
def test_a_node_that_stops_or_has_no_nats_is_not_elected(other: str) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed)
        leader_dies_while(world, other)
        assert world.stats["elections"] == 1


def test_without_nats_anywhere_one_is_elected_all_the_same() -> None:
    """Readers need it."""
    world = ElectionWorld(FIRST_SEED)
    for node in world.nodes.values():
        node.attached = False
    one_fault(world, world.kill, "")
    assert world.record.leader in ("b", "c")


@pytest.mark.parametrize("acks_wait", [False, True])
def test_a_leader_without_the_store_hands_over_when_a_stream_waits_for_it(acks_wait: bool) -> None:
    """While its ISR is complete, nothing must change in the store, and it continues."""
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed)

        def cut_off(leader: Node, world: ElectionWorld = world) -> None:
            leader.store = False
            if acks_wait:
                world.kill(world.nodes["c"])

        one_fault(world, cut_off, "")
        assert world.record.leader == ("b" if acks_wait else "a")
        assert world.nodes["a"].view.leader == world.record.leader, "it knows whom to follow"
        assert world.stats["handed over"] == acks_wait


@pytest.mark.parametrize("replicas", [2, 3, 5])
@pytest.mark.parametrize("nats_fails", [False, True])
def test_whatever_breaks_a_living_leader_stays_and_a_dead_one_is_replaced(
    replicas: int, nats_fails: bool
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        world = ElectionWorld(seed, replicas=replicas)
        world.nats_fails = nats_fails
        try:
            world.run(200, world.break_one)
        except Misjudged as misjudged:
            raise AssertionError(f"seed {seed}: {misjudged}") from misjudged
        seen += world.stats
    print(f"\n{replicas}: {dict(seen)}")
    assert {
        what for what in ("elections", "kill", "stall", "lose_store") if not seen[what]
    } == set()
    assert seen["handed over"] or not nats_fails or replicas == 2


# --- every rule is needed --------------------------------------------------------------------


class OwnSuspicionIsEnough(Elections):
    def _is_deserted(self, node: str, record: StreamMetadata, now: float) -> bool:
        return self.suspects(node, now)


class NoVeto(Elections):
    def _is_absent(self, node: str, now: float) -> bool:
        return node not in self._live and now >= self._absence_counts_from


class AbsencesCountAtOnce(Elections):
    def renewed(self, deadline: float, now: float) -> None:
        super().renewed(deadline, now)
        self._absence_counts_from = 0.0


class ElectedWithoutSession(Elections):
    """Elects itself with or without a session."""

    def decide(self, *args: object) -> object:  # type: ignore[override]
        deadline, self._deadline = self._deadline, 1e9
        try:
            return super().decide(*args)  # type: ignore[arg-type]
        finally:
            self._deadline = deadline


class StallsCountAsSilence(Elections):
    def look(self, now: float) -> None:
        self._looked = now


class EveryoneAtOnce(Elections):
    def _rank(self, *_: object) -> int:  # type: ignore[override]
        return 0


class FirstReplicaFirst(Elections):
    """Whatever its log has."""

    def told(self, peer: str, about: str, opinion: Opinion, now: float) -> None:
        super().told(peer, about, replace(opinion, logs={}), now)


class EndsAreSilence(Elections):
    def lost(self, node: str, now: float, *, is_refused: bool = False) -> None:
        pass


class OldAnswersCount(Elections):
    def __init__(self, node: str, start: int, **more: object) -> None:
        super().__init__(node, start, **more)  # type: ignore[arg-type]
        self._patience = replace(PATIENCE, answer=1e9)


class LeadsWithoutSession(Elections):
    def stops(self, leader: Leader, now: float) -> bool:
        return False


class NatsDoesNotMatter(Elections):
    def decide(self, *args: object) -> object:  # type: ignore[override]
        since, self._detached_since = self._detached_since, None
        try:
            return super().decide(*args)  # type: ignore[arg-type]
        finally:
            self._detached_since = since


class StandsWhileItStops(Elections):
    def _may_stand(self, record: StreamMetadata) -> bool:
        stops, self.is_stopping = self.is_stopping, False
        try:
            return super()._may_stand(record)
        finally:
            self.is_stopping = stops


@pytest.mark.parametrize(
    ("elections", "other"),
    [(StandsWhileItStops, "stops"), (NatsDoesNotMatter, "has no NATS")],
)
def test_without_that_rule_a_node_is_elected_that_cannot_serve(
    elections: type[Elections], other: str
) -> None:
    for seed in range(50):
        try:
            leader_dies_while(ElectionWorld(seed, elections=elections), other)
        except AssertionError:
            return
    pytest.fail("not found in 50 runs")


# Beside each: of how many nodes, and a seed that finds it, where to begin.
BROKEN: dict[str, tuple[type[Elections], int, int]] = {
    "one node's suspicion is enough": (OwnSuspicionIsEnough, 3, 2),
    "who hears the node believes that it is absent": (NoVeto, 3, 7),
    "absences count after an outage": (AbsencesCountAtOnce, 2, 2),
    "a node without a session is elected": (ElectedWithoutSession, 3, 41),
    "who was stopped believes its clock": (StallsCountAsSilence, 3, 0),
    "all stand at once": (EveryoneAtOnce, 3, 2),
    "the length of logs does not matter": (FirstReplicaFirst, 3, 2),
    "the end of a connection says nothing": (EndsAreSilence, 3, 2),
    "answers count for ever": (OldAnswersCount, 5, 2),
    "a leader goes on without a session": (LeadsWithoutSession, 3, 7),
}


@pytest.mark.parametrize("name", BROKEN)
def test_without_any_one_rule_the_scheduler_finds_a_violation(name: str) -> None:
    elections, replicas, first = BROKEN[name]
    for seed in (first, *range(300)):
        world = ElectionWorld(seed, replicas=replicas, elections=elections)
        try:
            if seed % 2:
                world.run(200, world.break_one)
            elif seed % 4 == 0:
                sleeps(world)
            elif replicas == 5:
                lines_break_in_turn(world)
            else:
                one_fault(world, world.kill, "killed")
        except AssertionError:
            return
    pytest.fail(f"{name}: not found in 300 runs")
