"""Addresses on which the daemon listens, and addresses of NATS servers."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, PlainSerializer

# sun_path holds 108 bytes. One of them is the terminating zero.
_MAX_UNIX_PATH_BYTES = 107
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]*):(\d{1,5})", re.ASCII)
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?", re.ASCII)
_NATS_SCHEMES = ("nats", "tls", "ws", "wss")

LISTEN_HELP = "expected tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH"


class ListenAddress(NamedTuple):
    """An address to listen on. `path` is set for a Unix socket; `host` and `port` are set for TCP
    (port 0: any free port), and `tls` for TCP with TLS."""

    host: str
    port: int
    path: str | None = None
    tls: bool = False

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return False  # a name may resolve to any address; empty means all interfaces


def parse_listen(url: str) -> ListenAddress:
    """Parse an address such as `tcp://127.0.0.1:9292`, `tcp://[::1]:0` or
    `unix:///run/liftlog.sock`. Raises ValueError."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("tcp", "tls", "unix"):
        raise ValueError(LISTEN_HELP)
    if scheme != "unix":
        return parse_host_port(rest)._replace(tls=scheme == "tls")
    if not rest.startswith("/") or "\0" in rest or rest.endswith("/"):
        raise ValueError("expected an absolute path to a socket file: unix:///PATH")
    if len(rest.encode()) > _MAX_UNIX_PATH_BYTES:
        raise ValueError(f"expected a socket path of at most {_MAX_UNIX_PATH_BYTES} bytes")
    return ListenAddress("", 0, rest)


def parse_host_port(text: str) -> ListenAddress:
    """Parse an address such as `127.0.0.1:8292`, `[::1]:8292` or `:8292` (all interfaces). Raises
    ValueError."""
    found = _HOST_PORT.fullmatch(text)
    if found is None:
        raise ValueError("expected HOST:PORT (IPv6 in brackets)")
    host, port = found[1], int(found[2])
    if port > 65535:
        raise ValueError("expected a port from 0 to 65535")
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("expected an IPv6 address between the brackets") from None
    return ListenAddress(host, port)


def _checked_listen(url: str) -> str:
    parse_listen(url)
    return url


def _checked_host_port(text: str) -> str:
    parse_host_port(text)
    return text


class ServerUrl(str):
    """The URL of a NATS server. Its `repr` hides the password that a URL may contain."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(self.masked())

    def masked(self) -> str:
        head, separator, tail = self.partition("://")
        userinfo, at, host = tail.rpartition("@")
        if not at:
            return str(self)
        user, colon, _ = userinfo.partition(":")
        # Without a colon, the whole text is a token.
        return f"{head}{separator}{user + ':' if colon else ''}********@{host}"


def _server_url(text: str) -> ServerUrl:
    expected = "expected nats://HOST:PORT (or tls://, ws://, wss://)"
    if "://" not in text:
        text = f"nats://{text}"  # as nats-py does
    if any(char.isspace() or not char.isprintable() for char in text):
        raise ValueError(expected)
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(expected) from None
    if parts.scheme not in _NATS_SCHEMES or not host or parts.query or parts.fragment:
        raise ValueError(expected)
    return ServerUrl(text)


ListenUrl = Annotated[str, AfterValidator(_checked_listen)]


def _host_name(text: str) -> str:
    if len(text) > 253 or not _HOST_NAME.fullmatch(text):
        raise ValueError("expected a host name without scheme and port")
    return text.lower()


HostPort = Annotated[str, AfterValidator(_checked_host_port)]
HostName = Annotated[str, AfterValidator(_host_name)]
NatsUrl = Annotated[
    str,
    AfterValidator(_server_url),
    PlainSerializer(lambda url: ServerUrl(url).masked(), when_used="json"),
]
