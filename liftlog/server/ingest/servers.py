"""The NATS servers that the daemon can connect to, and how it logs in.

These are the servers of the settings, and other servers of their cluster that a server announces.
"""

from __future__ import annotations

import ipaddress
import random
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

from liftlog.settings import NatsSettings

_USUAL_PORTS = {"ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class NatsServerAddress:
    url: str
    """The URL, which may contain a password."""
    tls_name: str = ""
    """The name to expect in the server's certificate if the URL has only an IP address."""

    @property
    def shown(self) -> str:
        """The server as host:port, without a login."""
        parts = urlsplit(self.url)
        host = parts.hostname or "?"
        host = f"[{host}]" if ":" in host else host
        return host if parts.port is None else f"{host}:{parts.port}"

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _USUAL_PORTS.get(parts.scheme, 4222)

    @property
    def scheme(self) -> str:
        return urlsplit(self.url).scheme


class ServerPool:
    """The known servers. Belongs to the event loop."""

    def __init__(self, configured: Iterable[str]) -> None:
        self._urls = list(configured)
        self._configured = [NatsServerAddress(_with_port(url)) for url in self._urls]
        self._discovered: list[NatsServerAddress] = []
        self._told: tuple[NatsServerAddress, list[object]] | None = None

    @property
    def urls(self) -> list[str]:
        """The configured servers, as they were written."""
        return list(self._urls)

    def round(self) -> list[NatsServerAddress]:
        """Return all servers, the configured servers first. The order within each group is random,
        so that many daemons do not all choose the same server."""
        first, then = list(self._configured), list(self._discovered)
        random.shuffle(first)
        random.shuffle(then)
        return first + then

    def learn(self, source: NatsServerAddress, connect_urls: Iterable[object]) -> None:
        """Replace the discovered servers by the servers that the server at `source` announces. The
        discovered servers get the login and the scheme of `source`, because a server announces only
        hosts and ports. This method is called twice a second, usually with servers that are already
        known.
        """
        urls = list(connect_urls)
        if self._told == (source, urls):
            return
        self._told = source, urls
        parts = urlsplit(source.url)
        known = {address.shown for address in self._configured}
        found = []
        for told in urls:
            address = _beside(parts, source, told)
            if address is not None and address.shown not in known:
                known.add(address.shown)
                found.append(address)
        if found:
            self._discovered = found


def _beside(
    parts: SplitResult, source: NatsServerAddress, told: object
) -> NatsServerAddress | None:
    if not isinstance(told, str):
        return None
    login, at, _ = parts.netloc.rpartition("@")
    try:
        found = urlsplit(f"{parts.scheme}://{told}")
        if not found.hostname or not found.port or "@" in told:
            return None
    except ValueError:
        return None
    url = urlunsplit((parts.scheme, f"{login}{at}{found.netloc}", parts.path, "", ""))
    name = source.tls_name or parts.hostname or ""
    return NatsServerAddress(url, name if _is_ip(found.hostname) and not _is_ip(name) else "")


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _with_port(url: str) -> str:
    parts = urlsplit(url)
    if parts.port is None and parts.scheme in ("nats", "tls"):
        parts = parts._replace(netloc=f"{parts.netloc.rstrip(':')}:4222")
    return urlunsplit(parts)


def login_options(settings: NatsSettings, servers: Sequence[str]) -> dict[str, Any]:
    """Return nats-py's options for login and TLS. Reads the certificate files. Raises OSError,
    ssl.SSLError."""
    options: dict[str, Any] = {}
    if settings.user is not None:
        options["user"] = settings.user
    if settings.password is not None:
        options["password"] = settings.password.get_secret_value()
    if settings.token is not None:
        options["token"] = settings.token.get_secret_value()
    if settings.credentials is not None:
        options["user_credentials"] = str(settings.credentials)
    if settings.nkey is not None:
        options["nkeys_seed"] = str(settings.nkey)
    return options | _tls_options(settings, servers)


def _tls_options(settings: NatsSettings, servers: Sequence[str]) -> dict[str, Any]:
    context = tls_context(settings, servers)
    if context is None:
        return {}
    tls = settings.tls
    options: dict[str, Any] = {"tls": context, "tls_handshake_first": tls.handshake_first}
    if tls.hostname:
        options["tls_hostname"] = tls.hostname
    return options


def tls_context(settings: NatsSettings, servers: Sequence[str]) -> ssl.SSLContext | None:
    """Return the TLS context; None if neither the settings nor the URLs of these servers ask for
    TLS. Reads the certificate files. Raises OSError, ssl.SSLError."""
    tls = settings.tls
    wanted = any((tls.ca, tls.cert, tls.hostname, tls.handshake_first))
    if not wanted and not any(url.startswith(("tls://", "wss://")) for url in servers):
        return None
    context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
    if tls.cert is not None:
        context.load_cert_chain(str(tls.cert), str(tls.key) if tls.key else None)
    return context
