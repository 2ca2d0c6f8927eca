"""Limits the number of HTTP connections, and the time that a slow client may take.

aiohttp limits the size of headers and bodies. It does not limit the number of connections, or the
times in which a request must arrive and a client must read an answer. This module limits both times
by one rule: after each answer, the client has `timeout` seconds to read the rest of that answer and
to send the head of its next request. (The code that reads a body limits the time for the body.)

When all places are taken, the guard closes a connection that is not being served. It prefers
connections that have never presented a valid token. Among these, it chooses the address with the
most connections, and closes the connection of this address that has waited longest. So idle
connections never prevent a health check. A flood of unknown clients never locks out authenticated
clients, even while tokens of the flood are being checked. A closed connection frees its place at
once.

Health checks are always served: some places are reserved for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Handler

from liftlog.server.access.origins import place_of

HEALTH_PATHS = frozenset({"/livez", "/readyz"})
HEALTH_PLACES = 16

_SETTLING_SECONDS = 1.0
"""Time limit, in seconds, for an accepted connection to get its transport. Normally it gets the
transport in the next turn of the loop, but some connections never get one."""
_LINGER_SECONDS = 1.0
_MAX_LINGERING = 64
"""Maximum number of refused connections that are kept open until the client has read the reason. If
a socket is closed while bytes arrive, the connection is reset, and the reset can reach the client
before the answer."""

_RESET = struct.pack("ii", 1, 0)  # struct linger: on, no seconds

_FULL_TEXT = "too many connections\n"
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Server: liftlog\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_FULL_TEXT), _FULL_TEXT.encode())
)


class _Seat:
    """One connection. `since` is the time at which the connection began to wait, or at which the
    check of its caller began."""

    __slots__ = ("connection", "guard", "identifying", "is_known", "place", "since", "waits")

    def __init__(self, guard: ConnectionGuard, connection: web.RequestHandler, now: float) -> None:
        self.guard = guard
        self.connection = connection
        self.since = now
        self.waits = True  # it waits for the next request, or for the client to read an answer
        self.identifying: asyncio.Task[object] | None = None
        self.is_known = False  # it has presented a valid token
        self.place = ""

    @property
    def may_end(self) -> bool:
        """True if the connection may be closed to make room, because it is not being served. While
        its token is being checked, a connection counts as not served, even if the client has
        disconnected."""
        return self.waits or self.identifying is not None

    def find_place(self) -> str:
        """Return the client's address; empty until the connection has its transport."""
        transport = self.connection.transport
        if not self.place and transport is not None:
            peer = transport.get_extra_info("peername")
            self.place = place_of(peer[0] if isinstance(peer, tuple) else None)
        return self.place


_SEAT = web.RequestKey("seat", _Seat)


@contextlib.contextmanager
def identifying(request: web.Request) -> Iterator[None]:
    """Until the caller is identified, allow the guard to close the connection when it needs a
    place.

    If the check of the caller fails, the guard can close the connection until the request ends.
    Many callers may fail at once, and the answers to them must not take the places of health
    checks.
    """
    seat = request.get(_SEAT)
    if seat is not None:
        seat.identifying = asyncio.current_task()
        seat.since = asyncio.get_running_loop().time()
    yield
    if seat is not None:
        seat.identifying = None


def require_place(request: web.Request) -> None:
    """Refuse an identified caller if no place is left for its connection. While its token was
    checked, the connection did not count as served, so other connections may have taken all places.
    Raises HTTPServiceUnavailable."""
    seat = request.get(_SEAT)
    if seat is not None:
        seat.guard.require_place(seat)


def identified(request: web.Request) -> None:
    """Mark the caller as identified. The guard closes connections of identified callers last."""
    seat = request.get(_SEAT)
    if seat is not None:
        seat.is_known = True


class ConnectionGuard:
    """Limits connections between the listening socket and aiohttp. Belongs to one event loop."""

    def __init__(
        self,
        *,
        max_connections: int = 128,
        timeout_seconds: float = 30.0,
        health_places: int = HEALTH_PLACES,
    ) -> None:
        """Serve at most `max_connections` connections at once, and up to `health_places` additional
        connections for health checks."""
        self.timeout_seconds = timeout_seconds
        self._most_served = max_connections
        self._most = max_connections + health_places
        self._server: web.Server | None = None
        self._lingering: set[_Refused] = set()
        self._seats: dict[web.RequestHandler, _Seat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.refused_total = 0
        self.timed_out_total = 0
        self.evicted_total = 0

    def attach(self, server: web.Server) -> None:
        """Make `server` report the begin and the end of each connection to this guard."""
        made, lost = server.connection_made, server.connection_lost

        def connection_made(connection: web.RequestHandler, transport: asyncio.Transport) -> None:
            made(connection, transport)
            # The connection was closed before it got its transport.
            if connection not in self._seats:
                _reset(transport)

        def connection_lost(
            connection: web.RequestHandler, error: BaseException | None = None
        ) -> None:
            lost(connection, error)
            _leave_unbegun(connection)
            seat = self._seats.get(connection)
            if seat is not None and seat.waits:
                del self._seats[connection]

        server.connection_made = connection_made  # type: ignore[assignment, method-assign]
        server.connection_lost = connection_lost  # type: ignore[assignment, method-assign]
        self._server = server

    @property
    def connection_count(self) -> int:
        return len(self._seats)

    def make_protocol(self) -> asyncio.Protocol:
        """Return a protocol for one accepted connection; the method is the factory for
        `loop.create_server`."""
        assert self._server is not None
        now = asyncio.get_running_loop().time()
        if self.connection_count >= self._most and not self._make_room():
            self.refused_total += 1
            return _Refused(self._lingering)
        connection = self._server()
        self._seats[connection] = _Seat(self, connection, now)
        self._schedule()
        return connection

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark the connection as being served until the handler returns. During this time the
        handler, not the guard, limits the duration of the request."""
        seat = self._seats.get(request.protocol)
        if seat is None:
            raise web.HTTPServiceUnavailable  # the guard has just closed the connection
        if request.path not in HEALTH_PATHS:
            self.require_place(seat)
        request[_SEAT] = seat
        seat.waits = False
        try:
            return await handler(request)
        finally:
            seat.waits = True
            seat.identifying = None
            seat.since = asyncio.get_running_loop().time()
            if seat.connection.transport is None:
                self._seats.pop(seat.connection, None)
            self._schedule()

    def require_place(self, seat: _Seat) -> None:
        """Refuse the request of `seat` if it would take a place that is reserved for health checks.
        Raises HTTPServiceUnavailable."""
        if self.connection_count <= self._most_served:
            return
        served = sum(not other.may_end for other in self._seats.values() if other is not seat)
        if served >= self._most_served:
            self.refused_total += 1
            raise web.HTTPServiceUnavailable(
                text=_FULL_TEXT, headers={"Retry-After": "1", "Connection": "close"}
            )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """Start the timer that looks for slow clients; the timer runs only while clients are
        connected."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(self.timeout_seconds / 4, 0.02), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for seat in list(self._seats.values()):
            if seat.waits and seat.connection.transport is None:
                if now - seat.since > _SETTLING_SECONDS:  # the connection has never got a transport
                    del self._seats[seat.connection]
            elif seat.may_end and now - seat.since > self.timeout_seconds:
                self.timed_out_total += 1
                self._abort(seat)
        if self._seats:
            self._schedule()

    def _make_room(self) -> bool:
        """Close a connection that is not being served. Returns False if all connections are being
        served."""
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
        """Close a connection with a reset. After an orderly close, the kernel would keep the unread
        bytes in memory."""
        connection, task = seat.connection, seat.identifying
        del self._seats[connection]
        if connection.transport is not None:
            _reset(connection.transport)
        if task is not None:
            task.cancel()


def _leave_unbegun(connection: web.RequestHandler) -> None:
    """Cancel the task of a closed connection if the task has not begun to run.

    Before Python 3.12 such a task begins one turn of the loop later than its connection. If the
    connection has been closed by then, the task would write an AssertionError to the log.
    """
    task = connection._task_handler
    work = None if task is None else task.get_coro()
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        assert task is not None
        task.cancel()


def _reset(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


class _Refused(asyncio.Protocol):
    """Sends the reason of the refusal, and closes the connection after the client has closed it."""

    def __init__(self, lingering: set[_Refused]) -> None:
        self._lingering = lingering
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sending = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        sending.write(_FULL)
        if len(self._lingering) >= _MAX_LINGERING:
            sending.close()
            return
        sending.write_eof()
        self._lingering.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LINGER_SECONDS, sending.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lingering.discard(self)
        if self._timer is not None:
            self._timer.cancel()
