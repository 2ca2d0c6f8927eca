"""The settings of a consumer that decide about its deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

MAX_PENDING = 1_000_000
"""Maximum number of pending messages of a consumer. `max_ack_pending` without a limit means this
number."""
MAX_WAITING = 512
"""Default and maximum number of waiting pulls of a consumer."""
MAX_BACKOFFS = 1_000

MAX_WAIT_NS = 50 * 365 * 86_400 * 1_000_000_000
"""Maximum of an ack wait, of a nak's delay and of a pull's expiry. With this limit, the sum of a
time and a duration does not overflow."""

_SECOND = 1_000_000_000


class AckPolicy(IntEnum):
    EXPLICIT = 0
    """Each message is acked individually."""
    ALL = 1
    """An ack also acks all earlier messages."""
    NONE = 2
    """A message is done when it is delivered."""


class PriorityPolicy(IntEnum):
    NONE = 0
    OVERFLOW = 1
    PINNED_CLIENT = 2
    PRIORITIZED = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings. Numbers of 0 or less mean "no limit" unless the field says otherwise. Raises
    ValueError."""

    ack_policy: AckPolicy = AckPolicy.EXPLICIT
    ack_wait_ns: int = 30 * _SECOND
    """Time until a delivered message without an ack falls due again; above 0."""
    backoff_ns: tuple[int, ...] = ()
    """Waits that replace `ack_wait_ns`: after the first delivery, after the second, and so on. The
    last wait applies to all later deliveries."""
    max_deliver: int = -1
    max_ack_pending: int = 1000
    max_waiting: int = MAX_WAITING
    max_request_batch: int = 0
    max_request_expires_ns: int = 0
    max_request_bytes: int = 0
    pause_until_ns: int = 0
    """No message is delivered before this time; 0 if the consumer is not paused."""
    is_push: bool = False
    ack_prefix_bytes: int = 0
    """Length of `$JS.ACK.<stream>.<consumer>.`, which counts toward the `max_bytes` of a pull."""
    priority_policy: PriorityPolicy = PriorityPolicy.NONE
    priority_groups: tuple[str, ...] = ()
    pinned_ttl_ns: int = 120 * _SECOND
    """A pinned client loses its pin if it sends no pull for this time."""

    def __post_init__(self) -> None:
        if not all(0 < wait <= MAX_WAIT_NS for wait in (self.ack_wait_ns, *self.backoff_ns)):
            raise ValueError(f"waits for acks: expected 1 to {MAX_WAIT_NS} ns")
        if len(self.backoff_ns) > MAX_BACKOFFS:
            raise ValueError(f"backoff: expected at most {MAX_BACKOFFS} waits")

    @property
    def most_pending(self) -> int:
        """The number of pending messages at which first deliveries stop."""
        limit = self.max_ack_pending
        return min(limit, MAX_PENDING) if limit > 0 else MAX_PENDING

    @property
    def most_waiting(self) -> int:
        return min(self.max_waiting, MAX_WAITING) if self.max_waiting > 0 else MAX_WAITING

    @property
    def waits_ns(self) -> tuple[int, ...]:
        """The wait for an ack after each delivery; the last item applies to all later
        deliveries."""
        return self.backoff_ns or (self.ack_wait_ns,)

    def is_last(self, count: int) -> bool:
        """Return True if a message is not delivered again after `count` deliveries."""
        return 0 < self.max_deliver <= count

    def is_paused(self, now_ns: int) -> bool:
        return now_ns < self.pause_until_ns
