"""Schedules the requests of all kinds and interfaces. Requests take turns at computing in the event
loop.

`Turns.run` carries out one request. The request computes only while it has the turn, and returns
the turn while it waits for a disk, a thread or another node. The turn passes from party to party (a
party is a principal), and within a party from member to member (a member is a connection). In each
turn of the event loop, one request gets the turn. So acks and answers wait for only one request at
a time, even an expensive one. A flood of requests delays only its sender. No kind of request needs
special code for its turns.

A request with a long answer pauses with `asyncio.sleep(0)`. Other parties then have their turn, but
other requests of the same party wait until the answer is complete. Otherwise a thousand answers
could grow in memory at the same time.

A request can need a dozen turns of the loop, for example to read its head, to identify its
principal, to answer and to close. If another party computed for a long time in each of these turns,
the request would wait a dozen times. Therefore a party rests after a long step, for twice the
duration of the step.

A scan in a thread and the event loop compete for Python's interpreter lock, and the loop would get
most of it. Therefore, while a scan runs, a party also rests after many short steps, for twice their
duration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Hashable
from time import thread_time
from typing import Any, TypeVar

from liftlog.server.reading.fairness import FairQueue

_TURN_SECONDS = 0.001
"""Further requests begin in the same turn of the loop until requests have used this time (in
seconds)."""

_LONG_SECONDS = 0.003
"""A party rests after a step that has used more than this processor time (in seconds). While a scan
runs, it also rests when its short steps together have used more than this time. A request with a
long answer pauses sooner, so its party does not rest after one step."""
_REST = 2.0
"""Length of a rest, as a multiple of the length of the previous steps."""

_ENDED = object()
"""Stands for the end of a coroutine that awaits nothing more."""

Result = TypeVar("Result")


class Asker:
    """The sender of a request. `party` may be set later, while the request is carried out: the
    request then pauses with `asyncio.sleep(0)`, and continues when it is that party's turn."""

    __slots__ = ("member", "party")

    def __init__(self, party: Hashable, member: Hashable = None) -> None:
        self.party, self.member = party, member


class Turns:
    """Gives the turn to one request at a time. Belongs to one event loop."""

    def __init__(
        self, turn_seconds: float = _TURN_SECONDS, scan_runs: Callable[[], bool] = lambda: False
    ) -> None:
        """`scan_runs` returns True while a thread scans records for a client."""
        self.given = 0
        """Number of turns that requests have requested so far."""
        self._scan_runs = scan_runs
        self._short_steps: dict[Hashable, float] = {}
        """Processor time, in seconds, of the short steps of each party since its last rest, while
        scans ran."""
        self._turn_seconds = turn_seconds
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_taken = False
        self._spent = 0.0  # seconds used in the loop's last known turn
        self._is_scheduled = False
        self._resting: dict[Hashable, float] = {}
        """The time at which the rest of each party ends, by the clock of the event loop."""
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, asker: Asker, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in turns, and return its result or raise its error. `work` runs in the
        caller's task. If that task is cancelled, `work` is cancelled at once, without waiting for
        the turn."""
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
            party, began = asker.party, thread_time()
            try:
                awaited = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self._count(asker.party, thread_time() - began)
                # Queued before the turn is returned, so that no other request of the same party
                # gets the turn.
                is_first = asker.party == party
                following = self._queue(asker, first=is_first) if awaited is None else None
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

    def at_once(self, party: Hashable, work: Callable[[], None]) -> bool:
        """Run `work`, which is short, if this party can have the turn now. Otherwise return False
        without running `work`."""
        if not self._is_free(party):
            return False
        self.given += 1
        began = thread_time()
        try:
            work()
        finally:
            self._count(party, thread_time() - began)
        return True

    def _is_free(self, party: Hashable) -> bool:
        is_free = not self._is_taken and not self._waiting and party not in self._resting
        return is_free and self._spent < self._turn_seconds

    def _queue(self, asker: Asker, *, first: bool = False) -> asyncio.Future[None]:
        """Return a future that completes when it is the request's turn."""
        self.given += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_free(asker.party):
            self._is_taken = True
            turn.set_result(None)
        elif first:
            self._waiting.put_first(asker.party, turn)
        else:
            self._waiting.put(asker.party, asker.member, turn)
            self._schedule()
        return turn

    def _leave(self, turn: asyncio.Future[None]) -> None:
        """Return the turn, or stop waiting for it."""
        if turn.done() and not turn.cancelled():
            self._give_back()
        else:
            turn.cancel()

    def _give_back(self) -> None:
        self._is_taken = False
        self._hand_on()

    def _hand_on(self) -> None:
        """Give the turn to the next request. The task of that request runs in the next turn of the
        loop."""
        self._end_rests()
        while not self._is_taken and (turn := self._waiting.take(self._resting)) is not None:
            if not turn.done():
                self._is_taken = True
                turn.set_result(None)

    def _end_rests(self) -> None:
        """Wake the parties whose rest is over, and set the timer for the end of the next rest."""
        if not self._resting:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._resting = {one: until for one, until in self._resting.items() if until > now}
        if self._resting and self._timer is None:
            self._timer = loop.call_at(min(self._resting.values()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._hand_on()

    def _count(self, party: Hashable, seconds: float) -> None:
        self._spent += seconds
        rest = self._rest_after(party, seconds)
        if rest:
            self._resting[party] = asyncio.get_running_loop().time() + rest
        # Only after a quarter of the time, because a scheduled call makes the loop poll its sockets
        # once more.
        if self._spent > self._turn_seconds / 4:
            self._schedule()

    def _rest_after(self, party: Hashable, seconds: float) -> float:
        """Return the length, in seconds, of the rest after a step of `seconds`; 0 for no rest."""
        if seconds > _LONG_SECONDS:
            return _REST * seconds
        if not self._scan_runs():
            self._short_steps.clear()
            return 0.0
        total = self._short_steps.get(party, 0.0) + seconds
        if total <= _LONG_SECONDS:
            self._short_steps[party] = total
            return 0.0
        self._short_steps.pop(party, None)
        return _REST * total

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._spent = 0.0
        self._hand_on()


class _Passed:
    """Passes on the object that a coroutine awaits. Used to run a coroutine step by step."""

    def __init__(self, awaited: object) -> None:
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._awaited
