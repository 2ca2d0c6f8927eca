"""Both sides of a handover, one event at a time; see `property/test_handovers` for all orders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liftlog.cluster import transitions
from liftlog.cluster.handover import (
    DIGEST_BYTES,
    HAND_OVER_SECONDS,
    HOLD_SECONDS,
    LATE_SECONDS,
    MAX_TOLD,
    PREPARE_SECONDS,
    Giver,
    Offer,
    Step,
    Taker,
    Undo,
    digests_of,
)

KEY = b"k" * 16
OFFER = Offer("s", "i", 7, "a", KEY)
QUIET = replace(OFFER, is_attached=False)
SHARED = replace(OFFER, is_shared=True)
A, B, C = (bytes([one]) * DIGEST_BYTES for one in b"abc")


def giver_at(step: Step, offer: Offer = OFFER, now: float = 0.0) -> Giver:
    giver = Giver(offer)
    giver.begin(now)
    while giver.step is not step:
        giver.done(now)
    return giver


def taker_with(*digests: bytes, offer: Offer = OFFER) -> Taker[str]:
    taker: Taker[str] = Taker(offer)
    taker.subscribed(0.0)
    for number, digest in enumerate(digests):
        assert not taker.arrived(f"m{number}", 1, [digest], 100, 0.1)
    return taker


def test_the_steps_of_a_giver() -> None:
    giver = Giver(OFFER)
    steps = [giver.begin(0.0)]
    while steps[-1] is not Step.OVER:
        steps.append(giver.done(0.0))
    assert steps == list(Step)


def test_a_stream_that_nats_sends_nothing_to_moves_without_subscriptions() -> None:
    giver = Giver(QUIET)
    steps = [giver.begin(0.0)]
    while steps[-1] is not Step.OVER:
        steps.append(giver.done(0.0))
    assert steps == [Step.PREPARE, Step.COMMIT, Step.TRANSFER, Step.OVER]
    assert giver_at(Step.TRANSFER, QUIET).failed() == Undo(drop=True, subscribe=False, loss="")


def test_reading_ids_may_take_long_and_the_rest_may_not() -> None:
    giver = Giver(OFFER)
    giver.begin(10.0)
    assert giver.seconds_left(10.0) == PREPARE_SECONDS
    giver.done(50.0)
    assert giver.seconds_left(50.0) == HAND_OVER_SECONDS
    giver.done(52.0)
    assert giver.seconds_left(52.0) == HAND_OVER_SECONDS - 2
    assert giver.seconds_left(99.0) == 0.0


@pytest.mark.parametrize(
    ("step", "offer", "undone"),
    [
        (Step.PREPARE, OFFER, (False, False)),
        (Step.SUBSCRIBE, OFFER, (False, False)),
        (Step.SUBSCRIBE, SHARED, (False, True)),
        (Step.SPREAD, SHARED, (False, True)),
        (Step.SPREAD, OFFER, (False, False)),
        (Step.UNSUBSCRIBE, OFFER, (True, True)),
        (Step.COMMIT, OFFER, (True, True)),
        (Step.TELL, SHARED, (True, True)),
        (Step.TRANSFER, OFFER, (True, True)),
    ],
)
def test_what_failed_is_undone_and_a_loss_is_reported_where_there_may_be_one(
    step: Step, offer: Offer, undone: tuple[bool, bool]
) -> None:
    undo = giver_at(step, offer).failed()
    assert (undo.subscribe, bool(undo.loss)) == undone
    assert undo.drop


def test_a_giver_that_stops_leaves_what_it_told_to_the_taker() -> None:
    """Whether the record was changed is not known."""
    undo = giver_at(Step.TRANSFER).failed(is_ending=True)
    assert undo == Undo(drop=False, subscribe=False, loss="")
    assert giver_at(Step.TELL).failed(is_ending=True).drop


def test_a_giver_notes_from_before_it_asks_until_it_is_unsubscribed() -> None:
    noting = {step for step in Step if step is not Step.OVER and giver_at(step).is_noting}
    assert noting == {Step.SUBSCRIBE, Step.SPREAD, Step.UNSUBSCRIBE}
    assert not any(giver_at(step, SHARED).is_noting for step in (Step.SUBSCRIBE, Step.SPREAD))


def test_what_was_received_is_told_in_pieces() -> None:
    giver = giver_at(Step.SPREAD)
    giver.received([A, B])
    giver.received([C])
    assert giver.told(2) == [A + B, C]
    assert not giver.is_full
    giver.received([A] * MAX_TOLD)
    assert giver.is_full


def test_a_giver_ends_when_the_record_says_that_its_epoch_is_over() -> None:
    record = transitions.create("s", "i", {}, ("a", "b"), starts={"a": 1, "b": 1}, leader_epoch=7)
    giver = giver_at(Step.TRANSFER)
    assert not giver.saw(record)
    moved = transitions.transfer(record, "b")
    assert moved is not None
    assert giver.saw(moved)
    assert (giver.step, giver.has_moved) == (Step.OVER, True)


def test_each_digest_stands_for_one_message() -> None:
    taker = taker_with(A, A, A, B)
    taker.told(KEY, 5, [A + A], 0.2)
    assert taker.take(5, 0.3) == [("m2", [0]), ("m3", [0])]


def test_rows_of_a_run_are_told_apart() -> None:
    taker = taker_with()
    taker.arrived("run", 3, [A, B, C], 100, 0.1)
    taker.told(KEY, 5, [B], 0.2)
    taker.arrived("late", 2, [C, A], 100, 0.25)
    assert taker.take(5, 0.3) == [("run", [0, 2]), ("late", [0, 1])]


def test_a_copy_may_come_late_but_not_for_ever() -> None:
    taker = taker_with()
    taker.told(KEY, 5, [A + B], 0.2)
    assert taker.take(5, 0.3) == []
    assert taker.wants_digests(0.4)
    assert list(taker.arrived("m", 2, [A, C], 100, 0.4)) == [1]
    assert list(taker.arrived("m", 2, [A, C], 100, 0.5)) == [0, 1]
    end = 0.3 + LATE_SECONDS + 0.1
    assert not taker.wants_digests(end)
    assert list(taker.arrived("m", 1, (), 100, end)) == [0]


def test_in_a_queue_group_nothing_is_compared() -> None:
    taker = Taker[str](SHARED)
    taker.subscribed(0.0)
    assert not taker.wants_digests(0.1)
    taker.arrived("m", 2, (), 100, 0.1)
    taker.told(KEY, 5, (), 0.2)
    taker.arrived("n", 2, (), 100, 0.25)
    assert taker.take(5, 0.3) == [("m", [0, 1]), ("n", [0, 1])]
    assert list(taker.arrived("o", 2, (), 100, 0.4)) == [0, 1]


def test_what_cannot_be_used_is_dropped() -> None:
    for spoil in (
        lambda taker: None,  # not told
        lambda taker: taker.told(b"x" * 16, 5, (), 0.2),
        lambda taker: taker.told(KEY, 4, (), 0.2),  # more was stored since
        lambda taker: taker.told(KEY, 5, (), HOLD_SECONDS + 0.1),
        lambda taker: (taker.broken("NATS went away"), taker.told(KEY, 5, (), 0.2)),
        lambda taker: (taker.told(KEY, 5, (), 0.2), taker.broken("NATS went away")),
    ):
        taker = taker_with(A, B)
        spoil(taker)
        assert taker.take(5, 0.3) is None
        assert taker.problem
        assert not taker.arrived("m", 1, [A], 100, 0.4)


def test_a_taker_holds_so_much_and_no_more() -> None:
    taker = Taker[str](OFFER, max_held_bytes=1000)
    taker.subscribed(0.0)
    taker.arrived("m", 1, [A], 1000, 0.1)
    assert not taker.problem
    taker.arrived("m", 1, [B], 1, 0.1)
    assert "too many messages" in taker.problem
    assert taker.is_over(0.1)


def test_a_taker_that_hears_no_more_of_its_giver_gives_up() -> None:
    taker = taker_with(A)
    assert not taker.is_over(HOLD_SECONDS)
    assert taker.is_over(HOLD_SECONDS + 0.1)


def test_a_taker_has_to_subscribe_before_it_is_told() -> None:
    taker = Taker[str](OFFER)
    taker.told(KEY, 5, (), 0.2)
    assert "subscribed" in taker.problem
    quiet = Taker[str](QUIET)
    quiet.told(KEY, 5, (), 0.2)
    assert not quiet.problem


def test_equal_messages_have_equal_digests_and_others_have_not() -> None:
    messages = [(b"s", b"r", b"", b"p"), (b"s", b"r", b"", b"p"), (b"sr", b"", b"", b"p"),
                (b"s", b"r", b"p", b""), (b"s", b"", b"r", b"p")]  # fmt: skip
    found = digests_of(KEY, *zip(*messages, strict=True))
    assert found[0] == found[1]
    assert len(set(found)) == 4
    assert {len(one) for one in found} == {DIGEST_BYTES}
    assert digests_of(b"x" * 16, *zip(*messages, strict=True))[0] != found[0]
