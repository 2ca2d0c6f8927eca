"""What members of a group are told when several things happen in one flight."""

from __future__ import annotations

from liftlog.groups.coordinator import Coordinator
from liftlog.groups.requests import Asked, Assignment, Join, Leave, Remove

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
    told(coordinator, Leave(KEY, "a", 1))
    _, *answers = told(
        coordinator, Remove(KEY), Join(KEY, "a", "again", 10_000), Join(KEY, "b", "other", 10_000)
    )
    state = coordinator.groups[KEY]
    for name, answer in zip("ab", answers, strict=True):
        assert answer is not None
        assert [one.slot for one in answer.slots] == state.owned_by(name)
        assert len(answer.slots) == state.slots // 2
