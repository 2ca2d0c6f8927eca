"""Decides which message to send next, and when to repeat one: in any order, or in the order of the
calls.

Pure: the input is deliveries, answers and the time; the output is the deliveries to send. Times are
in seconds, by any steady clock.

`Unordered` sends all messages at once, and repeats each independently of the others. `Sequenced`
keeps the order of one stream with many messages in flight. Each message contains the offset after
which it is to be stored (`Nats-Expected-Last-Sequence`), counted up from the last ack. If a message
is lost, the stream refuses all messages that were sent after it. The queue then waits until nothing
is in flight, and continues from the first unsettled message. Streams detect duplicates before they
check preconditions, so they ack a repeated message that was already stored.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from liftlog.client.publishing.delivery import Delivery, NoResponders, Outcome
from liftlog.client.publishing.results import (
    Ack,
    PublishFailed,
    Refusal,
)

WRONG_LAST_SEQUENCE = 10071
WRONG_STREAM = 10060

_GRACE_SECONDS = 1.0
"""Longest wait, in seconds, for the first ack of the expected stream, after a refusal from a stream
with another name. The expected stream may belong to another, slower daemon."""


class RetryPolicy(NamedTuple):
    """The rules for repeating a message. The publisher stops repeating a message `retry_for`
    seconds after its first attempt.

    After a temporary refusal the pause doubles from `first_pause` to `longest_pause`.
    """

    retry_for: float
    first_pause: float = 0.05
    longest_pause: float = 2.0

    def pause(self, attempts: int) -> float:
        return float(min(self.first_pause * 2 ** min(attempts - 1, 20), self.longest_pause))

    def is_over(self, delivery: Delivery, now: float) -> bool:
        return delivery.first_sent is not None and now - delivery.first_sent >= self.retry_for


class Unordered:
    """Sends every message independently of the others."""

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._ready: deque[Delivery] = deque()
        self._later: list[tuple[float, int, Delivery]] = []
        self._tickets = itertools.count()

    def add(self, delivery: Delivery) -> None:
        """Accept a new message. The caller limits the number of messages."""
        self._ready.append(delivery)

    def next(self, now: float) -> Delivery | None:
        """Return the message to send now, or None. The caller starts an attempt and sends it."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._ready:
            delivery = self._ready.popleft()
            if delivery.result is not None:
                continue  # a late answer settled it
            if self._retry.is_over(delivery, now):
                delivery.give_up()
                continue
            return delivery
        return None

    def answered(self, delivery: Delivery, attempt: int, answer: Outcome, now: float) -> None:
        was_in_flight = delivery.in_flight
        delivery.take(attempt, answer)
        if delivery.result is None and was_in_flight and not delivery.in_flight:
            # The subject has no subscriber, or the refusal is temporary. If the retries end before
            # the pause does, report the failure at once.
            at = now + self._retry.pause(delivery.attempts)
            if self._retry.is_over(delivery, at):
                delivery.give_up()
            else:
                heapq.heappush(self._later, (at, next(self._tickets), delivery))

    def expired(self, delivery: Delivery, attempt: int, now: float) -> None:
        """Note that no answer to the attempt arrived in time. Does nothing if the attempt has
        already ended."""
        if delivery.in_flight and attempt == delivery.attempts:
            delivery.in_flight = False
            self._ready.append(delivery)

    def send_again(self, delivery: Delivery, now: float) -> None:
        """Repeat a message that `next` returned and that could not be sent. The caller has
        withdrawn the attempt."""
        at = now + self._retry.first_pause
        heapq.heappush(self._later, (at, next(self._tickets), delivery))

    def wake_at(self) -> float | None:
        """Return the time at which to call `next` again, if no event comes first. Returns None if
        only an event can make `next` return a message."""
        return self._later[0][0] if self._later else None

    def resume(self, last_sequence: int | None) -> None:
        """Continue after a failure that broke the order. Does nothing in this class, because no
        message waits for another one."""


class Sequenced:
    """Keeps the order of one publisher's messages in one stream. Between two stored messages no
    message is missing, except for refused messages.

    `last_sequence` is the stream's last offset. None means that the offset is unknown: then the
    first message is sent alone, and the ack of this message contains the offset. `on_broken` is
    called when no further message may be sent: the stream has another writer, or it is unknown
    whether a message was stored. All waiting messages then fail.
    """

    def __init__(
        self,
        retry: RetryPolicy,
        last_sequence: int | None,
        on_broken: Callable[[PublishFailed], None],
    ) -> None:
        self._retry = retry
        self._on_broken = on_broken
        self._queue: deque[Delivery] = deque()  # settled ones wait for all before
        self._position = 0  # index in the queue of the next message to send
        self._last = last_sequence  # offset of the last record before the queue
        self._tail = last_sequence  # expected offset of the last message sent
        self._going_back = False
        self._not_before = 0.0
        self._broken: PublishFailed | None = None
        self._stream_exists = False  # the stream has answered
        self._absent_at: float | None = None  # when to assume that it does not exist
        self._unheard_since: float | None = None  # no subscriber since then

    def add(self, delivery: Delivery) -> None:
        self._queue.append(delivery)

    def next(self, now: float) -> Delivery | None:
        if self._absent_at is not None and now >= self._absent_at:
            self._end(self._queue[0])
        while True:
            if self._going_back or self._broken is not None:
                if self._under_way():
                    return None
                if self._broken is not None:
                    self._fail_all(self._broken)
                    return None
                self._going_back = False
                self._position, self._tail = 0, self._last
            if now < self._not_before:
                return None
            delivery = self._next_unsettled()
            if delivery is None or (self._tail is None and self._under_way()):
                return None
            if not self._retry.is_over(delivery, now):
                delivery.last_sequence = self._tail
                if self._tail is not None:
                    self._tail += 1
                self._position += 1
                return delivery
            self._end(delivery)

    def _next_unsettled(self) -> Delivery | None:
        while self._position < len(self._queue):
            delivery = self._queue[self._position]
            if delivery.result is None:
                return delivery
            self._pass_over(delivery)
        return None

    def _pass_over(self, settled: Delivery) -> None:
        """Skip a message that was acked before an earlier message."""
        self._position += 1
        offset = _new_offset(settled)
        if offset is not None:
            self._tail = max(offset, self._tail or 0)

    def answered(self, delivery: Delivery, attempt: int, answer: Outcome, now: float) -> None:
        if delivery.settled:
            return
        is_newest = attempt == delivery.attempts and delivery.in_flight
        self._note_who_answers(delivery, answer, now)
        if isinstance(answer, Refusal) and self._is_chained(delivery, answer, is_newest):
            # The message was refused because of an earlier one. This proves nothing about the
            # message itself.
            delivery.take(attempt, answer, passing=True)
            self._going_back |= is_newest
            return
        delivery.take(attempt, answer)
        if delivery.result is None:
            if is_newest and not delivery.in_flight:
                self._going_back = True
                self._not_before = now + self._retry.pause(delivery.attempts)
                if self._retry.is_over(delivery, self._not_before) or self._is_unheard():
                    self._end(delivery)
            return
        if isinstance(answer, Ack):
            predicted = delivery.last_sequence
            if predicted is not None and answer.offset != predicted + 1:
                self._going_back = True  # a duplicate: later messages expect wrong offsets
        else:
            self._going_back = True
            if _is_wrong_sequence(answer):
                assert isinstance(delivery.result, PublishFailed)
                self._break(delivery.result)
        self._shorten()

    def _note_who_answers(self, delivery: Delivery, answer: Outcome, now: float) -> None:
        """Note whether the stream exists, and whether the subject has a subscriber."""
        if isinstance(answer, NoResponders):
            if self._unheard_since is None:
                self._unheard_since = now
            return
        self._unheard_since = None
        if answer.stream in delivery.expect:
            self._stream_exists, self._absent_at = True, None
        elif isinstance(answer, Refusal) and answer.err_code == WRONG_STREAM:
            delivery.wrong_stream = answer.stream
            # Only the first message in flight shows whether the stream exists, and only until it is
            # answered.
            if not self._stream_exists and self._absent_at is None and delivery is self._queue[0]:
                self._absent_at = now + _GRACE_SECONDS

    def _is_unheard(self) -> bool:
        """Return True if for `retry_for` seconds no message has reached a subscriber. In this case
        each of the following messages is sent once, without retries."""
        since = self._unheard_since
        return since is not None and self._not_before - since >= self._retry.retry_for

    def _is_chained(self, delivery: Delivery, refusal: Refusal, is_newest: bool) -> bool:
        """Return True if the refusal may be due to earlier messages. A refusal proves that the
        stream has another writer only if two conditions hold: the refusal answers the first
        unsettled message, and the offset in that message was certain."""
        if not _is_wrong_sequence(refusal) or delivery.last_sequence is None:
            return False
        is_first = delivery is self._queue[0] and delivery.last_sequence == self._last
        return not (is_newest and is_first)

    def _shorten(self) -> None:
        """Remove settled messages at the head of the queue; their offsets are certain now."""
        while self._queue and self._queue[0].result is not None:
            settled = self._queue.popleft()
            self._position = max(self._position - 1, 0)
            offset = _new_offset(settled)
            if offset is not None:
                self._last = max(offset, self._last or 0)
        if self._tail is None:
            self._tail = self._last

    def expired(self, delivery: Delivery, attempt: int, now: float) -> None:
        if delivery.in_flight and attempt == delivery.attempts:
            delivery.in_flight = False
            self._going_back = True

    def send_again(self, delivery: Delivery, now: float) -> None:
        self._going_back = True
        self._not_before = now + self._retry.first_pause

    def wake_at(self) -> float | None:
        if self._absent_at is not None:
            return self._absent_at
        return self._not_before if self._queue and not self._under_way() else None

    def resume(self, last_sequence: int | None) -> None:
        self._broken = None
        self._last = self._tail = last_sequence

    # --- the end ---

    def _under_way(self) -> bool:
        return any(delivery.in_flight for delivery in self._queue)

    def _end(self, delivery: Delivery) -> None:
        """Stop sending a message."""
        self._absent_at = None
        delivery.give_up()
        if isinstance(delivery.result, PublishFailed) and delivery.result.missing:
            self._break(delivery.result)
        self._going_back = True
        self._shorten()

    def _break(self, failure: PublishFailed) -> None:
        """Send no more messages. When the messages in flight have their answers, all others
        fail."""
        if self._broken is None:
            self._broken = failure
            self._on_broken(failure)

    def _fail_all(self, broken: PublishFailed) -> None:
        while self._queue:
            self._queue.popleft().give_up(broken=broken)
        self._position, self._going_back = 0, False
        self._absent_at = None


SendQueue: TypeAlias = Unordered | Sequenced


def _is_wrong_sequence(answer: Outcome) -> bool:
    return isinstance(answer, Refusal) and answer.err_code == WRONG_LAST_SEQUENCE


def _new_offset(settled: Delivery) -> int | None:
    """Return the message's offset if it was stored in order; otherwise None."""
    if settled.result is None or isinstance(settled.result, PublishFailed):
        return None
    ack = settled.result.acks[0]
    if ack.duplicate and settled.last_sequence is None:
        return None  # an earlier copy, possibly an old one
    return ack.offset
