"""The HTTP port: liveness, readiness, metrics, and the routes of the parts that are mounted on
it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from liftlog.errors import Forbidden, StreamUnavailable
from liftlog.server.access.origins import place_of
from liftlog.server.http.callers import ASKER, HostNames
from liftlog.server.http.failures import failure, http_failure
from liftlog.server.http.guard import HEALTH_PATHS, ConnectionGuard
from liftlog.server.http.port import HttpPort
from liftlog.server.reading.turns import Asker, Turns
from liftlog.server.vitals.conditions import MayRead
from liftlog.server.vitals.histogram import LATENCY_BOUNDS, Histogram

NO_ROUTE = "none"
"""Label of requests for a path without a route. The label must not contain the path, because the
client chose it."""
CUT_OFF = "cut off"
"""Label that replaces the status if a request ended before its answer. Its connection was closed to
make room, or the daemon stopped."""


class Health(Protocol):
    """The health of the daemon, as JSON. Implemented by `liftlog.server.life`, which imports this
    package."""

    @property
    def is_serving(self) -> bool:
        """True if the streams are open."""
        ...

    def liveness(self) -> dict[str, Any]: ...
    async def readiness(self, may_read: MayRead | None = None) -> tuple[bool, dict[str, Any]]:
        """Return True if the daemon can serve clients. If it cannot, the JSON contains the reasons.
        `may_read` limits the streams that the reasons name."""
        ...


class Metrics(Protocol):
    """The metrics page. Implemented by `liftlog.server.metrics`, which imports this package."""

    @property
    def content_type(self) -> str: ...
    async def render(self) -> bytes:
        """Return the page in the text format of Prometheus."""
        ...


# By default aiohttp sends its own version and Python's version in the header `Server`. It has no
# setting to prevent this, and its answers to input that is not HTTP bypass the middlewares.
web_response.SERVER_SOFTWARE = "liftlog"  # type: ignore[attr-defined]

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_HEALTH = "(health)"
"""Party of all health checks, whatever their source."""
_METRICS = "/metrics"
"""Party of all scrapes. All scrapes are one party, because a scrape with many metrics takes
long."""
_SHUTDOWN_SECONDS = 1.0
_LINGER_SECONDS = 2.0
"""Time, in seconds, for which the rest of an unwanted body is read and dropped. In this time the
sender can read the answer, before the connection is reset."""


class _ClientErrors(logging.Filter):
    """Logs input that is not HTTP as a warning, without a traceback and without its bytes. aiohttp
    would log it as an internal error."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.exc_info = "http-input-refused error=%s", None
            record.args = (type(error).__name__,)
        return True


def _protocol_logger() -> logging.Logger:
    logger = logging.getLogger("liftlog.server.http.protocol")
    if not any(isinstance(one, _ClientErrors) for one in logger.filters):
        logger.addFilter(_ClientErrors())
    return logger


class SharedReadiness:
    """Shares one answer about readiness among many requests.

    Any client may request the readiness, and the computation takes longer with more streams.
    Therefore an answer is reused for about ten times as long as its computation took. So even a
    client that sends requests continuously uses at most a tenth of the event loop's time.
    """

    _SHARE = 10.0
    _MAX_AGE_SECONDS = 0.25

    def __init__(self, health: Health) -> None:
        self._health = health
        self._one_at_a_time = asyncio.Lock()
        self._answer: tuple[bool, dict[str, Any]] = False, {}
        self._good_until = 0.0

    async def get(self) -> tuple[bool, dict[str, Any]]:
        async with self._one_at_a_time:
            began = time.monotonic()
            if began >= self._good_until:
                self._answer = await self._health.readiness()
                ended = time.monotonic()
                age = min((ended - began) * self._SHARE, self._MAX_AGE_SECONDS)
                self._good_until = ended + age
            return self._answer


class HttpCounters:
    """Counters of the HTTP port for the metrics page. Belongs to one event loop."""

    def __init__(self) -> None:
        self.requests_total: Counter[tuple[str, str]] = Counter()
        """Number of requests by route, such as `/ui/streams/{stream}`, and status."""
        self.seconds: dict[str, Histogram] = {}
        """Time from a request to its finished answer, by route. The time for sending the answer is
        not included, because it depends on the client."""

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began, code = time.perf_counter(), CUT_OFF
        try:
            response = await handler(request)
            code = str(response.status)
            return response
        except web.HTTPException as refusal:
            code = str(refusal.status)
            raise
        except Exception:
            code = "500"  # aiohttp answers other exceptions with this status
            raise
        finally:
            self._count(_route_of(request), code, time.perf_counter() - began)

    def _count(self, route: str, code: str, seconds: float) -> None:
        self.requests_total[route, code] += 1
        if route not in self.seconds:
            self.seconds[route] = Histogram(LATENCY_BOUNDS)
        self.seconds[route].observe(seconds)


def _route_of(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return NO_ROUTE if resource is None else resource.canonical


class Mounted(Protocol):
    """A part of the port with its own routes: the log API or the web page. It is closed with the
    port."""

    def recognized(self, request: web.Request) -> str | None:
        """Return the principal of the request, if it is known without a slow check."""
        ...

    def routes(self) -> list[web.RouteDef]: ...
    async def close(self) -> None: ...


@web.middleware
async def _plain_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        if not request.path.startswith("/api/"):
            error.headers.update(_HEADERS)
            raise
        response = http_failure(error)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


class HttpServer:
    """Serves `/livez`, `/readyz`, `/metrics`, and the routes of `mounted`."""

    def __init__(
        self,
        health: Health,
        metrics: Metrics,
        *,
        mounted: Sequence[Mounted] = (),
        guard: ConnectionGuard | None = None,
        counters: HttpCounters | None = None,
        hosts: HostNames | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._turns = turns or Turns()
        self._health = health
        self._readiness = SharedReadiness(health)
        self._exposition = metrics
        self._mounted = mounted
        self._hosts = hosts or HostNames()
        self.guard = guard or ConnectionGuard()
        self.counters = counters or HttpCounters()
        app = web.Application(
            middlewares=[
                self.counters.middleware,
                self.guard.middleware,
                self._in_turns,
                _plain_headers,
                self._when_serving,
            ]
        )
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        for part in mounted:
            app.router.add_routes(part.routes())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_protocol_logger(),
            handle_signals=False,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=self.guard.timeout_seconds,
            lingering_time=_LINGER_SECONDS,
            auto_decompress=False,
        )
        self._port: HttpPort | None = None

    async def serve(self, port: HttpPort) -> None:
        """Accept connections at the bound port, which this server closes."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self.guard.attach(server)
        self._port = port
        await port.open(self.guard.make_protocol)

    async def close(self) -> None:
        if self._port is not None:
            self._port.close()
        await self._runner.cleanup()
        self.guard.close()
        for part in self._mounted:
            await part.close()

    @web.middleware
    async def _in_turns(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Run the handler under the rule that parties take turns. Handlers that identify the caller
        set its party by `callers.asks`."""
        request[ASKER] = asker = Asker(self._party_of(request), request.transport)

        async def handled() -> web.StreamResponse:
            return await handler(request)

        return await self._turns.run(asker, handled())

    def _party_of(self, request: web.Request) -> str:
        """Return the party of a request whose caller is not identified yet. A caller that is not
        recognized shares the turns of its address, which may be the address of a proxy."""
        if request.path in HEALTH_PATHS:
            return _HEALTH
        if request.path == _METRICS:
            return _METRICS
        for part in self._mounted:
            if (known := part.recognized(request)) is not None:
                return known
        return place_of(request.remote)

    @web.middleware
    async def _when_serving(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer "starting" until the streams are open. Otherwise a stream that is not open yet
        would be reported as missing."""
        if request.path.startswith("/api/") and not self._health.is_serving:
            return failure(StreamUnavailable("the daemon is starting", hint="try again"))
        return await handler(request)

    # --- without credentials ---
    # A probe is answered under any host name. Under an unknown host name the probe gets only the
    # verdict, because the request may come from a page of another site.

    async def _livez(self, request: web.Request) -> web.Response:
        body = self._health.liveness()
        return web.json_response(body if self._hosts.knows(request) else _verdict(body))

    async def _readyz(self, request: web.Request) -> web.Response:
        ready, body = await self._readiness.get()
        shown = body if self._hosts.knows(request) else _verdict(body)
        return web.json_response(shown, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            self._hosts.check(request)
        except Forbidden as error:
            raise web.HTTPForbidden(text=f"{error.message}: {error.hint}\n") from None
        page = await self._exposition.render()
        return web.Response(body=page, headers={"Content-Type": self._exposition.content_type})


def _verdict(body: dict[str, Any]) -> dict[str, Any]:
    return {"status": body["status"]}
