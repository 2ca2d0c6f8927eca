"""What HTTP connections may cost: how many there are, and how long they may be slow.

aiohttp bounds headers and bodies, not connections, nor the time that a request takes to arrive or
an answer to be taken. Here one rule covers all of that: between two requests a connection has
`timeout` seconds, in which the rest of the last answer has to leave and the next head to arrive.
(A body has its own time limit, where it is read.)

When all places are taken, somebody makes room who is not being served: first those who never said
who they are, of these the ones from where most connections come, of these whoever waits longest.
So idle connections never lock out a health check, nor does a flood of strangers, also of such
whose token is being looked at, lock out those who are known.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Iterator

from aiohttp import web
from aiohttp.typedefs import Handler

from liftlog.server.pull.origins import place_of

_SETTLING_SECONDS = 1.0
"""A connection that was accepted has its transport one turn of the loop later, not before."""

_RESET = struct.pack("ii", 1, 0)  # struct linger: on, no seconds

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 21\r\n\r\ntoo many connections\n"
)


class _Seat:
    """One connection. `since` is when it began to wait, or to say who it is."""

    __slots__ = ("connection", "identifying", "is_known", "place", "since", "waits")

    def __init__(self, connection: web.RequestHandler, now: float) -> None:
        self.connection = connection
        self.since = now
        self.waits = True  # for its next request, or for the client to take an answer
        self.identifying: asyncio.Task[object] | None = None
        self.is_known = False  # it has once said who it is
        self.place = ""

    @property
    def may_end(self) -> bool:
        """Whether nobody serves it, so that it can make room. (One that was accepted just now
        cannot yet; one whose token is looked at can, even when the client has gone.)"""
        if self.waits:
            return self.connection.transport is not None
        return self.identifying is not None

    def find_place(self) -> str:
        """Empty until the connection has its transport."""
        transport = self.connection.transport
        if not self.place and transport is not None:
            peer = transport.get_extra_info("peername")
            self.place = place_of(peer[0] if isinstance(peer, tuple) else None)
        return self.place


_SEAT = web.RequestKey("seat", _Seat)


@contextlib.contextmanager
def identifying(request: web.Request) -> Iterator[None]:
    """While it is looked at who asks: until that is known, whoever asks may have to make room."""
    seat = request.get(_SEAT)
    if seat is None:
        yield
        return
    seat.identifying = asyncio.current_task()
    seat.since = asyncio.get_running_loop().time()
    try:
        yield
    finally:
        seat.identifying = None


def identified(request: web.Request) -> None:
    """It is known who asks: the connection is among the last to make room."""
    seat = request.get(_SEAT)
    if seat is not None:
        seat.is_known = True


class ConnectionGuard:
    """Stands between the listening socket and aiohttp. Belongs to one event loop."""

    def __init__(self, *, max_connections: int = 128, timeout_seconds: float = 30.0) -> None:
        self.timeout_seconds = timeout_seconds
        self._max_connections = max_connections
        self._server: web.Server | None = None
        self._seats: dict[web.RequestHandler, _Seat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.refused_total = 0
        self.timed_out_total = 0
        self.evicted_total = 0

    def attach(self, server: web.Server) -> None:
        self._server = server

    @property
    def connection_count(self) -> int:
        return len(self._seats)

    def make_protocol(self) -> asyncio.Protocol:
        """For `loop.create_server`: one call per accepted connection."""
        assert self._server is not None
        now = asyncio.get_running_loop().time()
        if self.connection_count >= self._max_connections:
            self._forget_closed(now)
        if self.connection_count >= self._max_connections and not self._make_room():
            self.refused_total += 1
            return _Refused()
        connection = self._server()
        self._seats[connection] = _Seat(connection, now)
        self._schedule()
        return connection

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Notes who is being served; their time is that of whoever serves them."""
        seat = self._seats.get(request.protocol)
        if seat is None:
            raise web.HTTPServiceUnavailable  # it has just made room; nobody hears this
        request[_SEAT] = seat
        seat.waits = False
        try:
            return await handler(request)
        finally:
            seat.waits = True
            seat.since = asyncio.get_running_loop().time()
            if seat.connection.transport is None:
                self._seats.pop(seat.connection, None)
            self._schedule()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """Look for slow clients, only while there are clients."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(self.timeout_seconds / 4, 0.02), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        self._forget_closed(now)
        for seat in list(self._seats.values()):
            if seat.may_end and now - seat.since > self.timeout_seconds:
                self.timed_out_total += 1
                self._abort(seat)
        if self._seats:
            self._schedule()

    def _forget_closed(self, now: float) -> None:
        for connection, seat in list(self._seats.items()):
            gone = connection.transport is None and now - seat.since > _SETTLING_SECONDS
            if seat.waits and gone:
                del self._seats[connection]

    def _make_room(self) -> bool:
        """False when everybody is being served."""
        crowds = Counter(seat.find_place() for seat in self._seats.values())
        leaving = min(
            (seat for seat in self._seats.values() if seat.may_end),
            key=lambda seat: (seat.is_known, -crowds[seat.place], seat.since),
            default=None,
        )
        if leaving is None:
            return False
        self.evicted_total += 1
        self._abort(leaving)
        return True

    def _abort(self, seat: _Seat) -> None:
        """With a reset: a polite end would leave what the client does not take in the kernel."""
        connection, task = seat.connection, seat.identifying
        del self._seats[connection]
        transport = connection.transport
        if transport is not None:
            sock = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        if task is not None:
            task.cancel()


class _Refused(asyncio.Protocol):
    """Says why and hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_FULL)
        transport.close()
