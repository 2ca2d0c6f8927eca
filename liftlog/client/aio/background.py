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
        """True after `stop` was called: the work then has to end. The value is always False for a
        task, because `stop` cancels the task."""
        return False

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until `stop` is called. Only the work itself calls this."""
        await asyncio.sleep(seconds)

    async def result(self) -> Result:
        """Wait until the work ends, and return its result. If the work ended with an error, raises
        this error. If this call is cancelled, the work continues."""
        assert self._task is not None
        await asyncio.wait([self._task])
        return self._task.result()

    async def stop(self, patience: float | None) -> None:
        """Cancel the work and wait until it has ended. `patience` is only for threads."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class BackgroundRouter:
    """Provides connections for work in the background: the client's own connections, which all
    tasks of the client share."""

    def __init__(self, session: Router) -> None:
        self._session = session

    async def opened(self) -> Router:
        return self._session

    def close(self) -> None:
        """This method does nothing, because the client closes its own connections."""
