"""What is stored again when the metadata store has forgotten something, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liftlog.cluster import transitions as t
from liftlog.cluster.election import LogEnd
from liftlog.cluster.guard import (
    Known,
    contradict,
    is_given_up,
    is_regressed,
    restored,
    restored_by_operator,
)
from liftlog.cluster.record import StreamMetadata


def first(**changes: Any) -> StreamMetadata:
    made = t.create("s", "one", {"min_isr": 2}, "abc", starts=dict.fromkeys("abc", 1))
    return replace(made, **changes)


def then(record: StreamMetadata | None) -> StreamMetadata:
    assert record is not None
    return record


OLD = first()
NEW = then(t.failover(OLD, {"a"}, "b"))
"""Led by b, with b and c in sync."""
FORK = then(t.register(OLD, "c", 2, clean=True))


def heard(**known: StreamMetadata | None) -> dict[str, Known | None]:
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
    assert not contradict([OLD, again, deleted])


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


def test_who_could_lead_must_be_heard_or_most_of_those_that_could_ack() -> None:
    """Who is not heard could have acked something by what only it knows, with too few others."""
    changed = then(t.truncate(OLD, 1))
    after = then(restored(OLD, heard(a=OLD, b=changed), "c"))
    assert after.isr == ("a", "b", "c")
    for known in (OLD, changed):
        assert not is_regressed(known, after), "or nodes would not believe what they have restored"
    assert not contradict([OLD, after, changed])
    assert restored(OLD, heard(b=changed), "ac") is None
    # With min_isr 1 it may have been alone.
    alone = replace(changed, settings={"min_isr": 1})
    assert restored(OLD, heard(a=OLD, b=alone), "c") is None
    five = t.create("s", "one", {"min_isr": 3}, "abcde", starts=dict.fromkeys("abcde", 1))
    known = then(t.truncate(five, 1))
    assert restored(five, heard(a=known, b=five, c=known), "de") is not None
    assert restored(five, heard(a=known, b=five), "cde") is None


def test_who_has_gone_on_from_the_older_copy_may_have_acked_by_that() -> None:
    """A node that has not heard of either may go over to what is stored, until it is replaced."""
    assert restored(FORK, heard(a=OLD, b=NEW, c=FORK), ()) is None
    assert restored(FORK, heard(a=NEW, b=NEW, c=FORK), ()) is not None
    assert restored(FORK, heard(a=NEW, b=NEW), "c") is not None, "c alone has acked nothing"
    assert restored(FORK, heard(b=NEW, c=FORK), "a") is None
    further = then(t.truncate(FORK, 1))
    assert restored(further, heard(a=FORK, b=NEW, c=further), ()) is None, "they go on"


def test_of_three_histories_one_is_restored_that_has_what_two_nodes_know() -> None:
    shared = then(t.truncate(OLD, 5))
    ends = [then(t.register(shared, node, 2, clean=True)) for node in "bc"]
    other = FORK
    for offset in range(1, 9):
        other = then(t.truncate(other, offset))
    after = then(restored(OLD, heard(a=other, b=ends[0], c=ends[1]), ()))
    assert after.log_start == 5
    assert after.version > other.version
    assert not is_regressed(shared, after)
    assert is_regressed(other, after)
    # If a is not heard, b and c may each have acked with it.
    assert restored(OLD, heard(b=ends[0], c=ends[1]), "a") is None


def test_a_node_goes_over_to_another_history_if_nothing_was_acked_in_its_own() -> None:
    after = then(restored(FORK, heard(a=NEW, b=NEW, c=FORK), ()))
    assert is_given_up("c", FORK, after, heard(a=NEW, b=after, c=FORK), ())
    assert is_given_up("c", FORK, after, heard(a=NEW, b=after, c=then(t.truncate(FORK, 1))), ())
    assert not is_given_up("c", FORK, after, heard(b=after, c=FORK), "a"), "it may know it, too"
    led = replace(FORK, settings={"min_isr": 3}, leader="c")
    alone = then(t.truncate(led, 1))
    wide = replace(after, settings={"min_isr": 3})
    assert is_given_up("c", alone, wide, heard(a=wide, b=wide, c=alone), ())
    assert not is_given_up("b", alone, wide, heard(a=wide, b=alone, c=alone), ()), "c may tell a"
    assert is_given_up("c", alone, wide, heard(a=wide, b=alone, c=alone), ())
    assert not is_given_up("c", alone, wide, heard(a=wide, c=alone), "b"), "it may lead"
    assert not is_given_up("b", NEW, FORK, heard(a=NEW, b=NEW, c=FORK), ())
    assert not is_given_up("b", NEW, after, heard(a=NEW, b=after, c=FORK), ()), "it is its own"
    assert not is_given_up("c", FORK, None, heard(a=NEW, b=after, c=FORK), ())
    low = replace(FORK, settings={"min_isr": 1})
    assert not is_given_up("c", low, after, heard(a=NEW, b=after, c=low), ())


def test_an_operator_decides_between_histories() -> None:
    further = then(t.register(FORK, "c", 3, clean=True))
    for fork in (FORK, further):
        seen = heard(b=NEW, c=fork)
        assert contradict([NEW, fork])
        chosen = then(restored_by_operator(OLD, heard(a=NEW, b=NEW, c=fork)))
        assert chosen.isr == ("b", "c"), "two have seen it"
        assert not is_regressed(NEW, chosen)
        assert is_regressed(fork, chosen)
        assert is_given_up("c", fork, chosen, seen, "a"), "whatever others know"
        assert restored_by_operator(chosen, heard(a=NEW, b=NEW, c=chosen)) is None
    later = replace(fork, version=chosen.version + 1)
    assert not is_given_up("c", later, chosen, heard(c=later), "ab"), "it came after the decision"


def test_an_operator_does_not_replace_what_most_nodes_go_on_with() -> None:
    after = then(t.truncate(NEW, 1))
    chosen = then(restored_by_operator(after, heard(a=NEW, b=NEW, c=FORK)))
    assert not is_regressed(after, chosen)
    assert is_given_up("c", FORK, chosen, heard(c=FORK), "ab")


@pytest.mark.parametrize("stored", [None, OLD])
def test_an_operator_gives_up_what_is_not_heard(stored: StreamMetadata | None) -> None:
    after = then(restored_by_operator(stored, heard(b=NEW)))
    assert (after.isr, after.leader) == (("b", "c"), None)
    assert restored_by_operator(NEW, heard(b=NEW)) is None
    assert restored_by_operator(stored, {"a": None}) is None


def test_a_stream_that_continues_with_a_restored_copy_is_the_same_stream() -> None:
    """Deleted, or with its only replica lost: who has seen it before believes the store, and who
    sees the older record again does not."""
    alone = t.create("s", "one", {"min_isr": 1}, "a", starts={"a": 9}, leader_epoch=1_800_000_000)
    deleted = then(t.delete(NEW))
    again = then(t.continued(deleted, alone))
    assert (again.leader, again.isr, again.deleted) == ("a", ("a",), False)
    assert again.leader_epoch == 1_800_000_000
    assert again.starts == {**deleted.starts, "a": 9}, "b and c remove the copies that they have"
    for known in (OLD, NEW, deleted):
        assert not is_regressed(known, again)
        assert is_regressed(again, known)
    assert t.continued(again, alone) is None, "a second try"
    later = then(t.continued(again, replace(alone, leader_epoch=7)))
    assert later.leader_epoch == again.leader_epoch + 1
