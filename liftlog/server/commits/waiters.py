"""Who waits for a stream's high watermark to move."""

from __future__ import annotations

import asyncio


class WatermarkWaiters:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def add(self, offset: int) -> asyncio.Future[None]:
        """Done when `wake` is told of a high watermark above `offset`. Cancel to give up."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, future))
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: asyncio.Future[None]) -> None:
        if future.cancelled():
            self._waiting = [entry for entry in self._waiting if entry[1] is not future]

    def wake(self, high_watermark: int, *, all_of_them: bool = False) -> None:
        """Let go whom this concerns."""
        if not self._waiting:
            return
        still = []
        for offset, future in self._waiting:
            if offset < high_watermark or all_of_them:
                if not future.done():
                    future.set_result(None)
            else:
                still.append((offset, future))
        self._waiting = still
