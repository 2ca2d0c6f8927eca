"""Logs logins, refusals, and operations that change something, as events of the logger
`liftlog.audit`.

Each principal has a rate limit for its lines. All clients without a principal share one limit. If
lines are left out, the next line contains their number. Text from a client is escaped and
shortened. No part of a token or a key is logged.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from liftlog.server.access.guessing import Buckets, Rate
from liftlog.server.access.origins import way_in

AUDIT_LOGGER = "liftlog.audit"
LOGIN = "login"

log = logging.getLogger(AUDIT_LOGGER)

PER_PRINCIPAL = Rate(60, 1)
"""Lines of the audit log for one principal: a burst of 60, then one per second."""
_ALTOGETHER = Rate(1000, 20)
_MAX_CHARACTERS = 300
_MAX_PRINCIPALS = 4096
_ALL = ""


class Audit:
    """Writes the audit log. Belongs to one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._buckets: Buckets[str] = Buckets(PER_PRINCIPAL, now, _MAX_PRINCIPALS)
        self._whole: Buckets[str] = Buckets(_ALTOGETHER, now)
        self._suppressed: Counter[str] = Counter()
        self.denied_total: Counter[tuple[str, str]] = Counter()
        """Number of refused requests and logins, by operation (or `login`) and by port
        (`way_in`)."""

    def denied(
        self, principal: str | None, peer: str, operation: str, stream: str, explanation: str
    ) -> None:
        self.denied_total[operation, way_in(peer)] += 1
        if self._may_tell(principal):
            log.warning(
                "denied principal=%s peer=%s operation=%s stream=%s reason=%s suppressed=%d",
                *map(_plain, (principal, peer, operation, stream, explanation)),
                self._take_suppressed(principal),
            )

    def allowed(
        self, principal: str | None, peer: str, operation: str, stream: str, explanation: str
    ) -> None:
        """Log an allowed operation that changes something."""
        if self._may_tell(principal):
            log.info(
                "allowed principal=%s peer=%s operation=%s stream=%s reason=%s suppressed=%d",
                *map(_plain, (principal, peer, operation, stream, explanation)),
                self._take_suppressed(principal),
            )

    def logged_in(self, principal: str, peer: str, method: str) -> None:
        if self._may_tell(principal):
            log.info(
                "logged-in principal=%s peer=%s method=%s suppressed=%d",
                *map(_plain, (principal, peer, method)),
                self._take_suppressed(principal),
            )

    def login_refused(self, claimed: str | None, peer: str, method: str, reason: str) -> None:
        """Log a refused login. `claimed` is the name of an existing principal, or None for an
        unknown name. Unknown names are not logged, because the user may have typed a secret instead
        of a name."""
        self.denied_total[LOGIN, way_in(peer)] += 1
        if self._may_tell(None):
            log.warning(
                "login-refused principal=%s peer=%s method=%s reason=%s suppressed=%d",
                *map(_plain, (claimed, peer, method, reason)),
                self._take_suppressed(None),
            )

    def withdrawn(self, principal: str, peer: str, method: str) -> None:
        """Log that the credential of a connection is no longer in the ACL."""
        if self._may_tell(principal):
            log.warning(
                "withdrawn principal=%s peer=%s method=%s suppressed=%d",
                *map(_plain, (principal, peer, method)),
                self._take_suppressed(principal),
            )

    def _may_tell(self, principal: str | None) -> bool:
        who = _who(principal)
        if self._buckets.level(who) < 1 or self._whole.level(_ALL) < 1:
            if len(self._suppressed) >= _MAX_PRINCIPALS:
                self._suppressed.clear()
            self._suppressed[who] += 1
            return False
        self._buckets.change(who, -1)
        self._whole.change(_ALL, -1)
        return True

    def _take_suppressed(self, principal: str | None) -> int:
        return self._suppressed.pop(_who(principal), 0)


def _who(principal: str | None) -> str:
    return "-" if principal is None else principal  # "-" is not a valid name


def _plain(text: str | None) -> str:
    """Return `text` as printable ASCII on one line, of limited length."""
    shown = _who(text)
    if len(shown) > _MAX_CHARACTERS:
        shown = shown[:_MAX_CHARACTERS] + "..."
    return shown if shown.isascii() and shown.isprintable() else ascii(shown)[1:-1]
