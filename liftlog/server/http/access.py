"""Who asks over HTTP, and whether a browser was sent here by somebody else's page."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Protocol

from aiohttp import web

from liftlog.errors import Forbidden, Unauthenticated
from liftlog.server.pull.gate import Gate

_BEARER = "bearer "


class Authenticator(Protocol):
    """The pull server: one gate, and one bound on tokens being checked, for both ways in."""

    @property
    def gate(self) -> Gate: ...
    async def authenticate(self, token: str | None, with_token: bool) -> str | None: ...


class Access:
    """`failure_delay_seconds` slows down whoever guesses tokens. `loopback_only` is set when the
    port can be reached from this machine alone."""

    def __init__(
        self, authenticator: Authenticator, *, failure_delay_seconds: float, loopback_only: bool
    ) -> None:
        self._authenticator = authenticator
        self._failure_delay = failure_delay_seconds
        self._loopback_only = loopback_only

    @property
    def gate(self) -> Gate:
        return self._authenticator.gate

    async def principal(self, request: web.Request) -> str | None:
        """Raises Unauthenticated, Forbidden, LimitExceeded."""
        self.check_origin(request)
        policy = self.gate.policy
        token = _bearer_token(request)
        if policy is None:
            return None
        if token is None and not policy.allows_anonymous:
            raise Unauthenticated("a token is needed: Authorization: Bearer PRINCIPAL.SECRET")
        try:
            return await self._authenticator.authenticate(token, token is not None)
        except Unauthenticated:
            await asyncio.sleep(self._failure_delay)
            raise

    def check_origin(self, request: web.Request) -> None:
        """A browser sends along what it can reach: a page from elsewhere must not be able to use
        it, neither by asking us directly nor under a name of its own that it lets resolve to this
        machine. Programs send none of these headers. Raises Forbidden."""
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise Forbidden("requests from pages of other sites are not answered")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Forbidden("requests from pages of other sites are not answered")
        if self._loopback_only and self.gate.policy is None and not _is_address(host):
            raise Forbidden(
                "this port is open to this machine only",
                hint="ask for it as 127.0.0.1 or localhost, not by another name",
            )


def _bearer_token(request: web.Request) -> str | None:
    value = request.headers.get("Authorization")
    if value is None:
        return None
    if value[: len(_BEARER)].lower() != _BEARER:
        raise Unauthenticated("expected Authorization: Bearer PRINCIPAL.SECRET")
    return value[len(_BEARER) :].strip()


def _is_address(host: str) -> bool:
    """Whether a Host header names this machine or an IP address rather than some domain."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
