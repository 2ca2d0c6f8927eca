"""Sockets that connect, send and receive in the event loop.

Each call raises TimeoutError at its deadline (by time.monotonic, which is also the loop's clock),
and any other OSError of the socket. `connect` expects a non-blocking socket.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any


async def resolve(host: str, port: int, deadline: float) -> list[tuple[int, Any]]:
    """Return the family and the socket address for each address of the host."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout_at(deadline):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


async def connect(sock: socket.socket, where: Any, deadline: float) -> None:
    sock.setblocking(False)
    async with asyncio.timeout_at(deadline):
        await asyncio.get_running_loop().sock_connect(sock, where)


async def send(sock: socket.socket, data: bytes, deadline: float) -> None:
    """Send all of the data."""
    async with asyncio.timeout_at(deadline):
        await asyncio.get_running_loop().sock_sendall(sock, data)


async def receive(sock: socket.socket, most: int, deadline: float) -> bytes:
    """Return the next bytes, at most `most`; b"" at the end of the connection."""
    async with asyncio.timeout_at(deadline):
        return await asyncio.get_running_loop().sock_recv(sock, most)
