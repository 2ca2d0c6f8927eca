"""The HTTP port with nothing behind it but what a test puts there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from liftlog.server.http.callers import Callers
from liftlog.server.http.guard import ConnectionGuard
from liftlog.server.http.log_api import LogApi
from liftlog.server.http.server import HttpServer
from liftlog.server.metrics.exposition import CONTENT_TYPE
from liftlog.server.pull import PullServer
from liftlog.server.web.asking import Parts
from liftlog.server.web.history import History, Reading
from liftlog.server.web.pace import Pace
from liftlog.server.web.sessions import Sessions
from liftlog.server.web.site import WebSite
from liftlog.server.web.watching import Descriptions


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
    """Nothing may be appended."""

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
    """Of the web page, on top of the broker of a test."""
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
    """The server, its URL, and the streams for which something would have changed."""
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
    address = await server.start("127.0.0.1:0")
    try:
        yield server, f"http://{address}", changed
    finally:
        await server.close()


def routes_of(server: HttpServer) -> list[tuple[str, str]]:
    """(method, path) of each route, from the port itself."""
    return [
        (route.method, route.resource.canonical)
        for route in server._runner.app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    ]
