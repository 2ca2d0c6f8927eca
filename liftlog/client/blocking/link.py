"""One connection of the blocking client: its own socket, no threads."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from liftlog.client.connecting.base_link import BaseLink
from liftlog.client.connecting.buffers import BufferPool
from liftlog.client.connecting.channel import RECEIVE_BYTES, Channel
from liftlog.client.connecting.reconnecting import unanswered
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.errors import LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.handshake import Credentials, State
from liftlog.protocol.messages import Message


class SyncLink(BaseLink):
    """A connection that receives only inside a call that waits; the caller's thread polls the
    socket."""

    def __init__(
        self, channel: Channel, address: str, silence_seconds: float, pool: BufferPool
    ) -> None:
        super().__init__(channel, address, silence_seconds, pool)
        self._readable = select.poll()
        self._readable.register(channel.fileno(), select.POLLIN)
        self._either = select.poll()
        self._either.register(channel.fileno(), select.POLLIN | select.POLLOUT)
        self._mid_step = False
        self._silent_since: float | None = None  # since when reads have waited without an answer

    def open(self, credentials: Credentials, deadline: float) -> None:
        """Exchange the hellos and authenticate. Raises TimeoutError at `deadline`."""
        connection = self.connection
        connection.greet()
        self._flush()
        while connection.state is not State.READY:
            if not self._step(deadline):
                raise TimeoutError
            if connection.state is State.CHALLENGED:
                connection.authenticate(credentials, self._channel.peer_certificate)
                self._flush()

    def ask(self, message: Message, deadline: float) -> Exchange:
        """Send one request and wait for its answer. Raises RequestTimeout at `deadline`."""
        began = time.monotonic()
        exchange = Exchange()
        self._silent_since = None
        self.request(message, exchange)
        try:
            while not exchange.done:
                if not self._step(deadline):
                    raise unanswered(self.address, message, time.monotonic() - began)
        finally:
            if not exchange.done:
                self.give_up(exchange)
        return exchange

    def input_for(self, ahead: ReadAhead, deadline: float | None) -> bool:
        """Receive once, and return True; `ahead` may then have a batch. Returns False if nothing
        arrived before the deadline (by time.monotonic). If the daemon is silent for too long
        meanwhile, the connection counts as lost."""
        if self.error is not None:
            ahead.abandon(self.error)
            return True
        allowed = self._allowed_silence()
        if self._silent_since is None:
            self._silent_since = time.monotonic()
        silent_until = self._silent_since + allowed
        if self._step(silent_until if deadline is None else min(deadline, silent_until)):
            self._silent_since = None
            return True
        if time.monotonic() < silent_until:
            return False
        self.lose(f"it has been silent for {allowed:g} s")
        return True

    def enter_into(self, poll: select.poll) -> None:
        """Register this connection for the event that lets it continue."""
        events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        poll.register(self._channel.fileno(), events)

    # --- the socket ---

    def _step(self, deadline: float | None) -> bool:
        """Receive once, handle the bytes, and return True. Returns False if no bytes arrived before
        `deadline`."""
        if self.error is not None:
            raise self.error
        if self._mid_step:
            self.lose("a call on it was interrupted halfway")
            return True
        connection = self.connection
        try:
            view = connection.get_buffer()[:RECEIVE_BYTES]
            received = self._receive(view, deadline)
            if received < 0:
                return False
            if received == 0:
                self.lose("the daemon closed it")
                return True
            connection.buffer_updated(received)
            connection.receive()
            self._mid_step = False
            self._flush()
        except (OSError, LiftlogError) as error:
            self.lose(error)
        return True

    def _receive(self, view: memoryview, deadline: float | None) -> int:
        """Receive bytes into `view`, and return their number; -1 if none arrived before
        `deadline`."""
        while True:
            # If a signal handler raises an exception between here and the end of the step, received
            # bytes are lost. The flag then makes the next call end the connection.
            self._mid_step = True
            try:
                return self._channel.recv_into(view)
            except BlockingIOError:
                self._mid_step = False
            # While a request is partly sent, the daemon may wait until this side has received
            # answers. So this side must receive while it still has bytes to send.
            came = (self._either if self._unsent else self._readable).poll(_milliseconds(deadline))
            if self._unsent:
                self._flush()
            if not came and deadline is not None and time.monotonic() >= deadline:
                return -1


def first_input(reads: Sequence[tuple[SyncLink, ReadAhead]], seconds: float) -> None:
    """Wait until one of the reads may have a batch, but at most `seconds`."""
    poll = select.poll()
    for link, _ in reads:
        if link.error is not None:
            return
        link.enter_into(poll)
    poll.poll(seconds * 1000)


def _milliseconds(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0) * 1000
