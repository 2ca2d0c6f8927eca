"""`PullServer`: listens, accepts connections, and enforces the limits on them."""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import ssl
import sys
from collections.abc import Callable, Collection, Sequence

from acl.policy import Policy
from liftlog.errors import ConfigError, LiftlogError, LimitExceeded, ShuttingDown, Unauthenticated
from liftlog.protocol.frames import encode_frame
from liftlog.protocol.messages import answer_for
from liftlog.protocol.server_connection import InFlight
from liftlog.server.access.authentication import Identity
from liftlog.server.access.origins import origin_of
from liftlog.server.pull.connection import PullConnection
from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.services import PullServices
from liftlog.server.pull.sockets import (
    Listener,
    SocketTransport,
    TlsTransport,
    Transport,
    open_listener,
)
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.intake import Ingested
from liftlog.tls import own_certificate

logger = logging.getLogger("liftlog.server.pull")

_ACCEPTS_PER_TURN = 32
_ACCEPT_PAUSE_SECONDS = 0.5
_LONGEST_SWEEP_SECONDS = 5.0


class PrincipalUse:
    """The resources that all connections of one principal use together."""

    __slots__ = ("connections", "in_flight")

    def __init__(self, in_flight: InFlight) -> None:
        self.connections: set[PullConnection] = set()
        self.in_flight = in_flight


class PullServer:
    """Serves the streams of `broker`. All methods belong to the loop that called `start`.

    If `policy` is None, no ACL is configured. `ingested` returns the amount of data that has
    arrived from NATS. The HTTP port uses the same `services`. So both ports share the gate, the
    audit log, and the limits on token checks and scans.
    """

    def __init__(
        self,
        broker: Broker,
        limits: PullLimits | None = None,
        policy: Policy | None = None,
        tls: ssl.SSLContext | None = None,
        ingested: Callable[[], Ingested] = lambda: Ingested(0, 0),
    ) -> None:
        self.services = PullServices(broker, limits or PullLimits(), policy, ingested)
        self._limits = self.services.limits
        self._counters = self.services.counters
        self._tls: ssl.SSLContext | None = None
        self._certificate: bytes | None = None
        if tls is not None:
            self.set_tls(tls)
        self._loop: asyncio.AbstractEventLoop
        self._uses: dict[str, PrincipalUse] = {}
        self._listeners: list[Listener] = []
        self._connections: dict[PullConnection, None] = {}  # the oldest connection comes first
        # Connections that have not logged in, by their place of origin; the oldest first.
        self._strangers: dict[str, dict[PullConnection, None]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None
        self._closing = False

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def set_policy(self, policy: Policy | None) -> None:
        """Apply `policy` to all requests from now on, including waiting requests. Connections whose
        credential is no longer in the policy are closed."""
        self.services.gate.set_policy(policy)
        for connection in list(self._connections):
            connection.check_identity()

    def set_tls(self, context: ssl.SSLContext) -> None:
        """Use `context` for new connections. Raises ConfigError for an unusable certificate."""
        self._certificate = own_certificate(context)
        self._tls = context

    async def start(self, listen: Sequence[str]) -> list[str]:
        """Listen on all addresses, or on none if one of them fails. Return the real addresses.
        Raises ConfigError."""
        self._loop = asyncio.get_running_loop()
        opened: list[Listener] = []
        try:
            for address in listen:
                opened.append(open_listener(address, unix_mode=self._limits.unix_mode))
                if opened[-1].tls and self._tls is None:
                    raise ConfigError(
                        f"pull.listen: {address} needs pull.tls.cert and pull.tls.key"
                    )
        except LiftlogError:
            for listener in opened:
                listener.close()
            raise
        for listener in opened:
            self._listeners.append(listener)
            self._listen(listener)
        return [listener.address for listener in opened]

    async def close(self, grace: float = 5.0) -> None:
        """Stop listening and refuse waiting requests. Sends unsent answers for at most `grace`
        seconds."""
        self._closing = True
        for listener in self._listeners:
            self._loop.remove_reader(listener.sock.fileno())
            listener.close()
        self._listeners.clear()
        for connection in list(self._connections):
            connection.shut_down()
        self._idle = asyncio.Event()
        if self._connections:
            try:
                async with asyncio.timeout(grace):
                    await self._idle.wait()
            except TimeoutError:
                logger.warning("connections-cut-off count=%d", len(self._connections))
        for connection in list(self._connections):
            connection.close()
        await self.services.cancel_jobs()
        if self._sweep is not None:
            self._sweep.cancel()
        await self.services.close()

    # --- events of connections ---

    def _logged_in(self, connection: PullConnection, identity: Identity) -> InFlight:
        """Count the connection for its principal. Raises Unauthenticated, LimitExceeded."""
        if not identity.holds_in(self.services.gate.policy):
            raise Unauthenticated("the ACL has changed meanwhile")
        self._no_stranger(connection)
        name = identity.principal
        if name is None:
            return InFlight(sys.maxsize)
        limits, use = self._limits, self._uses.get(name)
        if use is None:
            use = PrincipalUse(
                InFlight(
                    limits.max_in_flight_per_principal,
                    limits.max_request_memory_per_principal_bytes,
                )
            )
        most = limits.max_connections_per_principal
        if len(use.connections) >= most:
            raise LimitExceeded(f"{name} has {most} connections already, as many as it may have")
        use.connections.add(connection)
        self._uses[name] = use
        return use.in_flight

    def _ended(self, connection: PullConnection) -> None:
        self._connections.pop(connection, None)
        self._no_stranger(connection)
        name = connection.principal
        use = None if name is None else self._uses.get(name)
        if name is not None and use is not None:
            use.connections.discard(connection)
            if not use.connections:
                del self._uses[name]
        if self._idle is not None and not self._connections:
            self._idle.set()

    def _no_stranger(self, connection: PullConnection) -> None:
        """Note that the connection has logged in or is closed: remove it from the connections that
        have not logged in."""
        there = self._strangers.get(connection.place, {})
        there.pop(connection, None)
        if not there:
            self._strangers.pop(connection.place, None)

    # --- accepting ---

    def _listen(self, listener: Listener) -> None:
        self._loop.add_reader(listener.sock.fileno(), self._accept, listener)

    def _accept(self, listener: Listener) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, where = listener.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(listener, error)
                return
            self._admit(sock, where, listener)

    def _pause_accepting(self, listener: Listener, error: OSError) -> None:
        """Stop accepting for a short time. A failure is usually caused by a lack of file
        descriptors, so the next call would also fail."""
        name = errno.errorcode.get(error.errno or 0, "?")
        logger.error("accepting-failed listen=%s error=%s", listener.address, name)
        self._loop.remove_reader(listener.sock.fileno())
        self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again, listener)

    def _accept_again(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listen(listener)

    def _admit(self, sock: socket.socket, where: object, listener: Listener) -> None:
        self._counters.connections_total += 1
        tls = self._tls if listener.tls else None
        file = None if listener.socket_file is None else listener.socket_file.name
        try:
            origin = origin_of(sock, where, file, None if tls is None else self._certificate)
        except OSError:
            sock.close()  # the client has closed the connection before it was served
            return
        limit = self._limits.max_connections
        if self._closing or (len(self._connections) >= limit and not self._make_room()):
            self._counters.connections_refused_total += 1
            refusal: LiftlogError = ShuttingDown("the daemon is shutting down")
            if not self._closing:
                refusal = LimitExceeded(f"the daemon serves at most {limit} connections")
            logger.warning("connection-refused peer=%s error=%s", origin.name, refusal.name)
            with sock:
                sock.setblocking(False)
                try:
                    if tls is None:  # with TLS, a handshake would be needed first
                        sock.send(encode_frame(answer_for(refusal).to_map(0)))
                except OSError:
                    pass
            return
        transport: Transport
        try:
            transport = SocketTransport(sock) if tls is None else TlsTransport(sock, tls)
        except OSError:
            sock.close()  # the client has closed the connection before it was served
            return
        connection = PullConnection(
            self.services,
            transport,
            origin,
            on_login=self._logged_in,
            on_memory_short=self._free_memory,
            on_end=self._ended,
        )
        self._connections[connection] = None
        self._strangers.setdefault(connection.place, {})[connection] = None
        if self._sweep is None:
            self._schedule_sweep()

    def _make_room(self) -> bool:
        """Close a connection that has not logged in. Returns False if there is none.

        The method determines the place of origin with the most such connections, and closes the
        oldest of these. So connections that do not log in never lock out other clients. A flood
        from one place does not close connections from other places.
        """
        for there in sorted(self._strangers.values(), key=len, reverse=True):
            for connection in there:
                if connection.is_opening:
                    connection.make_room("others wait for its place, and it has not logged in")
                    return True
        return False

    def _free_memory(self) -> None:
        """Close connections until unanswered requests and unsent answers no longer use too much
        memory. The connection that uses the most memory is closed first."""
        memory, most_bytes = self.services.memory, self._limits.max_unsent_memory_bytes
        while memory.used_bytes > most_bytes and self._connections:
            largest = max(self._most_demanding(), key=lambda one: one.memory_bytes)
            largest.make_room("requests and unsent answers take too much memory, most of it here")

    def _most_demanding(self) -> Collection[PullConnection]:
        """Return the connections of one principal: the one whose connections together use the most
        memory. So a principal has no advantage from many connections."""
        if len(self._uses) < 2:
            return self._connections
        uses = [use.connections for use in self._uses.values()]
        found = max(uses, key=lambda some: sum([one.memory_bytes for one in some]))
        return found if any(one.memory_bytes for one in found) else self._connections

    def _schedule_sweep(self) -> None:
        """Start the timer that looks for stalled and disconnected clients. The timer runs only
        while clients are connected."""
        limits = self._limits
        seconds = min(limits.write_stall_seconds, limits.request_timeout_seconds) / 4
        seconds = min(seconds, _LONGEST_SWEEP_SECONDS)
        seconds = max(seconds, 0.05)
        self._sweep = self._loop.call_later(seconds, self._sweep_stalled)

    def _sweep_stalled(self) -> None:
        self._sweep = None
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check_stalled(now)
        for connection in _hung_up(self._connections):
            connection.hung_up()
        if self._connections:
            self._schedule_sweep()


def _hung_up(connections: Collection[PullConnection]) -> list[PullConnection]:
    """Return the connections whose client has disconnected.

    The event loop does not report all of them. If a request arrived just before a reset, the loop
    reports only the request. While the daemon reads no requests from a connection, the loop does
    not watch it at all.
    """
    poll = select.poll()
    by_number = {connection.fileno(): connection for connection in connections}
    for number in by_number:
        poll.register(number, 0)  # errors and hang-ups are always reported
    return [by_number[number] for number, _ in poll.poll(0)]
