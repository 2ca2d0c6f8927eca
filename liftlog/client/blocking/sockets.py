"""Sockets that block while they connect, send and receive: the twin of `aio.sockets`.

Each call raises TimeoutError at its deadline (by time.monotonic), and any other OSError of the
socket.
"""

from __future__ import annotations

import socket
import time
from typing import Any


def resolve(host: str, port: int, deadline: float) -> list[tuple[int, Any]]:
    """Return the family and the socket address for each address of the host. The time limit is the
    resolver's, not `deadline`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


def connect(sock: socket.socket, where: Any, deadline: float) -> None:
    _limit(sock, deadline)
    sock.connect(where)


def send(sock: socket.socket, data: bytes, deadline: float) -> None:
    """Send all of the data."""
    _limit(sock, deadline)
    sock.sendall(data)


def receive(sock: socket.socket, most: int, deadline: float) -> bytes:
    """Return the next bytes, at most `most`; b"" at the end of the connection."""
    _limit(sock, deadline)
    return sock.recv(most)


def _limit(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)
