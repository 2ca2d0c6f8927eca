"""The turns in which requests of every kind and from every interface are carried out.

`Turns.run` carries out one request. The request computes only while it has the turn, and gives it
back while it waits for a disk, a thread or another node. The turn rotates among the parties
(principals) and among the members of each (its connections), and is given once in each turn of the
event loop. So whatever the cost of one request, acks and answers wait for one at a time, and a
flood of requests delays its sender. All kinds of requests are covered, since none has to declare
anything.

A long answer pauses with `asyncio.sleep(0)`: others then have their turn, but those of the same
party only when it is complete. Otherwise a thousand answers would grow in memory at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Hashable
from time import thread_time
from typing import Any, TypeVar

from liftlog.server.reading.fairness import FairQueue

_TURN_SECONDS = 0.001
"""Requests that find the turn free begin at once, until they have used this much of a turn of the
loop."""

_ENDED = object()
"""Marks the end of a coroutine, which awaits nothing more."""

Result = TypeVar("Result")


class Asker:
    """The sender of a request. `party` can become known while the request is carried out."""

    __slots__ = ("member", "party")

    def __init__(self, party: Hashable, member: Hashable = None) -> None:
        self.party, self.member = party, member


class Turns:
    """Belongs to one event loop."""

    def __init__(self, turn_seconds: float = _TURN_SECONDS) -> None:
        self.given = 0
        """Number of turns that requests have got or wait for."""
        self._turn_seconds = turn_seconds
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_taken = False
        self._spent = 0.0  # seconds, since the beginning of the last known turn of the loop
        self._is_scheduled = False

    async def run(self, asker: Asker, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `work`, or raise its error. It runs in the caller's task: if that is
        cancelled, so is `work`, without waiting for the turn."""
        turn: asyncio.Future[None] | None = self._queue(asker)
        error: BaseException | None = None
        while True:
            if turn is not None and error is None:
                try:
                    await turn
                except BaseException as cancelled:  # noqa: BLE001 - `work` gets it
                    error = cancelled
            if turn is not None and error is not None:
                self._leave(turn)
                turn = None
            awaited: object = _ENDED
            began = thread_time()
            try:
                awaited = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self._count(thread_time() - began)
                # Queued before the turn is given back, so that no other request of its party gets
                # it.
                following = self._queue(asker, first=True) if awaited is None else None
                if turn is not None:
                    self._give_back()
                turn = following
            error = None
            try:
                await _Passed(awaited)
            except BaseException as cancelled:  # noqa: BLE001 - `work` gets it
                error = cancelled
            if turn is None and error is None:
                turn = self._queue(asker)

    def _queue(self, asker: Asker, *, first: bool = False) -> asyncio.Future[None]:
        """Return a future that completes when it is the request's turn."""
        self.given += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._is_taken and not self._waiting and self._spent < self._turn_seconds:
            self._is_taken = True
            turn.set_result(None)
        elif first:
            self._waiting.put_first(asker.party, turn)
        else:
            self._waiting.put(asker.party, asker.member, turn)
            self._schedule()
        return turn

    def _leave(self, turn: asyncio.Future[None]) -> None:
        """The turn is not needed any more."""
        if turn.done() and not turn.cancelled():
            self._give_back()
        else:
            turn.cancel()

    def _give_back(self) -> None:
        self._is_taken = False
        self._hand_on()

    def _hand_on(self) -> None:
        """The task runs in the next turn of the loop."""
        while not self._is_taken and (turn := self._waiting.take()) is not None:
            if not turn.done():
                self._is_taken = True
                turn.set_result(None)

    def _count(self, seconds: float) -> None:
        self._spent += seconds
        # Not every time: each scheduled call makes the loop poll its sockets once more.
        if self._spent > self._turn_seconds / 4:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._spent = 0.0
        self._hand_on()


class _Passed:
    """Passes on the awaits of a coroutine that runs step by step."""

    def __init__(self, awaited: object) -> None:
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._awaited
