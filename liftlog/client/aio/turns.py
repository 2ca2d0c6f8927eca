"""Coordinates calls that need a new connection: one call opens it, and the other calls wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Lets one task at a time into a block. If that task is cancelled, the next one enters."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._timeouts: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def turn(self, deadline: float | None) -> AsyncIterator[None]:
        """Wait until no other task is in the block, then enter it. Raises TimeoutError at the
        deadline (by time.monotonic) and when `end` is called, both while waiting and inside the
        block."""
        async with asyncio.timeout_at(deadline) as timeout:
            self._timeouts.add(timeout)
            try:
                async with self._lock:
                    yield
            finally:
                self._timeouts.discard(timeout)

    def end(self) -> None:
        """End the current turn, and the waits for the next ones."""
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
