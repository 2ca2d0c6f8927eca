"""Wakes consumers when NATS reports that a subject has subscribers, or that it has lost them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from liftlog.server.jetstream_api.consumers.leaf import InterestChange

_PAUSE_SECONDS = 0.02
_PART_SECONDS = 0.01
_MOST_EXAMINED, _MOST_WOKEN = 500, 20
"""Maximum numbers of examined and of woken consumers in one part of a look (see `InterestWatch`).
Examining a consumer takes 1 us, and the turn of a woken consumer takes 0.1 ms."""
_MAX_EXPECTED = 4096
_MAX_HEADS = 256

_Heads = tuple[bytes, ...]
"""Beginnings of subjects. A change concerns only consumers whose subjects have one of these
beginnings."""
_ALL: _Heads = (b"",)


class Waiting(Protocol):
    """A consumer that may wait for a subscriber of a subject."""

    is_closed: bool

    def subjects(self) -> Collection[bytes]:
        """Return the NATS subjects to which the consumer may deliver now."""
        ...

    def wake(self) -> None:
        """Take a turn, because a subject has a subscriber now."""
        ...

    def subscriber_lost(self) -> None:
        """Take a turn, because a subject may no longer have a subscriber."""
        ...


class InterestWatch:
    """Wakes consumers when the subscribers of subjects change. It belongs to the event loop.

    A consumer that waits for a subscriber of a subject (`has_now`) is woken as soon as NATS reports
    the subscriber. A consumer whose subject has lost its subscriber is woken by the next look at
    all consumers. A look is done in parts, and takes 0.2 s with 10,000 consumers. A connection to
    NATS that is opened or lost wakes all consumers, 20 at a time.
    """

    def __init__(
        self,
        consumers: Callable[[], Iterable[Waiting]],
        has_interest: Callable[[bytes], bool],
        now_ns: Callable[[], int],
    ) -> None:
        """`consumers` returns all consumers that deliver to a subject or have pulls."""
        self.connection_ns = 0
        """Time, by the clock `now_ns`, at which a connection to NATS was last made or lost; 0 if
        there was none."""
        self._now_ns = now_ns
        self._consumers = consumers
        self._has_interest = has_interest
        self._expected: dict[bytes, dict[Waiting, None]] = {}
        """Consumers that wait for a subscriber, by subject."""
        self._expected_count = 0
        self._lost: set[bytes] = set()
        """Heads (`_head`) of the subjects that have lost subscribers since the last look began."""
        self._has_all_changed = False
        self._to_examine: deque[Waiting] = deque()
        self._heads = _ALL
        self._wakes_all = False
        self._timer: asyncio.TimerHandle | None = None

    def has_now(self, subject: bytes, consumer: Waiting) -> bool:
        """Return True if the subject has a subscriber. Otherwise wake the consumer when the subject
        gets one."""
        if self._has_interest(subject):
            return True
        if self._expected_count < _MAX_EXPECTED:
            waiting = self._expected.setdefault(subject, {})
            self._expected_count += consumer not in waiting
            waiting[consumer] = None
        return False

    def changed(self, change: InterestChange) -> None:
        """Note that the subscribers of some subjects have changed."""
        if change.added:
            self._wake_expected(_heads(set(map(_head, change.added))))
        if change.is_connection:
            self._has_all_changed, self.connection_ns = True, self._now_ns()
        self._lost.update(map(_head, change.removed))
        if self._has_all_changed or self._lost:
            self._set_timer(_PAUSE_SECONDS)

    def _wake_expected(self, heads: _Heads) -> None:
        is_incomplete = self._expected_count >= _MAX_EXPECTED
        near = [one for one in self._expected if one.startswith(heads)]
        for subject in filter(self._has_interest, near):
            waiting = self._expected.pop(subject)
            self._expected_count -= len(waiting)
            for consumer in waiting:
                consumer.wake()
        # Other consumers may also wait for this subject, but most of their clients are gone.
        if is_incomplete:
            self._expected.clear()
            self._expected_count = 0
            self._has_all_changed = True

    def forget_closed(self) -> None:
        """Drop the consumers that have ended, so that their memory is freed."""
        for subject, waiting in [*self._expected.items()]:
            for consumer in [one for one in waiting if one.is_closed]:
                del waiting[consumer]
                self._expected_count -= 1
            if not waiting:
                del self._expected[subject]

    def _set_timer(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Examine some consumers."""
        self._timer = None
        some = self._to_examine
        if not some:
            self._wakes_all, self._has_all_changed = self._has_all_changed, False
            self._heads = _ALL if self._wakes_all else _heads(self._lost)
            self._lost = set()
            some.extend(self._consumers())
        woken = 0
        for _ in range(min(_MOST_EXAMINED, len(some))):
            consumer = some.popleft()
            if self._is_affected(consumer):
                consumer.subscriber_lost()
                woken += 1
                if woken == _MOST_WOKEN:
                    break
        if some or self._lost or self._has_all_changed:
            self._set_timer(_PART_SECONDS)

    def _is_affected(self, consumer: Waiting) -> bool:
        if self._wakes_all:
            return True
        return any(
            subject.startswith(self._heads) and not self._has_interest(subject)
            for subject in consumer.subjects()
        )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._expected.clear()
        self._to_examine.clear()


def _head(pattern: bytes) -> bytes:
    """Return the head: a beginning that all subjects which match the pattern share."""
    return pattern.partition(b"*")[0].partition(b">")[0]


def _heads(some: Collection[bytes]) -> _Heads:
    return tuple(some) if len(some) <= _MAX_HEADS else _ALL
