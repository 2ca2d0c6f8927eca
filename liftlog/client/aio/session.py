"""The asyncio client's connection to one daemon. A lost connection is replaced by a new one."""

from __future__ import annotations

import asyncio
import logging
import time

from liftlog.client.aio.dialing import dial
from liftlog.client.aio.link import Link
from liftlog.client.aio.turns import Turns
from liftlog.client.connecting.buffers import BufferPool
from liftlog.client.connecting.reconnecting import (
    Backoff,
    ReadPatience,
    deadline_after,
    gave_up,
    is_interruption,
    may_pass,
    may_repeat,
    never_greeted,
    undecided,
    unreachable,
)
from liftlog.client.connecting.target import Target
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.errors import ConnectionLost, LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import Message

logger = logging.getLogger("liftlog.client")


class Session:
    """Sends requests over the present connection, and replaces it when it is lost.

    Belongs to one event loop.

    No task runs in the background: a call that needs a connection opens it, and all other calls
    wait. If that call is cancelled, the next call takes over.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._pool = BufferPool()
        self._backoff = Backoff()
        self._lost: Link | None = None  # the old connection, which is being replaced
        self._lost_at = self._attempt_at = 0.0
        self._turns = Turns()
        self._link: Link | None = None
        self._failure: LiftlogError | None = None
        self._closed: LiftlogError | None = None

    async def open(self) -> None:
        """Open the first connection. There is only one attempt; its error is raised."""
        self._link = await self._dial(None)

    @property
    def link(self) -> Link:
        """The present connection; it may be closed."""
        assert self._link is not None, "the client is not connected yet"
        return self._link

    @property
    def usable(self) -> bool:
        return self._closed is None and self._link is not None and self._link.usable

    def close(self, reason: str) -> None:
        """Accept no more requests; calls that wait raise ConnectionLost."""
        if self._closed is None:
            text = f"the connection to {self.target.address.text} is lost: {reason}"
            self._closed = ConnectionLost(text, address=self.target.address.text)
            if self._link is not None:
                self._link.lose(self._closed)
            self._turns.end()

    # --- requests ---

    def request(self, message: Message, exchange: Exchange) -> None:
        """Send a request of a read; without a connection `exchange` ends with an error."""
        link = self._link
        if link is None:
            exchange.finish(None, self._closed or gave_up(self.target.address.text, None))
        elif link.error is None:
            link.request(message, exchange)
        else:
            exchange.finish(None, self._closed or link.error)

    def give_up(self, exchange: Exchange) -> None:
        """Cancel a request that is in flight."""
        if self._link is not None:
            self._link.give_up(exchange)

    async def ask(self, message: Message, timeout: float) -> Exchange:
        """Send one request, and return the answer. After a lost connection, a request that may
        safely be executed twice is repeated on a new connection; all attempts together last at most
        `timeout` seconds. Raises RequestTimeout, and ConnectionLost if there is no connection (with
        `undecided` if the request may have taken effect).
        """
        started = time.monotonic()
        deadline = deadline_after(started, timeout, self.target.reconnect_for)
        backoff = Backoff()
        while True:
            link = await self.connected(deadline)
            exchange = await link.ask(message, started + timeout)
            error = exchange.error
            if error is None or not is_interruption(error) or self._closed is not None:
                return exchange
            refused = link.error is not error
            if not may_repeat(message, exchange, refused=refused):
                raise undecided(message, error, self.target.address.text) from error
            pause = backoff.next_pause() if refused else 0.0
            if time.monotonic() + pause >= deadline:
                return exchange
            await asyncio.sleep(pause)

    async def go_on(self, ahead: ReadAhead, patience: ReadPatience) -> None:
        """Resume an interrupted read as soon as there is a connection.

        Raises ConnectionLost if there is no connection for too long; the caller can call the method
        again.
        """
        interruption = ahead.interruption
        assert interruption is not None
        if self._closed is not None or self.target.reconnect_for == 0:
            raise self._closed or interruption
        pause, deadline = patience.interrupted(ahead.answer_count, time.monotonic())
        if deadline is not None and time.monotonic() + pause >= deadline:
            patience.gave_up()
            raise interruption
        if self.usable:
            await asyncio.sleep(pause)  # the daemon refused the request, but the connection is open
        try:
            await self.connected(deadline)
        except ConnectionLost:
            patience.gave_up()
            raise
        ahead.resume()

    # --- connecting ---

    async def connected(self, deadline: float | None) -> Link:
        """Return the present connection; if it is lost, reconnect. `deadline` is by
        time.monotonic().

        Raises ConnectionLost at the deadline. An error that another attempt cannot avoid is raised
        at once.
        """
        link = self.link
        if self._closed is None and link.usable:
            return link
        if self._closed is not None or self.target.reconnect_for == 0:
            raise self._closed or link.error or gave_up(link.address, None)
        try:
            async with self._turns.turn(deadline):
                return await self._reconnect(deadline)
        except TimeoutError:
            raise self._closed or gave_up(link.address, self._failure or link.error) from None

    async def reach(self, deadline: float | None) -> Link:
        """Return the present connection; if there is none, make one attempt to connect. Raises
        ConnectionLost at the deadline, and the error of the attempt."""
        try:
            async with self._turns.turn(deadline):
                if self._closed is not None:
                    raise self._closed
                if self._link is None or not self._link.usable:
                    self._link = await self._dial(deadline)
                return self._link
        except TimeoutError:
            raise self._closed or gave_up(self.target.address.text, None) from None

    async def _reconnect(self, deadline: float | None) -> Link:
        """Try to connect until an attempt succeeds. Only one call reconnects at a time; other calls
        wait for its result. Raises TimeoutError at the deadline.

        The pause applies between any two attempts of the session, also between attempts of
        different calls, so that many calls with short timeouts do not cause more attempts.
        """
        lost = self.link
        if lost.usable:
            return lost  # another call has reconnected
        address, clock = lost.address, time.monotonic
        if lost is not self._lost:
            self._lost, self._lost_at, self._failure = lost, clock(), None
            if lost.connection.answered:
                self._backoff.reset()
            self._attempt_at = clock() + self._backoff.next_pause()
            logger.warning("connection-lost address=%s reason=%s", address, lost.error)
        while True:
            wakes = self._attempt_at if deadline is None else min(self._attempt_at, deadline)
            await asyncio.sleep(max(wakes - clock(), 0))
            if deadline is not None and clock() >= deadline:
                raise TimeoutError
            pause = self._backoff.next_pause()
            self._attempt_at = clock() + pause
            try:
                link = await self._dial(deadline)
            except LiftlogError as error:
                if not may_pass(error):
                    raise
                self._failure, self._attempt_at = error, clock() + pause
                continue
            if self._closed is not None:
                link.lose(self._closed)
                raise self._closed
            self._link, self._lost = link, None
            seconds = clock() - self._lost_at
            logger.info("connected-again address=%s after_seconds=%.3f", address, seconds)
            return link

    async def _dial(self, deadline: float | None) -> Link:
        """Make one attempt to connect, for at most `connect_timeout`. Raises ConnectionLost if it
        fails or at the deadline."""
        target = self.target
        text, now = target.address.text, time.monotonic()
        attempt_ends = now + target.connect_timeout
        ends = attempt_ends if deadline is None else min(attempt_ends, deadline)
        try:
            channel = await dial(target.address, target.context, ends)
            link = Link(channel, text, target.request_timeout, self._pool)
            try:
                await link.open(target.credentials, ends)
            except ConnectionLost as error:
                raise never_greeted(error, target.address) from error
            except BaseException:
                link.lose("it could not be opened")
                raise
            return link
        except TimeoutError:
            raise unreachable(text, f"no answer in {round(ends - now, 3):g} s") from None
        except OSError as error:
            raise unreachable(text, error.strerror or error) from error
