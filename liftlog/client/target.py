"""Addresses of a daemon: `tcp://host:port`, `tls://host:port` and `unix:///path`."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from liftlog.errors import InvalidArgument

DEFAULT_ADDRESS = "tcp://127.0.0.1:9292"
DEFAULT_PORT = 9292


@dataclass(frozen=True, slots=True)
class Address:
    """`path` is set for a Unix socket, `host` and `port` for TCP; `tls` for TCP with TLS."""

    text: str
    host: str = ""
    port: int = 0
    path: str = ""
    tls: bool = False

    @property
    def is_exposed(self) -> bool:
        """Whether others on the network can read what is sent there."""
        if self.path or self.tls or self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return True  # a name may resolve to anything

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises InvalidArgument."""
        try:
            parts = urlsplit(text)
            if "@" in parts.netloc:
                raise InvalidArgument(
                    "the address of a daemon holds no login",  # and is shown in logs
                    hint="give a token as token=, or in LIFTLOG_TOKEN_FILE",
                )
            if parts.query or parts.fragment or parts.port == 0:
                raise ValueError
            if parts.scheme == "unix" and parts.path and not parts.netloc:
                return cls(text, path=parts.path)
            if parts.scheme in ("tcp", "tls") and parts.hostname and not parts.path.strip("/"):
                port = parts.port or DEFAULT_PORT
                return cls(text, host=parts.hostname, port=port, tls=parts.scheme == "tls")
        except ValueError:
            pass  # a port that is no number, or what an address does not have
        raise InvalidArgument(
            f"{text!r} is not the address of a liftlog daemon",
            hint="use tcp://host:port, tls://host:port or unix:///path",
        )


def tune(sock: socket.socket) -> None:
    """Small requests leave at once; a peer that vanished is noticed."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The receive buffer is left to the kernel, which grows it further than we may set it.
