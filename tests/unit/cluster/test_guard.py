"""What is stored again when the metadata store has forgotten something, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liftlog.cluster import transitions as t
from liftlog.cluster.election import LogEnd
from liftlog.cluster.guard import Known, is_regressed, newest, restored, restored_by_operator
from liftlog.cluster.record import StreamRecord


def first(**changes: Any) -> StreamRecord:
    made = t.create("s", "one", {"min_isr": 2}, "abc", starts=dict.fromkeys("abc", 1))
    return replace(made, **changes)


def then(record: StreamRecord | None) -> StreamRecord:
    assert record is not None
    return record


OLD = first()
NEW = then(t.failover(OLD, {"a"}, "b"))
"""Led by b, with b and c in sync."""
FORK = then(t.register(OLD, "c", 2, clean=True))


def heard(**known: StreamRecord | None) -> dict[str, Known | None]:
    ends = {"a": 10, "b": 12, "c": 11}
    return {
        node: None if record is None else Known(record, LogEnd(2, ends.get(node, 0)))
        for node, record in known.items()
    }


def test_a_store_that_goes_on_is_believed() -> None:
    assert not is_regressed(OLD, OLD)
    assert not is_regressed(OLD, NEW)
    later = NEW
    for offset in range(1, 90):  # beyond what the trail tells
        later = then(t.truncate(later, offset))
        assert not is_regressed(NEW, later)
        assert len(later.trail) <= 128


def test_a_store_that_forgets_is_not() -> None:
    assert is_regressed(NEW, OLD)
    assert is_regressed(NEW, None)
    assert is_regressed(NEW, FORK), "another change of the same version"
    assert is_regressed(NEW, then(t.register(FORK, "c", 3, clean=True))), "and what comes of it"


def test_an_operator_has_sixty_changes_of_time() -> None:
    """A node that has seen what the others have not stands aside that long."""
    later = FORK
    for offset in range(1, 60):
        later = then(t.truncate(later, offset))
        assert is_regressed(NEW, later)


def test_what_was_given_up_by_restoring_is_known_by_its_missing_version() -> None:
    """Its leader had the epoch of another one: the two logs would be taken for the same."""
    given_up = then(t.failover(FORK, {"a"}, "c"))
    after = then(restored(given_up, heard(b=NEW, c=NEW, a=OLD), ()))
    assert after.version > given_up.version
    for known in (FORK, given_up):
        assert is_regressed(known, after)
        assert is_regressed(known, then(t.failover(after, (), "b")))
    assert not is_regressed(NEW, after)
    assert not is_regressed(OLD, after)


def test_streams_that_were_deleted_and_made_again() -> None:
    deleted = then(t.delete(OLD))
    again = t.in_place_of(first(incarnation="two"), deleted)
    assert not is_regressed(deleted, again)
    assert is_regressed(again, deleted)
    assert is_regressed(again, OLD)
    assert is_regressed(deleted, OLD), "it would come back"
    assert not is_regressed(deleted, None), "its record was removed"
    assert newest(list(filter(None, heard(a=OLD, b=again, c=deleted).values()))) == again


def test_the_newest_comes_back_in_a_new_epoch_without_a_leader() -> None:
    after = then(restored(OLD, heard(a=OLD, b=NEW, c=NEW), ()))
    assert (after.leader, after.isr) == (None, ("b", "c"))
    assert after.version > NEW.version
    assert after.leader_epoch > NEW.leader_epoch
    for known in (OLD, NEW):
        assert not is_regressed(known, after)
    assert restored(None, heard(a=OLD, b=NEW, c=NEW), ()) is not None
    assert restored(NEW, heard(a=OLD, b=NEW, c=NEW), ()) is None, "nothing was forgotten"
    assert restored(OLD, heard(a=OLD), "bc") is None
    assert restored(None, heard(a=None), ()) is None


def test_its_epoch_is_above_all_that_anyone_led_in() -> None:
    """Nodes may have acted on what was stored meanwhile."""
    stored = replace(OLD, leader_epoch=40)
    logs = {**heard(b=NEW, c=NEW), "a": Known(OLD, LogEnd(50, 3))}
    assert then(restored(stored, heard(a=OLD, b=NEW, c=NEW), ())).leader_epoch == 41
    assert then(restored(stored, logs, ())).leader_epoch == 51


def test_who_could_lead_must_be_heard_or_the_longest_log_alone_stays_in_sync() -> None:
    # c is not heard. It may have led since, with b: then b has what was acked.
    all_in_sync = then(t.truncate(OLD, 1))
    after = then(restored(OLD, heard(a=OLD, b=all_in_sync), "c"))
    assert (after.isr, after.eligible) == (("b",), ())
    for known in (OLD, all_in_sync):
        assert not is_regressed(known, after), "or nodes would not believe what they have restored"
    assert newest([Known(OLD), Known(after), Known(all_in_sync)]) == after
    # With min_isr 1 it may have been alone.
    alone = replace(all_in_sync, settings={"min_isr": 1})
    assert restored(OLD, heard(a=OLD, b=alone), "c") is None
    # Or it led with a, if that has caught up since.
    assert restored(OLD, heard(a=OLD, b=NEW), "c") is None
    # Of five, two others may not be heard, and the longest log of the rest has all.
    five = t.create("s", "one", {"min_isr": 3}, "abcde", starts=dict.fromkeys("abcde", 1))
    known = then(t.truncate(five, 1))
    after = then(restored(five, heard(a=known, b=five, c=known), "de"))
    assert after.isr == ("b",)
    assert restored(five, heard(a=known, b=five), "cde") is None


def test_a_node_whose_copy_cannot_be_served_counts_as_not_heard() -> None:
    known = heard(a=None, b=NEW)
    assert restored(OLD, {**known, "b": Known(NEW, None)}, "c") is None


def test_two_continuations_of_one_version_are_left_to_an_operator() -> None:
    assert newest(list(filter(None, heard(a=NEW, c=FORK).values()))) is None
    stored = FORK
    assert restored(stored, heard(a=NEW, b=NEW, c=FORK), ()) is None
    further = then(t.register(FORK, "c", 3, clean=True))
    for fork in (FORK, further):
        seen = heard(a=NEW, b=NEW, c=fork)
        chosen = then(restored_by_operator(stored, seen))
        assert chosen.isr == ("b", "c"), "two have seen it"
        for known in (NEW, fork):
            assert not is_regressed(known, chosen), "all believe what the operator has decided"
        assert restored_by_operator(chosen, seen) is None


@pytest.mark.parametrize("stored", [None, OLD])
def test_an_operator_gives_up_what_is_not_heard(stored: StreamRecord | None) -> None:
    after = then(restored_by_operator(stored, heard(b=NEW)))
    assert (after.isr, after.leader) == (("b", "c"), None)
    assert restored_by_operator(NEW, heard(b=NEW)) is None
    assert restored_by_operator(stored, {"a": None}) is None
