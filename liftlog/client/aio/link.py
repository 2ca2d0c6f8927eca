"""One connection of the asyncio client. The connection uses its socket directly, without a
transport or a stream reader, and does not copy bodies. `session` replaces a lost connection by a
new one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from liftlog.client.connecting.base_link import BaseLink
from liftlog.client.connecting.buffers import BufferPool
from liftlog.client.connecting.channel import RECEIVE_BYTES, Channel
from liftlog.client.connecting.reconnecting import unanswered
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.errors import LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.handshake import Credentials, State
from liftlog.protocol.messages import Message

WAKE_BYTES = 256 * 1024
"""Number of bytes of a body after which the task wakes up. A larger number means fewer wake-ups.
With this number the bytes are still in the processor's cache when the task examines them."""

LOOK_SECONDS = 5.0
"""Interval, in seconds, at which a connection is checked for silence."""


class Link(BaseLink):
    """A connection in the event loop. It receives as soon as the socket is readable."""

    def __init__(
        self, channel: Channel, address: str, silence_seconds: float, pool: BufferPool
    ) -> None:
        super().__init__(channel, address, silence_seconds, pool)
        self.on_lost: Callable[[], None] | None = None
        """A callback that runs once when the connection is lost, before the requests on it end."""
        self.on_heard: Callable[[], None] | None = None
        """A callback that runs when bytes have arrived, before they are examined."""
        self._loop = asyncio.get_running_loop()
        self._fd = channel.fileno()
        self._waiter: asyncio.Future[None] | None = None
        self._input_waits = False
        self._opening: asyncio.Future[None] | None = None
        self._heard_at = self._looked_at = self._loop.time()
        self._watch = self._loop.call_later(LOOK_SECONDS, self._look)
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def usable(self) -> bool:
        """True until the connection or its event loop is closed."""
        return self.error is None and not self._loop.is_closed()

    async def open(self, credentials: Credentials, deadline: float) -> None:
        """Exchange the hellos and authenticate. Raises TimeoutError at `deadline`."""
        connection = self.connection
        connection.greet()
        async with asyncio.timeout_at(deadline):
            while connection.state is not State.READY:
                self._flush()
                if self.error is not None:
                    raise self.error
                self._opening = self._loop.create_future()
                await self._opening
                if connection.state is State.CHALLENGED:
                    connection.authenticate(credentials, self._channel.peer_certificate)

    async def ask(self, message: Message, deadline: float) -> Exchange:
        """Send one request and wait for its answer. Raises RequestTimeout at `deadline`."""
        began = self._loop.time()
        answered: asyncio.Future[None] = self._loop.create_future()
        exchange = Exchange(on_done=lambda _: wake(answered))
        self.request(message, exchange)
        try:
            async with asyncio.timeout_at(deadline):
                await answered
        except TimeoutError:
            raise unanswered(self.address, message, self._loop.time() - began) from None
        finally:
            if not exchange.done:
                self.give_up(exchange)
        return exchange

    async def input_for(self, ahead: ReadAhead, deadline: float | None) -> bool:
        """Wait until `ahead` may have a batch, and return True; return False at the deadline (by
        time.monotonic).

        The waiting task, and not the event loop, receives the bytes. So with many connections each
        task examines its bytes right after it has received them, while they are in the processor's
        cache. If the task is cancelled before it receives, no bytes are lost: the loop reports the
        socket as readable again.
        """
        if deadline is not None and time.monotonic() >= deadline:
            return False
        ready: asyncio.Future[None] = self._loop.create_future()
        ahead.on_ready = partial(wake, ready)
        timer = None if deadline is None else self._loop.call_at(deadline, wake, ready)
        self._waiter = ready
        try:
            await ready
            if self._input_waits:
                self.receive()
        finally:
            ahead.on_ready = None
            if timer is not None:
                timer.cancel()
        return True

    def _release(self, error: LiftlogError) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        self._watch.cancel()
        super()._release(error)
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(error)
        if self.on_lost is not None:
            self.on_lost()

    # --- the socket ---

    def _on_readable(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            self._input_waits = True
            waiter.set_result(None)
        else:
            self.receive()

    def receive(self) -> None:
        """Receive the bytes that have arrived, and pass them to the requests that they answer."""
        self._input_waits = False
        if self.error is not None:
            return
        connection = self.connection
        budget = RECEIVE_BYTES
        self._heard_at = self._loop.time()
        try:
            while budget > 0 and self.error is None:
                room = connection.get_buffer()[:budget]
                received = self._channel.recv_into(room)
                if received == 0:
                    self.lose("the daemon closed it")
                    return
                if self.on_heard is not None:
                    self.on_heard()
                connection.buffer_updated(received)
                if connection.receive() and self._opening is not None:
                    wake(self._opening)
                    self._opening = None
                self._flush()
                if received < len(room):
                    break  # the socket is empty; the loop calls again when more bytes arrive
                budget -= received
            if self.error is None and self._channel.has_input:
                # The TLS session holds more decrypted bytes. For these the loop does not report the
                # socket as readable, so they must not be left to a task that may be cancelled.
                self._loop.call_soon(self.receive)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, LiftlogError) as error:
            self.lose(error)
        if self.error is None:
            self._channel.wake_at(min(connection.missing_bytes, WAKE_BYTES) or 1)

    def _flush(self) -> None:
        waited = self._unsent
        super()._flush()
        if self.error is not None:
            return
        if self._unsent:
            self._loop.add_writer(self._fd, self._flush)
        elif waited:
            self._loop.remove_writer(self._fd)

    def _look(self) -> None:
        """Close the connection if an answer is due and the daemon has been silent for too long."""
        now = self._loop.time()
        late = now - self._looked_at > 2 * LOOK_SECONDS
        self._looked_at = now
        if late or not self.connection.in_flight:
            # No answer is due, or the loop was blocked. In the second case bytes that arrived
            # meanwhile may not have been read yet.
            self._heard_at = now
        elif now - self._heard_at > LOOK_SECONDS:
            self._channel.wake_at(1)  # on a slow connection, notice each single byte
        allowed = self._allowed_silence()
        if now - self._heard_at > allowed:
            self.lose(f"it has been silent for {allowed:g} s")
            return
        self._watch = self._loop.call_later(LOOK_SECONDS, self._look)


async def first_input(reads: Sequence[tuple[Link, ReadAhead]], seconds: float) -> None:
    """Wait until one of the reads may have a batch, but at most `seconds`."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, wake, ready)
    for _, ahead in reads:
        ahead.on_ready = partial(wake, ready)
    try:
        await ready
    finally:
        timer.cancel()
        for _, ahead in reads:
            ahead.on_ready = None


def wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
