"""Runs the blocking calls of the journal in writer threads, and reports their outcomes on the event
loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from liftlog.errors import LiftlogError, StorageError
from liftlog.server.commits.writing import CommitJob, WriterPool

logger = logging.getLogger("liftlog.server.journal")

Done = Callable[[LiftlogError | None], None]


class Jobs:
    """The blocking calls of one journal. Belongs to the event loop."""

    def __init__(self, pool: WriterPool) -> None:
        self._pool = pool
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def run(self, call: Callable[[], object], done: Done) -> None:
        """Run `call` in a writer thread. The loop then calls `done` with the error, or with
        None."""
        self._count += 1
        self._idle.clear()
        loop = asyncio.get_running_loop()
        self._pool.submit(CommitJob(call, None, partial(_call_loop, loop, self._ended, done)))

    def _ended(self, done: Done, error: Exception | None) -> None:
        self._count -= 1
        done(None if error is None else typed(error))
        if not self._count:
            self._idle.set()

    async def ended(self) -> None:
        """Wait until no call is running."""
        await self._idle.wait()


def typed(error: Exception) -> LiftlogError:
    """Return the error as a LiftlogError. An error of any other type is a defect, and is logged."""
    if isinstance(error, LiftlogError):
        return error
    logger.error("internal-error error=%r", error)
    return StorageError(f"the journal of consumers has failed: {error!r}")


def _call_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object
) -> None:
    """Call a function on the loop from a writer thread. Does nothing after the loop has ended."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        logger.warning("journal-written-after-the-loop-closed")
