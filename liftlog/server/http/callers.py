"""Identifies the sender of an HTTP request, and detects requests that another site's page made a
browser send."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Hashable, Iterable

from aiohttp import web

from acl.policy import Policy
from liftlog.errors import Forbidden, LiftlogError, Unauthenticated
from liftlog.protocol.messages import ANONYMOUS
from liftlog.server.access.audit import Audit
from liftlog.server.access.authentication import Authenticator, Identity
from liftlog.server.access.gate import Gate
from liftlog.server.access.origins import http_peer, place_of
from liftlog.server.reading.turns import Asker

_BEARER = "bearer "

ASKER = web.RequestKey("asker", Asker)
"""Set while the request is carried out in turns."""


class HostNames:
    """The names under which this daemon answers requests that need no credentials.

    A web page can let a name of its own resolve to this machine (DNS rebinding): the browser then
    treats this port as part of that page's site and can read every answer that needs no
    credentials. Only the host name in the request reveals this. So such requests are answered only
    under names that no stranger can register: IP addresses, `localhost`, names without a dot (of a
    container, a service, this machine), and the configured ones in `allowed` (without a port, in
    any case).
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        names = (*allowed, socket.gethostname())
        self._names = frozenset(name.lower().rstrip(".") for name in names if name)

    def knows(self, request: web.Request) -> bool:
        """Return True if the request uses such a name. Browsers always send a `Host` header."""
        host = request.headers.get("Host")
        return host is None or self.is_ours(host)

    def is_ours(self, host: str) -> bool:
        """Return True if `host`, a `Host` header perhaps with a port, is a name of this daemon."""
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
        """Check the host name. Raises Forbidden."""
        if not self.knows(request):
            raise Forbidden(
                "this daemon does not know the host name of the request as its own",
                hint="ask for it by IP address or localhost, or add the name to http.allowed_hosts",
            )


class Callers:
    """Identifies the callers of the HTTP port, with the gate, the limits and the audit of the pull
    port. `failure_delay_seconds` slows down clients that guess tokens."""

    def __init__(
        self,
        gate: Gate,
        authenticator: Authenticator,
        audit: Audit,
        *,
        failure_delay_seconds: float,
        hosts: HostNames | None = None,
    ) -> None:
        self.gate = gate
        self._authenticator = authenticator
        self._audit = audit
        self._failure_delay = failure_delay_seconds
        self._hosts = hosts or HostNames()

    async def principal(self, request: web.Request) -> str | None:
        """Return the caller of the API. Raises Unauthenticated, Forbidden, LimitExceeded."""
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
        """Return the owner of the token. Raises Unauthenticated, LimitExceeded."""
        began = asyncio.get_running_loop().time()
        try:
            identity = await self._authenticator.identify_bearer(
                policy, place_of(request.remote), peer_of(request), token
            )
            if not identity.holds_in(self.gate.policy):
                raise Unauthenticated("the ACL has changed meanwhile")
        except LiftlogError:
            # Delayed, so that the time of the answer does not reveal how long the check took.
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(began + self._failure_delay - now)
            raise
        return identity

    def note_login(self, identity: Identity, request: web.Request) -> None:
        """Note a login for the audit: further requests will come with a session's cookie, not with
        the token."""
        assert identity.principal is not None
        self._audit.logged_in(identity.principal, peer_of(request), identity.method)

    def check_origin(self, request: web.Request, *, navigation: bool = False) -> None:
        """Refuse requests that a page of another site made a browser send. Raises Forbidden.

        The page may send them directly, or under a name of its own that resolves to this machine:
        the browser may be able to reach a port that the page's author cannot. Programs send none of
        these headers. With `navigation` the user may follow a link of another site, whose page then
        cannot see the answer.
        """
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
    """Return True if a browser shows the answer as a page of its own, not inside another."""
    return (
        request.method == "GET"
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )


def asks(request: web.Request, principal: str | None) -> Hashable:
    """Set and return the party of this request, among which requests take turns: the principal, or
    the origin of the request."""
    known = principal not in (None, ANONYMOUS)
    party: Hashable = principal if known else place_of(request.remote)
    asker = request.get(ASKER)
    if asker is not None:
        asker.party = party
    return party


def peer_of(request: web.Request) -> str:
    """Return the peer's name for logs."""
    return http_peer(request.remote)


def _without_port(host: str) -> str:
    if host.endswith("]"):  # an IPv6 address
        return host
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _bearer_token(request: web.Request) -> str | None:
    value = request.headers.get("Authorization")
    if value is None:
        return None
    if value[: len(_BEARER)].lower() != _BEARER:
        raise Unauthenticated("expected Authorization: Bearer PRINCIPAL.SECRET")
    return value[len(_BEARER) :].strip()
