"""A connected socket for both clients, with or without TLS, and its options."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import liftlog
from liftlog.client.connecting.reconnecting import unreachable
from liftlog.client.connecting.target import Address
from liftlog.errors import ConnectionLost

if TYPE_CHECKING:
    import ssl

    from liftlog.tls import TlsSession

SOFTWARE = f"liftlog-python/{liftlog.__version__}"
"""The name of the client's software, sent in its hello."""

RECEIVE_BYTES = 2 * 1024 * 1024
"""Maximum number of bytes to receive before the batches in them are examined. With more bytes, the
processor's cache overflows. With fewer bytes, there are more calls in Python."""


_UNKNOWN_CA = (
    "give the CA that signed the daemon's certificate as tls= (on the command line --tls-ca, for "
    "Spark tlsCaFile)"
)
_OTHER_NAME = "connect by a name or address that the daemon's certificate is for"
_NOT_ACCEPTED = {  # hints, by the number of OpenSSL's X509_V_ERR_...
    9: "the clock of this machine may be wrong: the daemon's certificate begins later",
    10: "give the daemon a new certificate and a HUP, unless the clock of this machine is wrong",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}


class Channel(Protocol):
    """A connected socket that does not block: instead of waiting, its methods raise
    BlockingIOError. Other failures raise another OSError.

    If `send` raises BlockingIOError, the next call must pass the same bytes again.
    """

    @property
    def has_input(self) -> bool:
        """True if `recv_into` can return bytes that TLS has already decrypted, even if the socket
        is not readable."""
        ...

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate of the daemon, in DER; None without TLS."""
        ...

    def wake_at(self, count: int, /) -> None:
        """Let the socket become readable only after `count` bytes have arrived. The call only saves
        wake-ups: the socket may become readable earlier."""
        ...

    def fileno(self) -> int: ...
    def recv_into(self, view: memoryview, /) -> int: ...
    def send(self, data: bytes, /) -> int: ...
    def close(self) -> None: ...


class PlainChannel:
    """A socket without TLS."""

    has_input = False
    peer_certificate: bytes | None = None

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._wake_at = 1
        self.fileno = sock.fileno
        self.recv_into = sock.recv_into
        self.send = sock.send
        self.close = sock.close

    def wake_at(self, count: int) -> None:
        if count == self._wake_at:
            return
        self._wake_at = count
        with suppress(OSError):  # without it there are only more wake-ups
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def tune(sock: socket.socket) -> None:
    """Set the options of a TCP socket: small requests are sent at once, and the kernel detects a
    peer that has vanished."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The kernel chooses the size of the receive buffer: it can make the buffer larger than a
    # process is allowed to.


def refused(
    address: Address, sock: socket.socket, session: TlsSession, error: ssl.SSLError
) -> ConnectionLost:
    """Return the error of a failed TLS handshake. Also sends the daemon an alert, unless that would
    block."""
    import ssl

    from liftlog.tls import problem

    try:
        sock.send(session.outgoing.read(), socket.MSG_DONTWAIT)
    except OSError:
        pass
    lost = unreachable(address.text, problem(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        lost.hint = _NOT_ACCEPTED.get(error.verify_code, _UNKNOWN_CA)
    elif error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        lost.hint = "there may be no TLS at this address: try tcp://"
    return lost


def share(deadline: float, now: float, addresses_left: int) -> float:
    """Return the time until which to try the next address. Each address gets an equal share of the
    time left, so an address that never answers leaves time for the others."""
    return now + (deadline - now) / addresses_left
