"""What HTTP connections may cost: how many there are, and how long they may be slow.

aiohttp bounds headers and bodies, not connections, nor the time that a request takes to arrive or
an answer to be taken. Here one rule covers all of that: between two requests a connection has
`timeout` seconds, in which the rest of the last answer has to leave and the next head to arrive.
(A body has its own time limit, where it is read.) When all places are taken, whoever waits
longest makes room, so that idle connections never lock out a health check.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from aiohttp import web
from aiohttp.typedefs import Handler

_SETTLING_SECONDS = 1.0
"""A connection that was accepted has its transport one turn of the loop later, not before."""

_RESET = struct.pack("ii", 1, 0)  # struct linger: on, no seconds

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 21\r\n\r\ntoo many connections\n"
)


class ConnectionGuard:
    """Stands between the listening socket and aiohttp. Belongs to one event loop."""

    def __init__(self, *, max_connections: int, timeout_seconds: float) -> None:
        self._max_connections = max_connections
        self._timeout = timeout_seconds
        self._server: web.Server | None = None
        self._waiting: dict[web.RequestHandler, float] = {}
        self._busy: set[web.RequestHandler] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.refused_total = 0
        self.timed_out_total = 0
        self.evicted_total = 0

    def attach(self, server: web.Server) -> None:
        self._server = server

    @property
    def connection_count(self) -> int:
        return len(self._waiting) + len(self._busy)

    def make_protocol(self) -> asyncio.Protocol:
        """For `loop.create_server`: one call per accepted connection."""
        assert self._server is not None
        now = asyncio.get_running_loop().time()
        if self.connection_count >= self._max_connections:
            self._forget_closed(now)
        if self.connection_count >= self._max_connections and not self._evict(now):
            self.refused_total += 1
            return _Refused()
        handler = self._server()
        self._waiting[handler] = now
        self._schedule()
        return handler

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Notes who is being served; their time is that of whoever serves them."""
        connection = request.protocol
        self._waiting.pop(connection, None)
        self._busy.add(connection)
        try:
            return await handler(request)
        finally:
            self._busy.discard(connection)
            if connection.transport is not None:
                self._waiting[connection] = asyncio.get_running_loop().time()
                self._schedule()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """Look for slow clients, only while there are clients."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(self._timeout / 4, 0.02), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        self._forget_closed(now)
        for connection, since in list(self._waiting.items()):
            if now - since > self._timeout:
                self.timed_out_total += 1
                self._abort(connection)
        if self._waiting or self._busy:
            self._schedule()

    def _forget_closed(self, now: float) -> None:
        for connection, since in list(self._waiting.items()):
            if connection.transport is None and now - since > _SETTLING_SECONDS:
                del self._waiting[connection]

    def _evict(self, now: float) -> bool:
        for connection in sorted(self._waiting, key=self._waiting.__getitem__):
            if connection.transport is not None:
                self.evicted_total += 1
                self._abort(connection)
                return True
        return False

    def _abort(self, connection: web.RequestHandler) -> None:
        """With a reset: a polite end would leave what the client does not take in the kernel."""
        del self._waiting[connection]
        transport = connection.transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()


class _Refused(asyncio.Protocol):
    """Says why and hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_FULL)
        transport.close()
