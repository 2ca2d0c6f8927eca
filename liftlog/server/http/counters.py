"""What the HTTP port counts; the metrics page reads it."""

from __future__ import annotations

import time
from collections import Counter

from aiohttp import web
from aiohttp.typedefs import Handler

from liftlog.server.vitals.histogram import LATENCY_BOUNDS, Histogram

NO_ROUTE = "none"
"""Instead of a path that a client made up: labels hold nothing of it."""
CUT_OFF = "cut off"
"""Instead of a status: it had to make room for others, or the daemon ended, before its answer."""


class HttpCounters:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self.requests_total: Counter[tuple[str, str]] = Counter()
        """By route, such as `/ui/streams/{stream}`, and status."""
        self.seconds: dict[str, Histogram] = {}
        """By route, until the answer was made; what it takes to leave is the client's time."""

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
