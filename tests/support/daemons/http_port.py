"""The HTTP port, with only the parts behind it that a test provides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

from liftlog.server.http.callers import Callers
from liftlog.server.http.guard import ConnectionGuard
from liftlog.server.http.log_api import LogApi
from liftlog.server.http.port import HttpPort
from liftlog.server.http.server import HttpServer
from liftlog.server.http_port import make_http_server
from liftlog.server.metrics.exposition import CONTENT_TYPE
from liftlog.server.pull import PullServer
from liftlog.server.web.asking import Parts
from liftlog.server.web.history import History, Reading
from liftlog.server.web.pace import Pace
from liftlog.server.web.readers import Readers
from liftlog.server.web.sessions import Sessions
from liftlog.server.web.site import WebSite
from liftlog.server.web.watching import Descriptions
from liftlog.settings import load_settings


class Healthy:
    is_serving = True

    def liveness(self) -> dict[str, Any]:
        return {"status": "ok"}

    async def readiness(self, may_read: Any = None) -> tuple[bool, dict[str, Any]]:
        return True, {"status": "ok"}


class NoMetrics:
    content_type = CONTENT_TYPE

    async def render(self) -> bytes:
        return b""


class NoAppender:
    """An appender that refuses every append."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def append(self, stream: Any, message: Any, may_administer: Any) -> Any:
        self.asked.append(stream.name)
        raise AssertionError("something was appended")

    async def close(self) -> None:
        pass


async def _nothing() -> dict[str, Reading]:
    return {}


def make_parts(pull: PullServer, appender: Any) -> Parts:
    """Make the parts of the web page, on top of the broker of a test."""
    shared = pull.services
    broker, descriptions = shared.broker, Descriptions(shared.broker)
    health, sessions = Healthy(), Sessions()
    return Parts(
        broker,
        health,
        shared.gate,
        shared.scanners,
        History(_nothing),
        descriptions,
        Readers(broker),
        sessions,
        appender,
        Pace(lambda: 0),
    )


@asynccontextmanager
async def http_port(
    pull: PullServer,
    *,
    failure_delay_seconds: float = 0,
    guard: ConnectionGuard | None = None,
    appender: Any = None,
) -> AsyncIterator[tuple[HttpServer, str, list[str]]]:
    """Start the server. Yields the server, its URL, and a list of the streams for which changes
    were reported."""
    changed: list[str] = []

    async def truncate(stream: str, offset: int) -> None:
        changed.append(stream)

    if appender is None:
        appender = NoAppender()
        appender.asked = changed
    shared = pull.services
    callers = Callers(
        shared.gate,
        shared.authenticator,
        shared.audit,
        failure_delay_seconds=failure_delay_seconds,
    )
    api = LogApi(shared.broker, truncate, appender, callers)
    site = WebSite(make_parts(pull, appender), callers)
    server = HttpServer(Healthy(), NoMetrics(), mounted=(api, site), guard=guard)
    port = await HttpPort.bind("127.0.0.1:0")
    await server.serve(port)
    try:
        yield server, f"http://{port.address}", changed
    finally:
        await server.close()


def routes_of(server: HttpServer) -> list[tuple[str, str]]:
    """Return (method, path) of each route of this server."""
    return [
        (route.method, route.resource.canonical)
        for route in server._runner.app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    ]


async def routes_of_daemon(pull: PullServer) -> list[tuple[str, str]]:
    """Return (method, path) of each route of a daemon's port with all parts, mounted as the daemon
    does it."""
    chosen = ["allow_anonymous=true", "http.listen=127.0.0.1:0", "http.log_api=true"]
    broker = Mock()
    broker.intake.ingested.return_value.chunks = 0
    sources = Mock(pull=pull, broker=broker, http=None, requests=None)
    sources.sync_times.count, sources.link.servers = 0, []
    server = make_http_server(load_settings(None, {}, [*chosen, "http.web=true"]), sources)
    try:
        return routes_of(server)
    finally:
        await server.close()
