"""The HTTP port: is it alive, is it ready, how is it doing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from liftlog.errors import ConfigError

Readiness = Callable[[], Mapping[str, str]]
"""What keeps the daemon from being ready, by part; empty when it is."""


@web.middleware
async def _plain_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    response.headers["Cache-Control"] = "no-store"
    return response


class HttpServer:
    """`/livez`, `/readyz`, `/metrics`."""

    def __init__(self, readiness: Readiness, exposition: Callable[[], bytes]) -> None:
        self._readiness = readiness
        self._exposition = exposition
        app = web.Application(middlewares=[_plain_headers])
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def start(self, listen: str) -> str:
        """Listen on `HOST:PORT`; returns the real address. Raises ConfigError."""
        host, _, port = listen.rpartition(":")
        await self._runner.setup()
        site = web.TCPSite(self._runner, host.strip("[]"), int(port), shutdown_timeout=1.0)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"http.listen: cannot listen on {listen}: {error.strerror or error}",
                hint="stop what uses the port, or set http.listen to another or to null",
            ) from error
        bound = self._runner.addresses[0]
        return f"{host}:{bound[1]}"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        problems: dict[str, Any] = dict(self._readiness())
        status = "not ready" if problems else "ok"
        return web.json_response(
            {"status": status, "problems": problems}, status=503 if problems else 200
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})
