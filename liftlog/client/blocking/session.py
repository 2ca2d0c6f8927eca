"""The blocking client's connection to its daemon, and another one when it is lost."""

from __future__ import annotations

import logging
import time

from liftlog.client.blocking.dialing import dial
from liftlog.client.blocking.link import SyncLink
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


class SyncSession:
    """Requests over the present connection. One thread at a time."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._pool = BufferPool()
        self._backoff = Backoff()
        self._closed: LiftlogError | None = None
        self._lost: SyncLink | None = None  # the connection that is to be replaced
        self._failure: LiftlogError | None = None
        self._lost_at = self._attempt_at = 0.0
        self._link: SyncLink | None = None

    def open(self) -> None:
        """As `Session.open`, blocking."""
        self._link = self._dial(time.monotonic() + self.target.connect_timeout)

    @property
    def link(self) -> SyncLink:
        """The connection, usable or not."""
        assert self._link is not None, "the client is not connected yet"
        return self._link

    @property
    def usable(self) -> bool:
        return self._closed is None and self._link is not None and self._link.usable

    def close(self, reason: str) -> None:
        """Accept no more requests."""
        if self._closed is None:
            text = f"the connection to {self.target.address.text} is lost: {reason}"
            self._closed = ConnectionLost(text, address=self.target.address.text)
            if self._link is not None:
                self._link.lose(self._closed)

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
        """Cancel a request that is under way."""
        if self._link is not None:
            self._link.give_up(exchange)

    def ask(self, message: Message, timeout: float) -> Exchange:
        """As `Session.ask`, blocking."""
        started = time.monotonic()
        deadline = deadline_after(started, timeout, self.target.reconnect_for)
        backoff = Backoff()
        while True:
            link = self.connected(deadline)
            exchange = link.ask(message, started + timeout)
            error = exchange.error
            if error is None or not is_interruption(error) or self._closed is not None:
                return exchange
            refused = link.error is not error
            if not may_repeat(message, exchange, refused=refused):
                raise undecided(message, error, self.target.address.text) from error
            pause = backoff.next_pause() if refused else 0.0
            if time.monotonic() + pause >= deadline:
                return exchange
            time.sleep(pause)

    def go_on(self, ahead: ReadAhead, patience: ReadPatience) -> None:
        """As `Session.go_on`, blocking."""
        interruption = ahead.interruption
        assert interruption is not None
        if self._closed is not None or self.target.reconnect_for == 0:
            raise self._closed or interruption
        pause, deadline = patience.interrupted(ahead.answer_count, time.monotonic())
        if deadline is not None and time.monotonic() + pause >= deadline:
            patience.gave_up()
            raise interruption
        if self.link.usable:
            time.sleep(pause)  # the daemon refuses, but its connection lives
        try:
            self.connected(deadline)
        except ConnectionLost:
            patience.gave_up()
            raise
        ahead.resume()

    # --- connecting ---

    def connected(self, deadline: float | None) -> SyncLink:
        """The connection, or a new one. `deadline` is by time.monotonic().

        Raises ConnectionLost at the deadline, and at once an error that would come again.
        """
        lost = self.link
        if lost.usable:
            return lost
        if self._closed is not None or self.target.reconnect_for == 0:
            raise self._closed or lost.error or gave_up(lost.address, None)
        clock = time.monotonic
        if lost is not self._lost:
            self._lost, self._lost_at, self._failure = lost, clock(), lost.error
            if lost.connection.answered:
                self._backoff.reset()
            self._attempt_at = clock() + self._backoff.next_pause()
            logger.warning("connection-lost address=%s reason=%s", lost.address, lost.error)
        while True:
            wakes = self._attempt_at if deadline is None else min(self._attempt_at, deadline)
            time.sleep(max(wakes - clock(), 0))
            if deadline is not None and clock() >= deadline:
                raise gave_up(lost.address, self._failure)
            pause = self._backoff.next_pause()
            self._attempt_at = clock() + pause
            try:
                attempt_ends = clock() + self.target.connect_timeout
                self._link = self._dial(min(attempt_ends, deadline or attempt_ends))
            except LiftlogError as error:
                if not may_pass(error):
                    raise
                self._failure, self._attempt_at = error, clock() + pause
                continue
            self._lost = None
            seconds = clock() - self._lost_at
            logger.info("connected-again address=%s after_seconds=%.3f", lost.address, seconds)
            return self.link

    def reach(self, deadline: float | None) -> SyncLink:
        """As `Session.reach`, blocking."""
        if self._closed is not None:
            raise self._closed
        if self._link is None or not self._link.usable:
            attempt_ends = time.monotonic() + self.target.connect_timeout
            self._link = self._dial(min(attempt_ends, deadline or attempt_ends))
        return self._link

    def _dial(self, deadline: float) -> SyncLink:
        target = self.target
        text, seconds = target.address.text, deadline - time.monotonic()
        try:
            channel = dial(target.address, target.context, deadline)
            link = SyncLink(channel, text, target.request_timeout, self._pool)
            try:
                link.open(target.credentials, deadline)
            except ConnectionLost as error:
                raise never_greeted(error, target.address) from error
            except BaseException:
                link.lose("it could not be opened")
                raise
            return link
        except TimeoutError:
            raise unreachable(text, f"no answer in {round(seconds, 3):g} s") from None
        except OSError as error:
            raise unreachable(text, error.strerror or error) from error
