"""Changes that the followers have not confirmed: bounded, and never confirmed too early."""

from __future__ import annotations

import random

from liftlog.server.replication.unconfirmed import MAX_ENTRIES, Unconfirmed


def test_many_changes_take_few_entries_and_none_is_confirmed_too_early() -> None:
    random.seed(1)
    unconfirmed = Unconfirmed()
    changes: list[tuple[int, int]] = []
    number = position = 0
    for _ in range(5 * MAX_ENTRIES + 1):
        number += random.randint(1, 3)
        position += random.randint(1, 3)
        unconfirmed.add(number, position)
        changes.append((number, position))
        assert len(unconfirmed) <= MAX_ENTRIES
    for reached in range(0, number, 97):
        unconfirmed.confirm(reached)
        for one, at in random.sample(changes, 20):
            if unconfirmed.is_confirmed(at):
                assert one <= reached
                assert unconfirmed.number_at(at) == 0
            else:
                assert unconfirmed.number_at(at) >= one
    assert not unconfirmed.is_confirmed(position)
    unconfirmed.confirm(number)
    assert unconfirmed.is_confirmed(position)
    assert not unconfirmed


def test_few_changes_are_confirmed_one_by_one() -> None:
    unconfirmed = Unconfirmed()
    for number in range(1, 101):
        unconfirmed.add(number, 10 * number)
    assert unconfirmed.is_confirmed(9)
    for number in range(1, 101):
        assert not unconfirmed.is_confirmed(10 * number)
        assert unconfirmed.number_at(10 * number) == number
        unconfirmed.confirm(number)
        assert unconfirmed.is_confirmed(10 * number)


def test_another_epoch_confirms_all_changes_at_once() -> None:
    unconfirmed = Unconfirmed()
    for number in range(1, 101):
        unconfirmed.add(number, 10 * number)
    unconfirmed.renumber(7)
    unconfirmed.add(8, 2000)
    unconfirmed.confirm(6)
    assert not unconfirmed.is_confirmed(10)
    unconfirmed.confirm(7)
    assert unconfirmed.is_confirmed(1999)
    assert not unconfirmed.is_confirmed(2000)
