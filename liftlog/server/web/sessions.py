"""Keeps the sessions of signed-in browsers, and proves that a form came from a page of this site.

The daemon stores the session, and the cookie only names it. A session ends when the user signs out,
or when the ACL is reloaded without the credential. The number and the duration of sessions are
limited.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from acl.policy import Policy
from liftlog.server.access.authentication import Identity

MAX_SESSIONS = 1000
MAX_PER_PRINCIPAL = 20
MAX_IDLE_SECONDS = 3600.0
MAX_AGE_SECONDS = 12 * 3600.0


@dataclass(slots=True, eq=False)
class WebSession:
    identity: Identity
    began: float
    used: float

    def holds(self, now: float, policy: Policy | None) -> bool:
        return (
            now - self.used <= MAX_IDLE_SECONDS
            and now - self.began <= MAX_AGE_SECONDS
            and self.identity.holds_in(policy)
        )


class Sessions:
    """The sessions of all users. Stores only hashes of cookies, so that the stored data cannot be
    used to sign in. Belongs to one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # The first entry has the oldest use.
        self._sessions: OrderedDict[bytes, WebSession] = OrderedDict()
        self._secret = secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, identity: Identity) -> str:
        """Begin a session and return its cookie. If the principal has too many sessions, its least
        recently used session ends."""
        now = self._now()
        own = [
            key
            for key, one in self._sessions.items()
            if one.identity.principal == identity.principal
        ]
        for key in own[: max(0, len(own) + 1 - MAX_PER_PRINCIPAL)]:
            del self._sessions[key]
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        cookie = secrets.token_urlsafe(32)
        self._sessions[_key(cookie)] = WebSession(identity, now, now)
        return cookie

    def find(self, cookie: str | None, policy: Policy | None) -> WebSession | None:
        """Return the session of the cookie; None if the cookie has no valid session."""
        if not cookie:
            return None
        key = _key(cookie)
        session = self._sessions.get(key)
        if session is None:
            return None
        now = self._now()
        if not session.holds(now, policy):
            del self._sessions[key]
            return None
        session.used = now
        self._sessions.move_to_end(key)
        return session

    def count(self, policy: Policy | None) -> int:
        """Return the number of valid sessions. An expired session stays stored until its cookie
        arrives again, but is not counted."""
        now = self._now()
        return sum([one.holds(now, policy) for one in self._sessions.values()])

    def end(self, cookie: str | None) -> None:
        if cookie:
            self._sessions.pop(_key(cookie), None)

    # --- forms ---

    def form_token(self, cookie: str | None, purpose: str) -> str:
        """Return the token for a hidden field of the form for `purpose`. A page of another site
        cannot read the pages of this site, so it cannot obtain the token."""
        text = f"{cookie or ''}\0{purpose}".encode("utf-8", "surrogatepass")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

    def is_form_token(self, given: str, cookie: str | None, purpose: str) -> bool:
        expected = self.form_token(cookie, purpose)
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _key(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
