"""Runs work in the background of its caller: in a task, over the connections of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from liftlog.client.aio.routing import Router

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Runs one piece of work in a task."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[Result] | None = None

    def start(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._task = asyncio.get_running_loop().create_task(work(), name=self._name)

    @property
    def started(self) -> bool:
        return self._task is not None

    @property
    def done(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def ending(self) -> bool:
        """True if the work has to end, because `stop` was called. For a task this is always False:
        it is cancelled."""
        return False

    async def pause(self, seconds: float) -> None:
        """For the work itself: wait for `seconds`, or until `stop` is called."""
        await asyncio.sleep(seconds)

    async def result(self) -> Result:
        """Wait for the end of the work. Raises the error that ended it. If this call is cancelled,
        the work continues."""
        assert self._task is not None
        await asyncio.wait([self._task])
        return self._task.result()

    async def stop(self, patience: float | None) -> None:
        """Cancel the work and wait for its end; for a thread, wait at most `patience` seconds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class BackgroundRouter:
    """The connections for work in the background: those of the client, which its tasks share."""

    def __init__(self, session: Router) -> None:
        self._session = session

    async def opened(self) -> Router:
        return self._session

    def close(self) -> None:
        """Does nothing: the client closes its own connections."""
