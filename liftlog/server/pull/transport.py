"""One connected socket, non-blocking. TLS will be a second class with the same methods."""

from __future__ import annotations

import os
import socket
from typing import Protocol

_SOCKET_BUFFER_BYTES = 2 * 1024 * 1024


class Transport(Protocol):
    """All methods raise BlockingIOError when they would have to wait, else OSError."""

    def fileno(self) -> int: ...
    def recv_into(self, buffer: memoryview) -> int: ...
    def send(self, data: bytes | memoryview, more: bool) -> int:
        """`more` says that other bytes follow at once, so that they can share a packet."""
        ...

    def sendfile(self, fd: int, position: int, length: int) -> int: ...
    def end_sending(self) -> None: ...
    def close(self) -> None: ...


class SocketTransport:
    """TCP or Unix socket without TLS: files go from the page cache to the socket uncopied."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_dead_peers(sock)
        self._sock = sock
        self._fd = sock.fileno()
        self.recv_into = sock.recv_into

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes | memoryview, more: bool) -> int:
        return self._sock.send(data, socket.MSG_MORE if more else 0)

    def sendfile(self, fd: int, position: int, length: int) -> int:
        return os.sendfile(self._fd, fd, position, length)

    def end_sending(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()


def _notice_dead_peers(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
