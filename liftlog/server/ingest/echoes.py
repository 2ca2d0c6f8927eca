"""Recognises the daemon's own messages, which come back while the daemon is connected to two
servers.

NATS does not send a client its own messages (`no_echo`). With two connections, the daemon counts as
two clients. If a stream records inboxes, messages that the daemon sends over the old connection
reach its subscriptions on the new connection.

A stream on `_INBOX.` must not store these messages, however late they arrive. A stream on another
prefix that publishers use for their acks may store them, because a handover only covers `_INBOX.`.

NATS keeps the order from one connection to one subscription. So when the last sent message has come
back, no earlier message can come back any more.
"""

from __future__ import annotations

from collections.abc import Callable

from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.overlap import Parts, digest_of, parts_of, select
from liftlog.server.ingest.subscriptions import LinkSubscription

FORGET_SECONDS = 60.0
"""If no message was sent over a connection for this time (in seconds), the connection was
abandoned. No message is then expected to come back over it."""


class Echoes:
    """The daemon's own messages that may come back over one connection. Belongs to the event
    loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is a monotonic clock in seconds."""
        self._now = now
        self._over = [_OverOne(now)]
        """One entry for each connection that was used for sending, in order."""

    def __len__(self) -> int:
        return sum(map(len, self._over))

    def for_next(self) -> Echoes:
        """Return the echoes of the next connection. All messages that have not come back yet may
        also come back over that connection."""
        following = Echoes(self._now)
        following._over[:0] = [one.copy() for one in self._over if len(one)]
        return following

    def sent(self, one: LinkSubscription, message: Parts) -> None:
        """Note a sent message. The message comes back if it reaches the new server after the daemon
        has subscribed there."""
        self._over[-1].sent(one, message)

    def are_due(self, one: LinkSubscription) -> bool:
        """Return True if messages may still come back to this subscription."""
        return any(over.are_due(one) for over in self._over)

    def without(self, one: LinkSubscription, run: MessageRun) -> MessageRun | None:
        """Return the messages of this run that other clients have sent; None if there are none."""
        if not self.are_due(one):
            return run
        digests = [digest_of(one, parts) for parts in parts_of(run)]
        rows = [
            row
            for row, digest in enumerate(digests)
            if not any(over.takes(one, digest) for over in self._over)
        ]
        return select(run, rows) if rows else None

    def forget_old(self) -> None:
        """Free the memory of messages that are no longer expected."""
        for over in self._over:
            over.forget_old()


class _OverOne:
    """Messages sent over one connection, by the subscription to which they come back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sent: dict[LinkSubscription, dict[bytes, int]] = {}
        self._last_at: dict[LinkSubscription, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sent.values()))

    def copy(self) -> _OverOne:
        other = _OverOne(self._now)
        other._sent = {one: dict(sent) for one, sent in self._sent.items()}
        other._last_at = dict(self._last_at)
        return other

    def sent(self, one: LinkSubscription, message: Parts) -> None:
        sent = self._sent.setdefault(one, {})
        digest = digest_of(one, message)
        sent[digest] = sent.pop(digest, 0) + 1  # this puts the last sent message at the end
        self._last_at[one] = self._now()

    def are_due(self, one: LinkSubscription) -> bool:
        if one in self._sent and self._now() - self._last_at[one] >= FORGET_SECONDS:
            self._forget(one)
        return one in self._sent

    def takes(self, one: LinkSubscription, digest: bytes) -> bool:
        if not self.are_due(one):
            return False
        sent = self._sent[one]
        count = sent.get(digest, 0)
        if count == 1 and digest == next(reversed(sent)):
            self._forget(one)
        elif count == 1:
            del sent[digest]
        elif count:
            sent[digest] = count - 1
        return count > 0

    def _forget(self, one: LinkSubscription) -> None:
        del self._sent[one], self._last_at[one]

    def forget_old(self) -> None:
        for one in list(self._sent):
            self.are_due(one)
