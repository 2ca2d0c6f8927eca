"""Identifies a client by token, nkey, TLS certificate or Unix user, as the policy requires.

Cheap checks come first. They refuse a client that has guessed too often, and they refuse clients
while too many checks are running. Checks of tokens are slow, so they take turns. The places from
which clients connect take turns. Within a place, the principals that clients claim to be take
turns.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from acl.policy import Policy
from liftlog.errors import LiftlogError, LimitExceeded, Unauthenticated
from liftlog.protocol.messages import ANONYMOUS, CERTIFICATE, NKEY, TOKEN, UNIX, Auth
from liftlog.server.access.audit import Audit
from liftlog.server.access.guessing import Bounded, GuessLimiter
from liftlog.server.access.origins import Origin

_MAX_OF_PLACE = 4
"""Number of checks that may always wait for one place, even if many checks wait for other
places."""
_MAX_NAME_CHARACTERS = 64
_MAX_VERIFIED = 1024


class Identity(NamedTuple):
    """A principal (None: no ACL is configured), and the credential that identified it."""

    principal: str | None
    method: str = ANONYMOUS
    credential: object = None

    def holds_in(self, policy: Policy | None) -> bool:
        """Return True if `policy` still identifies the principal by this credential."""
        if policy is None or self.principal is None:
            return policy is None
        return policy.credential(self.principal, self.method) == self.credential


NO_PRINCIPAL = Identity(None)


class Authenticator:
    """Identifies clients. Belongs to one event loop. Its methods raise Unauthenticated and
    LimitExceeded.

    `checkers` is called with the place and the name of a client. It returns the threads that check
    the client's token. The caller that passes `checkers` must also close the threads.
    """

    def __init__(
        self,
        audit: Audit,
        checkers: Callable[[str, str], Executor],
        *,
        max_pending: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pending = 0
        self._pending_of: Counter[str] = Counter()  # by place
        self.guesses = GuessLimiter(now)
        self._audit = audit
        self._max_pending = max_pending
        self._secret = secrets.token_bytes(32)
        self._verified: Bounded[bytes, Identity] = Bounded()  # by a keyed hash of the token
        self._checks: dict[tuple[Policy, bytes], asyncio.Future[str | None]] = {}  # running checks
        self._checkers = checkers

    def methods(
        self, policy: Policy | None, origin: Origin, peer_names: tuple[str, ...]
    ) -> list[str]:
        """Return the ways in which this client may authenticate."""
        if policy is None:
            return [ANONYMOUS]
        by_uid = None if origin.uid is None else policy.principal_of_uid(origin.uid)
        offered = {
            NKEY: policy.accepts_nkeys,
            TOKEN: policy.accepts_tokens,
            CERTIFICATE: policy.principal_of_certificate(peer_names) is not None,
            UNIX: by_uid is not None,
            ANONYMOUS: policy.allows_anonymous,
        }
        return [method for method, is_there in offered.items() if is_there]

    async def identify(
        self,
        policy: Policy | None,
        origin: Origin,
        peer_names: tuple[str, ...],
        proof: Auth,
        text_to_sign: bytes,
    ) -> Identity:
        """Identify a client that has answered the challenge by one of the offered methods."""
        if policy is None:
            return NO_PRINCIPAL
        claimed, principal = None, None
        try:
            if proof.method == TOKEN:
                claimed = _name_in(proof.token or "")
                principal = await self._by_token(policy, proof.token, origin.place)
            elif proof.method == NKEY:
                principal = self._by_nkey(policy, proof, origin.place, text_to_sign)
            elif proof.method == CERTIFICATE:
                principal = policy.principal_of_certificate(peer_names)
            elif proof.method == UNIX and origin.uid is not None:
                principal = policy.principal_of_uid(origin.uid)
            elif proof.method == ANONYMOUS and policy.allows_anonymous:
                principal = ANONYMOUS
            if principal is None:
                raise Unauthenticated("this daemon does not know you")
        except LiftlogError as error:
            if claimed is not None and policy.credential(claimed, TOKEN) is None:
                claimed = None
            self._audit.login_refused(claimed, origin.name, proof.method, error.name)
            raise
        self._audit.logged_in(principal, origin.name, proof.method)
        return Identity(principal, proof.method, policy.credential(principal, proof.method))

    async def identify_bearer(self, policy: Policy, place: str, peer: str, token: str) -> Identity:
        """Identify the sender of an HTTP request. Only refusals are audited, because each request
        carries its token."""
        try:
            principal = await self._by_token(policy, token, place)
        except LiftlogError as error:
            claimed: str | None = _name_in(token)
            if policy.credential(_name_in(token), TOKEN) is None:
                claimed = None
            self._audit.login_refused(claimed, peer, TOKEN, error.name)
            raise
        return Identity(principal, TOKEN, policy.credential(principal, TOKEN))

    def recognized(self, policy: Policy, token: str) -> str | None:
        """Return the principal of a token that was checked before; None for any other token. The
        caller must still call `identify_bearer` for the request, because this method neither counts
        guesses nor writes to the audit log."""
        known = self._verified.get(self._key(token))
        return known.principal if known is not None and known.holds_in(policy) else None

    def _key(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode("utf-8", "surrogatepass"), key=self._secret).digest()

    async def _by_token(self, policy: Policy, token: str | None, place: str) -> str:
        if token is None:
            raise Unauthenticated("the token is missing")
        name = _name_in(token)
        key = self._key(token)
        check = self._checks.get((policy, key))
        if check is not None:
            # Many clients with one token may connect at once. They share one check, and it counts
            # as one guess. If the check has ended but is still listed, the await returns at once.
            principal = await asyncio.shield(check)
            if principal is None:
                raise Unauthenticated("the token is not valid")
            return principal
        known = self.recognized(policy, token)
        if known is not None:
            # This path runs for each HTTP request, and when many clients reconnect at once.
            self._begin(place, name)
            self.guesses.succeeded(place, name)
            return known
        if self.pending >= self._max_pending and self._pending_of[place] >= _MAX_OF_PLACE:
            raise LimitExceeded("too many clients are authenticating at once", hint="try again")
        self._begin(place, name)
        principal = await asyncio.shield(self._begin_check(policy, token, key, place))
        if principal is None:
            raise Unauthenticated("the token is not valid")
        self.guesses.succeeded(place, name)
        return principal

    def _begin_check(
        self, policy: Policy, token: str, key: bytes, place: str
    ) -> asyncio.Future[str | None]:
        """Start to check a token in a thread. The check continues if the client disconnects,
        because other clients may wait for it."""
        threads = self._checkers(place, _name_in(token))
        loop = asyncio.get_running_loop()
        check = loop.run_in_executor(threads, policy.authenticate_token, token)
        self._checks[policy, key] = check
        self.pending += 1
        self._pending_of[place] += 1

        def ended(_: asyncio.Future[str | None]) -> None:
            self.pending -= 1
            self._pending_of[place] -= 1
            if not self._pending_of[place]:
                del self._pending_of[place]
            del self._checks[policy, key]
            principal = None if check.cancelled() or check.exception() else check.result()
            if principal is not None:
                identity = Identity(principal, TOKEN, policy.credential(principal, TOKEN))
                self._verified.keep(key, identity, _MAX_VERIFIED)

        check.add_done_callback(ended)
        return check

    def _by_nkey(self, policy: Policy, proof: Auth, place: str, text: bytes) -> str:
        """Check an nkey's signature. Takes a tenth of a millisecond, so it needs no thread."""
        if proof.public_key is None or proof.signature is None:
            raise Unauthenticated("the nkey or its signature is missing")
        name = proof.public_key[:_MAX_NAME_CHARACTERS]
        self._begin(place, name)
        principal = policy.authenticate_nkey(proof.public_key, text, proof.signature)
        if principal is None:
            raise Unauthenticated(
                "the nkey is not known, or its signature is not for this connection",
                hint="with TLS a signature is valid only without a proxy in between",
            )
        self.guesses.succeeded(place, name)
        return principal

    def _begin(self, place: str, name: str) -> None:
        if not self.guesses.begin(place, name):
            raise LimitExceeded("too many failed attempts to log in", hint="try again in a minute")


def _name_in(token: str) -> str:
    return token.partition(".")[0][:_MAX_NAME_CHARACTERS]
