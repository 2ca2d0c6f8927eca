"""Who asks over HTTP, and whether a browser was sent here by somebody else's page."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aiohttp import web

from acl.policy import Policy
from liftlog.errors import Forbidden, LiftlogError, Unauthenticated
from liftlog.protocol.messages import ANONYMOUS
from liftlog.server.access.audit import Audit
from liftlog.server.access.authentication import Authenticator, Identity
from liftlog.server.access.gate import Gate
from liftlog.server.access.origins import http_peer, place_of
from liftlog.server.http.hosts import HostNames

_BEARER = "bearer "


class Doorkeeper(Protocol):
    """The pull server: one gate, and the same bounds on tokens being checked, for both ways in."""

    @property
    def gate(self) -> Gate: ...
    @property
    def authenticator(self) -> Authenticator: ...
    @property
    def audit(self) -> Audit: ...


class Access:
    """`failure_delay_seconds` slows down those who guess tokens. `hosts` are the names under which
    requests without credentials are answered."""

    def __init__(
        self,
        doorkeeper: Doorkeeper,
        *,
        failure_delay_seconds: float,
        hosts: HostNames | None = None,
    ) -> None:
        self._doorkeeper = doorkeeper
        self._failure_delay = failure_delay_seconds
        self._hosts = hosts or HostNames()

    @property
    def gate(self) -> Gate:
        return self._doorkeeper.gate

    async def principal(self, request: web.Request) -> str | None:
        """Raises Unauthenticated, Forbidden, LimitExceeded."""
        self.check_origin(request)
        policy = self.gate.policy
        token = _bearer_token(request)
        if policy is None:
            return None
        if token is None:
            if policy.allows_anonymous:
                return ANONYMOUS
            raise Unauthenticated("a token is needed: Authorization: Bearer PRINCIPAL.SECRET")
        return (await self.identify(request, policy, token)).principal

    async def identify(self, request: web.Request, policy: Policy, token: str) -> Identity:
        """Whose token it is. Raises Unauthenticated, LimitExceeded."""
        began = asyncio.get_running_loop().time()
        authenticator = self._doorkeeper.authenticator
        try:
            identity = await authenticator.identify_bearer(
                policy, place_of(request.remote), peer_of(request), token
            )
            if not identity.holds_in(self.gate.policy):
                raise Unauthenticated("the ACL has changed meanwhile")
        except LiftlogError:
            # At a time that does not tell how long it took to find out.
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(began + self._failure_delay - now)
            raise
        return identity

    def note_login(self, identity: Identity, request: web.Request) -> None:
        """For the audit: somebody will come back with a session."""
        assert identity.principal is not None
        self._doorkeeper.audit.logged_in(identity.principal, peer_of(request), identity.method)

    def check_origin(self, request: web.Request, *, navigation: bool = False) -> None:
        """A browser sends along what it can reach: a page from elsewhere must not be able to use
        it, neither by asking us directly nor under a name of its own that it lets resolve to this
        machine. Programs send none of these headers. With `navigation` somebody may come over a
        link of another site, whose page then cannot see what is answered. Raises Forbidden."""
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise Forbidden("requests from pages of other sites are not answered")
        came_from = request.headers.get("Sec-Fetch-Site", "none")
        if came_from not in ("none", "same-origin") and not navigation:
            raise Forbidden("requests from pages of other sites are not answered")
        policy = self.gate.policy
        if policy is None or policy.allows_anonymous:
            self._hosts.check(request)


def is_navigation(request: web.Request) -> bool:
    """Whether a browser shows the answer as a page of its own, not inside of another."""
    return (
        request.method == "GET"
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )


def peer_of(request: web.Request) -> str:
    """For logs."""
    return http_peer(request.remote)


def _bearer_token(request: web.Request) -> str | None:
    value = request.headers.get("Authorization")
    if value is None:
        return None
    if value[: len(_BEARER)].lower() != _BEARER:
        raise Unauthenticated("expected Authorization: Bearer PRINCIPAL.SECRET")
    return value[len(_BEARER) :].strip()
