"""Divides long work in the event loop into slices."""

from __future__ import annotations

import asyncio
from time import thread_time

_SLICE_SECONDS = 0.002


class Slices:
    """Lets other tasks run during long work. Create an object when the work begins, and await
    `pause` between small pieces.

    The slice is measured in CPU time of the thread, and not in elapsed time. On a busy machine,
    elapsed time would end the slice after each piece.
    """

    def __init__(self) -> None:
        self._began = thread_time()

    async def pause(self) -> None:
        """Let the event loop do other work if this work has held it for two milliseconds."""
        if thread_time() - self._began > _SLICE_SECONDS:
            await asyncio.sleep(0)
            self._began = thread_time()
