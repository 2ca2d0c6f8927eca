"""Imports and starts the parts of the daemon that publishers do not wait for.

aiohttp, the web page and the metrics take a quarter of the time of the daemon's imports, and the
JetStream API takes a twentieth. These parts are imported in a thread, after the daemon has
subscribed to NATS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from liftlog.server.http.port import HttpPort
from liftlog.server.ingest import give_nats_aiohttp
from liftlog.tls import system_certificates_unread

if TYPE_CHECKING:
    from liftlog.server.http.server import HttpServer
    from liftlog.server.ingest.nats_link import NatsLink
    from liftlog.server.jetstream_api.service import JetStreamApi

LATEST_SECONDS = 1.0
"""Maximum time, in seconds, until these parts are imported. The time is limited because NATS may be
down, or the streams may take minutes to open, and the daemon must still answer probes."""


class LateHttp:
    """The HTTP port of a daemon. The address is bound at once, so that the start fails if another
    process uses the port. The server is created later."""

    def __init__(self, make: Callable[[], HttpServer]) -> None:
        """`make` creates the server. It may import the server's modules. They are loaded before the
        call."""
        self._make = make
        self._port: HttpPort | None = None
        self._server: HttpServer | None = None
        self._wanted = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None

    async def bind(self, listen: str) -> None:
        """Bind `HOST:PORT`, and serve after LATEST_SECONDS at the latest. Raises ConfigError."""
        self._port = await HttpPort.bind(listen)
        self._starting = asyncio.create_task(self._start(self._port), name="http-start")

    async def serve(self) -> str | None:
        """Serve now. Returns the address of the port; None if there is no address. Raises the error
        of the import or of the server."""
        self._wanted.set()
        if self._port is None or self._starting is None:
            return None
        await self._starting
        return self._port.address

    async def _start(self, port: HttpPort) -> None:
        await wait_at_most(self._wanted.wait(), LATEST_SECONDS)
        await asyncio.to_thread(import_http)
        self._server = self._make()
        await self._server.serve(port)

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._port is not None:
            self._port.close()
        if self._server is not None:
            await self._server.close()


async def wait_at_most(awaitable: Awaitable[object], seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await awaitable


async def wait_for_nats(link: NatsLink) -> None:
    """Wait until the link has subscribed, at most for LATEST_SECONDS."""
    subscribed = asyncio.Event()
    link.on_connected.append(subscribed.set)
    try:
        if not link.connected:
            await wait_at_most(subscribed.wait(), LATEST_SECONDS)
    finally:
        link.on_connected.remove(subscribed.set)


def import_http() -> None:
    # Only aiohttp's client needs the certificates, not its server.
    with system_certificates_unread():
        import liftlog.server.http_port  # noqa: F401
    give_nats_aiohttp()


async def import_jetstream_api() -> type[JetStreamApi]:
    return await asyncio.to_thread(jetstream_api)


def jetstream_api() -> type[JetStreamApi]:
    from liftlog.server.jetstream_api.service import JetStreamApi

    return JetStreamApi
