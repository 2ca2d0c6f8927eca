"""The leader: what is committed, what followers are answered, who leaves and enters the ISR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from liftlog.cluster import side_state
from liftlog.cluster import transitions as t
from liftlog.cluster.epochs import between
from liftlog.cluster.followers import FetchRequest, Kind, Verdict
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamMetadata

RECORD = t.create("s", "i", {"min_isr": 2}, "abc", starts=dict.fromkeys("abc", 1), leader_epoch=5)
TABLE = ((2, 0), (4, 6))


def made(after: StreamMetadata | None) -> StreamMetadata:
    assert after is not None
    return after


def leader(record: StreamMetadata = RECORD, **changes: Any) -> Leader:
    """Of epoch 5, which begins at offset 10; 8 is committed."""
    options: dict[str, Any] = {"log_end": 10, "durable_end": 10, "high_watermark": 8, "now": 100.0}
    return Leader(record, "a", TABLE, **{**options, **changes})


def ask(one: Leader, node: str, offset: int, *, now: float = 100.0, **changes: Any) -> Verdict:
    known = {"start": 1, "epoch": 5, "last_epoch": 4 if offset <= 10 else 5, **changes}
    return one.fetched(FetchRequest(node, offset=offset, **known), now)


def grown(one: Leader, end: int) -> None:
    one.written(end, 100.0)
    one.local(end)


# --- who knows of it ---------------------------------------------------------------


def test_without_a_follower_nothing_is_acked_before_the_others_know_that_it_has_left() -> None:
    """If the metadata store forgets it, none of those that have acked it go on by what is left."""
    one = leader(log_end=20, durable_end=20)
    ask(one, "b", 15, mark=RECORD.mark)
    ask(one, "c", 12, mark=RECORD.mark)
    assert one.high_watermark == 12
    left = made(t.fence(RECORD, {"c"}))
    assert one.adopt(left) == 12, "b has 15, and may not know"
    ask(one, "b", 16, mark=RECORD.mark)
    assert one.high_watermark == 12
    fork = made(t.register(RECORD, "c", 2, clean=True))
    assert fork.version == left.version
    ask(one, "b", 17, mark=fork.mark)
    assert one.high_watermark == 12, "the store was set back in between"
    ask(one, "b", 17, mark=left.mark)
    assert one.high_watermark == 17
    again = made(t.register(left, "c", 2, clean=True))
    one.adopt(again)
    ask(one, "b", 18, mark=left.mark)
    assert one.high_watermark == 18, "no one has left since"
    later = made(t.register(again, "b", 2, clean=True))
    ask(one, "b", 19, mark=later.mark, start=2)
    assert one.high_watermark == 18, "what the leader does not know yet may be of another history"
    assert one.adopt(later) == 19


def test_acks_go_on_while_only_the_others_hear_of_changes_that_take_no_one_out() -> None:
    """The leader cannot reach the metadata store, where an operator changes the settings, and c
    registers its next start."""
    one = leader(log_end=20, durable_end=20)
    newer = made(t.register(made(t.update(RECORD, {"min_isr": 2, "x": 1})), "c", 2, clean=True))
    told = (RECORD.version, newer.checksum_of(RECORD.version))
    assert ask(one, "b", 20, mark=newer.mark, leader_mark=(0, 0)).kind is Kind.SEND, "which one?"
    assert ask(one, "b", 20, mark=newer.mark, leader_mark=told).kind is Kind.PARK
    ask(one, "c", 19, mark=newer.mark, leader_mark=told, start=2)
    assert one.high_watermark == 19
    ask(one, "c", 20, mark=newer.mark, leader_mark=(RECORD.version, 0), start=2)
    assert one.high_watermark == 19, "of another history"
    left = made(t.fence(RECORD, {"c"}))
    one.adopt(left)
    assert one.disagreeing(100.0) == ["b", "c"], "they know the version before"


def test_acks_go_on_if_a_follower_hears_of_the_record_from_its_leader_alone() -> None:
    one = leader(log_end=20, durable_end=20)
    told = RECORD.mark
    for node in "bc":
        assert ask(one, node, 20, mark=told, leader_mark=told).kind is Kind.PARK
    assert not one.tells_record(told, told)
    one.written(21, 100.0)
    one.local(21)
    left = made(t.fence(RECORD, {"c"}))
    one.adopt(left)
    assert ask(one, "b", 21, mark=told, leader_mark=told).kind is Kind.SEND
    assert one.tells_record(told, told)
    heard = (left.version, 0)
    assert ask(one, "b", 21, mark=told, leader_mark=heard).kind is Kind.PARK, "it has it"
    assert not one.tells_record(told, heard), "once is enough"
    assert one.high_watermark == 20
    ask(one, "b", 21, mark=left.mark, leader_mark=left.mark)
    assert one.high_watermark == 21


def test_a_record_is_not_sent_to_who_knows_a_newer_one() -> None:
    one = leader()
    other = made(t.truncate(made(t.truncate(RECORD, 1)), 2))
    assert ask(one, "b", 10, mark=other.mark, leader_mark=(0, 0)).kind is Kind.SEND
    assert not one.tells_record(other.mark, (0, 0))


def test_who_does_not_hear_of_the_in_sync_set_leaves_it() -> None:
    one = leader(made(t.fence(RECORD, {"c"})))
    ask(one, "b", 10, mark=RECORD.mark, now=105.0)
    assert one.propose(109.0) is None
    ask(one, "b", 10, mark=RECORD.mark, now=110.0)
    change = one.propose(110.5)
    assert change is not None
    assert change.after.isr == ("a",)


def test_a_node_of_a_version_that_does_not_tell_what_it_knows_counts() -> None:
    one = leader(log_end=20, durable_end=20)
    one.adopt(made(t.fence(RECORD, {"c"})))
    ask(one, "b", 16)
    assert one.high_watermark == 16


# --- what is committed -----------------------------------------------------------


def test_a_term_begins_with_the_epoch_and_what_was_known_to_be_committed() -> None:
    one = leader()
    assert one.epochs == (*TABLE, (5, 10))
    assert (one.high_watermark, one.is_ready) == (8, False)
    with pytest.raises(ValueError, match="has the leader 'a'"):
        Leader(RECORD, "b", (), log_end=0, durable_end=0, high_watermark=0, now=0)


def test_the_high_watermark_is_the_least_of_all_in_sync_and_of_the_own_disk() -> None:
    one = leader()
    one.written(20, 100.0)
    ask(one, "b", 20)
    assert one.high_watermark == 8
    ask(one, "c", 15)
    assert one.high_watermark == 10, "10 is durable here"
    assert one.is_ready
    assert one.local(18) == 15
    ask(one, "c", 12)
    assert one.high_watermark == 15, "it never falls"


def test_nothing_is_committed_by_too_small_an_isr() -> None:
    one = leader(replace(RECORD, isr=("a",), eligible=("b",)))
    grown(one, 20)
    ask(one, "b", 20)
    assert (one.high_watermark, one.can_commit) == (8, False)
    change = one.propose(100.0)
    assert change is not None
    assert one.adopt(change.after) == 20


def test_alone_a_leader_commits_what_it_syncs() -> None:
    one = leader(t.create("s", "i", {}, "a", starts={"a": 1}, leader_epoch=5))
    one.written(12, 100.0)
    assert (one.local(11), one.local(12)) == (11, 12)


def test_a_follower_that_never_asked_holds_the_high_watermark() -> None:
    one = leader()
    grown(one, 20)
    ask(one, "b", 20)
    assert one.high_watermark == 8


def test_after_resigning_nothing_is_committed_or_served() -> None:
    one = leader()
    ask(one, "b", 10)
    one.resign()
    assert ask(one, "c", 10).kind is Kind.NOT_LEADER
    assert one.local(10) == 8
    assert one.propose(1000.0) is None


# --- what followers are answered --------------------------------------------------


def test_records_are_sent_at_once_and_otherwise_the_request_is_parked() -> None:
    one = leader()
    assert ask(one, "b", 9).kind is Kind.SEND
    assert ask(one, "b", 10).kind is Kind.PARK
    assert ask(one, "c", 10).kind is Kind.PARK
    assert sorted(one.written(11, 100.0)) == ["b", "c"]
    assert one.written(12, 100.0) == [], "they are not parked any more"


def test_a_request_from_another_epoch_or_a_former_life_is_refused() -> None:
    one = leader()
    assert ask(one, "b", 10, epoch=4).kind is Kind.FENCED_EPOCH
    assert ask(one, "b", 10, epoch=6).kind is Kind.UNKNOWN_EPOCH
    assert ask(one, "b", 10, start=0).kind is Kind.FENCED_EPOCH
    assert ask(one, "stranger", 10).kind is Kind.NOT_LEADER
    assert ask(one, "a", 10).kind is Kind.NOT_LEADER
    assert one.high_watermark == 8
    ask(one, "b", 10, start=2)
    assert ask(one, "b", 10, start=1).kind is Kind.FENCED_EPOCH, "a newer life has asked"


@pytest.mark.parametrize(
    ("offset", "last_epoch", "found"),
    [
        (10, 4, None),  # equal logs
        (6, 2, None),
        (3, 2, None),
        (8, 2, (2, 6)),  # its epoch 2 is longer than ours
        (8, 3, (2, 6)),  # an epoch that we do not have
        (11, 4, (4, 10)),  # longer than ours when our epoch began
        (3, 1, (0, 0)),  # older than all of ours
        (0, 0, None),  # an empty log
        (11, 0, (0, 10)),  # an empty log past our end
    ],
)
def test_where_logs_part(offset: int, last_epoch: int, found: tuple[int, int] | None) -> None:
    one = leader(replace(RECORD, isr=("a", "c")))
    verdict = ask(one, "b", offset, last_epoch=last_epoch)
    if found is None:
        assert verdict.kind in (Kind.SEND, Kind.PARK)
    else:
        assert verdict == Verdict(Kind.DIVERGING, *found)


def test_a_log_that_parts_confirms_nothing() -> None:
    one = leader(replace(RECORD, isr=("a", "b")))
    assert ask(one, "b", 10, last_epoch=3).kind is Kind.DIVERGING
    assert one.high_watermark == 8
    empty = leader(replace(RECORD, isr=("a",)), log_end=0, durable_end=0, high_watermark=0)
    assert ask(empty, "b", 3, last_epoch=1).kind is Kind.DIVERGING
    assert empty.propose(100.0) is None, "it has not caught up with an empty log either"


def test_retention_at_the_leader_does_not_make_a_whole_copy_diverge() -> None:
    one = leader()
    one.epochs = ((5, 10),)  # everything from before this epoch is deleted
    assert ask(one, "b", 10, last_epoch=4).kind is Kind.PARK
    assert ask(one, "c", 11, last_epoch=4) == Verdict(Kind.DIVERGING, 4, 10)
    one = leader(replace(RECORD, isr=("a", "c")))
    one.epochs = ((5, 10),)
    assert ask(one, "b", 10, last_epoch=4) == Verdict(Kind.DIVERGING, 0, 10)


def test_parked_followers_hear_of_the_high_watermark_without_data() -> None:
    one = leader()
    ask(one, "b", 10)
    ask(one, "c", 10)
    assert one.high_watermark == 10
    assert sorted(one.untold(100.0)) == ["b", "c"]
    ask(one, "b", 10)
    assert one.untold(100.0) == []
    assert one.expired("b", 130.0) == ["b"]
    assert one.expired("b", 130.0) == []


def test_side_state_is_copied_and_confirmed() -> None:
    one = leader()
    ask(one, "b", 10)
    assert one.side_changed(3, 100.0) == ["b"]
    assert one.side_confirmed == 0
    assert ask(one, "b", 10).kind is Kind.SEND
    assert ask(one, "b", 10, side_version=3).kind is Kind.PARK
    ask(one, "c", 10, side_version=3)
    assert one.side_confirmed == 3


def test_side_state_of_a_given_up_epoch_confirms_nothing() -> None:
    """It has a higher number, and says something else."""
    given_up = side_state.following(RECORD.leader_epoch + 1, side_state.EMPTY)
    begun = side_state.begin(RECORD.leader_epoch, given_up)
    assert begun < given_up, "nor does a leader go on with it"
    one = leader(replace(RECORD, isr=("a", "b")), side_version=begun)
    version = side_state.following(RECORD.leader_epoch, begun)
    one.side_changed(version, 100.0)
    for node in "bc":
        assert ask(one, node, 10, side_version=given_up).kind is Kind.SEND
    assert one.side_confirmed == 0
    assert one.propose(100.0) is None, "c is not in sync"
    ask(one, "b", 10, side_version=version)
    assert one.side_confirmed == version


def test_side_state_is_not_confirmed_while_too_few_are_in_sync() -> None:
    """Another node may be elected of those that left, and they do not have it."""
    one = leader(replace(RECORD, isr=("a",), eligible=("b", "c")))
    one.side_changed(3, 100.0)
    assert one.side_confirmed == 0


def test_a_follower_with_other_side_state_than_the_epoch_began_with_is_not_in_sync() -> None:
    begun = side_state.begin(5, 3)
    one = leader(replace(RECORD, isr=("a", "b")), side_version=begun)
    ask(one, "b", 10, side_version=begun)
    assert ask(one, "c", 10, side_version=3).kind is Kind.SEND
    assert one.propose(100.0) is None
    ask(one, "c", 10, side_version=begun)
    change = one.propose(100.0)
    assert change is not None
    assert change.after.isr == ("a", "b", "c")


def test_versions_of_a_later_leader_are_higher_and_the_empty_state_has_none() -> None:
    assert side_state.begin(5, side_state.EMPTY) == side_state.EMPTY
    first = side_state.following(5, side_state.EMPTY)
    second = side_state.following(5, first)
    assert second == first + 1
    assert side_state.begin(5, second) == second, "the only replica keeps its epoch"
    begun = side_state.begin(6, second)
    assert second < begun < side_state.following(6, second)


def test_what_a_gap_hides_of_the_epochs_goes_along() -> None:
    assert between(leader().epochs, 4, 12) == ((2, 4), (4, 6), (5, 10))


# --- the ISR ---------------------------------------------------------------------


def test_who_is_not_level_for_too_long_is_dropped() -> None:
    one = leader()
    ask(one, "b", 10)
    grown(one, 20)
    ask(one, "c", 20, now=105.0)
    assert one.propose(109.9) is None
    change = one.propose(110.1)
    assert change is not None
    assert (change.before, change.after) == (RECORD, made(t.shrink(RECORD, "b")))
    assert one.high_watermark == 10, "it waits for b until the change is known"
    assert one.adopt(change.after) == 20


def test_all_that_lag_are_dropped_at_once() -> None:
    change = leader().propose(110.1)
    assert change is not None
    assert change.after.isr == ("a",)


def test_a_parked_follower_is_level_however_long_nothing_is_written() -> None:
    one = leader()
    ask(one, "b", 10)
    ask(one, "c", 10)
    assert one.propose(1000.0) is None
    one.written(11, 1000.0)
    assert one.propose(1009.0) is None
    assert one.propose(1011.0) is not None


def settled(record: StreamMetadata = RECORD, **changes: Any) -> Leader:
    one = leader(record, **changes)
    ask(one, "b", 10)
    assert (one.propose(100.0), one.is_settled) == (None, False), "c may yet be dropped"
    ask(one, "c", 10)
    assert (one.propose(100.0), one.is_settled) == (None, True)
    return one


@pytest.mark.parametrize(
    "event",
    [
        lambda one: one.written(11, 101.0),
        lambda one: one.side_changed(7, 101.0),
        lambda one: one.expired("b", 101.0),
        lambda one: one.lost("b"),
        lambda one: ask(one, "b", 10, now=101.0),
        lambda one: one.adopt(made(t.update(RECORD, {"min_isr": 1}))),
    ],
)
def test_with_all_level_nothing_is_to_be_proposed_before_something_happens(
    event: Callable[[Leader], object],
) -> None:
    stirred: list[bool] = []
    one = settled(stirred=lambda: stirred.append(one.is_settled))
    assert one.propose(10_000.0) is None
    assert stirred == []
    event(one)
    assert not one.is_settled
    assert stirred == [False]


def test_a_move_is_looked_at_until_it_has_ended() -> None:
    one = leader(made(t.reassign(RECORD, "abd")))
    ask(one, "b", 10)
    ask(one, "c", 10)
    assert (one.propose(100.0), one.is_settled) == (None, False)


def test_under_load_a_follower_is_level_if_it_has_what_there_was_when_it_asked_before() -> None:
    one = leader(replace(RECORD, isr=("a", "b")))
    for second in range(100, 140):
        one.written(10 * (second - 98), float(second))
        ask(one, "b", 10 * (second - 99), now=float(second))
        assert one.propose(float(second)) is None
    for second in range(140, 160):
        one.written(10 * (second - 98), float(second))
        ask(one, "b", 405, now=float(second))
    change = one.propose(159.0)
    assert change is not None
    assert change.after.isr == ("a",)


def test_a_lost_connection_drops_a_follower_at_once_unless_it_comes_back() -> None:
    one = leader()
    ask(one, "b", 10)
    ask(one, "c", 10)
    one.lost("b")
    ask(one, "b", 10)
    assert one.propose(101.0) is None
    one.lost("b")
    change = one.propose(101.0)
    assert change is not None
    assert change.after.isr == ("a", "c")


def test_a_follower_enters_at_the_high_watermark_and_past_the_begin_of_the_epoch() -> None:
    one = leader(replace(RECORD, isr=("a", "c")))
    ask(one, "b", 9)
    assert one.propose(100.0) is None, "9 may have been committed by the leader before"
    ask(one, "b", 10)
    change = one.propose(100.0)
    assert change is not None
    assert change.after.isr == ("a", "b", "c")
    one = leader(replace(RECORD, isr=("a", "c")))
    grown(one, 20)
    ask(one, "c", 20)
    ask(one, "b", 19)
    assert one.propose(100.0) is None, "20 is committed"


def test_a_follower_enters_only_in_the_life_that_is_registered() -> None:
    record = replace(RECORD, isr=("a", "c"))
    one = leader(record)
    ask(one, "b", 10, start=2)
    assert one.propose(100.0) is None
    one.adopt(made(t.register(record, "b", 2, clean=True)))
    assert one.propose(100.0) is not None


def test_a_node_that_stops_is_not_taken_in_again_by_its_last_request() -> None:
    one = leader()
    for node in "bc":
        ask(one, node, 10)
    one.adopt(made(t.fence(RECORD, {"b"})))
    one.lost("b")
    ask(one, "b", 10)
    assert one.propose(100.0, {"b"}) is None
    assert one.is_settled
    # It has started again, and asks.
    one.adopt(made(t.register(one.record, "b", 2, clean=True)))
    ask(one, "b", 10, start=2)
    change = one.propose(100.0)
    assert change is not None
    assert change.after.isr == ("a", "b", "c")


def test_a_change_under_way_is_waited_for_on_both_sides_until_it_is_known() -> None:
    record = replace(RECORD, isr=("a", "c"))
    one = leader(record)
    ask(one, "b", 10)
    ask(one, "c", 10)
    change = one.propose(100.0)
    assert change is not None
    assert change.after.isr == ("a", "b", "c")
    grown(one, 20)
    ask(one, "c", 20)
    assert one.high_watermark == 10, "b may be in the ISR by now"
    one.lost("b")
    assert one.propose(200.0) is change, "repeated until a newer version is seen"
    assert one.adopt(record) == 10, "not newer"
    other = made(t.register(record, "c", 2, clean=True))
    one.adopt(other)
    ask(one, "c", 20, start=2)
    assert one.high_watermark == 20, "another change was made: this one never will be"


def test_a_record_in_which_the_epoch_has_ended_ends_the_term() -> None:
    for after in (t.failover(RECORD, {"a"}, "b"), t.transfer(RECORD, "c"), t.resign(RECORD, "a")):
        one = leader()
        one.adopt(made(after))
        assert one.resigned


def test_a_new_life_of_a_follower_has_confirmed_nothing_yet() -> None:
    one = leader()
    grown(one, 20)
    ask(one, "b", 20)
    one.adopt(made(t.register(RECORD, "b", 2, clean=True)))
    ask(one, "c", 20)
    assert one.high_watermark == 8
    ask(one, "b", 20, start=2)
    assert one.high_watermark == 20


# --- what others ask -------------------------------------------------------------


def test_a_majority_that_asked_lately_keeps_the_leader_without_a_store() -> None:
    one = leader()
    assert not one.heard_by_majority(100.0, 2.0)
    ask(one, "b", 10, now=100.0)
    assert one.heard_by_majority(102.0, 2.0)
    assert not one.heard_by_majority(102.1, 2.0)


def test_tombstones_wait_for_every_replica_that_was_heard_of() -> None:
    one = leader()
    grown(one, 20)
    ask(one, "b", 20)
    assert one.confirmed_by_all(100.0, 50.0, 0) == 0, "c has not asked yet"
    assert one.confirmed_by_all(100.0, 50.0, 4) == 4, "it had that before"
    ask(one, "c", 15)
    assert one.confirmed_by_all(100.0, 50.0, 4) == 15
    ask(one, "b", 20, now=160.0)
    assert one.confirmed_by_all(160.0, 50.0, 15) == 15, "only what is committed"
    ask(one, "c", 20, now=161.0)
    ask(one, "b", 20, now=300.0)
    assert one.confirmed_by_all(300.0, 50.0, 15) == 20
    one.adopt(t.register(one.record, "c", 2, clean=False) or one.record)
    ask(one, "c", 3, now=300.0, start=2, last_epoch=2)
    assert one.confirmed_by_all(300.0, 50.0, 20) == 3, "it has lost its disk"


def test_tombstones_wait_for_a_replica_that_has_started_again() -> None:
    one = leader(made(t.fence(RECORD, {"c"})))
    grown(one, 20)
    ask(one, "b", 20, now=300.0)
    ask(one, "c", 15, now=300.0)
    assert one.confirmed_by_all(300.0, 50.0, 0) == 15
    one.adopt(made(t.register(one.record, "c", 2, clean=True)))
    assert one.confirmed_by_all(310.0, 50.0, 15) == 15, "it has not asked in this life yet"
    one.lost("c")
    one.adopt(made(t.register(one.record, "c", 3, clean=True)))
    one.lost("c")
    ask(one, "b", 20, now=350.0)
    assert one.confirmed_by_all(350.0, 50.0, 15) == 15, "two starts without a request"
    assert one.confirmed_by_all(350.5, 50.0, 15) == 20, "it is away for too long"
    ask(one, "c", 12, now=351.0, start=3)
    assert one.confirmed_by_all(351.0, 50.0, 20) == 12


def test_a_lost_connection_of_who_has_never_asked_does_not_hold_tombstones_from_the_begin() -> None:
    one = leader(made(t.fence(RECORD, {"c"})), now=30.0)  # soon after the machine has started
    grown(one, 20)
    ask(one, "b", 20, now=40.0)
    one.lost("c")
    assert one.confirmed_by_all(40.0, 50.0, 15) == 15


# --- a follower whose disk is full ---------------------------------------------------


def test_acks_do_not_wait_for_a_follower_that_could_not_store_what_it_was_sent() -> None:
    one = leader(log_end=20, durable_end=20)
    ask(one, "b", 20)
    ask(one, "c", 15)
    assert one.high_watermark == 15
    assert one.propose(100.0) is None, "it has just asked"
    ask(one, "c", 15, is_full=True)
    change = one.propose(100.0)
    assert change is not None
    assert set(change.after.isr) == {"a", "b"}
    assert one.adopt(change.after) == 20
    ask(one, "c", 20, is_full=True)
    assert one.propose(100.0) is None, "it has all, and cannot take what comes next"
    ask(one, "c", 20)
    back = one.propose(100.0)
    assert back is not None
    assert set(back.after.isr) == {"a", "b", "c"}
