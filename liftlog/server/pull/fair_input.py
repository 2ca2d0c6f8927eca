"""Requests of clients are read and handled for a bounded time in each turn of the event loop.

Reading from one connection costs little, but a thousand connections can be readable at once, and
within one turn of the loop no message is stored and no ack leaves. Connections for which a turn has
no time left are read in the next turns: principals take turns, and so do the connections of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from time import perf_counter

_TURN_SECONDS = 0.005


class FairInput:
    """Belongs to the event loop. Costs two readings of the clock while there is little to do."""

    def __init__(self, turn_seconds: float = _TURN_SECONDS) -> None:
        self._turn_seconds = turn_seconds
        self._spent = 0.0  # seconds, since the last turn that is known to have begun
        self._is_scheduled = False
        # In the order of their turns; no party is here without work.
        self._waiting: dict[Hashable, dict[Callable[[], None], None]] = {}

    def run(self, party: Hashable, work: Callable[[], None]) -> None:
        """Run `work` now, or once in a later turn of the loop, however often this is called until
        then."""
        if self._waiting or self._spent >= self._turn_seconds:
            self._waiting.setdefault(party, {})[work] = None
        else:
            self._run(work)

    def _run(self, work: Callable[[], None]) -> None:
        began = perf_counter()
        try:
            work()
        finally:
            self._spent += perf_counter() - began
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
        try:
            while self._waiting and self._spent < self._turn_seconds:
                self._run(self._take())
        finally:
            if self._waiting:
                self._schedule()

    def _take(self) -> Callable[[], None]:
        party, works = next(iter(self._waiting.items()))
        work = next(iter(works))
        del works[work], self._waiting[party]
        if works:  # to the end of the line
            self._waiting[party] = works
        return work
