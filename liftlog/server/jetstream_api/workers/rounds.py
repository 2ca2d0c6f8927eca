"""Schedules the turns of consumers with acks. A consumer that has work is made `ready`. One task
gives the ready consumers their turns, in the order in which they became ready, and pauses when it
has used its time in a turn of the event loop. An idle consumer costs nothing: no task, and at most
one entry among the timers.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import deque
from typing import Protocol

logger = logging.getLogger("liftlog.server.jetstream_api")

_TURN_SECONDS = 0.002


class Clock:
    """Time in ns since 1970 that never steps: the wall clock at the start of the process, plus what
    the monotonic clock has counted since."""

    def __init__(self) -> None:
        self._base_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return self._base_ns + time.monotonic_ns()


class Member(Protocol):
    """One consumer. `is_ready` and `timer_ns` belong to `Rounds`."""

    is_ready: bool
    timer_ns: int | None

    def step(self, now_ns: int) -> None:
        """Do what can be done without waiting."""
        ...

    def due_ns(self) -> int | None:
        """Return the time of the next step that is needed even without an event; None: never."""
        ...

    def fail(self, error: Exception) -> None:
        """Handle an `error` that a step has raised, which is a defect."""
        ...


class Rounds:
    """Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[Member] = deque()
        self._is_work = asyncio.Event()
        self._timers: list[tuple[int, int, Member]] = []
        self._numbers = itertools.count()
        self._alarm: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="consumer-rounds")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._alarm is not None:
            self._alarm.cancel()

    def ready(self, member: Member) -> None:
        """Give the consumer a turn soon."""
        if not member.is_ready:
            member.is_ready = True
            self._ready.append(member)
            self._is_work.set()

    async def _run(self) -> None:
        while True:
            await self._is_work.wait()
            ends = time.perf_counter() + _TURN_SECONDS
            while self._ready and time.perf_counter() < ends:
                self._give_turn(self._ready.popleft())
            if not self._ready:
                self._is_work.clear()
            await asyncio.sleep(0)

    def _give_turn(self, member: Member) -> None:
        member.is_ready = False
        try:
            member.step(self._clock.now_ns())
            due = member.due_ns()
        except Exception as error:  # noqa: BLE001  # a supervisor: the other consumers go on
            member.fail(error)
            return
        if due is not None and (member.timer_ns is None or due < member.timer_ns):
            member.timer_ns = due
            heapq.heappush(self._timers, (due, next(self._numbers), member))
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._timers:
            seconds = max(self._timers[0][0] - self._clock.now_ns(), 0) / 1e9
            # Some milliseconds early would mean a turn without work.
            self._alarm = asyncio.get_running_loop().call_later(seconds + 0.001, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self._clock.now_ns()
        while self._timers and self._timers[0][0] <= now:
            due, _, member = heapq.heappop(self._timers)
            if member.timer_ns == due:  # else there is a newer entry
                member.timer_ns = None
                self.ready(member)
        self._set_alarm()
