"""An event loop in a thread of its own, with a server, for tests that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

Served = TypeVar("Served")
Result = TypeVar("Result")

_WAIT_SECONDS = 30


class LoopThread(Generic[Served]):
    """Use in `with`. The context manager `serving` is entered and left in the thread; `served` is
    its value."""

    served: Served

    def __init__(
        self, name: str, serving: Callable[[], AbstractAsyncContextManager[Served]]
    ) -> None:
        self._serving = serving
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready: Future[Served] = Future()
        self._thread = threading.Thread(target=self._run, name=name)

    def do(self, what: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run a coroutine on the loop, and wait for its result."""

        async def done() -> Result:
            return await what()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(_WAIT_SECONDS)

    def call(self, what: Callable[[], Result]) -> Result:
        """Run a function on the loop that does not wait."""

        async def called() -> Result:
            return what()

        return self.do(called)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.served = self._ready.result(_WAIT_SECONDS)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_WAIT_SECONDS)
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        try:
            async with self._serving() as served:
                self._ready.set_result(served)
                await self._stop.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)  # `__enter__` raises it
