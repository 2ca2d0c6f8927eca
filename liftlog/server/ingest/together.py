"""Work that takes a lock and a round trip, done for all who wait for the lock at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


class _Batch(Generic[_T, _R]):
    def __init__(self) -> None:
        self.items: list[_T] = []
        self.results: list[_R] = []
        self.error: Exception | None = None


class Together(Generic[_T, _R]):
    """Belongs to one event loop. `work` is called with the lock held, one call at a time; what it
    returns or raises is for each of the items."""

    def __init__(self, lock: asyncio.Lock, work: Callable[[list[_T]], Awaitable[_R]]) -> None:
        self._lock = lock
        self._work = work
        self._batch = _Batch[_T, _R]()

    async def do(self, item: _T) -> _R:
        """Have `work` done for `item`, and for what others bring until its turn comes. An item
        whose caller is cancelled before that is left out."""
        batch = self._batch
        batch.items.append(item)
        try:
            await self._lock.acquire()
        except asyncio.CancelledError:
            if batch is self._batch:
                batch.items.remove(item)
            raise
        try:
            if not batch.results and batch.error is None:
                if batch is self._batch:
                    self._batch = _Batch()
                # Cancelled in here, the next one of the batch begins again.
                try:
                    batch.results.append(await self._work(batch.items))
                except Exception as error:
                    batch.error = error
                    raise
        finally:
            self._lock.release()
        if batch.error is not None:
            raise batch.error
        return batch.results[0]
