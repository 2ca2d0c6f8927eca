"""The connection of this node to another node. A lost connection is opened again.

All followers of streams that the other node leads share the connection. If it is lost, each open
request ends with ConnectionLost. The sender must then create a new request, because a request
depends on the end of the sender's log.

The link pings the other node. The pings show the other node that this node is alive, and the
answers show this node that the other node is alive. A silent connection is closed, because the
route to the other node may have changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import NamedTuple

from liftlog.client.aio.dialing import dial
from liftlog.client.aio.link import Link
from liftlog.client.connecting.buffers import BufferPool
from liftlog.client.connecting.reconnecting import Backoff
from liftlog.client.connecting.target import Target
from liftlog.errors import Conflict, ConnectionLost, LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import Message, Ping, Pong
from liftlog.protocol.replication import PEER_MAX_IN_FLIGHT, Peer, PeerAnswer
from liftlog.server.replication.clocks import NodeClocks
from liftlog.server.replication.hearing import Hearing

logger = logging.getLogger("liftlog.server.replication")

_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 5.0
_UNKNOWN_ADDRESS_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 1.0
_PING_SECONDS = 0.5
_SILENT_INTERVALS = 10
"""The connection is closed after this number of intervals without a byte. The link counts intervals
instead of seconds, because this process itself may have been suspended."""


class Introduced(NamedTuple):
    """The other node's description of itself on the current connection."""

    node: str
    start: int
    features: tuple[str, ...]


class PeerLink:
    """The connection to one node. Belongs to one event loop; `run` keeps the connection until it is
    cancelled.

    `target` returns the current address of the node, or None while it is unknown. `introduction`
    returns the message by which this node identifies itself. `on_up` is called at each new
    connection.
    """

    def __init__(
        self,
        node: str,
        target: Callable[[], Target | None],
        introduction: Callable[[], Peer],
        on_up: Callable[[], None],
        hearing: Hearing,
        clocks: NodeClocks | None = None,
    ) -> None:
        self.node = node
        self.peer: Introduced | None = None
        """The other node; None while there is no connection."""
        self.problem = ""
        """The reason why there is no connection, if the reason is known."""
        self._target = target
        self._introduction = introduction
        self._on_up = on_up
        self._hearing = hearing
        self._clocks = clocks
        self._has_news = False
        self._pool = BufferPool()
        self._link: Link | None = None
        self._ended: asyncio.Event = asyncio.Event()
        self._backoff = Backoff()
        self._is_due = asyncio.Event()

    def connect_soon(self) -> None:
        """Connect without delay, because there is other evidence that the node is running."""
        self._backoff.reset()
        self._is_due.set()

    async def run(self) -> None:
        """Connect, and connect again after each loss."""
        try:
            while True:
                try:
                    target = self._target()
                except LiftlogError as error:  # a file that the connection needs cannot be used
                    self._tell(f"connecting to it is not possible: {error}", "")
                    await self._pause()
                    continue
                if target is None:
                    self.problem = "its address is not known yet"
                    await asyncio.sleep(_UNKNOWN_ADDRESS_SECONDS)
                    continue
                try:
                    await self._connect(target)
                except (LiftlogError, OSError, TimeoutError) as error:
                    if isinstance(error, ConnectionRefusedError):
                        self._hearing.refused(self.node)
                    self._note_problem(target, _why(error))
                    await self._pause()
                    continue
                self._backoff.reset()
                self.problem = ""
                logger.info("peer-connected node=%s address=%s", self.node, target.address.text)
                await self._use()
                reason = self._link.error if self._link is not None else "closed"
                self._note_problem(target, str(reason))
        finally:
            self._drop("this node is stopping")

    async def _pause(self) -> None:
        self._is_due.clear()
        pause = min(self._backoff.next_pause(), _LONGEST_PAUSE_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._is_due.wait()

    async def _use(self) -> None:
        """Use the connection, from the introduction until it is lost."""
        self._hearing.connected(self.node)
        try:
            self._on_up()
            await self._keep_pinging()
        finally:
            self._hearing.disconnected(self.node)

    async def _keep_pinging(self) -> None:
        silent_intervals = 0
        while not self._ended.is_set():
            silent_intervals = 0 if self._has_news else silent_intervals + 1
            self._has_news = False
            if silent_intervals == _SILENT_INTERVALS and self._link is not None:
                self._link.lose("it answers no ping")
                return
            self._ping()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING_SECONDS):
                    await self._ended.wait()

    def _ping(self) -> None:
        clocks = self._clocks
        if clocks is None:
            self.request(Ping(), Exchange())
            return
        asked = clocks.asked()

        def answered(exchange: Exchange) -> None:
            pong = exchange.answer
            if isinstance(pong, Pong) and pong.time_ns is not None:
                doubted = bool(pong.is_doubted)
                clocks.answered(self.node, asked, pong.time_ns, is_doubted=doubted)

        self.request(Ping(), Exchange(on_done=answered))

    def request(self, message: Message, exchange: Exchange) -> None:
        """Send a request. If there is no connection, `exchange` ends with ConnectionLost."""
        link = self._link
        if link is None or self.peer is None or link.error is not None:
            error = ConnectionLost(f"there is no connection to node {self.node}: {self.problem}")
            exchange.finish(None, error)
            return
        try:
            link.request(message, exchange)
        except LiftlogError as error:
            exchange.finish(None, error)

    def give_up(self, exchange: Exchange) -> None:
        """Cancel an open request."""
        if self._link is not None:
            self._link.give_up(exchange)

    def drop(self, reason: str) -> None:
        """Close the current connection; `run` opens another one."""
        self._drop(reason)

    async def _connect(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CONNECT_SECONDS
        async with asyncio.timeout_at(deadline):
            channel = await dial(target.address, target.context, deadline)
            link = Link(channel, target.address.text, _SILENCE_SECONDS, self._pool)
            try:
                await link.open(target.credentials, deadline)
                exchange = await link.ask(self._introduction(), deadline)
                if exchange.error is not None:
                    raise exchange.error
                answer = exchange.answer
                if not isinstance(answer, PeerAnswer) or answer.node != self.node:
                    other = answer.node if isinstance(answer, PeerAnswer) else "no node"
                    raise Conflict(
                        f"{target.address.text} is {other}, not node {self.node}",
                        hint="each node must advertise an address of its own",
                    )
            except BaseException:
                link.lose("it could not be opened")
                raise
        # Without this limit, requests that wait for new records would leave no room for requests of
        # other streams.
        link.connection.allow_in_flight(PEER_MAX_IN_FLIGHT)
        self._ended.clear()
        self._link = link
        link.on_lost = self._lost
        link.on_heard = self._heard
        self.peer = Introduced(answer.node, answer.start, tuple(answer.features))
        if link.error is not None:  # the connection was lost after the answer
            self._lost()

    def _heard(self) -> None:
        self._has_news = True
        self._hearing.heard(self.node)

    def _lost(self) -> None:
        self.peer = None
        self._ended.set()

    def _drop(self, reason: str) -> None:
        link, self._link, self.peer = self._link, None, None
        if link is not None:
            link.lose(reason)
        self._ended.set()

    def _note_problem(self, target: Target, problem: str) -> None:
        self._tell(problem, target.address.text)

    def _tell(self, problem: str, address: str) -> None:
        if problem != self.problem:
            logger.warning(
                "peer-lost node=%s address=%s reason=%s", self.node, address or "none", problem
            )
        self.problem = problem


def _why(error: Exception) -> str:
    """Describe the error, and how to remove its cause on a node. The hints for clients do not
    apply, because they name options that a node does not have."""
    if isinstance(error, ConnectionLost) and isinstance(
        error.__cause__, ssl.SSLCertVerificationError
    ):
        return f"{error.message} (cluster.tls_ca names the CA that signed its certificate)"
    return str(error) or "no answer in time"
