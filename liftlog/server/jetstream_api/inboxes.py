"""Identifies clients of NATS by their inboxes.

A NATS message does not name its publisher. JetStream's clients use one inbox for each connection,
so the name of the inbox identifies the client. However, a client can also use a new inbox for each
request.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from liftlog.server.access.guessing import Bounded

_KNOWN_AFTER_SECONDS = 0.1
_MAX_NEW, _MAX_KNOWN = 16_384, 4096
_NEW_ONES = b"(new inboxes)"


def party_of(reply: bytes) -> bytes:
    """Return the inbox of a connection: the first two tokens of the reply subject."""
    return b".".join(reply.split(b".", 2)[:2])


class Inboxes:
    """Stores the inboxes that are used repeatedly. An inbox that is used only once does not become
    known. So a flood of new inboxes does not displace known inboxes."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._new: Bounded[bytes, float] = Bounded()
        self._known: Bounded[bytes, None] = Bounded()

    def note(self, party: bytes) -> bool:
        """Record a request from this inbox; return True if the inbox is known."""
        if party in self._known:
            self._known.move_to_end(party)
            return True
        now = self._now()
        since = self._new.setdefault(party, now)
        if now - since < _KNOWN_AFTER_SECONDS:
            self._new.keep(party, since, _MAX_NEW)
            return False
        del self._new[party]
        self._known.keep(party, None, _MAX_KNOWN)
        return True

    def member(self, party: bytes) -> bytes:
        """Return the member under which a request takes turns at scans. Each known inbox is a
        member. All other inboxes together are one member."""
        return party if party in self._known else _NEW_ONES
