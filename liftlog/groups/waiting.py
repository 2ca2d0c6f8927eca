"""The queue of requests to the coordinator. Pure.

Groups take turns, with one request each. So a single request of another group is next even if one
client has thousands of open requests. Requests of one group keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from liftlog.groups.requests import Asked, Join, Seek, Told
from liftlog.groups.state import DEFAULT_SLOTS, MAX_SLOTS, GroupKey, GroupState

_REQUEST_WORK = 64
"""The work of a request itself, which is added to the number of slots and members of its group."""

Waiter = tuple[Asked, Told]


class Waiting:
    """The waiting requests by group; `len` returns their number."""

    def __init__(self) -> None:
        self._queues: dict[GroupKey, deque[Waiter]] = {}
        self._turns: deque[GroupKey] = deque()
        """The groups with waiting requests, each of them once."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, asked: Asked, told: Told) -> None:
        queue = self._queues.get(asked.key)
        if queue is None:
            queue = self._queues[asked.key] = deque()
            self._turns.append(asked.key)
        queue.append((asked, told))
        self._count += 1

    def of(self, key: GroupKey) -> Iterable[Waiter]:
        """Return the waiting requests of a group, the oldest first."""
        return self._queues.get(key, ())

    def board(self, groups: Mapping[GroupKey, GroupState], most_work: int) -> list[Waiter]:
        """Remove and return the requests of the next flight, at least one if any is waiting.

        The work of a request is counted in slots and members to examine. The result ends with the
        request that exceeds `most_work`.
        """
        boarding: list[Waiter] = []
        sizes: dict[GroupKey, int] = {}
        left = most_work
        while self._turns and left > 0:
            key = self._turns.popleft()
            queue = self._queues[key]
            boarding.append(queue.popleft())
            if queue:
                self._turns.append(key)
            else:
                del self._queues[key]
            size = sizes[key] = _size_after(boarding[-1][0], sizes.get(key), groups.get(key))
            left -= _REQUEST_WORK + size
        self._count -= len(boarding)
        return boarding

    def drain(self) -> list[Waiter]:
        """Remove and return all waiting requests."""
        taken = [one for queue in self._queues.values() for one in queue]
        self._queues.clear()
        self._turns.clear()
        self._count = 0
        return taken


def _size_after(asked: Asked, counted: int | None, state: GroupState | None) -> int:
    """Return the maximum number of slots and members that the group can have after this request.

    `counted` is the result for the group's previous request in the same flight; None for its first
    request.
    """
    if counted is None:
        counted = 0 if state is None else state.slots + len(state.members)
    if isinstance(asked, Join):
        return max(counted, min(asked.slots or DEFAULT_SLOTS, MAX_SLOTS)) + 1
    if isinstance(asked, Seek):
        return max(counted, DEFAULT_SLOTS)
    return counted
