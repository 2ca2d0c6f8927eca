"""One pull: the request of a client, and its remaining counts."""

from __future__ import annotations

from dataclasses import dataclass

from liftlog.deliveries.instructions import Status
from liftlog.deliveries.settings import MAX_WAIT_NS
from liftlog.deliveries.statuses import left_over

_MOST = 2**62
"""Larger numbers in a request are reduced to this number. No client can receive more messages or
bytes in one pull."""


@dataclass(frozen=True, slots=True)
class Priority:
    """The priority of a pull within its group. Only the fields that belong to the consumer's policy
    are used."""

    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    """For the policy "overflow": the pull gets messages while at least this number of messages is
    pending; 0 means no condition."""
    pin: bytes = b""
    """Policy "pinned client": the id in the messages that the client got last."""
    level: int = 0
    """Policy "prioritized": 0 comes first, 9 last."""


NO_PRIORITY = Priority()


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A request for messages. A duration of 0 means no limit. `reply` is not empty. The caller has
    parsed the request, and has refused a heartbeat of more than half of `expires_ns`.
    """

    reply: bytes
    batch: int = 1
    max_bytes: int = 0
    no_wait: bool = False
    expires_ns: int = 0
    heartbeat_ns: int = 0
    priority: Priority = NO_PRIORITY
    new_pin: bytes = b""
    """A fresh id, which the pull gets if the consumer is pinned to it."""


class Pull:
    """A waiting pull."""

    __slots__ = (
        "delivered",
        "expires_at_ns",
        "heartbeat_at_ns",
        "heartbeat_ns",
        "left",
        "left_bytes",
        "new_pin",
        "no_wait",
        "number",
        "pin",
        "priority",
        "reply",
    )

    def __init__(self, number: int, request: PullRequest, now_ns: int) -> None:
        self.number = number
        self.reply = request.reply
        self.left = min(max(request.batch, 1), _MOST)
        self.left_bytes = min(max(request.max_bytes, 0), _MOST)
        self.no_wait = request.no_wait
        expires_ns = min(request.expires_ns, MAX_WAIT_NS)
        self.expires_at_ns = now_ns + expires_ns if expires_ns > 0 else 0
        self.heartbeat_ns = max(request.heartbeat_ns, 0)
        self.heartbeat_at_ns = now_ns + self.heartbeat_ns if self.heartbeat_ns else 0
        self.delivered = 0
        self.priority = request.priority
        self.pin = request.priority.pin
        self.new_pin = request.new_pin

    def is_over(self, now_ns: int) -> bool:
        return 0 < self.expires_at_ns <= now_ns

    def status(self, words: bytes) -> Status:
        return left_over(self.reply, words, self.left, self.left_bytes)
