"""Selects the node of a cluster for a request, from the answers that the client has received so
far. No I/O; for both clients.

A client begins at one of the addresses given to it. A node that cannot answer a request names the
responsible node, in NOT_LEADER. The client uses this information until a node contradicts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from liftlog.client.connecting.reconnecting import Backoff
from liftlog.client.connecting.target import Address, Target, context_for
from liftlog.errors import InvalidArgument, LiftlogError, NotLeader
from liftlog.protocol import groups
from liftlog.protocol.checkpoints import (
    CommitCheckpoint,
    DeleteCheckpoint,
    FetchCheckpoint,
    ListCheckpoints,
)
from liftlog.protocol.messages import ANY_REPLICA, Message

_LONGEST_PAUSE_SECONDS = 1.0
_ATTEMPT_SECONDS = 2.0
_MAX_KNOWN = 64
_CHECKPOINTS = (
    *(CommitCheckpoint, FetchCheckpoint, ListCheckpoints, DeleteCheckpoint),
    *groups.REQUESTS,
)


def key_of(message: Message) -> str:
    """Return the topic of a request: requests with the same topic have the same answerer. Empty:
    any node answers."""
    if isinstance(message, _CHECKPOINTS):
        return ""
    return stream_key(getattr(message, "stream", ""), getattr(message, "replica", None))


def stream_key(stream: str, replica: str | None) -> str:
    """Return the topic of reads of a stream, or of one node's replica of it."""
    return f"{stream} {replica}" if replica else stream


class Routes:
    """The addresses of a cluster, and the leaders' addresses. `targets` are tried in turn."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = {target.address.text: target for target in targets}
        self._order = list(self.targets)
        self._leaders: dict[str, str] = {}
        self._declined: dict[str, set[str]] = {}
        """For reads that any node in sync may answer: the nodes that are not in sync, since the
        last answer."""

    @property
    def has_choice(self) -> bool:
        """True if the client has more than one address to try."""
        return len(self._order) > 1

    def address_of(self, key: str) -> str:
        """Return the address to ask next."""
        return self._leaders.get(key, self._order[0])

    def deadline_at(self, now: float, deadline: float | None) -> float | None:
        """Return the time until which to try one address: the whole `deadline` if it is the only
        address."""
        if not self.has_choice:
            return deadline
        soon = now + _ATTEMPT_SECONDS
        return soon if deadline is None else min(soon, deadline)

    def failed(self, key: str, address: str) -> None:
        """Note that a connection to this address is not possible, so that the next attempt uses
        another address."""
        if self._leaders.get(key) == address:
            del self._leaders[key]
        if self._order[0] == address:
            self._order.append(self._order.pop(0))

    def told(self, key: str, address: str, error: LiftlogError) -> bool:
        """Note that the node at `address` refuses requests with this key; return True if the
        responsible node is known."""
        if not isinstance(error, NotLeader):
            return False
        if key.endswith(f" {ANY_REPLICA}"):
            declined = self._declined.setdefault(key, set())
            declined.add(address)
            near = next((one for one in self._order if one not in declined), None)
            if near is not None:
                self._leaders[key] = near
                return True
            del self._declined[key]  # no node is in sync: the leader answers
        other = str(error.details.get("address") or "")
        if not other or other == address or not self.learn(other):
            self.failed(key, address)
            return False
        self._leaders[key] = other
        return True

    def learn(self, text: str) -> bool:
        """Add another address of the cluster; return True if it can be used. A client that uses TLS
        never connects without TLS."""
        if text in self.targets:
            return True
        first = next(iter(self.targets.values()))
        try:
            address = Address.parse(text)
            if first.address.tls and not address.tls:
                return False
            context = (
                first.context if address.tls == first.address.tls else context_for(address, None)
            )
        except InvalidArgument:
            return False
        if len(self.targets) >= _MAX_KNOWN:
            return False
        self.targets[text] = replace(first, address=address, context=context)
        self._order.append(text)
        return True


class Wandering:
    """The pauses of one request, or one interruption, until it reaches the right node."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._followed: set[str] = set()

    def pause_before(self, address: str, *, is_named: bool) -> float:
        """Return a pause in seconds. The first time that a node names another one, the client asks
        it without a pause."""
        if is_named and address not in self._followed:
            self._followed.add(address)
            return 0.0
        return min(self._backoff.next_pause(), _LONGEST_PAUSE_SECONDS)
