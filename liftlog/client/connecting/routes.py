"""Which node of a cluster answers what, as far as a client knows. No I/O; for both clients.

A client begins at one of the addresses that it was given. A node that cannot answer names the one
that can, in NOT_LEADER. So only what the nodes say is believed, and only until it turns out wrong.
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
    """What a request is about: such requests have the same answerer. Empty: any node answers."""
    if isinstance(message, _CHECKPOINTS):
        return ""
    return stream_key(getattr(message, "stream", ""), getattr(message, "replica", None))


def stream_key(stream: str, replica: str | None) -> str:
    """What reads of a stream, or of one node's replica of it, are about."""
    return f"{stream} {replica}" if replica else stream


class Routes:
    """The addresses of a cluster, and where the leaders are. `targets` are tried in turn."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = {target.address.text: target for target in targets}
        self._order = list(self.targets)
        self._leaders: dict[str, str] = {}
        self._declined: dict[str, set[str]] = {}
        """Of reads that any node in sync may answer: where there is none, since the last answer."""

    @property
    def has_choice(self) -> bool:
        """Whether there is another address to try when one does not answer."""
        return len(self._order) > 1

    def address_of(self, key: str) -> str:
        """Where to ask next."""
        return self._leaders.get(key, self._order[0])

    def deadline_at(self, now: float, deadline: float | None) -> float | None:
        """Until when to try one address. Without a choice that is all the time there is."""
        if not self.has_choice:
            return deadline
        soon = now + _ATTEMPT_SECONDS
        return soon if deadline is None else min(soon, deadline)

    def failed(self, key: str, address: str) -> None:
        """There is no connection to this address: the next one is as good as any."""
        if self._leaders.get(key) == address:
            del self._leaders[key]
        if self._order[0] == address:
            self._order.append(self._order.pop(0))

    def told(self, key: str, address: str, error: LiftlogError) -> bool:
        """The node there does not answer this. Whether another one is known to."""
        if not isinstance(error, NotLeader):
            return False
        if key.endswith(f" {ANY_REPLICA}"):
            declined = self._declined.setdefault(key, set())
            declined.add(address)
            near = next((one for one in self._order if one not in declined), None)
            if near is not None:
                self._leaders[key] = near
                return True
            del self._declined[key]  # none of them is in sync: the leader answers
        other = str(error.details.get("address") or "")
        if not other or other == address or not self.learn(other):
            self.failed(key, address)
            return False
        self._leaders[key] = other
        return True

    def learn(self, text: str) -> bool:
        """Another address of the cluster; returns whether it can be used. A client that asked for
        TLS never goes on without."""
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
    """The pauses of one request, or one interruption, on its way to the right node."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._followed: set[str] = set()

    def pause_before(self, address: str, *, is_named: bool) -> float:
        """In seconds. A node that another one names is asked at once, the first time."""
        if is_named and address not in self._followed:
            self._followed.add(address)
            return 0.0
        return min(self._backoff.next_pause(), _LONGEST_PAUSE_SECONDS)
