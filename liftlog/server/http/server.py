"""The HTTP port: liveness, readiness, metrics, and the parts that are mounted on it."""

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

from liftlog.errors import ConfigError, Forbidden, StreamUnavailable
from liftlog.server.http.callers import ASKER, HostNames
from liftlog.server.http.failures import failure, http_failure
from liftlog.server.http.guard import HEALTH_PATHS, ConnectionGuard
from liftlog.server.reading.turns import Asker, Turns
from liftlog.server.vitals.conditions import MayRead
from liftlog.server.vitals.histogram import LATENCY_BOUNDS, Histogram

NO_ROUTE = "none"
"""The label of requests for a path without a route: labels contain nothing of that path."""
CUT_OFF = "cut off"
"""Label in place of a status: the request ended before its answer, to make room for others or
because the daemon stopped."""


class Health(Protocol):
    """The health of the daemon, as JSON. Implemented in the room `life`, which lies above this
    one."""

    @property
    def is_serving(self) -> bool:
        """True if the streams are open."""
        ...

    def liveness(self) -> dict[str, Any]: ...
    async def readiness(self, may_read: MayRead | None = None) -> tuple[bool, dict[str, Any]]:
        """Return True if clients should be sent here, and the reasons if not. `may_read` limits the
        streams that are named."""
        ...


class Metrics(Protocol):
    """The metrics page. Implemented in the room `metrics`, which lies above this one."""

    @property
    def content_type(self) -> str: ...
    async def render(self) -> bytes:
        """Return the page in the text format of Prometheus."""
        ...


# By default aiohttp sends every client its own version and Python's in the header `Server`. It has
# no setting for this, and answers to input that is not HTTP bypass the middlewares.
web_response.SERVER_SOFTWARE = "liftlog"  # type: ignore[attr-defined]

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_HEALTH = "(health)"
"""The party of health checks, wherever they come from."""
_METRICS = "/metrics"
"""All scrapes are one party: each takes long where there is much to show."""
_SHUTDOWN_SECONDS = 1.0
_LINGER_SECONDS = 2.0
"""Time for which the rest of an unwanted body is read and dropped, so that its sender sees the
answer rather than a reset."""


class _ClientErrors(logging.Filter):
    """Logs input that is not HTTP as a warning, without a traceback and without its bytes; aiohttp
    would log it like a defect of the daemon."""

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
    """One answer about readiness for many requests.

    Any client may ask for the readiness, and with more streams the answer takes longer to compute.
    So one answer serves all requests for about ten times as long as it took: even requests without
    pause take no more than a tenth of the event loop.
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
    """Counters of the HTTP port, which the metrics page reads. Belongs to one event loop."""

    def __init__(self) -> None:
        self.requests_total: Counter[tuple[str, str]] = Counter()
        """By route, such as `/ui/streams/{stream}`, and status."""
        self.seconds: dict[str, Histogram] = {}
        """By route, the time until the answer was made. It excludes sending, which depends on the
        client."""

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
            code = "500"  # which aiohttp makes of it
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
    """A part with routes of its own: the log API, the web page. Closed with the port."""

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
    """`/livez`, `/readyz`, `/metrics`, and the routes of `mounted`."""

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
        self._listening: asyncio.Server | None = None

    async def start(self, listen: str) -> str:
        """Listen on `HOST:PORT`; returns the real address. Raises ConfigError."""
        host, _, port = listen.rpartition(":")
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self.guard.attach(server)
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                self.guard.make_protocol, host.strip("[]") or None, int(port)
            )
        except OSError as error:
            raise ConfigError(
                f"http.listen: cannot listen on {listen}: {error.strerror or error}",
                hint="stop what uses the port, or set http.listen to another or to null",
            ) from error
        return f"{host}:{self._listening.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()
        self.guard.close()
        for part in self._mounted:
            await part.close()

    @web.middleware
    async def _in_turns(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Take turns by caller. The parts that identify a caller name it (`callers.asks`)."""
        party: object = request.transport  # until the caller is known
        if request.path in HEALTH_PATHS:
            party = _HEALTH
        elif request.path == _METRICS:
            party = _METRICS
        request[ASKER] = asker = Asker(party, request.transport)

        async def handled() -> web.StreamResponse:
            return await handler(request)

        return await self._turns.run(asker, handled())

    @web.middleware
    async def _when_serving(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer "starting" while the streams are being opened: one that is not open yet must not
        look as if it did not exist."""
        if request.path.startswith("/api/") and not self._health.is_serving:
            return failure(StreamUnavailable("the daemon is starting", hint="try again"))
        return await handler(request)

    # --- without credentials ---
    # A probe is answered under any host name, but under a strange one only with the verdict: the
    # request may come from another site's page.

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
