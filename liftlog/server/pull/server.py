"""`PullServer`: listens, accepts, and keeps the connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

from acl.policy import Policy
from liftlog.errors import ConfigError, LiftlogError, LimitExceeded, ShuttingDown, Unauthenticated
from liftlog.protocol.failures import answer_for
from liftlog.protocol.frames import encode_frame
from liftlog.protocol.server_connection import InFlight
from liftlog.server.access.audit import Audit
from liftlog.server.access.authentication import Authenticator, Identity
from liftlog.server.access.gate import Gate
from liftlog.server.access.origins import origin_of
from liftlog.server.pull.connection import PrincipalUse, PullConnection
from liftlog.server.pull.counters import PullCounters
from liftlog.server.pull.fair_input import Rounds
from liftlog.server.pull.fair_threads import Turns
from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.listener import Listener, open_listener
from liftlog.server.pull.read_share import ReadShare, ThreadUsage
from liftlog.server.pull.seams import Broker, ReadableStream
from liftlog.server.pull.send_queue import UnsentMemory
from liftlog.server.pull.tailing import TailGroup
from liftlog.server.pull.transport import SocketTransport, TlsTransport, Transport
from liftlog.server.streams.intake import Ingested
from liftlog.tls.contexts import own_certificate

logger = logging.getLogger("liftlog.server.pull")

_ACCEPTS_PER_TURN = 32
_ACCEPT_PAUSE_SECONDS = 0.5
_COLD_READERS = 4
_SCANNERS = 1  # more would only take turns with each other, and with the event loop


class PullServer:
    """Serves the streams of `broker`. All methods belong to the loop that called `start`.

    `policy` None means that no ACL is configured; `ingested` says what has come from NATS.
    `set_policy` swaps the policy for connections and requests to come, `set_tls` the certificates
    for connections to come.
    """

    def __init__(
        self,
        broker: Broker,
        limits: PullLimits | None = None,
        policy: Policy | None = None,
        tls: ssl.SSLContext | None = None,
        ingested: Callable[[], Ingested] = lambda: Ingested(0, 0),
    ) -> None:
        self.broker = broker
        self._usage = ThreadUsage()
        self.read_share = ReadShare(self._usage, ingested)
        self.rounds = Rounds()
        self.limits = limits or PullLimits()
        self.audit = Audit()
        self.gate = Gate(policy, self.audit)
        self.tls: ssl.SSLContext | None = None
        self._certificate: bytes | None = None
        if tls is not None:
            self.set_tls(tls)
        self.counters = PullCounters()
        self.loop: asyncio.AbstractEventLoop
        self.cold_readers = ThreadPoolExecutor(_COLD_READERS, "liftlog-cold-read")
        self.scanners = Turns(_SCANNERS, "liftlog-scan")
        self._tails: WeakKeyDictionary[ReadableStream, TailGroup] = WeakKeyDictionary()
        self.authenticator = Authenticator(self.audit, max_pending=self.limits.max_pending_auths)
        self._uses: dict[str, PrincipalUse] = {}
        self._listeners: list[Listener] = []
        self.memory = UnsentMemory()
        self.question = asyncio.Lock()  # one at a time, see ClientRequests._serve
        self._connections: dict[PullConnection, None] = {}  # the oldest first
        self._jobs: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None
        self._closing = False

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def set_policy(self, policy: Policy | None) -> None:
        """Requests to come are judged by it, also those that wait; a connection whose credential
        is not in it any more is ended."""
        self.gate = Gate(policy, self.audit)
        for connection in list(self._connections):
            connection.check_identity()

    def set_tls(self, context: ssl.SSLContext) -> None:
        """For handshakes to come. Raises ConfigError for a certificate that is of no use."""
        self._certificate = own_certificate(context)
        self.tls = context

    async def start(self, listen: Sequence[str]) -> list[str]:
        """Listen on every address or none; returns the real ones. Raises ConfigError."""
        self.loop = asyncio.get_running_loop()
        opened: list[Listener] = []
        try:
            for address in listen:
                opened.append(open_listener(address, unix_mode=self.limits.unix_mode))
                if opened[-1].tls and self.tls is None:
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
        """Stop listening, refuse what waits, let unsent answers leave for `grace` seconds."""
        self._closing = True
        for listener in self._listeners:
            self.loop.remove_reader(listener.sock.fileno())
            listener.close()
        self._listeners.clear()
        for connection in list(self._connections):
            connection.shut_down()
        self._idle = asyncio.Event()
        if self._connections:
            try:
                await asyncio.wait_for(self._idle.wait(), grace)
            except TimeoutError:
                logger.warning("connections-cut-off count=%d", len(self._connections))
        for connection in list(self._connections):
            connection.close()
        for job in list(self._jobs):
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        if self._sweep is not None:
            self._sweep.cancel()
        for pool in (self.cold_readers, self.scanners):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        await self.authenticator.close()
        self._usage.close()

    # --- for the connections ---

    def tail_group(self, stream: ReadableStream) -> TailGroup:
        """Of those who wait at the end of this stream."""
        group = self._tails.get(stream)
        if group is None:
            group = self._tails[stream] = TailGroup(
                self.loop, self.limits.linger_seconds, self.read_share
            )
        return group

    def spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    def forget(self, connection: PullConnection) -> None:
        self._connections.pop(connection, None)
        self.leave(connection)
        if self._idle is not None and not self._connections:
            self._idle.set()

    def enter(self, connection: PullConnection, identity: Identity) -> PrincipalUse:
        """It is of this principal from now on. Raises Unauthenticated, LimitExceeded."""
        if not identity.holds_in(self.gate.policy):
            raise Unauthenticated("the ACL has changed meanwhile")
        name = identity.principal
        use = self._uses.get(name) if name is not None else None
        if use is None:
            limits = self.limits
            if name is None:
                use = PrincipalUse(InFlight(sys.maxsize))
            else:
                use = PrincipalUse(
                    InFlight(
                        limits.max_in_flight_per_principal,
                        limits.max_request_memory_per_principal_bytes,
                    )
                )
        most = self.limits.max_connections_per_principal
        if name is not None and len(use.connections) >= most:
            raise LimitExceeded(f"{name} has {most} connections already, as many as it may have")
        use.connections.add(connection)
        if name is not None:
            self._uses[name] = use
        return use

    def leave(self, connection: PullConnection) -> None:
        """It is gone."""
        name = connection.principal
        use = None if name is None else self._uses.get(name)
        if name is not None and use is not None:
            use.connections.discard(connection)
            if not use.connections:
                del self._uses[name]

    # --- accepting ---

    def _listen(self, listener: Listener) -> None:
        self.loop.add_reader(listener.sock.fileno(), self._accept, listener)

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
        """Out of file descriptors, most likely: the same error would come at once again."""
        name = errno.errorcode.get(error.errno or 0, "?")
        logger.error("accepting-failed listen=%s error=%s", listener.address, name)
        self.loop.remove_reader(listener.sock.fileno())
        self.loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again, listener)

    def _accept_again(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listen(listener)

    def _admit(self, sock: socket.socket, where: object, listener: Listener) -> None:
        self.counters.connections_total += 1
        tls = self.tls if listener.tls else None
        file = None if listener.socket_file is None else listener.socket_file.name
        try:
            origin = origin_of(sock, where, file, None if tls is None else self._certificate)
        except OSError:
            sock.close()  # gone before it was served
            return
        limit = self.limits.max_connections
        if self._closing or (len(self._connections) >= limit and not self._make_room()):
            self.counters.connections_refused_total += 1
            refusal: LiftlogError = ShuttingDown("the daemon is shutting down")
            if not self._closing:
                refusal = LimitExceeded(f"the daemon serves at most {limit} connections")
            logger.warning("connection-refused peer=%s error=%s", origin.name, refusal.name)
            with sock:
                sock.setblocking(False)
                try:
                    if tls is None:  # else a handshake would have to come first, for nothing
                        sock.send(encode_frame(answer_for(refusal).to_map(0)))
                except OSError:
                    pass
            return
        transport: Transport
        try:
            transport = SocketTransport(sock) if tls is None else TlsTransport(sock, tls)
        except OSError:
            sock.close()  # gone before it was served
            return
        self._connections[PullConnection(self, transport, origin)] = None
        if self._sweep is None:
            self._schedule_sweep()

    def _make_room(self) -> bool:
        """Those who have not yet said who they are never keep out the others: of them, the one
        that has had the most time goes."""
        for connection in self._connections:
            if connection.is_opening:
                connection.make_room("others wait for its place, and it has not said who it is")
                return True
        return False

    def relieve(self) -> None:
        """Requests without an answer and answers that clients do not take lie in too much memory:
        the connection with most of it goes."""
        while self.memory.used_bytes > self.limits.max_unsent_memory_bytes and self._connections:
            largest = max(self._most_demanding(), key=lambda one: one.memory_bytes)
            largest.make_room("requests and unsent answers take too much memory, most of it here")

    def _most_demanding(self) -> Collection[PullConnection]:
        """The connections of the principal whose answers take most memory: one with many
        connections is no better off than one with few."""
        if len(self._uses) < 2:
            return self._connections
        uses = [use.connections for use in self._uses.values()]
        found = max(uses, key=lambda some: sum([one.memory_bytes for one in some]))
        return found if any(one.memory_bytes for one in found) else self._connections

    def _schedule_sweep(self) -> None:
        """Look for stalled clients, only while there are clients."""
        limits = self.limits
        seconds = min(limits.write_stall_seconds, limits.request_timeout_seconds) / 4
        seconds = max(seconds, 0.05)
        self._sweep = self.loop.call_later(seconds, self._sweep_stalled)

    def _sweep_stalled(self) -> None:
        self._sweep = None
        now = self.loop.time()
        for connection in list(self._connections):
            connection.check_stalled(now)
        if self._connections:
            self._schedule_sweep()
