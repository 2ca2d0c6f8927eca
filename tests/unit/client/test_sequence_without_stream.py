"""`order="sequence"` when the expected stream does not answer: the wait of messages, and the text
of their error."""

from __future__ import annotations

from liftlog.client.publishing.delivery import NO_RESPONDERS, Delivery, Outcome
from liftlog.client.publishing.message import OutgoingMessage
from liftlog.client.publishing.results import (
    Ack,
    NotPublished,
    OrderBroken,
    Published,
    PublishFailed,
    PublishUnknown,
    Refusal,
)
from liftlog.client.publishing.send_queue import RetryPolicy, Sequenced

WRONG_STREAM = Refusal("orders", 400, 10060, "expected stream does not match")


class Line:
    """A queue, and deliveries to the stream `ledger` in it."""

    def __init__(self, *, last_sequence: int | None = None) -> None:
        self.broken: list[PublishFailed] = []
        self.queue = Sequenced(RetryPolicy(30.0), last_sequence, self.broken.append)

    def add(self) -> Delivery:
        delivery = Delivery(OutgoingMessage("s", b"v", None, (), "m"), ("ledger",), lambda _: None)
        self.queue.add(delivery)
        return delivery

    def send(self, now: float) -> Delivery:
        delivery = self.queue.next(now)
        assert delivery is not None
        delivery.start_attempt(now)
        return delivery

    def exchange(self, answer: Outcome, now: float) -> Delivery:
        delivery = self.send(now)
        self.queue.answered(delivery, delivery.attempts, answer, now)
        return delivery


def test_another_stream_answers_that_it_is_not_the_expected_one() -> None:
    line = Line()
    first, second = line.add(), line.add()
    assert line.exchange(WRONG_STREAM, 0.0) is first
    # The expected stream may be on another daemon, whose ack takes a little longer.
    assert first.result is None
    wakes_at = line.queue.wake_at()
    assert wakes_at is not None
    assert wakes_at <= 1.0
    assert line.queue.next(wakes_at - 0.01) is None
    assert first.result is None
    assert line.queue.next(wakes_at) is None
    assert isinstance(first.result, PublishUnknown)
    assert first.result.missing == ("ledger",)
    assert "'orders'" in str(first.result)
    assert "is there a stream 'ledger'" in str(first.result)
    assert line.broken == [first.result]
    assert isinstance(second.result, OrderBroken)


def test_two_daemons_record_the_subject_and_one_has_the_stream() -> None:
    line = Line()
    first, second = line.add(), line.add()
    line.exchange(WRONG_STREAM, 0.0)
    line.queue.answered(first, 1, Ack("ledger", 7), 0.3)
    assert isinstance(first.result, Published)
    # It has answered once, so that it exists: from now on it has all the time.
    assert line.exchange(WRONG_STREAM, 0.4) is second
    assert line.queue.next(4.0) is None
    assert second.result is None
    line.queue.answered(second, 1, Ack("ledger", 8), 4.5)
    assert isinstance(second.result, Published)
    assert line.broken == []


def test_a_stream_that_answered_before_the_other_one_did() -> None:
    line = Line(last_sequence=6)
    first = line.add()
    line.exchange(Ack("ledger", 7), 0.0)
    line.queue.answered(first, 1, WRONG_STREAM, 0.1)
    assert isinstance(first.result, Published)
    assert line.queue.wake_at() is None
    assert line.queue.next(9.0) is None
    assert line.broken == []


def test_after_a_resume_the_stream_has_all_the_time_until_another_one_answers() -> None:
    line = Line()
    line.add()
    line.exchange(WRONG_STREAM, 0.0)
    assert line.queue.next(5.0) is None
    assert len(line.broken) == 1
    line.queue.resume(None)
    again = line.add()
    assert line.send(6.0) is again
    assert line.queue.next(8.0) is None
    assert again.result is None
    line.queue.answered(again, 1, Ack("ledger", 1), 8.5)
    assert isinstance(again.result, Published)


def test_the_time_without_any_listener_is_shared_by_all_messages() -> None:
    line = Line()
    deliveries = [line.add() for _ in range(5)]
    now = 0.0
    while deliveries[0].result is None:
        line.exchange(NO_RESPONDERS, now)
        now = line.queue.wake_at() or now
    assert isinstance(deliveries[0].result, NotPublished)
    assert now >= 25.0
    for delivery in deliveries[1:]:
        line.exchange(NO_RESPONDERS, now)
        assert isinstance(delivery.result, NotPublished), "tried for half a minute again"
        assert "no one listens on s" in str(delivery.result)
        now += 2.0  # the longest pause
    # A stream that answers ends that time.
    late = line.add()
    line.exchange(Ack("ledger", 1), now)
    assert isinstance(late.result, Published)
    after = line.add()
    line.exchange(NO_RESPONDERS, now)
    assert after.result is None
