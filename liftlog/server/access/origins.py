"""The origin of a client, as the kernel reports it. A client cannot choose its origin."""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass

_HTTP = "http:"
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_IPV6_PREFIX = 64
"""Number of bits of an IPv6 address that a customer of a provider cannot choose."""
_LOOPBACK = "loopback"
"""The common place of all loopback addresses. They count as one place, because a program can choose
any of these addresses."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a connection.

    `name` is for logs. `place` is the unit of rate limits: an IP address (the first 64 bits of an
    IPv6 address; one place for all of loopback), or a user of this machine. `certificate` is the
    daemon's certificate as the client received it, in DER.
    """

    name: str
    place: str
    uid: int | None = None
    certificate: bytes | None = None


def origin_of(
    sock: socket.socket, where: object, socket_file: str | None, certificate: bytes | None
) -> Origin:
    """Return the origin of a connection. Raises OSError if the client has disconnected."""
    if socket_file is not None:
        _, uid, _ = _CREDENTIALS.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return Origin(f"unix:{socket_file}:uid={uid}", f"uid {uid}", uid=uid)
    assert isinstance(where, tuple)
    host, port = where[:2]
    return Origin(f"{host}:{port}", place_of(host), certificate=certificate)


def http_peer(host: str | None) -> str:
    """Return the name of an HTTP client for logs. It has no port, because proxies reuse
    connections."""
    return f"{_HTTP}{host}"


def way_in(peer: str) -> str:
    """Return the port that a client used, `http` or `pull`, from its name in logs."""
    return "http" if peer.startswith(_HTTP) else "pull"


def place_of(host: str | None) -> str:
    """Return the place of an IP address."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return "elsewhere"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return _LOOPBACK
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return str(address)
