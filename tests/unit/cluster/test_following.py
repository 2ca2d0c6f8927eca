"""The follower: one request at a time, and its log loses nothing that it confirmed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liftlog.cluster import side_state
from liftlog.cluster import transitions as t
from liftlog.cluster.following import (
    Answer,
    Append,
    Effect,
    Fail,
    Fetch,
    Follower,
    Gap,
    Resync,
    Truncate,
)
from liftlog.cluster.record import StreamMetadata

RECORD = t.create("s", "i", {"min_isr": 2}, "abc", starts=dict.fromkeys("abc", 1), leader_epoch=5)
OUT = replace(RECORD, isr=("a", "c"), version=2)
"""b is not in sync."""
TABLE = ((2, 0), (4, 6))


def follower(record: StreamMetadata = RECORD, **changes: Any) -> Follower:
    """b, with a log that ends at 10 in epoch 4; it has asked."""
    one = Follower(record, "b", TABLE, **{"log_end": 10, "high_watermark": 8, **changes})
    one.resumed()
    return one


def answer(**changes: Any) -> Answer:
    known = {"epoch": 5, "offset": 10, "last_epoch": 4, "version": 0, "high_watermark": 8}
    return Answer(**{**known, **changes})


def fetch(offset: int, last_epoch: int, known: StreamMetadata = RECORD, **changes: Any) -> Fetch:
    changes = {"leader_mark": (0, 0), **changes}
    return Fetch(
        **{"leader": "a", "epoch": 5, "side_version": 0, "mark": known.mark, **changes},
        offset=offset,
        last_epoch=last_epoch,
    )


def test_one_request_is_out_at_a_time() -> None:
    one = Follower(RECORD, "b", TABLE, log_end=10, high_watermark=8)
    assert one.resumed() == fetch(10, 4)
    assert one.resumed() is None
    one.lost()
    assert one.resumed() == fetch(10, 4)


def test_an_answer_is_appended_and_the_next_request_confirms_it() -> None:
    one = follower()
    assert one.answered(answer(has_content=True, high_watermark=12)) == Append()
    assert one.high_watermark == 8, "not before it is durable"
    assert one.resumed() is None, "not while the log is written"
    assert one.stored(11, (*TABLE, (5, 10))) == fetch(11, 5)
    assert one.high_watermark == 11, "not above the own end"


def test_an_answer_without_content_moves_the_high_watermark() -> None:
    one = follower()
    assert one.answered(answer(high_watermark=10)) == fetch(10, 4)
    assert one.high_watermark == 10


@pytest.mark.parametrize("changes", [{"epoch": 4}, {"epoch": 6}, {"offset": 9}, {"last_epoch": 3}])
def test_only_an_answer_to_the_request_that_is_out_is_used(changes: dict[str, int]) -> None:
    one = follower()
    assert one.answered(answer(**changes, has_content=True)) is None
    assert one.answered(answer(**changes, diverging=(4, 7))) is None
    assert one.answered(answer(has_content=True)) == Append(), "the right one is still awaited"
    assert one.answered(answer(diverging=(4, 7))) is None, "a second one is not"


def test_a_failed_append_confirms_nothing_and_is_asked_for_again() -> None:
    one = follower()
    one.answered(answer(has_content=True, high_watermark=12))
    one.failed(10, TABLE)
    assert one.high_watermark == 8
    assert one.resumed() == fetch(10, 4)


def test_a_damaged_body_is_asked_for_again_with_a_complaint() -> None:
    one = follower()
    one.answered(answer(has_content=True))
    assert one.damaged() == fetch(10, 4, damaged=True)


def test_side_state_is_confirmed_with_the_next_request() -> None:
    one = follower()
    one.answered(answer(has_content=True))
    assert one.stored(10, TABLE, side_version=3) == fetch(10, 4, side_version=3)


def test_a_late_answer_brings_back_no_older_side_state() -> None:
    epoch = RECORD.leader_epoch
    first = side_state.following(epoch, side_state.EMPTY)
    second = side_state.following(epoch, first)
    one = follower(side_version=second)
    assert one.answered(answer(has_content=True, side_version=first)) is None
    assert one.answered(answer(has_content=True, side_version=second + 1)) == Append()


def test_what_a_former_leader_told_this_follower_alone_is_given_up() -> None:
    one = follower(side_version=side_state.following(RECORD.leader_epoch - 1, side_state.EMPTY))
    assert one.answered(answer(has_content=True, side_version=side_state.EMPTY)) == Append()


@pytest.mark.parametrize("begun", [side_state.EMPTY, side_state.begin(5, 3)])
def test_side_state_of_a_higher_epoch_that_was_given_up_is_replaced(begun: int) -> None:
    """An operator has restored the metadata without the nodes that knew of that epoch."""
    given_up = side_state.following(RECORD.leader_epoch + 1, side_state.EMPTY)
    one = follower(side_version=given_up)
    assert one.answered(answer(has_content=True, side_version=begun)) == Append()
    assert one.stored(10, TABLE, side_version=begun) == fetch(10, 4, side_version=begun)


def test_a_copy_that_was_begun_after_tombstones_went_is_not_begun_again() -> None:
    one = follower(OUT)
    gone = answer(has_content=True, version=2, first_stored=3, tombstones_removed_below=40)
    assert one.answered(gone) == Resync(3, 40)
    assert one.stored(3, ()) == fetch(3, 0, OUT, leader_mark=OUT.mark)
    more = replace(gone, offset=3, last_epoch=0)
    assert one.answered(more) == Append()
    assert one.stored(20, ((5, 3),)) == fetch(20, 5, OUT, leader_mark=OUT.mark)
    more = replace(gone, offset=20, last_epoch=5, tombstones_removed_below=41)
    assert one.answered(more) == Resync(3, 41), "these may be of keys that have been copied"


def test_a_copy_is_not_continued_from_a_leader_that_has_removed_fewer_tombstones() -> None:
    """It may still have values that they deleted. The next leader may lack the tombstones again,
    and would take this copy for one that needs none of them."""
    one = follower(OUT, tombstones_removed_below=40)
    more = answer(has_content=True, version=2, first_stored=3, tombstones_removed_below=39)
    assert one.answered(more) == Resync(3, 39)
    assert one.stored(3, ()) == fetch(3, 0, OUT, leader_mark=OUT.mark)
    assert one.answered(replace(more, offset=3, last_epoch=0)) == Append()
    other = follower(OUT, tombstones_removed_below=10)
    assert other.answered(replace(more, tombstones_removed_below=0)) == Append(), "it has them all"


# --- records ---------------------------------------------------------------------


def test_a_new_leader_is_asked_and_the_former_one_is_not_heard_any_more() -> None:
    one = follower()
    after = t.failover(RECORD, {"a"}, "c")
    assert after is not None
    assert one.assigned(after) == fetch(10, 4, after, leader="c", epoch=6)
    assert one.answered(answer(has_content=True)) is None
    assert one.assigned(RECORD) is None, "an older record"
    assert one.answered(answer(epoch=6, has_content=True)) == Append()


def test_another_version_in_the_same_epoch_is_told_to_the_leader_at_once() -> None:
    """Acks may wait for it, and a parked request would be answered much later."""
    one = follower()
    assert one.assigned(OUT) == fetch(10, 4, OUT)
    assert one.assigned(OUT) is None
    assert one.answered(answer(has_content=True)) == Append()
    assert one.assigned(replace(OUT, version=3)) is None, "with the next request"


def test_who_knows_a_newer_record_tells_which_of_the_leaders_it_has_come_from() -> None:
    """The leader may not hear of the newer one for long."""
    newer = t.update(RECORD, {"min_isr": 2, "max_age": 1})
    assert newer is not None
    one = follower(newer)
    first, known = answer(version=1), replace(newer, version=3, trail=newer.next_trail())
    assert one.answered(first) == fetch(10, 4, newer, leader_mark=RECORD.mark)
    assert one.assigned(known) == fetch(10, 4, known, leader_mark=RECORD.mark)
    lost = replace(known, version=4, trail=())
    assert one.assigned(lost) == fetch(10, 4, lost, leader_mark=(1, 0)), "too long ago"


def test_a_newer_record_is_told_of_until_it_has_come_once() -> None:
    one = follower()
    assert one.answered(answer(version=2)) == fetch(10, 4), "it did not come along"
    told = (2, 0)
    assert one.answered(answer(version=2, brings_record=True)) == fetch(10, 4, leader_mark=told)
    out = replace(OUT, trail=RECORD.next_trail())
    assert one.assigned(out) == fetch(10, 4, out, leader_mark=out.mark)
    after = replace(out, version=3, leader="c", leader_epoch=6)
    assert one.assigned(after) == fetch(10, 4, after, leader="c", epoch=6), "another leader"


def test_without_a_leader_nothing_is_asked() -> None:
    one = follower()
    after = t.resign(RECORD, "a")
    assert after is not None
    assert one.assigned(after) is None
    assert one.resumed() is None


def test_a_new_leader_waits_for_what_is_being_done_to_the_log() -> None:
    one = follower()
    one.answered(answer(has_content=True))
    after = t.failover(RECORD, {"a"}, "c")
    assert after is not None
    assert one.assigned(after) is None
    assert one.stored(11, (*TABLE, (5, 10))) == fetch(11, 5, after, leader="c", epoch=6)


# --- where logs part -------------------------------------------------------------


@pytest.mark.parametrize(
    ("diverging", "end"),
    [
        ((4, 9), 9),  # where the leader ends the epoch
        ((4, 12), None),  # nowhere below the own end: a useless answer
        ((3, 9), 6),  # the newest common epoch is 2, which ends here at 6
        ((2, 5), 5),
    ],
)
def test_the_log_is_cut_where_either_ends_the_common_epoch(
    diverging: tuple[int, int], end: int | None
) -> None:
    one = follower(high_watermark=0)
    effect = one.answered(answer(diverging=diverging, high_watermark=12))
    if end is None:
        assert isinstance(effect, Fetch)
        assert one.high_watermark == 0
        return
    assert effect == Truncate(end)
    left = tuple(entry for entry in TABLE if entry[1] < end)
    assert one.stored(end, left) == fetch(end, left[-1][0])
    assert one.high_watermark == 0, "what a cut leaves may not be committed"


def test_a_cut_below_the_high_watermark_fails_the_stream() -> None:
    one = follower()
    effect = one.answered(answer(diverging=(4, 7)))
    assert isinstance(effect, Fail)
    assert "only up to offset 7, below what was committed here: 8" in effect.reason
    assert one.resumed() is None


def test_after_an_unclean_recovery_acked_records_may_be_cut() -> None:
    one = follower(replace(RECORD, unclean_epoch=5))
    assert one.answered(answer(diverging=(4, 7))) == Truncate(7, below_high_watermark=True)
    assert one.high_watermark == 7, "before the log is cut"
    one.stored(7, TABLE)
    assert one.high_watermark == 7
    old = follower(replace(RECORD, unclean_epoch=4))
    assert isinstance(old.answered(answer(diverging=(4, 7))), Fail), "it went through that one"


@pytest.mark.parametrize(("unclean_epoch", "shown"), [(0, 11), (5, 11), (6, 8)])
def test_an_unclean_recovery_during_an_append_may_have_given_up_its_records(
    unclean_epoch: int, shown: int
) -> None:
    """`make simulate` found it: the former leader had committed to offset 12, and the new one
    lacks these records."""
    one = follower()
    one.answered(answer(has_content=True, high_watermark=12))
    after = t.failover(RECORD, {"a"}, "c")
    assert after is not None
    one.assigned(replace(after, unclean_epoch=unclean_epoch))
    one.stored(11, (*TABLE, (5, 10)))
    assert one.high_watermark == shown


def test_a_copy_without_what_it_shares_with_the_leader_starts_again() -> None:
    """The place to cut has been deleted here, so no cut is possible."""
    one = follower(replace(OUT, unclean_epoch=5))
    assert one.answered(answer(diverging=(4, 7), first_stored=2), first_stored=8) == Resync(2)
    other = follower(replace(OUT, unclean_epoch=5))
    cut = other.answered(answer(diverging=(4, 7), first_stored=2), first_stored=7)
    assert cut == Truncate(7, below_high_watermark=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"first_stored": 11},
        {"tombstones_removed_below": 11, "first_stored": 0},
        {"diverging": (0, 3)},
    ],
)
def test_a_copy_that_cannot_be_continued_starts_again(changes: dict[str, Any]) -> None:
    one = follower(OUT)
    first = changes.get("first_stored", 0)
    removed = changes.get("tombstones_removed_below", 0)
    assert one.answered(answer(**changes, version=2)) == Resync(first, removed)
    assert one.high_watermark == 0, "nothing is shown while the log is dropped"
    assert one.stored(first, ()) == fetch(first, 0, OUT, leader_mark=OUT.mark)
    assert one.high_watermark == first


@pytest.mark.parametrize("kept", [{"isr": ("a", "b")}, {"isr": ("a",), "eligible": ("b",)}])
def test_a_copy_that_may_be_the_last_whole_one_is_never_dropped(kept: dict[str, Any]) -> None:
    one = follower(replace(RECORD, **kept))
    effect = one.answered(answer(first_stored=11))
    assert isinstance(effect, Fail)
    assert "must be kept" in effect.reason


def test_a_leader_with_a_newer_record_may_know_that_the_copy_is_not_needed() -> None:
    one = follower()
    assert one.answered(answer(first_stored=11, version=2)) is None
    assert one.resumed() is None, "the record comes first"
    assert one.assigned(OUT) == fetch(10, 4, OUT)
    assert one.answered(answer(first_stored=11, version=2)) == Resync(11)


@pytest.mark.parametrize("log", [{}, {"epochs": (), "log_end": 0, "high_watermark": 0}])
def test_a_leader_that_knows_what_the_store_has_forgotten_is_waited_for(
    log: dict[str, Any],
) -> None:
    """b registered by an older copy of the record, in which it is in sync; a has not heard yet."""
    forgotten = replace(OUT, trail=RECORD.next_trail())
    stored = t.register(RECORD, "b", 2, clean=True)
    assert stored is not None
    assert stored.version == forgotten.version
    one = Follower(stored, "b", **{"epochs": TABLE, "log_end": 10, "high_watermark": 8, **log})
    asked = one.resumed()
    assert isinstance(asked, Fetch)
    known = {"version": forgotten.version, "checksum": forgotten.checksum}
    asked_for = {"offset": asked.offset, "last_epoch": asked.last_epoch}
    assert one.answered(answer(first_stored=11, **known, **asked_for)) is None
    assert one.resumed() is None, "one of the two records is replaced first"
    assert one.failure == ""

    restored = replace(forgotten, version=3, trail=forgotten.next_trail())
    one.assigned(restored)
    assert one.answered(answer(first_stored=11, version=3, **asked_for)) == Resync(11)


def test_a_gap_is_noted_with_the_epochs_that_it_hides() -> None:
    one = follower()
    gap = Gap(14, ((5, 10),))
    assert one.answered(answer(gap=gap, high_watermark=14)) == gap
    effect: Effect | None = one.stored(14, (*TABLE, (5, 10)))
    assert effect == fetch(14, 5)
    assert one.high_watermark == 14
