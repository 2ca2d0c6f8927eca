# Made from liftlog/client/aio/dialing.py by `make blocking`: edit that one.
"""Connects to addresses: opens channels over plain sockets or over TLS."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

from liftlog.client.blocking.sockets import connect, receive, resolve, send
from liftlog.client.connecting.channel import Channel, PlainChannel, refused, share, tune
from liftlog.client.connecting.target import Address

if TYPE_CHECKING:
    import ssl

_HANDSHAKE_BYTES = 64 * 1024


def dial(address: Address, context: ssl.SSLContext | None, deadline: float) -> Channel:
    """Connect to the address; with a `context`, also make the TLS handshake. Returns the channel.

    Raises TimeoutError at `deadline` (by time.monotonic), any other OSError of the socket, and
    ConnectionLost.
    """
    sock = _open(address, deadline)
    try:
        if context is None:
            return PlainChannel(sock)
        return _encrypted(sock, address, context, deadline)
    except BaseException:
        sock.close()
        raise


def _encrypted(
    sock: socket.socket, address: Address, context: ssl.SSLContext, deadline: float
) -> Channel:
    """Make the TLS handshake. A client without TLS does not import it."""
    from ssl import SSLError

    from liftlog.tls import TlsSession, TlsSocket

    session = TlsSession(context, hostname=address.host)
    try:
        while not session.handshake():
            send(sock, session.outgoing.read(), deadline)
            session.feed(_not_ended(receive(sock, _HANDSHAKE_BYTES, deadline)))
    except SSLError as error:
        raise refused(address, sock, session, error) from error
    send(sock, session.outgoing.read(), deadline)
    sock.setblocking(False)
    return TlsSocket(sock, session)


def _not_ended(received: bytes) -> bytes:
    if not received:
        raise ConnectionResetError("it ended during the TLS handshake")
    return received


def _open(address: Address, deadline: float) -> socket.socket:
    if address.path:
        return _connected(socket.AF_UNIX, address.path, deadline)
    found = resolve(address.host, address.port, deadline)
    failure: OSError | None = None
    for left in range(len(found), 0, -1):
        family, where = found[-left]
        try:
            return _connected(family, where, share(deadline, time.monotonic(), left))
        except OSError as error:  # includes TimeoutError
            failure = error
    raise failure or OSError(f"no address for {address.host}")


def _connected(family: int, where: Any, deadline: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        connect(sock, where, deadline)
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock
