"""The conclusions from the answers to the attempts of one message."""

from __future__ import annotations

import pytest

from liftlog.client.publishing.delivery import NO_RESPONDERS, Delivery
from liftlog.client.publishing.message import OutgoingMessage
from liftlog.client.publishing.results import (
    Ack,
    NotPublished,
    OrderBroken,
    Published,
    PublishFailed,
    PublishRefused,
    PublishUnknown,
    Refusal,
)

PAUSED = Refusal("a", 503, 10077, "the stream is paused")
READ_ONLY = Refusal("a", 400, 10109, "the stream is read-only")
TOO_LARGE = Refusal("a", 400, 10054, "message size exceeds maximum allowed")
WRONG_SEQUENCE = Refusal("a", 400, 10071, "wrong last sequence: 2")


class Watched(Delivery):
    """Counts how often it gets a result."""

    def __init__(self, *expect: str) -> None:
        self.times = 0
        message = OutgoingMessage("s.x", b"v", None, (), "m")
        super().__init__(message, expect, self._count)

    def _count(self, _: Delivery) -> None:
        self.times += 1

    def failure(self) -> PublishFailed:
        assert isinstance(self.result, PublishFailed)
        assert self.times == 1
        return self.result


def test_one_ack_per_expected_stream_whatever_else_answers() -> None:
    delivery = Watched("a", "b")
    delivery.start_attempt(0)
    delivery.take(1, Ack("other", 9))
    delivery.take(1, Refusal("other", 400, 10054, ""))
    delivery.take(1, Ack("b", 5))
    assert delivery.result is None
    assert delivery.in_flight
    delivery.take(1, Ack("a", 3))
    assert delivery.result == Published("s.x", "m", (Ack("a", 3), Ack("b", 5)))
    delivery.take(1, TOO_LARGE)
    assert delivery.times == 1
    assert delivery.result.offset == 3
    assert delivery.result.ack("b").offset == 5
    with pytest.raises(KeyError):
        delivery.result.ack("other")


def test_without_names_the_first_answer_counts() -> None:
    delivery = Watched()
    delivery.start_attempt(0)
    delivery.take(1, Ack("any", 1))
    assert isinstance(delivery.result, Published)
    delivery = Watched()
    delivery.start_attempt(0)
    delivery.take(1, TOO_LARGE)
    assert isinstance(delivery.failure(), PublishRefused)


def test_a_refusal_waits_for_the_other_streams() -> None:
    delivery = Watched("a", "b")
    delivery.start_attempt(0)
    delivery.take(1, TOO_LARGE)
    assert delivery.result is None
    delivery.take(1, Ack("b", 5))
    failure = delivery.failure()
    assert isinstance(failure, PublishRefused)
    assert (failure.err_code, failure.acks, failure.missing) == (10054, (Ack("b", 5),), ())
    assert "message size" in str(failure)


def test_refused_for_now_ends_the_attempt_only() -> None:
    delivery = Watched("a")
    delivery.start_attempt(0)
    delivery.take(1, PAUSED)
    assert (delivery.result, delivery.in_flight) == (None, False)
    delivery.start_attempt(1)
    delivery.take(2, Ack("a", 1))
    assert isinstance(delivery.result, Published)


@pytest.mark.parametrize(
    ("refusal", "known"),
    [(PAUSED, False), (READ_ONLY, False), (TOO_LARGE, True), (WRONG_SEQUENCE, True)],
)
def test_a_refusal_proves_nothing_about_an_attempt_without_answer(
    refusal: Refusal, known: bool
) -> None:
    delivery = Watched("a")
    delivery.start_attempt(0)
    delivery.start_attempt(1)
    delivery.take(2, refusal)
    delivery.give_up()
    failure = delivery.failure()
    if known:
        assert isinstance(failure, PublishRefused)
    else:
        assert isinstance(failure, PublishUnknown)
        assert failure.missing == ("a",)
    assert failure.refusals == (refusal,)


def test_every_attempt_refused_is_refused() -> None:
    delivery = Watched("a")
    for attempt in (1, 2):
        delivery.start_attempt(attempt)
        delivery.take(attempt, PAUSED)
    delivery.give_up()
    assert isinstance(delivery.failure(), PublishRefused)
    delivery = Watched("a")
    delivery.start_attempt(0)
    delivery.take(1, READ_ONLY)
    assert isinstance(delivery.failure(), PublishRefused)


def test_a_late_answer_counts() -> None:
    delivery = Watched("a")
    delivery.start_attempt(0)
    delivery.start_attempt(1)
    delivery.take(1, PAUSED)
    assert delivery.in_flight
    delivery.take(2, PAUSED)
    delivery.give_up()
    assert isinstance(delivery.failure(), PublishRefused)


def test_nobody_listens_and_never_sent() -> None:
    delivery = Watched("a")
    delivery.start_attempt(0)
    delivery.take(1, NO_RESPONDERS)
    assert not delivery.in_flight
    delivery.give_up()
    assert "no one listens" in str(delivery.failure())
    assert type(delivery.failure()) is NotPublished

    delivery = Watched("a")
    delivery.start_attempt(0)
    delivery.withdraw_attempt()
    delivery.give_up("the connection is closed")
    assert type(delivery.failure()) is NotPublished
    assert "could not be sent: the connection is closed" in str(delivery.failure())


def test_behind_a_failure_order_forbids() -> None:
    before = PublishUnknown("no answer", subject="s.x")
    delivery = Watched("a")
    delivery.give_up(broken=before)
    assert isinstance(delivery.failure(), OrderBroken)
    delivery = Watched("a")
    delivery.start_attempt(0)
    delivery.give_up(broken=before)
    assert isinstance(delivery.failure(), PublishUnknown)
    delivery = Watched("a")
    delivery.start_attempt(0)
    delivery.take(1, WRONG_SEQUENCE, passing=True)
    delivery.give_up(broken=before)
    assert isinstance(delivery.failure(), OrderBroken)


def test_a_service_that_answers_is_named_in_the_hint() -> None:
    delivery = Watched()
    delivery.start_attempt(0)
    delivery.foreign_answers = 1
    delivery.give_up()
    assert "service" in delivery.failure().hint
