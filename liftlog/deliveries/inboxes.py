"""The inboxes of clients that use heartbeats, and the clients whose pulls were lost with a leader.

A client that consumes continuously counts the messages that it has requested. It pulls again when
this number falls below a threshold, or when it misses two heartbeats, which takes 30 s by default.
This number can contain requests that are lost: in a pull that the former leader has never read, in
a status that NATS could not deliver, or with a message that was lost with the leader. If most of
the number is lost, the client gets no messages, and does not pull.

So the state contains the inboxes of such clients. After a takeover, an inbox that brings no pull
and whose client seems to be idle gets a status that ends all messages that the client may still
expect. If the client was only slow, it requests more messages than it would otherwise. So a client
with slow messages is left to its own heartbeats.

A pull that arrives just after a status is not yet a sign that the client will pull again. The Java
client answers each 408 with a pull, whatever its number is. Only a later pull shows that the number
has fallen below the threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from liftlog.deliveries.changes import InboxUsed, client_of
from liftlog.deliveries.instructions import Status
from liftlog.deliveries.pull import PullRequest
from liftlog.deliveries.state import MAX_INBOXES
from liftlog.deliveries.statuses import TIMED_OUT, left_over

_REFRESH_NS = 1_000_000_000
"""Minimum time, in ns, after which the state notes again that an inbox is in use."""
_WAIT_NS = 750_000_000
"""Time, in ns, within which a client answers the end of its pull, even on a busy machine."""
_MESSAGES = 4
"""A client counts as idle only if no ack has arrived for the time that it usually needs for this
number of messages."""
_PARTS = 4
"""Divisor: a client counts as idle only if no ack has arrived for a quarter of the usual time
between two of its pulls, because clients can ack several messages at once."""
_GAPS = 3
"""A client that has sent no pull for this multiple of the usual time between two of its pulls
counts as idle, even if other clients of the consumer send acks."""
_UNKNOWN_NS = 3_000_000_000
"""If only one pull of a client is known, the client counts as idle only if no ack has arrived for
this time (in ns)."""
_MOST_ENDS = 3
"""Maximum number of statuses to one inbox. NATS can lose a status, and `window` can be too
small."""


class UsedInboxes:
    """The inboxes that clients use while a leader serves a consumer."""

    def __init__(self) -> None:
        self._newest: dict[bytes, InboxUsed] = {}
        self._changed: set[bytes] = set()

    def pulled(self, request: PullRequest, stored: Mapping[bytes, InboxUsed], now_ns: int) -> None:
        """Note a pull. `stored` are the inboxes in the state."""
        if not request.heartbeat_ns or request.no_wait:
            return
        reply, batch = request.reply, max(request.batch, 1)
        client = client_of(reply)
        there, before = stored.get(client), self._newest.pop(client, None)
        if before is not None:
            gap_ns = max(now_ns - before.pulled_ns, 1)
            used = replace(before, reply=reply, batch=batch, pulled_ns=now_ns, gap_ns=gap_ns)
        elif there is not None:  # the time without a leader does not count
            used = replace(there, reply=reply, pulled_ns=now_ns)
        else:
            used = InboxUsed(reply, batch, max(request.max_bytes, 0), batch, now_ns, 0)
        self._newest[client] = used
        if len(self._newest) > MAX_INBOXES:
            oldest = next(iter(self._newest))
            del self._newest[oldest]
            self._changed.discard(oldest)
        if there is None or not there.gap_ns or now_ns - there.pulled_ns >= _REFRESH_NS:
            self._changed.add(client)

    def take_changes(self) -> list[InboxUsed]:
        """Return the inboxes to store, in the order of their newest pulls."""
        if not self._changed:
            return []
        changed = [one for client, one in self._newest.items() if client in self._changed]
        self._changed.clear()
        return changed

    def store_again(self) -> None:
        """Count all inboxes as changed, because a new state does not contain them."""
        self._changed.update(self._newest)


class SilentInboxes:
    """The inboxes whose clients may still count messages that were lost with the former leader."""

    def __init__(self) -> None:
        self._silent: dict[bytes, _Silent] = {}
        self._due_ns: int | None = None

    def __len__(self) -> int:
        return len(self._silent)

    def take_over(self, stored: Mapping[bytes, InboxUsed]) -> None:
        self._silent = {client: _Silent(one) for client, one in stored.items()}

    def pulled(self, reply: bytes, now_ns: int) -> None:
        """Note a pull. The client of the pull does not wait for an earlier pull, unless this pull
        is the answer to a status."""
        client = client_of(reply) if self._silent else b""
        one = self._silent.get(client)
        if one is None:
            return
        if one.may_answer(now_ns):
            one.inbox = replace(one.inbox, reply=reply)
        else:
            del self._silent[client]

    def begin_again(self) -> None:
        """Wait again from the next call of `end` on, because there is no connection to NATS."""
        for one in self._silent.values():
            one.began_ns = one.ended_ns = 0
        self._due_ns = None

    def end(
        self,
        now_ns: int,
        acked_ns: int,
        held: int,
        waiting: Iterable[bytes],
        has_interest: Callable[[bytes], bool],
    ) -> list[Status]:
        """Return the statuses for inboxes whose clients seem to be idle. Call this when `due_ns` is
        reached, and earlier if anything has changed.

        `acked_ns` is the time of the newest ack of any client. `held` is the number of messages
        that workers may be processing, and `waiting` are the replies of the waiting pulls. An inbox
        without a subscriber is forgotten: if its client connects to NATS again, the client pulls by
        itself."""
        statuses: list[Status] = []
        dues: list[int] = []
        pulling = set(map(client_of, waiting))
        for client, one in [*self._silent.items()]:
            if client in pulling:
                one.waits(now_ns)
                continue
            due_ns = one.due_ns(now_ns, acked_ns, held)
            if due_ns <= now_ns:
                if not has_interest(one.inbox.reply):
                    del self._silent[client]
                    continue
                statuses.append(one.end(now_ns))
                if one.ends == _MOST_ENDS:
                    del self._silent[client]
                    continue
                due_ns = one.due_ns(now_ns, acked_ns, held)
            dues.append(due_ns)
        self._due_ns = min(dues, default=None)
        return statuses

    def due_ns(self) -> int | None:
        """Return the time of the next status, as computed by the last call of `end`."""
        return self._due_ns if self._silent else None


class _Silent:
    def __init__(self, inbox: InboxUsed) -> None:
        self.ends = 0
        self.inbox = inbox
        self.began_ns = 0
        """Time from which on the client may be idle; 0 before the first look."""
        self.ended_ns = 0
        """Time of the takeover or of the newest status; 0 before the first look."""

    def may_answer(self, now_ns: int) -> bool:
        """Return True if a pull at this time may be the answer to a status."""
        return not self.ended_ns or now_ns - self.ended_ns < _WAIT_NS

    def waits(self, now_ns: int) -> None:
        """Note that a pull of the client waits."""
        self.began_ns = now_ns
        self.ended_ns = self.ended_ns or now_ns

    def due_ns(self, now_ns: int, acked_ns: int, held: int) -> int:
        self.began_ns = self.began_ns or now_ns
        self.ended_ns = self.ended_ns or now_ns
        inbox, wait_ns = self.inbox, _WAIT_NS << self.ends
        if not held:
            return self.began_ns + wait_ns
        if not inbox.gap_ns:
            return max(self.began_ns, acked_ns) + max(wait_ns, _UNKNOWN_NS)
        a_message_ns = inbox.gap_ns // inbox.batch
        idle_ns = max(wait_ns, _MESSAGES * a_message_ns, inbox.gap_ns // _PARTS)
        return min(
            max(self.began_ns, acked_ns) + idle_ns,
            self.began_ns + max(wait_ns, _GAPS * inbox.gap_ns),
        )

    def end(self, now_ns: int) -> Status:
        self.ends += 1
        self.began_ns = self.ended_ns = now_ns
        inbox = self.inbox
        return left_over(inbox.reply, TIMED_OUT, inbox.window, inbox.window_bytes)
