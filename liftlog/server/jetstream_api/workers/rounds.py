"""Schedules the turns of consumers with acks. A consumer that has work is made `ready`. The ready
consumers get their turns in the next turn of the event loop, in the order in which they became
ready. `run` gives them their turns at once, for at most 2 ms. An idle consumer has no task, and at
most one entry among the timers.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger("liftlog.server.jetstream_api")

_TURN_SECONDS = 0.002
LATER_SECONDS = 0.005
"""Maximum time, in seconds, until a consumer gets a turn that is not urgent."""
_FEW_TIMERS = 64


class Clock:
    """A clock in ns since 1970 that never jumps: the wall clock at the start of the process, plus
    the monotonic time since then."""

    def __init__(self) -> None:
        self._base_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return self._base_ns + time.monotonic_ns()


class Member(Protocol):
    """One consumer. `is_ready` and `timer_ns` belong to `Rounds`."""

    is_ready: bool
    timer_ns: int | None

    def step(self, now_ns: int) -> None:
        """Do the work that needs no waiting."""
        ...

    def due_ns(self) -> int | None:
        """Return the time at which the next step is needed even without an event; None if no step
        is needed."""
        ...

    def fail(self, error: Exception) -> None:
        """Handle `error`, which a step has raised because of a defect."""
        ...


class Rounds:
    """The ready consumers and the timers of all consumers. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self.on_end: Callable[[], None] = lambda: None
        """A callback that runs after consumers have had turns."""
        self._clock = clock
        self._ready: deque[Member] = deque()
        self._later: dict[Member, None] = {}
        """Consumers whose turns are not urgent."""
        self._later_alarm: asyncio.TimerHandle | None = None
        self._timers: list[tuple[int, int, Member]] = []
        self._most_timers = _FEW_TIMERS
        self._numbers = itertools.count()
        self._alarm: asyncio.TimerHandle | None = None
        self._is_running = False
        self._is_scheduled = False

    def start(self) -> None:
        self._is_running = True
        self._schedule()

    def close(self) -> None:
        self._is_running = False
        for alarm in (self._alarm, self._later_alarm):
            if alarm is not None:
                alarm.cancel()

    def ready(self, member: Member) -> None:
        """Give the consumer a turn soon."""
        if not member.is_ready:
            member.is_ready = True
            self._ready.append(member)
            self._schedule()

    def ready_later(self, member: Member) -> None:
        """Give the consumer a turn within some milliseconds. If `ready` is called in the meantime,
        one turn does the work of all calls."""
        self._later[member] = None
        if self._later_alarm is None:
            loop = asyncio.get_running_loop()
            self._later_alarm = loop.call_later(LATER_SECONDS, self._ring_later)

    def _ring_later(self) -> None:
        self._later_alarm = None
        later, self._later = self._later, {}
        for member in later:
            self.ready(member)

    def run(self) -> None:
        """Give the ready consumers their turns now."""
        if not self._is_running or not self._ready:
            return
        ends = time.perf_counter() + _TURN_SECONDS
        while self._ready:
            self._give_turn(self._ready.popleft())
            if time.perf_counter() >= ends:
                break
        try:
            self.on_end()
        except Exception as error:  # a supervisor: the reader of the connection continues
            logger.exception("consumers-round-failed error=%r", error)
        self._schedule()

    def _schedule(self) -> None:
        if self._ready and self._is_running and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self.run()

    def _give_turn(self, member: Member) -> None:
        member.is_ready = False
        self._later.pop(member, None)
        try:
            member.step(self._clock.now_ns())
            due = member.due_ns()
        except Exception as error:  # noqa: BLE001  # a supervisor: the other consumers go on
            member.fail(error)
            return
        if due is not None and (member.timer_ns is None or due < member.timer_ns):
            member.timer_ns = due
            heapq.heappush(self._timers, (due, next(self._numbers), member))
            if len(self._timers) > self._most_timers:
                self._drop_stale()
            self._set_alarm()

    def _drop_stale(self) -> None:
        """Drop the timers that newer timers have replaced, and the timers of consumers that have
        ended. Otherwise each replaced timer would stay in memory until its time, which may be far
        in the future."""
        kept: dict[int, tuple[int, int, Member]] = {}
        for timer in self._timers:
            due, _, member = timer
            if member.timer_ns == due:
                kept[id(member)] = timer
        self._timers = sorted(kept.values())
        self._most_timers = max(2 * len(self._timers), _FEW_TIMERS)

    @property
    def timer_count(self) -> int:
        """Number of timers in memory."""
        return len(self._timers)

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._timers:
            seconds = max(self._timers[0][0] - self._clock.now_ns(), 0) / 1e9
            # A timer that fires some milliseconds early would cause a turn without work.
            self._alarm = asyncio.get_running_loop().call_later(seconds + 0.001, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self._clock.now_ns()
        while self._timers and self._timers[0][0] <= now:
            due, _, member = heapq.heappop(self._timers)
            if member.timer_ns == due:  # otherwise the heap has a newer entry
                member.timer_ns = None
                self.ready(member)
        self._set_alarm()
