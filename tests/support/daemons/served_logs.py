"""Streams behind a real pull server that runs in a thread, for clients that block or run in other
processes. There is no NATS: tests append to the logs."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.daemons.loop_thread import LoopThread
from support.daemons.pull_broker import LogBroker, LoggedStream, pull_server

from acl.policy import Policy
from liftlog.log import LogConfig


class ServedLogs:
    """Use in `with`. `address` is the address for clients."""

    def __init__(
        self,
        directory: Path,
        *,
        segment_max_bytes: int = 1 << 20,
        policy: Policy | None = None,
        listen: str = "tcp://127.0.0.1:0",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.directory = directory
        self.broker = LogBroker(directory)
        # Tests choose the timestamps of records, so ages have no meaning.
        self.broker.config = LogConfig(segment_max_bytes=segment_max_bytes, segment_max_age_ns=None)
        self.address = ""
        self._policy = policy
        self._listen = listen
        self._tls = tls
        self._thread = LoopThread("served-logs", self._serving)

    @property
    def server(self) -> str:
        """host:port"""
        return self.address.removeprefix("tcp://")

    def add(self, name: str, **settings: object) -> LoggedStream:
        return self.call(lambda: self.broker.add(name, **settings))

    def delete(self, name: str) -> None:
        self._thread.do(lambda: self.broker.delete_stream(name))

    def append(self, name: str, values: list[bytes | None], **fields: Any) -> None:
        self.call(lambda: self.broker.stream(name).append(values, **fields))

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread of the server, which reads the same logs."""
        return self._thread.call(function)

    def __enter__(self) -> Self:
        self.address = self._thread.__enter__().served
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.__exit__(kind, error, trace)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[str]:
        try:
            served = pull_server(
                self.broker, listen=self._listen, policy=self._policy, tls=self._tls
            )
            async with served as (_, address):
                yield address
        finally:
            self.broker.close()
