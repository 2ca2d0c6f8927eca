"""Log calls that must not meet a commit of the same stream: who waits, and whose turn it is.

They and the messages take turns: however much of one is asked for, the other gets on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class Maintenance(NamedTuple):
    """One call; see `StreamHost.run_exclusive`."""

    call: Callable[[], object]
    then: Callable[[], None] | None
    future: asyncio.Future[object]

    def settle(self, outcome: list[object], error: Exception | None) -> None:
        """Tell whoever asked for it, if he still waits."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(outcome[0])


class MaintenanceTurns:
    """Of one stream, in the order in which they were asked for. Belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Maintenance] = deque()
        self._had_last_turn = False

    def add(self, work: Maintenance) -> None:
        self._waiting.append(work)

    def take(self) -> Maintenance | None:
        """What is to run now."""
        return self._waiting.popleft() if self._waiting else None

    def ran(self) -> None:
        """One has ended: messages that wait come before the next."""
        self._had_last_turn = True

    def comes_first(self, *, messages_wait: bool) -> bool:
        """Whether what waits comes before the messages; asked, these have had their turn else."""
        if self._waiting and not (self._had_last_turn and messages_wait):
            return True
        self._had_last_turn = False
        return False

    def refuse(self, error: Exception) -> None:
        """Nothing runs any more."""
        while self._waiting:
            self._waiting.popleft().settle([], error)
