"""Consumer groups under a random scheduler: all rules hold, and each rule is necessary.

`make simulate-groups` runs more of the same: SIMULATE_RUNS rounds, each with about 35 starts,
stops, kills, hangs and new coordinators. A failure names its seed; the same seed gives the same
round.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.rounds import fewer
from support.worlds.group_world import SESSION, Faults, GroupWorld, Process, Violation

from liftlog.client.groups.group_member import GroupMember, Lane
from liftlog.errors import LiftlogError
from liftlog.groups import coordinator as module
from liftlog.groups.assignment import excess, released, settled
from liftlog.groups.coordinator import Coordinator, Flight
from liftlog.groups.requests import Beat, Commit, OwnedSlot
from liftlog.groups.state import FREE, GroupState

RUNS = int(os.environ.get("SIMULATE_RUNS") or fewer(8))
FIRST_SEED = int(os.environ.get("SIMULATE_SEED", "0"))
SECONDS = 100.0
CALM = Faults(*[0] * 11)


class Hurried(Coordinator):
    """Handles only one or two requests at once."""

    most_work = 100


KINDS = (Coordinator, Hurried)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog.groups")


def run_round(world: GroupWorld) -> Counter[str]:
    world.run(SECONDS)
    world.check_settled()
    return world.stats


def test_order_one_owner_nothing_skipped_and_again_only_what_was_not_committed() -> None:
    seen: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
        try:
            seen += run_round(GroupWorld(seed, coordinator=KINDS[seed % 2]))
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
    print(f"\n{RUNS} rounds: {dict(seen)}")
    # A schedule under which nothing happens would pass, too.
    expected = {
        *("joins", "ended", "leaves", "kills", "hangs", "takeovers", "coordinators", "commits"),
        *("failed stores", "late copies", "fenced", "lost", "again", "revoked", "merges"),
    }
    assert {what for what in expected if not seen[what]} == set()


def calm_group(members: int) -> tuple[GroupWorld, list[Process]]:
    world = GroupWorld(1, faults=CALM)
    processes = [world.start() for _ in range(members)]
    world.run(SESSION)
    assert world.state is not None
    assert set(world.state.members) == {one.name for one in processes}
    return world, processes


def test_another_coordinator_changes_no_assignment() -> None:
    world, _ = calm_group(3)
    before = world.state
    assert before is not None
    for _ in range(5):
        world.run(2 * SESSION)
        world.start_coordinator()
    world.run(2 * SESSION)
    assert world.state is not None
    assert replace(world.state, offsets=before.offsets, incarnation="", epoch=0) == replace(
        before, incarnation="", epoch=0
    )
    assert world.state.offsets > before.offsets


def tenures(*members: Any) -> dict[int, int]:
    """Return the generation since which the members own each of their slots, according to
    themselves."""
    return {slot: since for one in members for slot, since in one.member._since.items()}


def test_the_slots_of_a_killed_member_are_read_by_others_within_its_session() -> None:
    world, (victim, *others) = calm_group(3)
    slots = victim.member.slots
    kept = tenures(*others)
    world.kill(victim)
    world.run(SESSION + 0.5)
    assert {slot for one in others for slot in one.member.slots} == set(range(world.slots))
    assert len(slots) == 4
    # Those that did not move are the same tenures as before.
    now = tenures(*others)
    assert {slot: now[slot] for slot in kept} == kept


def test_a_member_that_joins_gets_its_share_and_nothing_else_moves() -> None:
    world, (first, second) = calm_group(2)
    kept = tenures(first, second)
    third = world.start()
    world.run(SESSION)
    moved = set(third.member.slots)
    assert len(moved) == 4
    assert {len(one.member.slots) for one in (first, second)} == {4}
    now = tenures(first, second)
    assert now == {slot: since for slot, since in kept.items() if slot not in moved}
    assert world.moves == 4


def test_a_member_that_leaves_hands_over_at_once() -> None:
    world, (first, second) = calm_group(2)
    first.leaving = True
    world.run(1.0)
    assert second.member.slots == list(range(world.slots))


# --- every rule is needed --------------------------------------------------------------


class AnyoneCommits(Coordinator):
    def _check_owner(self, state: GroupState, asked: Commit) -> None:
        """Accept commits of a slot by any member."""


class OffsetsGoBack(Coordinator):
    def _commit(self, state: GroupState, asked: Commit) -> GroupState:
        after = super()._commit(state, asked)
        offsets = [asked.offsets.get(slot, old) for slot, old in enumerate(after.offsets)]
        return replace(after, offsets=tuple(offsets))


class OldBeatsRelease(Coordinator):
    """A heartbeat that was written before the assignment of a slot releases the slot."""

    def _beat(self, state: GroupState, asked: Beat) -> GroupState:
        owned = set(state.owned_by(asked.member))
        return released(state, owned - asked.owned)


class MovesWithoutAsking(Coordinator):
    """Takes slots from members with too many slots, without waiting until they release them."""

    def begin(self, now: float) -> Flight:
        flight = super().begin(now)
        for key, draft in flight.drafts.items():
            if draft is not None:
                flight.drafts[key] = settled(released(draft, excess(draft)), self.groups.get(key))
        return flight


class AnswersFirst(Coordinator):
    """And stores then."""

    def begin(self, now: float) -> Flight:
        flight = super().begin(now)
        told, flight.verdicts = flight.verdicts, []
        before = dict(self.groups)
        self.landed(Flight(flight.quota, dict(flight.drafts), told), None, now)
        self.groups = before
        return flight


class SessionsEndAtOnce(Coordinator):
    """A new coordinator ends all sessions at once, so that no member can send a request in time."""

    def __init__(self, groups: dict[tuple[str, str], GroupState], now: float) -> None:
        super().__init__(groups, now)
        for deadlines in self._deadlines.values():
            deadlines.update(dict.fromkeys(deadlines, now))


class ShortSessions(Coordinator):
    """The coordinator's session ends before that of the member."""

    def _hear(self, asked: object, now: float) -> None:
        super()._hear(asked, now - SESSION / 2)  # type: ignore[arg-type]


class LostChangesCount(Coordinator):
    """Changes that could not be stored count as stored."""

    def landed(self, flight: Flight, error: LiftlogError | None, now: float) -> None:
        super().landed(flight, None, now)


class NeverGivesBack(Coordinator):
    """Members keep their slots when others join."""

    def assignment(self, key: tuple[str, str], member: str) -> module.Assignment:
        found, state = super().assignment(key, member), self.groups[key]
        slots = [OwnedSlot(s, state.since[s], state.offsets[s]) for s in state.owned_by(member)]
        return replace(found, slots=tuple(slots))


class ForgetsToWake(Coordinator):
    def _adopt(self, key: tuple[str, str], draft: GroupState | None, now: float) -> None:
        """A member that has left keeps its slots."""
        before = self.groups.get(key)
        if draft is not None and before is not None:
            gone = set(before.members) - set(draft.members)
            owners = [
                old if old in gone else new
                for old, new in zip(before.owners, draft.owners, strict=True)
            ]
            draft = replace(draft, owners=tuple(owners))
        super()._adopt(key, draft, now)


class ReturnsWithoutSession(GroupMember):
    """Returns records until it is told that it is no longer a member."""

    def may_return(self, now: float) -> bool:
        return self.joined > 0


class SessionFromTheAnswer(GroupMember):
    """Its session begins with the answer, and not with the time at which it sent the request."""

    def heard(self, sent: float) -> None:
        super().heard(sent + 3.0)


class GivesUpBeforeTheCommit(GroupMember):
    def give_up(self) -> list[int]:
        for slot, leaving in self._leaving.items():
            self._stored[slot] = max(self._stored[slot], leaving.offset)
        return super().give_up()


class GivesUpWhatIsInHand(GroupMember):
    """The record that the caller processes counts as processed."""

    def _leave(self, slot: int) -> None:
        super()._leave(slot)
        if self._leaving[slot].offset < 0:
            self._leaving[slot].offset = self._leaving[slot].lane.end


class CommitsWhatIsInHand(GroupMember):
    def hand_out(self, lane: Lane, slots: object, end: int) -> None:
        super().hand_out(lane, slots, end)  # type: ignore[arg-type]
        lane.done = end


class TakesBackWhatItGaveUp(GroupMember):
    def give_up(self) -> list[int]:
        finished = super().give_up()
        self._left.clear()
        return finished


class ReadsOnWhatIsRevoked(GroupMember):
    def _leave(self, slot: int) -> None:
        lane = next(one for one in self.lanes if slot in one.slots)
        start = lane.slots[slot]
        super()._leave(slot)
        lane.slots[slot] = start
        if lane not in self.lanes:
            self.lanes.append(lane)

    def give_up(self) -> list[int]:
        finished = super().give_up()
        for lane in self.lanes:
            for slot in finished:
                lane.slots.pop(slot, None)
        return finished


class JoinsTheLaneOfTheOthers(GroupMember):
    """Continues with a new slot at the offset of the other slots."""

    def told(self, joined: int, generation: int, slots: object, sent: float) -> object:  # type: ignore[override]
        answer = super().told(joined, generation, slots, sent)  # type: ignore[arg-type]
        while len(self.lanes) > 1:
            last = self.lanes.pop()
            self.lanes[0].slots |= last.slots
        return answer


class BeginsBelowItsOffset(GroupMember):
    """Reads from the beginning of the lane, and not from the offset of each slot."""

    def told(self, joined: int, generation: int, slots: object, sent: float) -> object:  # type: ignore[override]
        answer = super().told(joined, generation, slots, sent)  # type: ignore[arg-type]
        for lane in self.lanes:
            lane.slots.update(dict.fromkeys(lane.slots, min(lane.slots.values())))
        return answer


class MergesUnequalLanes(GroupMember):
    def merge(self, one: Lane, other: Lane) -> bool:
        if one is not other and not one.in_hand and not other.in_hand:
            one.done = other.done = one.end = other.end = max(one.done, other.done)
        return super().merge(one, other)


def from_scratch(state: GroupState, before: GroupState | None) -> GroupState:
    """Every change of members assigns all slots again."""
    if before is not None and state.members.keys() != before.members.keys():
        state = replace(state, owners=(FREE,) * state.slots)
    return settled(state, before)


def two_of_one_name() -> None:
    world = GroupWorld(1, faults=CALM)
    first = world.start()
    world.run(SESSION)
    second = world.start(first.name)
    world.run(SESSION)
    assert world.processes == [second]
    assert second.member.slots == list(range(world.slots))


def test_of_two_processes_with_one_name_the_newer_one_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two_of_one_name()
    monkeypatch.setattr(module, "_is_by", lambda *_: True)  # the first is taken for the second
    with pytest.raises(Violation):
        two_of_one_name()


BROKEN: list[type[Coordinator] | type[GroupMember] | Callable[..., GroupState]] = [
    *(AnyoneCommits, OffsetsGoBack, OldBeatsRelease, MovesWithoutAsking, AnswersFirst),
    *(ShortSessions, LostChangesCount, NeverGivesBack, ForgetsToWake),
    *(ReturnsWithoutSession, SessionFromTheAnswer, GivesUpBeforeTheCommit, GivesUpWhatIsInHand),
    *(CommitsWhatIsInHand, TakesBackWhatItGaveUp, ReadsOnWhatIsRevoked, JoinsTheLaneOfTheOthers),
    *(BeginsBelowItsOffset, MergesUnequalLanes, from_scratch),
]
FOUND_AT = {"ReturnsWithoutSession": 5, "SessionFromTheAnswer": 16, "TakesBackWhatItGaveUp": 64}
"""The first seed that shows the defect, if the search takes long."""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.__name__)
def test_without_any_one_rule_the_scheduler_finds_a_violation(
    broken: type[Coordinator] | type[GroupMember] | Callable[..., GroupState],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: dict[str, object] = {}
    if not isinstance(broken, type):
        monkeypatch.setattr(module, "settled", broken)
    elif issubclass(broken, Coordinator):
        parts["coordinator"] = broken
    else:
        parts["member"] = broken
    for seed in (FOUND_AT.get(broken.__name__, 0), *range(100)):
        try:
            run_round(GroupWorld(seed, **parts))  # type: ignore[arg-type]
        except Violation as violation:
            print(f"\n{broken.__name__}: seed {seed}: {violation}")
            return
    raise AssertionError("not found in 100 rounds")
