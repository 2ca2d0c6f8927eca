"""What members of a group are told when several things happen in one flight."""

from __future__ import annotations

import pytest

from liftlog.errors import GroupFenced, LiftlogError
from liftlog.groups.coordinator import Coordinator
from liftlog.groups.requests import Asked, Assignment, Beat, Commit, Join, Leave, Remove

KEY = ("group", "orders")


def told(coordinator: Coordinator, *requests: Asked) -> list[Assignment | None]:
    """What they are answered with when they are judged together."""
    answers: list[Assignment | None] = []
    for one in requests:
        coordinator.ask(one, lambda answer, _: answers.append(answer), 0.0)
    coordinator.landed(coordinator.begin(0.0), None, 0.0)
    return answers


def test_members_of_a_group_that_begins_again_are_not_told_what_the_removed_one_had() -> None:
    coordinator = Coordinator({}, 0.0)
    told(coordinator, Join(KEY, "a", "first", 10_000))
    told(coordinator, Leave(KEY, "a", coordinator.groups[KEY].members["a"].joined))
    _, *answers = told(
        coordinator, Remove(KEY), Join(KEY, "a", "again", 10_000), Join(KEY, "b", "other", 10_000)
    )
    state = coordinator.groups[KEY]
    for name, answer in zip("ab", answers, strict=True):
        assert answer is not None
        assert [one.slot for one in answer.slots] == state.owned_by(name)
        assert len(answer.slots) == state.slots // 2


SESSION_MS = 10_000


def hung_member_of_a_removed_group() -> tuple[Coordinator, Beat]:
    """And what it says when it wakes up. Its group has begun again, with a member of its name."""
    coordinator = Coordinator({}, 0.0)
    (joined,) = told(coordinator, Join(KEY, "a", "first", SESSION_MS))
    assert joined is not None
    slots = frozenset(one.slot for one in joined.slots)
    beat = Beat(KEY, "a", joined.joined, joined.generation, slots, 3.0)
    told(coordinator, Leave(KEY, "a", joined.joined), Remove(KEY))  # or the end of its session
    told(coordinator, Join(KEY, "a", "second", SESSION_MS))
    assert coordinator.groups[KEY].generation == beat.generation, "or it would be told apart anyway"
    return coordinator, beat


@pytest.mark.parametrize("what", ["beat", "commit", "leave"])
def test_a_member_of_a_removed_group_is_not_taken_for_one_of_its_name(what: str) -> None:
    """Else it would commit offsets beyond what the group has read, or read slots of the other."""
    coordinator, beat = hung_member_of_a_removed_group()
    before = coordinator.groups[KEY]
    asked: Asked = beat
    if what == "commit":
        asked = Commit(KEY, "a", beat.joined, beat.generation, {0: 1000}, "i", 1)
    elif what == "leave":
        asked = Leave(KEY, "a", beat.joined)
    errors: list[LiftlogError | None] = []
    coordinator.ask(asked, lambda _, error: errors.append(error), 5.0)
    coordinator.landed(coordinator.begin(5.0), None, 5.0)
    assert [type(one) for one in errors] == [GroupFenced]
    assert coordinator.groups[KEY] is before
    coordinator.begin(SESSION_MS / 1000)  # and it is no sign of life of the other one
    assert coordinator.expired_total == 1


def test_a_beat_that_waits_while_its_group_begins_again_is_answered() -> None:
    """The group has the same generation then, and members of the same names."""
    coordinator = Coordinator({}, 0.0)
    (joined,) = told(coordinator, Join(KEY, "a", "first", SESSION_MS))
    assert joined is not None
    answers: list[LiftlogError | None] = []
    slots = frozenset(one.slot for one in joined.slots)
    beat = Beat(KEY, "a", joined.joined, joined.generation, slots, 3.0)
    coordinator.ask(beat, lambda _, error: answers.append(error), 0.0)
    coordinator.landed(coordinator.begin(0.0), None, 0.0)
    assert answers == [], "it waits for news"
    told(
        coordinator,
        Leave(KEY, "a", joined.joined),
        Remove(KEY),
        Join(KEY, "a", "second", SESSION_MS),
    )
    assert coordinator.groups[KEY].generation == joined.generation
    assert [type(one) for one in answers] == [GroupFenced]


@pytest.mark.parametrize("removed", [False, True])
def test_an_older_process_does_not_take_its_name_back(removed: bool) -> None:
    """It hung while its session ended, and joins again when it wakes up. Numbers of joins begin
    again with the group, so they do not tell who is older."""
    coordinator = Coordinator({}, 0.0)
    told(coordinator, Join(KEY, "b", "another", SESSION_MS))
    (older,) = told(coordinator, Join(KEY, "a", "first", SESSION_MS))
    assert older is not None
    if removed:
        gone = [Leave(KEY, *one) for one in joins(coordinator).items()]
        told(coordinator, *gone, Remove(KEY))
    (newer,) = told(coordinator, Join(KEY, "a", "second", SESSION_MS))
    assert newer is not None
    assert (newer.joined < older.joined) == removed
    again = Join(KEY, "a", "third", SESSION_MS, joined=older.joined)
    errors: list[LiftlogError | None] = []
    coordinator.ask(again, lambda _, error: errors.append(error), 1.0)
    coordinator.landed(coordinator.begin(1.0), None, 1.0)
    (error,) = errors
    assert isinstance(error, GroupFenced)
    assert error.details["replaced"]
    assert joins(coordinator)["a"] == newer.joined
    own = Join(KEY, "a", "fourth", SESSION_MS, joined=newer.joined)
    assert told(coordinator, own) != [None], "the newer one may join again"
    told(coordinator, Leave(KEY, "a", joins(coordinator)["a"]))
    assert told(coordinator, again) != [None], "and the older one when the name is free"


def joins(coordinator: Coordinator) -> dict[str, int]:
    return {name: one.joined for name, one in coordinator.groups[KEY].members.items()}
