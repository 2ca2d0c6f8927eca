"""Identifies the sender of an HTTP request, and detects requests that a browser sent for a page of
another site."""

from __future__ import annotations

import asyncio
import contextlib
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
"""The caller for whom the current request is carried out, in fair turns with other callers."""


class HostNames:
    """The host names under which this daemon answers requests that need no credentials.

    The check defends against DNS rebinding: the author of a web page can make a host name of that
    page resolve to this machine. The browser then treats this port as part of the page's site, and
    the page can read every answer that needs no credentials. Only the host name in the request
    shows the attack. Therefore such requests are answered only under names that no attacker can
    register:

    - IP addresses
    - `localhost`
    - names without a dot (of a container, a service, this machine)
    - the configured names in `allowed` (without a port, in any case)
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        names = (*allowed, socket.gethostname())
        self._names = frozenset(name.lower().rstrip(".") for name in names if name)

    def knows(self, request: web.Request) -> bool:
        """Return True if the host name of the request is one of these names. Also return True if
        the request has no `Host` header, because browsers always send this header."""
        host = request.headers.get("Host")
        return host is None or self.is_ours(host)

    def is_ours(self, host: str) -> bool:
        """Return True if `host` is a name of this daemon. `host` is the value of a `Host` header,
        with or without a port."""
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
        """Raise Forbidden if the request uses a host name that is not one of these names."""
        if not self.knows(request):
            raise Forbidden(
                "this daemon does not know the host name of the request as its own",
                hint="use its IP address or localhost, or add the name to http.allowed_hosts",
            )


class Callers:
    """Identifies the callers of the HTTP port with the pull port's gate, limits and audit log.
    `failure_delay_seconds` slows down clients that guess tokens."""

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
        """Return the principal that sent a request to the API. Raises Unauthenticated, Forbidden,
        LimitExceeded."""
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

    def recognized(self, request: web.Request) -> str | None:
        """Return the principal of the token in the request, if the token was checked before. The
        result only determines the turn of the request. `identify` must still check the request."""
        policy = self.gate.policy
        if policy is None:
            return None
        with contextlib.suppress(Unauthenticated):
            token = _bearer_token(request)
            return None if token is None else self._authenticator.recognized(policy, token)
        return None

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
            # The delay hides from the client how long the check of the token took.
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(began + self._failure_delay - now)
            raise
        return identity

    def note_login(self, identity: Identity, request: web.Request) -> None:
        """Write a login to the audit log. Later requests of this user carry the cookie of a session
        instead of the token."""
        assert identity.principal is not None
        self._audit.logged_in(identity.principal, peer_of(request), identity.method)

    def check_origin(self, request: web.Request, *, navigation: bool = False) -> None:
        """Refuse requests that a browser sent for a page of another site. Raises Forbidden.

        The author of the page may be unable to reach this port, but the user's browser can reach
        it. The page may send its requests to this host directly, or to a host name of the attacker
        that resolves to this machine. Programs other than browsers do not send the headers that are
        checked here. If `navigation` is true, a request is also allowed if the user followed a link
        on a page of another site. The other page cannot read the answer.
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
    """Return True if a browser will show the answer as a whole page, and not as a part of another
    page."""
    return (
        request.method == "GET"
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and request.headers.get("Sec-Fetch-Dest") == "document"
    )


async def asks(request: web.Request, principal: str | None) -> Hashable:
    """Store and return the party of this request. The party is the principal, or the client's
    address if the principal is unknown. Parties take turns, and this call returns when it is the
    party's turn. Before this call, the request of an unrecognized caller counts for the caller's
    address."""
    known = principal not in (None, ANONYMOUS)
    party: Hashable = principal if known else place_of(request.remote)
    asker = request.get(ASKER)
    if asker is not None and asker.party != party:
        asker.party = party
        await asyncio.sleep(0)
    return party


def peer_of(request: web.Request) -> str:
    """Return the peer's name for logs."""
    return http_peer(request.remote)


def _without_port(host: str) -> str:
    if host.endswith("]"):  # an IPv6 address without a port
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
