"""Work that needs a lock and a round trip. It is done once for all callers that wait for the
lock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


class Coalescing(Generic[_T, _R]):
    """Joins waiting callers into one call of `work`. Belongs to one event loop.

    `work` is called with the lock held, one call at a time. All items of a call get the same result
    or error.
    """

    def __init__(self, lock: asyncio.Lock, work: Callable[[list[_T]], Awaitable[_R]]) -> None:
        self._lock = lock
        self._work = work
        self._items: list[_T] = []
        self._turns: list[asyncio.Task[_R]] = []
        """Tasks that wait for the lock or call `work`. The last task takes the items in `_items`,
        if there are any."""

    @property
    def waiting(self) -> Sequence[_T]:
        """The items for the next call of `work`."""
        return self._items

    async def do(self, item: _T) -> _R:
        """Run `work` for `item`, together with the items that other callers add before `work`
        starts.

        `work` runs even if this caller is cancelled, because the other callers share the call.
        """
        self._items.append(item)
        if len(self._items) == 1:
            turn = asyncio.create_task(self._take_turn())
            turn.add_done_callback(self._over)
            self._turns.append(turn)
        return await asyncio.shield(self._turns[-1])

    async def _take_turn(self) -> _R:
        async with self._lock:
            items, self._items = self._items, []
            return await self._work(items)

    def _over(self, turn: asyncio.Task[_R]) -> None:
        self._turns.remove(turn)
        if not turn.cancelled():
            # All callers may have been cancelled, so that nobody reads the exception.
            turn.exception()

    async def close(self) -> None:
        """Wait until all calls of `work` have ended."""
        await asyncio.gather(*self._turns, return_exceptions=True)
