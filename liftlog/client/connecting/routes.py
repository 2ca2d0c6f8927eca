"""Selects the node of a cluster for a request, from the answers that the client has received so
far. Does no I/O; both clients use it.

A client begins at one of the addresses given to it. A node that cannot answer a request refuses it
with NOT_LEADER, which names the responsible node. The client sends such requests to that node until
a node names another one.
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
_CHECKPOINTS: tuple[type[Message], ...] = (
    *(CommitCheckpoint, FetchCheckpoint, ListCheckpoints, DeleteCheckpoint),
    *groups.REQUESTS,
)


def key_of(message: Message) -> str:
    """Return the key of a request, for example its stream; empty if any node can answer the
    request. The same node answers all requests with the same key."""
    if isinstance(message, _CHECKPOINTS):
        return ""
    return stream_key(getattr(message, "stream", ""), getattr(message, "replica", None))


def stream_key(stream: str, replica: str | None) -> str:
    """Return the key of reads of a stream, or of reads of one node's replica."""
    return f"{stream} {replica}" if replica else stream


class Routes:
    """The addresses of a cluster's nodes and of the leaders. `targets` are the addresses to try, in
    turn."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = {target.address.text: target for target in targets}
        self._order = list(self.targets)
        self._leaders: dict[str, str] = {}
        self._declined: dict[str, set[str]] = {}
        """Maps each read to the nodes that have refused the read since its last answer, because
        they are not in sync. Used only for reads that any node in sync may answer."""

    @property
    def has_choice(self) -> bool:
        """True if the client has more than one address to try."""
        return len(self._order) > 1

    def address_of(self, key: str) -> str:
        """Return the address to which the next request with this key is sent."""
        return self._leaders.get(key, self._order[0])

    def deadline_at(self, now: float, deadline: float | None) -> float | None:
        """Return the time until which to try one address. If it is the only address, the result is
        `deadline`."""
        if not self.has_choice:
            return deadline
        soon = now + _ATTEMPT_SECONDS
        return soon if deadline is None else min(soon, deadline)

    def failed(self, key: str, address: str) -> None:
        """Note that no connection to this address can be opened. The next attempt uses another
        address."""
        if self._leaders.get(key) == address:
            del self._leaders[key]
        if self._order[0] == address:
            self._order.append(self._order.pop(0))

    def told(self, key: str, address: str, error: LiftlogError) -> bool:
        """Note that the node at `address` refuses requests with this key. Returns True if the node
        to ask next is known."""
        if not isinstance(error, NotLeader):
            return False
        if key.endswith(f" {ANY_REPLICA}"):
            declined = self._declined.setdefault(key, set())
            declined.add(address)
            near = next((one for one in self._order if one not in declined), None)
            if near is not None:
                self._leaders[key] = near
                return True
            del self._declined[key]  # no other node in sync can be tried, so ask the leader
        other = str(error.details.get("address") or "")
        if not other or other == address or not self.learn(other):
            self.failed(key, address)
            return False
        self._leaders[key] = other
        return True

    def learn(self, text: str) -> bool:
        """Add an address of the cluster that a node has reported. Returns True if the client can
        use the address: a client that uses TLS never connects without TLS."""
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
    """Computes the pauses while one request, or one interrupted read, looks for the right node."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._followed: set[str] = set()

    def pause_before(self, address: str, *, is_named: bool) -> float:
        """Return the pause before `address` is tried, in seconds. `is_named` means that a node has
        reported this address as the responsible node. There is no pause before the first attempt at
        such an address."""
        if is_named and address not in self._followed:
            self._followed.add(address)
            return 0.0
        return min(self._backoff.next_pause(), _LONGEST_PAUSE_SECONDS)
