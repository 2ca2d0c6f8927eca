"""Addresses -> connected channels: plain sockets, or sockets with TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from contextlib import suppress
from typing import Any, Protocol

import liftlog
from liftlog.client.connecting.reconnecting import unreachable
from liftlog.client.connecting.target import Address
from liftlog.errors import ConnectionLost
from liftlog.tls import TlsSession, TlsSocket, problem

SOFTWARE = f"liftlog-python/{liftlog.__version__}"
"""What a client calls itself in its hello."""

RECEIVE_BYTES = 2 * 1024 * 1024
"""Received at once before the batches in it are looked at. Larger steps overflow the processor's
cache, smaller ones cost a turn of Python each."""

_HANDSHAKE_BYTES = 64 * 1024

_UNKNOWN_CA = (
    "give the CA that signed the daemon's certificate as tls= (on the command line --tls-ca, for "
    "Spark tlsCaFile)"
)
_OTHER_NAME = "connect by a name or address that the daemon's certificate is for"
_NOT_ACCEPTED = {  # by OpenSSL's X509_V_ERR_...
    9: "the clock of this machine may be wrong: the daemon's certificate begins later",
    10: "give the daemon a new certificate and a HUP, unless the clock of this machine is wrong",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}


class Channel(Protocol):
    """A connected socket that does not block: methods raise BlockingIOError, or another OSError.

    After BlockingIOError from `send` the next call has to give the same bytes again.
    """

    @property
    def has_input(self) -> bool:
        """Whether `recv_into` can return more although the socket may not be readable."""
        ...

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate of the daemon, in DER; None without TLS."""
        ...

    def wake_at(self, count: int, /) -> None:
        """A hint that the socket need not become readable before `count` bytes have arrived."""
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
        with suppress(OSError):  # only speed depends on it
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def tune(sock: socket.socket) -> None:
    """Send small requests at once, and notice a peer that vanished."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The kernel sizes the receive buffer: it can make it larger than we may.


async def dial(address: Address, context: ssl.SSLContext | None, deadline: float) -> Channel:
    """Connect, with the TLS handshake if there is a context. Raises OSError, ConnectionLost.

    The caller limits the time. `deadline`, by the loop's clock, divides it among the addresses of a
    host.
    """
    sock = await _open(address, deadline)
    try:
        if context is None:
            return PlainChannel(sock)
        session = TlsSession(context, hostname=address.host)
        loop = asyncio.get_running_loop()
        try:
            while not session.handshake():
                await loop.sock_sendall(sock, session.outgoing.read())
                session.feed(_not_ended(await loop.sock_recv(sock, _HANDSHAKE_BYTES)))
        except ssl.SSLError as error:
            raise _refused(address, sock, session, error) from error
        await loop.sock_sendall(sock, session.outgoing.read())
        return TlsSocket(sock, session)
    except BaseException:
        sock.close()
        raise


def dial_sync(address: Address, context: ssl.SSLContext | None, deadline: float) -> Channel:
    """The same, blocking until `deadline` (time.monotonic). Raises TimeoutError too."""
    sock = _open_sync(address, deadline)
    try:
        if context is None:
            return PlainChannel(sock)
        session = TlsSession(context, hostname=address.host)
        try:
            while not session.handshake():
                _wait_until(sock, deadline)
                sock.sendall(session.outgoing.read())
                session.feed(_not_ended(sock.recv(_HANDSHAKE_BYTES)))
        except ssl.SSLError as error:
            raise _refused(address, sock, session, error) from error
        sock.sendall(session.outgoing.read())
        sock.setblocking(False)
        return TlsSocket(sock, session)
    except BaseException:
        sock.close()
        raise


def _refused(
    address: Address, sock: socket.socket, session: TlsSession, error: ssl.SSLError
) -> ConnectionLost:
    """The error of a failed TLS handshake. Sends the daemon an alert if it can at once."""
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


def _not_ended(received: bytes) -> bytes:
    if not received:
        raise ConnectionResetError("it ended during the TLS handshake")
    return received


def _wait_until(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def _share(deadline: float, now: float, addresses_left: int) -> float:
    """When to stop trying the next address: one that never answers leaves time to the others."""
    return now + (deadline - now) / addresses_left


async def _open(address: Address, deadline: float) -> socket.socket:
    if address.path:
        return await _connected(socket.AF_UNIX, address.path)
    clock = asyncio.get_running_loop().time
    found = await _resolved(address)
    failure: OSError | None = None
    for left in range(len(found), 0, -1):
        family, where = found[-left]
        try:
            async with asyncio.timeout_at(_share(deadline, clock(), left)):
                return await _connected(family, where)
        except OSError as error:  # TimeoutError is one
            failure = error
    raise failure or OSError(f"no address for {address.host}")


async def _resolved(address: Address) -> list[tuple[int, Any]]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


async def _connected(family: int, where: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, where)
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _open_sync(address: Address, deadline: float) -> socket.socket:
    if address.path:
        return _connected_sync(socket.AF_UNIX, address.path, deadline)
    found = _resolved_sync(address)
    failure: OSError | None = None
    for left in range(len(found), 0, -1):
        family, where = found[-left]
        try:
            return _connected_sync(family, where, _share(deadline, time.monotonic(), left))
        except OSError as error:
            failure = error
    raise failure or OSError(f"no address for {address.host}")


def _resolved_sync(address: Address) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


def _connected_sync(family: int, where: Any, deadline: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        _wait_until(sock, deadline)
        sock.connect(where)
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock
