"""The states of consumers with acks between a leader and its followers, and what is confirmed."""

from __future__ import annotations

import random

import pytest

from liftlog.cluster import consumer_states
from liftlog.cluster.consumer_states import (
    Changes,
    FollowerStates,
    LeaderStates,
    Position,
    Received,
    Snapshots,
)

SIZE = 100


class Group:
    """A leader with its consumers, and the journal of one follower. A state is the list of numbers
    of the changes that it consists of."""

    def __init__(self, names: str = "", here: str = "") -> None:
        self.leader = LeaderStates[tuple[str, str, int]](names)
        self.states = {name: [one] for one, name in enumerate(sorted(names), 1)}
        self.follower = FollowerStates()
        self.journal: dict[str, list[int]] = {name: [-1] for name in here}
        self.now = 0.0

    def change(self, name: str, kind: str = "delta") -> None:
        number = self.leader.changed(name, is_deletion=kind == "deleted")
        self.leader.keep((name, kind, number), SIZE)
        if kind == "deleted":
            del self.states[name]
        elif kind == "snapshot":
            self.states[name] = [number]
        else:
            self.states[name].append(number)

    def fetch(self, most: int = 1000) -> bool:
        """One request and its answer with at most so many changes; False if there was no news."""
        self.now += 1
        has = self.follower.position
        if not self.leader.fetched("b", 1, has, self.now):
            return False
        plan = self.leader.plan(has)
        received: list[tuple[Received, list[int]]] = []
        if isinstance(plan, Changes):
            assert has is not None
            base, number = has.base, plan.number
            for name, kind, at in plan.changes[:most]:
                one = Received(name, at, kind == "snapshot", kind == "deleted", False)
                received.append((one, [at]))
                number = at
            cursor = number
        else:
            sent = list(plan.numbers)[:most]
            base, (number, cursor) = plan.base, plan.reached(len(sent))
            for name in sent:
                state = list(self.states[name])
                received.append((Received(name, state[-1], True, False, False), state))
            for name, at in plan.deleted.items():
                if number == plan.number:
                    received.append((Received(name, at, False, True, False), []))
        wanted, gone = self.follower.answered(
            base, number, [one for one, _ in received], list(self.journal)
        )
        for index in wanted:
            one, state = received[index]
            if one.is_deletion:
                self.journal.pop(one.name, None)
            elif one.is_snapshot:
                self.journal[one.name] = list(state)
            else:
                self.journal[one.name] += state
        for name in gone:
            del self.journal[name]
        self.follower.written(number, cursor)
        return True

    def fetch_all(self, most: int = 1000) -> None:
        while self.fetch(most):
            pass


def test_an_epoch_begins_with_all_consumers_and_drops_others() -> None:
    group = Group("ab", here="bx")
    assert group.leader.is_used
    assert not group.leader.confirm(["b"])
    group.fetch_all(most=1)
    assert group.journal == {"a": [1], "b": [2]}
    assert group.follower.is_complete
    assert group.follower.position == Position(2, 2, 0, 2)
    assert group.leader.confirm(["b"])
    assert (group.leader.written, group.leader.synced) == (2, 0)
    assert not group.leader.has_all("b"), "nothing is synced"
    assert group.follower.synced(2, 2)
    group.fetch_all()
    assert group.leader.confirm(["b"])
    assert (group.leader.written, group.leader.synced) == (2, 2)
    assert group.leader.has_all("b")


def test_a_follower_of_a_leader_without_consumers_drops_its_own() -> None:
    group = Group(here="x")
    assert group.fetch()
    assert group.journal == {}
    assert not group.fetch()


def test_changes_follow_in_order() -> None:
    group = Group()
    group.fetch_all()
    group.change("a", "snapshot")
    group.change("a")
    group.change("b", "snapshot")
    assert group.leader.woken(1.0) == ["b"]
    group.fetch_all()
    group.change("b", "deleted")
    group.change("a")
    group.fetch_all()
    assert group.journal == group.states == {"a": [1, 2, 5]}


def test_nothing_is_confirmed_while_all_consumers_are_being_sent() -> None:
    group = Group("abc")
    group.fetch(most=1)
    assert group.follower.position == Position(3, 0, 0, 1)
    group.fetch(most=1)  # this request says that one is written
    assert not group.leader.confirm(["b"])
    assert group.leader.written == 0


def test_a_consumer_that_changes_while_others_are_sent_has_each_change_once() -> None:
    group = Group("abc")
    group.fetch(most=1)
    group.change("b")
    group.change("a")
    group.fetch(most=1)
    group.change("c", "deleted")
    group.change("a")
    group.fetch_all(most=1)
    assert group.journal == group.states


def test_one_that_lags_behind_the_kept_changes_gets_what_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_states, "MAX_KEPT_BYTES", 2 * SIZE)
    group = Group("abc")
    group.fetch_all()
    group.change("b", "deleted")
    for _ in range(3):
        group.change("a")
    plan = group.leader.plan(group.follower.position)
    assert isinstance(plan, Snapshots)
    assert (plan.numbers, plan.deleted) == ({"a": 7}, {"b": 4})
    group.fetch_all()
    assert group.journal == group.states


def test_one_that_lags_behind_the_kept_deletions_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_states, "MAX_KEPT_BYTES", 0)
    monkeypatch.setattr(consumer_states, "MAX_KEPT_DELETIONS", 1)
    group = Group("abcd")
    group.fetch_all()
    group.change("a", "deleted")
    group.change("b", "deleted")
    group.fetch_all(most=1)
    assert group.journal == group.states
    assert group.follower.position is not None
    assert group.follower.position.base == 6


def test_a_sync_is_asked_for_once() -> None:
    group = Group("a")
    group.fetch_all()
    group.leader.want_sync(1)
    assert group.leader.woken(1.0) == ["b"]
    assert group.leader.asked_to_sync("b") == 1
    assert not group.leader.fetched("b", 1, group.follower.position, 2.0)
    assert group.leader.woken(3.0) == []


def test_a_follower_lags_only_while_it_lacks_something() -> None:
    group = Group()
    group.fetch_all()
    assert not group.leader.lags("b", 1000.0, 10.0)
    group.change("a", "snapshot")
    group.leader.woken(1000.0)
    assert not group.leader.lags("b", 1009.0, 10.0)
    assert group.leader.lags("b", 1011.0, 10.0)
    assert not group.leader.lags("c", 1011.0, 10.0), "it was not looked at before"
    assert group.leader.lags("c", 1022.0, 10.0)


def test_what_a_former_life_of_a_follower_had_counts_no_more() -> None:
    group = Group("a")
    group.fetch_all()
    group.leader.forget({"b": 2}, {"b"})
    assert not group.leader.confirm(["b"])
    assert group.leader.start_of("b") == 2
    assert not group.leader.is_fetched_by("b", 2)


def test_any_schedule_ends_in_equal_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_states, "MAX_KEPT_BYTES", 5 * SIZE)
    monkeypatch.setattr(consumer_states, "MAX_KEPT_DELETIONS", 3)
    for seed in range(300):
        luck = random.Random(seed)
        group = Group("abcdef"[: luck.randrange(6)], here="efgh")
        for _ in range(200):
            chance = luck.random()
            there = sorted(group.states)
            if chance < 0.2:
                group.change(luck.choice("abcdefgh"), "snapshot")
            elif chance < 0.3 and there:
                group.change(luck.choice(there), "deleted")
            elif chance < 0.6 and there:
                group.change(luck.choice(there))
            elif chance < 0.62:  # it has started again
                group.follower = FollowerStates()
            else:
                group.fetch(most=luck.randrange(1, 4))
            position = group.follower.position
            if group.follower.is_complete and position is not None:
                for name, state in group.states.items():
                    written = [one for one in state if one <= position.written]
                    if written:
                        assert group.journal[name][: len(written)] == written, (seed, name)
        group.fetch_all(most=2)
        assert group.journal == group.states, seed
