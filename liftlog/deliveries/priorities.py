"""Priority groups: chooses the waiting pull that gets the next message. With the policy "overflow",
a pull waits until enough messages are pending or unacked. With "pinned client", one client gets all
messages until it stops sending pulls. With "prioritized", pulls with a lower level come first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from liftlog.deliveries.instructions import Instruction, Pinned, Status, Unpinned
from liftlog.deliveries.pull import Pull, PullRequest
from liftlog.deliveries.settings import PriorityPolicy, Settings

_OVERFLOW, _PINNED, _PRIORITIZED = [
    PriorityPolicy.OVERFLOW,
    PriorityPolicy.PINNED_CLIENT,
    PriorityPolicy.PRIORITIZED,
]
_MAX_LEVEL = 9


class Priorities:
    """The priority groups of one consumer. As in JetStream, a pin exists only in memory: after a
    change of leader another client may get it."""

    def __init__(self) -> None:
        self.pin = b""
        """Id of the client that gets all messages; empty if no client is pinned."""
        self.pinned_ns = 0
        """Time at which the client was pinned."""
        self._unpin_at_ns = 0
        self.instructions: list[Instruction] = []
        """Statuses and advisories since the caller cleared them."""

    def refusal(self, request: PullRequest, settings: Settings, now_ns: int) -> Status | None:
        """Return the status that refuses a request, or None. An accepted request of the pinned
        client extends its pin."""
        asked, policy = request.priority, settings.priority_policy
        why = ""
        if (asked.min_pending or asked.min_ack_pending) and policy != _OVERFLOW:
            why = "Not a Overflow Priority consumer"
        elif asked.pin and policy != _PINNED:
            why = "Not a Pinned Client Priority consumer"
        elif not 0 <= asked.level <= _MAX_LEVEL:
            why = "Priority must be between 0 and 9"
        elif policy != PriorityPolicy.NONE and not asked.group:
            why = "Priority Group missing"
        elif policy != PriorityPolicy.NONE and asked.group not in settings.priority_groups:
            why = "Invalid Priority Group"
        if why:
            return Status(request.reply, b"400 Bad Request - " + why.encode())
        if self.pin and asked.pin == self.pin:
            self._unpin_at_ns = now_ns + settings.pinned_ttl_ns
        elif self.pin and asked.pin:
            return Status(request.reply, b"423 Nats-Pin-Id mismatch")
        return None

    def insert(self, waiting: deque[Pull], pull: Pull, policy: PriorityPolicy) -> None:
        """Insert a pull behind the waiting pulls of its level."""
        if policy == _PRIORITIZED and waiting and _level(waiting[-1]) > _level(pull):
            waiting.insert(bisect_right(waiting, _level(pull), key=_level), pull)
        else:
            waiting.append(pull)

    def sort(self, waiting: deque[Pull], policy: PriorityPolicy) -> None:
        """Put the waiting pulls into the order of the new policy."""
        if policy == _PRIORITIZED:
            in_order = sorted(waiting, key=_level)
            waiting.clear()
            waiting.extend(in_order)

    def choose(
        self, waiting: deque[Pull], settings: Settings, pending: int, held: int, now_ns: int
    ) -> tuple[Pull | None, list[Pull]]:
        """Rotate the pull that gets the next message to the front. Returns this pull, and the pulls
        that end because their pin is outdated. `pending` is the number of messages for first
        deliveries. `held` is the number of unacked messages."""
        ended: list[Pull] = []
        turned = 0
        while waiting and turned < len(waiting):
            pull = waiting[0]
            if settings.priority_policy == _PINNED and pull.pin and pull.pin != self.pin:
                self.instructions.append(pull.status(b"423 Nats-Wrong-Pin-Id"))
                ended.append(waiting.popleft())
            elif self._is_next(pull, settings.priority_policy, pending, held):
                if settings.priority_policy == _PINNED and not self.pin:
                    self._pin_to(pull, settings, now_ns)
                return pull, ended
            else:
                waiting.rotate(-1)
                turned += 1
        return None, ended

    def unpin(self, reason: str) -> None:
        """Remove the pin, so that another client can be pinned."""
        if self.pin:
            self.pin = b""
            self.instructions.append(Unpinned(reason))

    def expire(self, now_ns: int) -> None:
        """Remove the pin of a client that has sent no pull for `pinned_ttl_ns`."""
        if self.pin and self._unpin_at_ns <= now_ns:
            self.unpin("timeout")

    @property
    def unpin_at_ns(self) -> int | None:
        return self._unpin_at_ns if self.pin else None

    def _is_next(self, pull: Pull, policy: PriorityPolicy, pending: int, held: int) -> bool:
        asked = pull.priority
        if policy == _PINNED:
            return not self.pin or pull.pin == self.pin
        if policy == _OVERFLOW and (asked.min_pending > 0 or asked.min_ack_pending > 0):
            return 0 < asked.min_pending <= pending or 0 < asked.min_ack_pending <= held
        return True

    def _pin_to(self, pull: Pull, settings: Settings, now_ns: int) -> None:
        self.pin = pull.pin = pull.new_pin
        self.pinned_ns = now_ns
        self._unpin_at_ns = now_ns + settings.pinned_ttl_ns
        self.instructions.append(Pinned(self.pin))


def _level(pull: Pull) -> int:
    return pull.priority.level
