"""Each change of a record, one by one; sequences of them are in tests/property."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liftlog.cluster import transitions as t
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import Conflict, InvalidArgument


def record(nodes: str = "abc", **changes: Any) -> StreamMetadata:
    made = t.create(
        "orders",
        "00c0ffee",
        {"subject": "orders.>"},
        tuple(nodes),
        starts=dict.fromkeys(nodes, 1),
    )
    return replace(made, **changes)


def made(after: StreamMetadata | None) -> StreamMetadata:
    assert after is not None
    assert after.problem() == ""
    return after


def sets(one: StreamMetadata) -> tuple[str | None, str, str, str]:
    """Leader, isr, eligible, last_eligible."""
    return one.leader, "".join(one.isr), "".join(one.eligible), "".join(one.last_eligible)


def test_create_puts_all_replicas_in_sync_under_the_first() -> None:
    one = record("bca")
    assert sets(one) == ("b", "bca", "", "")
    assert (one.leader_epoch, one.version, one.min_isr) == (1, 1, 2)
    assert one.settings == {"subject": "orders.>", "min_isr": 2}
    assert one.starts == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("nodes", ["", "aa"])
def test_create_refuses_replicas_that_do_not_fit(nodes: str) -> None:
    with pytest.raises(InvalidArgument):
        record(nodes)


def test_create_refuses_more_in_sync_than_there_are() -> None:
    with pytest.raises(InvalidArgument, match="min_isr is 3, of 2"):
        t.create("s", "i", {"min_isr": 3}, "ab", starts={"a": 1, "b": 1})


# --- starts and deaths -----------------------------------------------------------


def test_a_clean_start_keeps_the_node_in_sync_and_takes_the_lead_from_it() -> None:
    follower = made(t.register(record(), "b", 2, clean=True))
    assert sets(follower) == ("a", "abc", "", "")
    assert (follower.starts["b"], follower.version, follower.leader_epoch) == (2, 2, 1)
    assert sets(made(t.register(record(), "a", 2, clean=True))) == (None, "abc", "", "")
    lone = record(isr=("a",), eligible=("b",))
    assert sets(made(t.register(lone, "a", 2, clean=True))) == (None, "a", "b", "")
    assert sets(made(t.register(lone, "b", 2, clean=True))) == ("a", "a", "b", "")


def test_an_unclean_start_takes_the_node_out_of_what_can_be_elected() -> None:
    assert sets(made(t.register(record(), "b", 2, clean=False))) == ("a", "ac", "", "")
    two = record(isr=("a", "b"))
    assert sets(made(t.register(two, "b", 2, clean=False))) == ("a", "a", "", "b")
    assert sets(made(t.register(two, "a", 2, clean=False))) == (None, "b", "", "a")
    lone = record(leader=None, isr=(), eligible=("a", "b"))
    assert sets(made(t.register(lone, "a", 2, clean=False))) == (None, "", "b", "a")


def test_the_only_replica_keeps_leading() -> None:
    one = record("a")
    closed = made(t.register(one, "a", 2, clean=True, closed=True))
    assert (sets(closed), closed.leader_epoch) == (("a", "a", "", ""), 1)
    killed = made(t.register(one, "a", 2, clean=True))
    assert (sets(killed), killed.leader_epoch) == (("a", "a", "", ""), 2)
    resigned = made(t.resign(one, "a"))
    assert sets(resigned) == (None, "", "a", "")
    again = made(t.register(resigned, "a", 2, clean=True, closed=True))
    assert (sets(again), again.leader_epoch) == (("a", "a", "", ""), 2)


def test_the_only_replica_does_not_lead_without_what_it_had() -> None:
    """Nor at a later start: only an operator, or `unclean: balanced`, gives up what was there."""
    one = record("a")
    lost = made(t.register(one, "a", 2, clean=False))
    assert (sets(lost), lost.leader_epoch) == ((None, "", "", "a"), 1)
    assert sets(made(t.register(lost, "a", 3, clean=True))) == (None, "", "", "a")
    resigned = made(t.resign(one, "a"))
    assert sets(made(t.register(resigned, "a", 2, clean=False))) == (None, "", "", "a")
    again = made(t.recover(lost, "a"))
    assert (sets(again), again.leader_epoch) == (("a", "a", "", ""), 2)


def test_an_observer_beside_the_only_replica_does_not_let_it_keep_leading() -> None:
    one = record("a", observers=("o",), starts={"a": 1, "o": 1})
    assert sets(made(t.register(one, "a", 2, clean=True, closed=True))) == (None, "a", "", "")
    assert sets(made(t.register(one, "o", 2, clean=False))) == ("a", "a", "", "")


def test_a_start_that_is_registered_needs_nothing_and_an_older_one_is_refused() -> None:
    one = made(t.register(record(), "b", 3, clean=True))
    assert t.register(one, "b", 3, clean=False) is None
    assert t.register(one, "stranger", 1, clean=True) is None
    with pytest.raises(Conflict, match="start 3 already, and now with 2"):
        t.register(one, "b", 2, clean=True)


def test_fencing_above_the_smallest_isr_forgets_and_below_it_remembers() -> None:
    two = made(t.fence(record(), {"c"}))
    assert sets(two) == ("a", "ab", "", "")
    one = made(t.fence(two, {"b"}))
    assert sets(one) == ("a", "a", "b", "")
    none = made(t.fence(one, {"a"}))
    assert sets(none) == (None, "", "ab", "")
    assert sets(made(t.fence(record(), {"a", "b", "c"}))) == (None, "", "abc", "")
    assert t.fence(none, {"a", "b", "c"}) is None


def test_failover_elects_who_is_in_sync() -> None:
    after = made(t.failover(record(), {"a"}, "c"))
    assert (sets(after), after.leader_epoch) == (("c", "bc", "", ""), 2)
    assert t.failover(record(), {"b"}, "c") is None, "the leader lives"
    assert t.failover(record(isr=("a", "b")), {"a"}, "c") is None, "c may lack something"


def test_failover_elects_an_eligible_node_only_without_an_isr() -> None:
    one = record(leader=None, isr=("a",), eligible=("b",))
    assert t.failover(one, (), "b") is None
    after = made(t.failover(one, {"a"}, "b"))
    assert (sets(after), after.leader_epoch) == (("b", "b", "a", ""), 2)
    back = made(t.expand(after, "a", 1))
    assert sets(back) == ("b", "ab", "", "")


def test_who_is_dead_cannot_lead() -> None:
    with pytest.raises(InvalidArgument):
        t.failover(record(), {"a", "b"}, "b")


def test_recovery_is_refused_while_a_whole_copy_is_left() -> None:
    one = record(leader=None, isr=(), eligible=("a",), last_eligible=("b",))
    with pytest.raises(Conflict, match="complete replicas on a"):
        t.recover(one, "b")
    after = made(t.recover(one, "b", lost={"a"}))
    assert (sets(after), after.leader_epoch, after.unclean_epoch) == (("b", "b", "", ""), 2, 2)
    assert t.recover(after, "b") is None


def test_recovery_of_what_only_damaged_disks_have() -> None:
    one = record(leader=None, isr=(), eligible=(), last_eligible=("a", "b"))
    assert t.failover(one, (), "a") is None
    assert sets(made(t.recover(one, "c"))) == ("c", "c", "", "")
    with pytest.raises(Conflict, match="no replica"):
        t.recover(one, "d")


# --- what a leader changes -------------------------------------------------------


def test_shrink_and_expand() -> None:
    two = made(t.shrink(record(), "b"))
    assert sets(two) == ("a", "ac", "", "")
    assert t.shrink(two, "b") is None
    with pytest.raises(Conflict, match="own ISR"):
        t.shrink(two, "a")
    assert sets(made(t.expand(two, "b", 1))) == ("a", "abc", "", "")
    with pytest.raises(Conflict, match="caught up with start 1, but registered"):
        t.expand(made(t.register(two, "b", 2, clean=True)), "b", 1)
    with pytest.raises(Conflict, match="no replica"):
        t.expand(two, "d", 1)
    assert t.expand(two, "c", 1) is None


def test_expanding_over_the_smallest_isr_forgets_who_was_eligible() -> None:
    one = record(isr=("a",), eligible=("b",), last_eligible=("c",))
    assert sets(made(t.expand(one, "c", 1))) == ("a", "ac", "", "")
    five = record("abcde", isr=("a",), eligible=("b",), last_eligible=("c",))
    assert sets(made(t.expand(five, "c", 1))) == ("a", "ac", "b", "")


def test_a_copy_is_discarded_when_the_others_can_ack_without_it() -> None:
    after = made(t.discard(record(), "b"))
    assert sets(after) == ("a", "ac", "", "")
    assert after.leader_epoch == 2, "what b has confirmed counts no more"
    with pytest.raises(Conflict, match="min_isr is 2"):
        t.discard(after, "c")
    again = made(t.discard(after, "b"))  # it is not known whether the copy was dropped
    assert (sets(again), again.leader_epoch) == (sets(after), 3)


@pytest.mark.parametrize(
    ("node", "changes"), [("a", {}), ("x", {}), ("b", {"leader": None}), ("b", {"deleted": True})]
)
def test_a_copy_that_may_be_needed_is_not_discarded(node: str, changes: dict[str, Any]) -> None:
    with pytest.raises(Conflict):
        t.discard(record(**changes), node)


def test_who_has_acted_by_another_history_counts_for_nothing_any_more() -> None:
    after = made(t.give_up(record(), "a"))
    assert (sets(after), after.leader_epoch) == ((None, "bc", "", ""), 2)
    after = made(t.give_up(record(isr=("a",), eligible=("b", "c"), leader="a"), "b"))
    assert sets(after) == ("a", "a", "c", "b")
    assert after.leader_epoch == 2, "what b has confirmed counts no more"
    with pytest.raises(Conflict, match="no other node"):
        t.give_up(record(isr=("a",), leader=None), "a")
    assert t.give_up(record(), "x") is None


def test_transfer_needs_a_member_of_the_isr() -> None:
    after = made(t.transfer(record(), "b"))
    assert (sets(after), after.leader_epoch) == (("b", "abc", "", ""), 2)
    assert t.transfer(after, "b") is None
    with pytest.raises(Conflict, match="not in the ISR"):
        t.transfer(record(isr=("a", "b")), "c")


def test_resigning_leaves_the_isr() -> None:
    assert sets(made(t.resign(record(), "a"))) == (None, "bc", "", "")
    assert t.resign(record(), "b") is None


@pytest.mark.parametrize("change", ["shrink", "expand", "transfer"])
def test_without_a_leader_there_is_no_change_by_one(change: str) -> None:
    args = ("b", 1) if change == "expand" else ("b",)
    with pytest.raises(Conflict, match="has no leader"):
        getattr(t, change)(record(leader=None), *args)


# --- what an operator changes ----------------------------------------------------


def test_a_move_completes_with_the_last_new_replica() -> None:
    moving = made(t.reassign(record(leader="c"), "dec"))
    assert moving.replicas == ("d", "e", "c", "a", "b")
    assert ("".join(moving.adding), "".join(moving.removing)) == ("de", "ab")
    assert sets(moving) == ("c", "cab", "", "")
    moving = made(t.register(made(t.register(moving, "d", 5, clean=True)), "e", 6, clean=True))
    half = made(t.expand(moving, "e", 6))
    assert (half.adding, half.leader_epoch) == (("d", "e"), 1)
    done = made(t.expand(half, "d", 5))
    assert (done.replicas, done.adding, done.removing) == (("d", "e", "c"), (), ())
    assert (sets(done), done.leader_epoch) == (("c", "dec", "", ""), 2)
    assert t.reassign(done, "dec") is None


def test_a_leader_that_leaves_hands_over_before_a_move_completes() -> None:
    moving = made(t.register(made(t.reassign(record(), "dc")), "d", 5, clean=True))
    assert t.successor(moving) is None, "d is not in sync"
    assert t.complete(moving) is None
    ready = made(t.expand(moving, "d", 5))
    assert (sets(ready), ready.removing) == (("a", "dcab", "", ""), ("a", "b"))
    assert t.complete(ready) is None
    assert t.successor(ready) == "d"
    assert t.successor(made(t.fence(ready, {"d"}))) is None
    handed = made(t.transfer(ready, "d"))
    assert (sets(handed), handed.leader_epoch) == (("d", "dcab", "", ""), 2)
    assert t.successor(handed) is None
    done = made(t.complete(handed))
    assert (done.replicas, sets(done), done.leader_epoch) == (
        ("d", "c"),
        ("d", "dc", "", ""),
        3,
    )
    assert t.complete(done) is None
    # It does the same if the old leader dies instead, and one that stays is elected.
    elected = made(t.failover(ready, {"a"}, "c"))
    assert sets(made(t.complete(elected))) == ("c", "dc", "", "")


def test_a_node_that_left_is_known_until_its_copy_is_gone() -> None:
    moving = made(t.register(made(t.reassign(record("ab"), "bc")), "c", 5, clean=True))
    moving = made(t.transfer(moving, "b"))
    done = made(t.expand(moving, "c", 5))
    assert done.replicas == ("b", "c")
    assert done.starts == {"a": 1, "b": 1, "c": 5}
    assert t.removed(done, "b") is None, "it has a replica"
    gone = made(t.removed(done, "a"))
    assert gone.starts == {"b": 1, "c": 5}
    assert t.removed(gone, "a") is None


def test_a_node_that_comes_again_registers_before_it_counts() -> None:
    """Its former copy may be there, or half of it."""
    done = made(t.reassign(record(leader="b"), "bc"))
    again = made(t.reassign(done, "bca"))
    assert again.starts == {"a": 0, "b": 1, "c": 1}
    with pytest.raises(Conflict, match="but registered"):
        t.expand(again, "a", 1)
    assert made(t.register(again, "a", 1, clean=True)).isr == ("b", "c")


def test_a_move_to_more_or_fewer_changes_the_setting() -> None:
    one = record("ab", settings={"replicas": 2, "min_isr": 1})
    more = made(t.reassign(one, "abc"))
    assert more.settings == {"replicas": 3, "min_isr": 1}
    assert made(t.cancel(more)).settings == {"replicas": 2, "min_isr": 1}


def test_a_move_waits_until_those_that_stay_can_ack() -> None:
    two = record(isr=("a", "b"))
    waiting = made(t.reassign(made(t.transfer(two, "b")), ("b", "c")))
    assert (waiting.replicas, waiting.removing) == (("b", "c", "a"), ("a",))
    done = made(t.expand(waiting, "c", 1))
    assert (done.replicas, sets(done)) == (("b", "c"), ("b", "bc", "", ""))


def test_fewer_replicas_or_another_order_need_no_waiting() -> None:
    fewer = made(t.reassign(record(), "ab"))
    assert (fewer.replicas, sets(fewer), fewer.leader_epoch) == (
        ("a", "b"),
        ("a", "ab", "", ""),
        2,
    )
    turned = made(t.reassign(record(), "cba"))
    assert (turned.replicas, sets(turned), turned.leader_epoch) == (
        ("c", "b", "a"),
        ("a", "cba", "", ""),
        1,
    )


def test_a_second_move_waits_for_the_first() -> None:
    moving = made(t.reassign(record(), "abd"))
    with pytest.raises(Conflict, match="being moved to a, b, d"):
        t.reassign(moving, "abe")
    assert t.reassign(moving, "abd") is None


@pytest.mark.parametrize("target", ["", "aa", "a"])
def test_a_move_to_replicas_that_do_not_fit_is_refused(target: str) -> None:
    with pytest.raises(InvalidArgument):
        t.reassign(record(), target)


def test_who_names_a_node_twice_is_told_what_they_wrote() -> None:
    with pytest.raises(InvalidArgument, match=r"move: a, a, d names a node twice"):
        t.reassign(record(), "aad")


def test_an_observer_can_become_a_replica() -> None:
    one = record("ab", observers=("o",), starts={"a": 1, "b": 1, "o": 1})
    moving = made(t.reassign(one, "abo"))
    assert (moving.members, moving.observers) == (("a", "b", "o"), ())
    assert made(t.expand(moving, "o", 1)).adding == ()


def test_cancelling_a_move() -> None:
    assert t.cancel(record()) is None
    moving = made(t.reassign(record(), "dea"))
    moving = made(t.register(moving, "d", 1, clean=True))
    moving = made(t.expand(moving, "d", 1))
    back = made(t.cancel(moving))
    assert set(back.replicas) == set("abc")
    assert (back.adding, back.removing, set(back.isr)) == ((), (), set("abc"))
    assert (back.leader, back.leader_epoch) == ("a", 2)


def test_cancelling_is_refused_while_the_new_replicas_are_needed() -> None:
    moving = made(t.reassign(record(), "dea"))
    moving = made(t.expand(made(t.register(moving, "d", 1, clean=True)), "d", 1))
    alone = made(t.fence(moving, {"a", "b"}))
    assert sets(alone)[1:] == ("dc", "", "")
    with pytest.raises(Conflict, match="needs its new replicas: d"):
        t.cancel(alone)


def test_a_smaller_minimum_settles_and_may_complete_a_move() -> None:
    lone = record(isr=("a",), eligible=("b",), last_eligible=("c",))
    after = made(t.update(lone, {"subject": "x", "min_isr": 1}))
    assert sets(after) == ("a", "a", "", "")
    waiting = made(t.reassign(record(isr=("a", "c")), "ab"))
    done = made(t.update(waiting, {"min_isr": 1}))
    assert (done.replicas, sets(done)) == (("a", "b"), ("a", "a", "", ""))


def test_settings_are_replaced_and_keep_the_minimum_that_was_chosen() -> None:
    after = made(t.update(record(), {"subject": "x"}))
    assert after.settings == {"subject": "x", "min_isr": 2}
    assert t.update(after, {"subject": "x"}) is None
    with pytest.raises(InvalidArgument, match="min_isr is 4"):
        t.update(after, {"min_isr": 4})


def test_the_log_start_only_rises() -> None:
    after = made(t.truncate(record(), 10))
    assert after.log_start == 10
    assert t.truncate(after, 5) is None


def test_a_deleted_stream_changes_no_more() -> None:
    gone = made(t.delete(record()))
    assert (gone.deleted, gone.leader, gone.leader_epoch) == (True, None, 2)
    assert t.delete(gone) is None
    assert t.register(gone, "a", 9, clean=True) is None
    with pytest.raises(Conflict, match="was deleted"):
        t.failover(gone, {"a"}, "b")


def test_keys_of_newer_versions_survive_every_change() -> None:
    one = record(unknown={"of_tomorrow": 1})
    assert made(t.failover(one, {"a"}, "b")).unknown == {"of_tomorrow": 1}
