"""The part of a connection that does not wait, for both clients."""

from __future__ import annotations

import os

from liftlog.client.connecting.buffers import BufferPool
from liftlog.client.connecting.channel import SOFTWARE, Channel
from liftlog.client.connecting.reconnecting import lost
from liftlog.errors import LiftlogError
from liftlog.protocol.client_connection import ClientConnection, Exchange
from liftlog.protocol.messages import NONCE_BYTES, Message


class BaseLink:
    """A connection over an open socket. `error` is the reason for the loss; None while the
    connection is not lost."""

    def __init__(
        self, channel: Channel, address: str, silence_seconds: float, pool: BufferPool
    ) -> None:
        """While an answer is due, the connection counts as lost if the daemon sends nothing for the
        longest wait of a fetch plus `silence_seconds`."""
        self.address = address
        self.error: LiftlogError | None = None
        self.connection = ClientConnection(
            nonce=os.urandom(NONCE_BYTES), software=SOFTWARE, allocate=pool.allocate
        )
        self._channel = channel
        self._unsent = b""
        self._silence_seconds = silence_seconds

    @property
    def usable(self) -> bool:
        """True until the connection is lost."""
        return self.error is None

    def request(self, message: Message, exchange: Exchange) -> None:
        """Send a request; its answer is stored in `exchange`."""
        if self.error is not None:
            raise self.error
        self.connection.request(message, exchange)
        self._flush()

    def give_up(self, exchange: Exchange) -> None:
        """Cancel a request that is in flight, and ignore its answer."""
        self.connection.give_up(exchange)
        self._flush()

    def lose(self, reason: object) -> None:
        """Close the socket; all requests in flight end with ConnectionLost."""
        if self.error is None:
            self.error = lost(self.address, reason)
            self._release(self.error)
            self.connection.close(self.error)

    def _allowed_silence(self) -> float:
        """Return the number of seconds after which the connection counts as lost if an answer is
        due and the daemon sends nothing."""
        return self.connection.welcome.max_wait_ms / 1000 + self._silence_seconds

    def _flush(self) -> None:
        """Send the bytes that the socket accepts now, and keep the rest."""
        outgoing = self._unsent + self.connection.take_outgoing()
        self._unsent = b""
        if not outgoing or self.error is not None:
            return
        try:
            sent = self._channel.send(outgoing)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.lose(error)
            return
        self._unsent = outgoing[sent:]

    def _release(self, error: LiftlogError) -> None:
        """Close the socket, because the connection is lost."""
        self._channel.close()
