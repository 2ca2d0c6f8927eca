"""Housekeeping of many streams: a few at once, and one that stalls holds up no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from liftlog.errors import LiftlogError
from liftlog.server.commits.host import StreamHost

logger = logging.getLogger("liftlog.server")


class SideBySide:
    """Does one kind of work for streams, at most once at a time for each of them.

    At most `at_once` streams have a place; one that takes longer than `patience_seconds` loses it
    to the next, goes on by itself, and is left out of later rounds until it is done.
    """

    def __init__(self, what: str, *, at_once: int = 2, patience_seconds: float = 1.0) -> None:
        self._what = what
        self._at_once = at_once
        self._patience_seconds = patience_seconds
        self._running: dict[StreamHost, asyncio.Task[None]] = {}

    @property
    def stalled(self) -> int:
        """How many streams have such work under way, between rounds."""
        return len(self._running)

    async def run(
        self,
        hosts: Iterable[StreamHost],
        work: Callable[[StreamHost], Coroutine[Any, Any, None]],
    ) -> None:
        """Returns when `work` has ended or stalled for every stream. Errors are logged."""
        places = asyncio.Semaphore(self._at_once)

        async def take_turn(host: StreamHost) -> None:
            async with places:
                task = asyncio.get_running_loop().create_task(self._supervise(host, work))
                self._running[host] = task
                done, _ = await asyncio.wait({task}, timeout=self._patience_seconds)
                if not done:
                    logger.warning("%s-stalled stream=%s", self._what, host.name)

        free = [host for host in hosts if host not in self._running]
        await asyncio.gather(*map(take_turn, free))

    async def _supervise(
        self, host: StreamHost, work: Callable[[StreamHost], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await work(host)
        except LiftlogError as error:
            logger.warning("%s-failed stream=%s error=%s", self._what, host.name, error)
        except Exception:  # a supervisor: housekeeping must not end the daemon
            logger.exception("%s-failed stream=%s", self._what, host.name)
        finally:
            del self._running[host]

    async def close(self) -> None:
        """Give up what is under way. Log calls that a thread has begun run to their end."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
