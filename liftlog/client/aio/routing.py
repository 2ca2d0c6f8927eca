"""The asyncio client's connections to the nodes of a cluster: selects one for each request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from liftlog.client.aio.link import Link
from liftlog.client.aio.session import Session
from liftlog.client.connecting.reconnecting import (
    ReadPatience,
    deadline_after,
    is_detour,
    may_pass,
    may_repeat,
    undecided,
)
from liftlog.client.connecting.routes import Routes, Wandering, key_of, stream_key
from liftlog.client.connecting.target import Target
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.errors import (
    ConnectionLost,
    LiftlogError,
    NotLeader,
    ProtocolViolation,
    ShuttingDown,
)
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import DescribeStream, Message, StreamAnswer


class Router:
    """Keeps one session for each node that receives requests. With a single address it behaves like
    one session, until a node names another node."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.target = targets[0]
        self._routes = Routes(targets)
        self._sessions: dict[str, Session] = {}
        self._newest = self._session_at(self.target.address.text)
        self._is_closed = False
        self._others: list[Router] = []

    async def open(self) -> None:
        """Open the first connection: try each address once. If all fail, raises the error of the
        last attempt."""
        for left in reversed(range(len(self._routes.targets))):
            address = self._routes.address_of("")
            session = self._session_at(address)
            try:
                await session.open()
            except LiftlogError:
                if not left:
                    raise
                self._routes.failed("", address)
            else:
                self._newest = session
                return

    @property
    def link(self) -> Link:
        """The connection that was used last; it may be closed."""
        return self._newest.link

    @property
    def targets(self) -> list[Target]:
        """The addresses given to the client, and the addresses received from the cluster."""
        return list(self._routes.targets.values())

    def learn(self, addresses: Sequence[str]) -> None:
        """Add addresses of other nodes of the cluster, which a node has reported."""
        for address in addresses:
            self._routes.learn(address)

    @property
    def usable(self) -> bool:
        """True if the connection that was used last is usable."""
        return self._newest.usable

    def close(self, reason: str) -> None:
        """Accept no more requests; calls that wait raise ConnectionLost."""
        self._is_closed = True
        for session in self._sessions.values():
            session.close(reason)
        for other in self._others:
            other.close(reason)

    async def another(self) -> Router:
        """Return a router with connections of its own. Closing this router also closes these
        connections. If no daemon can be reached, retries for `reconnect_for` seconds, and then
        raises the errors of `open`."""
        other = Router(self.targets)
        self._others = [one for one in self._others if not one._is_closed]
        self._others.append(other)
        patience = ReadPatience(self.target.reconnect_for)
        while True:
            try:
                await other.open()
            except LiftlogError as error:
                now = time.monotonic()
                pause, deadline = patience.interrupted(0, now)
                over = deadline is not None and now + pause >= deadline
                if over or self._is_closed or not may_pass(error):
                    raise
            else:
                return other
            await asyncio.sleep(pause)

    def route(self, stream: str, replica: str | None) -> ReadRoute:
        """Return the route of one read."""
        key = stream_key(stream, replica)
        return ReadRoute(self, key, self._session_at(self._routes.address_of(key)))

    async def ask(self, message: Message, timeout: float) -> Exchange:
        """Send one request to the node that answers it, and return the answer. A request that may
        safely be executed twice is repeated; all attempts together last at most `timeout` seconds.
        Raises RequestTimeout, and ConnectionLost if there is no connection (with `undecided` if the
        request may have taken effect).
        """
        started = time.monotonic()
        ends = started + timeout
        deadline = deadline_after(started, timeout, self.target.reconnect_for)
        key, way, left = key_of(message), Wandering(), timeout
        while True:
            address = self._routes.address_of(key)
            session = self._session_at(address)
            if self._routes.has_choice:
                exchange = await self._ask_once(session, key, message, ends, deadline)
            else:
                exchange = await session.ask(message, left)
            error = None if exchange is None else exchange.error
            if exchange is not None:
                if error is None or not is_detour(error) or self._is_closed:
                    self._newest = session
                    return exchange
                if not self._routes.has_choice and not isinstance(error, NotLeader):
                    return exchange
            named = error is not None and self._routes.told(key, address, error)
            pause = way.pause_before(self._routes.address_of(key), is_named=named)
            left = timeout - (time.monotonic() + pause - started)
            if exchange is not None and (left <= 0 or time.monotonic() + pause >= deadline):
                return exchange
            await asyncio.sleep(pause)

    async def _ask_once(
        self, session: Session, key: str, message: Message, ends: float, deadline: float
    ) -> Exchange | None:
        """Send the request to one node. Returns None if no connection could be opened and there is
        time for an attempt at another node."""
        address = session.target.address.text
        try:
            link = await session.reach(self._routes.deadline_at(time.monotonic(), deadline))
        except ConnectionLost:
            if self._is_closed or time.monotonic() >= deadline:
                raise
            self._routes.failed(key, address)
            return None
        exchange = await link.ask(message, ends)
        error = exchange.error
        if error is not None and is_detour(error):
            refused = link.error is not error
            if not may_repeat(message, exchange, refused=refused):
                raise undecided(message, error, address) from error
            if not refused or isinstance(error, ShuttingDown):
                self._routes.failed(key, address)
        return exchange

    # --- reads ---

    def is_alone(self, interruption: LiftlogError) -> bool:
        """True if no other node can serve the interrupted read, so that the session of the read has
        to reconnect."""
        return not self._routes.has_choice and not isinstance(interruption, NotLeader)

    async def move(
        self, key: str, session: Session, interruption: LiftlogError, deadline: float | None
    ) -> Session:
        """Return a usable session to continue an interrupted request or read. Raises ConnectionLost
        at the deadline."""
        address = session.target.address.text
        self._routes.told(key, address, interruption)
        if isinstance(interruption, ConnectionLost | ShuttingDown):
            self._routes.failed(key, address)
        way = Wandering()
        while True:
            address = self._routes.address_of(key)
            session = self._session_at(address)
            try:
                await session.reach(self._routes.deadline_at(time.monotonic(), deadline))
            except ConnectionLost:
                if self._is_closed or (deadline is not None and time.monotonic() >= deadline):
                    raise
                self._routes.failed(key, address)
                await asyncio.sleep(way.pause_before(address, is_named=False))
            else:
                self._newest = session
                return session

    def _session_at(self, address: str) -> Session:
        session = self._sessions.get(address)
        if session is None:
            session = self._sessions[address] = Session(self._routes.targets[address])
        return session


class ReadRoute:
    """The session of one read. When another node becomes the stream's leader, the read moves to the
    session of that node."""

    def __init__(self, router: Router, key: str, session: Session) -> None:
        self.target = router.target
        self._router = router
        self._key = key
        self._session = session

    @property
    def link(self) -> Link:
        return self._session.link

    @property
    def usable(self) -> bool:
        return self._session.usable

    def request(self, message: Message, exchange: Exchange) -> None:
        """Send a request of the read; without a connection `exchange` ends with an error."""
        self._session.request(message, exchange)

    def give_up(self, exchange: Exchange) -> None:
        """Cancel a request that is in flight."""
        self._session.give_up(exchange)

    async def bound(self, ahead: ReadAhead) -> None:
        """Request the leader's high watermark. A copy must have reached this offset to answer this
        read. Raises the errors that every call can raise."""
        timeout = self.target.request_timeout
        exchange = await self._router.ask(DescribeStream(ahead.stream), timeout)
        if exchange.error is not None:
            raise exchange.error
        if not isinstance(exchange.answer, StreamAnswer):
            raise ProtocolViolation("the question about a stream was answered with something else")
        ahead.begin_with(exchange.answer.info)

    async def go_on(self, ahead: ReadAhead, patience: ReadPatience) -> None:
        """Resume an interrupted read as soon as there is a connection to the right node.

        Raises ConnectionLost if there is no connection for too long; the caller can call the method
        again.
        """
        interruption = ahead.interruption
        assert interruption is not None
        if self._router.is_alone(interruption):
            await self._session.go_on(ahead, patience)
            return
        if self.target.reconnect_for == 0:
            raise interruption
        pause, deadline = patience.interrupted(ahead.answer_count, time.monotonic())
        if deadline is not None and time.monotonic() + pause >= deadline:
            patience.gave_up()
            raise interruption
        await asyncio.sleep(min(pause, 1.0))
        try:
            session = await self._router.move(self._key, self._session, interruption, deadline)
        except ConnectionLost:
            patience.gave_up()
            raise
        self._session = session
        ahead.resume()
