"""Long work in the event loop, done in slices."""

from __future__ import annotations

import asyncio
from time import thread_time

_SLICE_SECONDS = 0.002


class Slices:
    """Divides long work into slices: make one when the work begins, and await `pause` between small
    pieces.

    Counts the time in which the thread runs: on a busy machine a slice would otherwise be a single
    piece.
    """

    def __init__(self) -> None:
        self._began = thread_time()

    async def pause(self) -> None:
        """Let the event loop do other work if this work has held it for two milliseconds."""
        if thread_time() - self._began > _SLICE_SECONDS:
            await asyncio.sleep(0)
            self._began = thread_time()
