"""Streams behind a real pull server that runs in a thread, for clients that block or live in other
processes. No NATS: tests append to the logs themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.pull_broker import LogBroker, LoggedStream, pull_server

from liftlog.log import LogConfig
from liftlog.server.pull.seams import Policy


class ServedLogs:
    """Use in `with`; `address` is where clients connect."""

    def __init__(
        self, directory: Path, *, segment_max_bytes: int = 1 << 20, policy: Policy | None = None
    ) -> None:
        self.directory = directory
        self.broker = LogBroker(directory)
        # Tests stamp records as they like, so age says nothing.
        self.broker.config = LogConfig(segment_max_bytes=segment_max_bytes, segment_max_age_ns=None)
        self.address = ""
        self._policy = policy
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, name="served-logs")

    @property
    def server(self) -> str:
        """host:port"""
        return self.address.removeprefix("tcp://")

    def add(self, name: str, **settings: object) -> LoggedStream:
        return self.call(lambda: self.broker.add(name, **settings))

    def delete(self, name: str) -> None:
        asyncio.run_coroutine_threadsafe(self.broker.delete_stream(name), self._loop).result(10)

    def append(self, name: str, values: list[bytes | None], **fields: Any) -> None:
        self.call(lambda: self.broker.stream(name).append(values, **fields))

    def call(self, function: Callable[[], Any]) -> Any:
        """Run it where the server runs, which reads the same logs."""

        async def called() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()
        self.address = self._ready.result(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        try:
            async with pull_server(self.broker, policy=self._policy) as (_, address):
                self._ready.set_result(address)
                await self._stop.wait()
        finally:
            self.broker.close()
