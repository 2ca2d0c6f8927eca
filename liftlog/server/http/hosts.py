"""Which names this daemon answers to over HTTP, for requests that need no credentials.

A web page can let a name of its own resolve to this machine (DNS rebinding): the browser then takes
this port for a part of that page's site, and reads here whatever can be read without credentials.
The only thing that gives it away is the name that the browser asks for. So requests that need no
credentials are answered under names that no stranger can register: IP addresses, `localhost`, names
without a dot (of a container, a service, this machine), and those that were configured.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from aiohttp import web

from liftlog.errors import Forbidden


class HostNames:
    """`allowed` beside those that are always safe: names without a port, in any case."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        names = (*allowed, socket.gethostname())
        self._names = frozenset(name.lower().rstrip(".") for name in names if name)

    def knows(self, request: web.Request) -> bool:
        """A request without a `Host` header was not sent by a browser."""
        host = request.headers.get("Host")
        return host is None or self.is_ours(host)

    def is_ours(self, host: str) -> bool:
        """Whether the value of a `Host` header, perhaps with a port, is a name of this daemon."""
        name = _without_port(host).lower()
        if not name:
            return False
        if "." not in name and ":" not in name and "[" not in name:
            return True
        if name.endswith(".localhost") or name.rstrip(".") in self._names:
            return True
        try:
            ipaddress.ip_address(name[1:-1] if name.startswith("[") else name)
        except ValueError:
            return False
        return True

    def check(self, request: web.Request) -> None:
        """Raises Forbidden."""
        if not self.knows(request):
            raise Forbidden(
                "this daemon does not know the host name of the request as its own",
                hint="ask for it by IP address or localhost, or add the name to http.allowed_hosts",
            )


def _without_port(host: str) -> str:
    if host.endswith("]"):  # an IPv6 address
        return host
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
