"""The sockets of the pull port.

Listening sockets are opened for addresses of the form `tcp://host:port`, `tls://host:port` and
`unix:///path`. Connected sockets are non-blocking, with or without TLS.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from liftlog.errors import ConfigError
from liftlog.server.pull.limits import TURN_BYTES
from liftlog.tls import CHUNK_BYTES, TlsSession, TlsSocket

_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket. `address` is its real address: port 0 is replaced by the port in use."""

    sock: socket.socket
    address: str
    tls: bool = False
    socket_file: Path | None = None
    inode: int = 0

    def close(self) -> None:
        """Stop listening. Remove the socket file, unless another process has replaced it."""
        self.sock.close()
        if self.socket_file is not None:
            with contextlib.suppress(OSError):  # the next daemon removes the file
                if self.socket_file.stat().st_ino == self.inode:
                    self.socket_file.unlink()


def open_listener(address: str, *, unix_mode: int = 0o600) -> Listener:
    """Listen on an address. `unix_mode` contains the permissions of a socket file. Raises
    ConfigError if the address is malformed or not available."""
    parts = urlsplit(address)
    try:
        if parts.scheme == "unix" and parts.path and not parts.netloc:
            return _listen_unix(Path(parts.path), unix_mode)
        if parts.scheme in ("tcp", "tls") and parts.hostname is not None and parts.port is not None:
            return _listen_tcp(parts.scheme, parts.hostname, parts.port)
    except (OSError, ValueError) as error:
        raise ConfigError(f"pull.listen: cannot listen on {address}: {error}") from error
    raise ConfigError(
        f"pull.listen: {address!r} is not an address",
        hint="use tcp://host:port, tls://host:port or unix:///path",
    )


def _listen_tcp(scheme: str, host: str, port: int) -> Listener:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, where = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    name, actual = sock.getsockname()[:2]
    shown = f"[{name}]" if family == socket.AF_INET6 else name
    return Listener(sock, f"{scheme}://{shown}:{actual}", tls=scheme == "tls")


def _listen_unix(path: Path, mode: int) -> Listener:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # On Linux the file inherits the socket's mode. So its permissions are never wider, not even
        # for a moment.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(str(path))
        path.chmod(mode)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return Listener(sock, f"unix://{path}", socket_file=path, inode=path.stat().st_ino)


def _remove_stale(path: Path) -> None:
    """Remove a socket file if no process listens on it. Other files are not removed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(f"another process listens on {path}")


_SOCKET_BUFFER_BYTES = 2 * 1024 * 1024


class Transport(Protocol):
    """A connected socket. Methods raise BlockingIOError if they would block, and OSError if they
    fail.

    After BlockingIOError from `send` or `sendfile` the next call must begin with the same bytes.
    """

    @property
    def turn_bytes(self) -> int:
        """Number of bytes to send before the event loop does other work."""
        ...

    @property
    def established(self) -> bool:
        """False during the TLS handshake, when nothing can be sent."""
        ...

    @property
    def has_input(self) -> bool:
        """True if `recv_into` would return buffered bytes even if the socket has none."""
        ...

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in the client's certificate, if it was verified."""
        ...

    def fileno(self) -> int: ...
    def recv_into(self, buffer: memoryview) -> int: ...
    def send(self, data: bytes | bytearray | memoryview, more: bool) -> int:
        """Send bytes, and return the number of accepted bytes. If `more` is true, other bytes
        follow at once. They may share a packet with these bytes."""
        ...

    def sendfile(self, fd: int, position: int, length: int) -> int: ...
    def end_sending(self) -> None: ...
    def close(self) -> None: ...


class SocketTransport:
    """A TCP or Unix socket without TLS. Bytes of files go from the page cache to the socket without
    a copy."""

    turn_bytes = TURN_BYTES
    established = True
    has_input = False
    peer_names: tuple[str, ...] = ()

    def __init__(self, sock: socket.socket) -> None:
        _prepare(sock)
        self._sock = sock
        self._fd = sock.fileno()
        self.recv_into = sock.recv_into

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes | bytearray | memoryview, more: bool) -> int:
        return self._sock.send(data, socket.MSG_MORE if more else 0)

    def sendfile(self, fd: int, position: int, length: int) -> int:
        return os.sendfile(self._fd, fd, position, length)

    def end_sending(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()


class TlsTransport:
    """A socket with TLS. Bytes of files are read, encrypted and copied, at about a quarter of the
    speed."""

    # Encrypting takes longer than sending from the page cache.
    turn_bytes = CHUNK_BYTES

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        _prepare(sock)
        self._tls = TlsSocket(sock, TlsSession(context, server_side=True))
        self.fileno = self._tls.fileno
        self.recv_into = self._tls.recv_into
        self.sendfile = self._tls.sendfile
        self.end_sending = self._tls.end_sending
        self.close = self._tls.close

    @property
    def established(self) -> bool:
        return self._tls.established

    @property
    def has_input(self) -> bool:
        return self._tls.has_input

    @property
    def peer_names(self) -> tuple[str, ...]:
        return self._tls.peer_names

    def send(self, data: bytes | bytearray | memoryview, more: bool) -> int:
        return self._tls.send(data)


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_dead_peers(sock)


def _notice_dead_peers(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
