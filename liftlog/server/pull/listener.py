"""Addresses (`tcp://host:port`, `tls://host:port`, `unix:///path`) and the sockets that listen on
them."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from liftlog.errors import ConfigError

_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Listener:
    """`address` is the real one (port 0 resolved)."""

    sock: socket.socket
    address: str
    tls: bool = False
    socket_file: Path | None = None
    inode: int = 0

    def close(self) -> None:
        """Stop listening; remove the socket file if it is still ours."""
        self.sock.close()
        if self.socket_file is not None:
            with contextlib.suppress(OSError):  # the next daemon removes it
                if self.socket_file.stat().st_ino == self.inode:
                    self.socket_file.unlink()


def open_listener(address: str, *, unix_mode: int = 0o600) -> Listener:
    """`unix_mode` are the permissions of a socket file. Raises ConfigError when the address is
    malformed or not available."""
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
        # On Linux the file inherits the socket's mode, so it is never wider than this.
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
    """Remove a socket file on which no process listens; leave anything else alone."""
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
