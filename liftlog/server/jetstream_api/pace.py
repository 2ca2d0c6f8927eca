"""Limits the share of the event loop that requests and their answers use.

A stored message needs two or three turns of the event loop before its ack is sent. In each turn,
all answers together get a limited time. While messages arrive, a pause follows that is as long as
the answers have run. Time in which no answer ran shortens the pause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import Any, TypeVar

TURN_SECONDS = 0.001
FLOOD_PAUSE_SECONDS = 0.02
"""Pause, in seconds, between two reads during a flood. One read brings at most 256 KB of requests,
which take some milliseconds to handle."""

Result = TypeVar("Result")


class Pace:
    """Limits the time of all answers in each turn of the loop. Belongs to the event loop."""

    def __init__(
        self, ingested_bytes: Callable[[], int], clock: Callable[[], float] | None = None
    ) -> None:
        """`ingested_bytes` returns the total size of the messages that have arrived for streams.
        Pass the processor's clock as `clock` to exclude the time in which the thread waits for a
        processor."""
        self._ingested_bytes = ingested_bytes
        self._clock = perf_counter if clock is None else clock
        self._seen_bytes = ingested_bytes()
        self._spent = 0.0
        """Time, in seconds, that answers have used, less the time since then in which they did not
        run."""
        self._counted_at = perf_counter()
        self._has_begun = False
        """True if answers have already used time in this turn of the loop."""
        self._is_open = True
        self._is_handing_on = False
        """True from the moment at which a caller is woken until the end of its step."""
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def has_time(self) -> bool:
        """Return True if the caller that has the turn may begin more work."""
        return self._is_open

    @property
    def is_free(self) -> bool:
        """True if `turn` would return at once."""
        return self._is_open and not self._queue and not self._is_handing_on

    async def turn(self) -> None:
        """Wait until there is time to begin work. Callers get their turns in the order of their
        calls. Without this order, a caller that has just ended a piece of work could always be the
        first again."""
        if self.is_free:
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(mine)
        await mine

    def _reopen(self) -> None:
        self._is_open = True
        self._hand_on()

    def _hand_on(self) -> None:
        """Wake the next caller. After its step, wake the caller behind it, as long as there is
        time."""
        self._is_handing_on = False
        while self._is_open and self._queue and not self._is_handing_on:
            following = self._queue.popleft()
            if not following.done():  # the caller was not cancelled
                following.set_result(None)
                self._is_handing_on = True
                asyncio.get_running_loop().call_soon(self._hand_on)

    def _end_turn(self) -> None:
        self._has_begun = False

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work`, and count the time that it uses in the event loop. Its waits do not count."""
        result: Result = await _Timed(work, self._clock, self._count)
        return result

    def run_now(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Call `work`, and count the time that it uses."""
        began = self._clock()
        try:
            return work(*arguments)
        finally:
            self._count(self._clock() - began)

    def _count(self, seconds: float) -> None:
        now = perf_counter()
        # The time between two calls in the same turn is not left to other work: the thread only
        # waits for the interpreter lock or for a processor.
        left = 0.0 if self._has_begun else now - seconds - self._counted_at
        self._counted_at = now
        self._spent = max(self._spent - left, 0.0) + seconds
        if not self._has_begun:
            self._has_begun = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        if self._spent < TURN_SECONDS or not self._is_open:
            return
        seen, self._seen_bytes = self._seen_bytes, self._ingested_bytes()
        # Time used beyond the limit is subtracted from later turns.
        pause = self._spent if self._seen_bytes != seen else 0.0
        self._spent = 0.0
        self._is_open = False
        asyncio.get_running_loop().call_later(pause, self._reopen)


class ReadingPause:
    """Delays the next read after a read that brought more requests than the queue can hold.

    During the delay the data stays in NATS. Acks are not delayed, because they have a separate
    connection. Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._is_flooded = False
        self._over = asyncio.Event()
        self._over.set()

    def flooded(self) -> None:
        self._is_flooded = True

    def chunk_ended(self) -> None:
        if self._is_flooded and self._over.is_set():
            self._over.clear()
            asyncio.get_running_loop().call_later(FLOOD_PAUSE_SECONDS, self._over.set)
        self._is_flooded = False

    def is_held(self) -> bool:
        return not self._over.is_set()

    async def wait(self) -> None:
        await self._over.wait()


class _Timed(Generator[Any, Any, Any]):
    """Awaits a coroutine, and reports the duration of each of its steps."""

    def __init__(
        self,
        work: Coroutine[Any, Any, Any],
        clock: Callable[[], float],
        count: Callable[[float], None],
    ) -> None:
        self._work = work
        self._clock = clock
        self._count = count

    def __await__(self) -> _Timed:
        return self

    def send(self, value: Any) -> Any:
        began = self._clock()
        try:
            return self._work.send(value)
        finally:
            self._count(self._clock() - began)

    def throw(self, *error: Any) -> Any:
        began = self._clock()
        try:
            return self._work.throw(*error)
        finally:
            self._count(self._clock() - began)

    def close(self) -> None:
        self._work.close()
