"""The queue of redeliveries: messages that are due, in the order in which they fell due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from liftlog.deliveries.columns import NO_INTS, Bools, Ints

_SLACK = 4096
"""The queue is compacted if its stale entries outnumber its other entries by more than this
number."""

_SLICE = 1024
"""Number of entries that are examined at once."""

IsLive = Callable[[Ints, Ints], Bools]
"""Receives the offsets and the tickets of some entries. Returns a flag for each: True if the entry
is not stale."""


class RedeliveryQueue:
    """The queue. Each entry is an offset with a ticket. A pending message in the queue has the
    ticket of its entry. An entry is stale, and is skipped, if its message no longer has this
    ticket. So an ack does not have to change the queue."""

    def __init__(self, is_live: IsLive) -> None:
        self._is_live = is_live
        self._parts: deque[tuple[int, Ints]] = deque()
        self._entries = 0
        self._next_ticket = 0

    def push(self, offsets: Ints) -> int:
        """Append offsets, and return the ticket of the first offset; the others have the following
        tickets."""
        ticket = self._next_ticket
        if len(offsets):
            self._parts.append((ticket, offsets))
        self._next_ticket += len(offsets)
        self._entries += len(offsets)
        return ticket

    def is_bloated(self, live: int) -> bool:
        """Return True if too many entries are stale. `live` is the number of entries that are not
        stale."""
        return self._entries > 2 * live + _SLACK

    def clear(self) -> None:
        self._parts.clear()
        self._entries = 0

    def peek(self, most: int) -> Ints:
        """Return the offsets of the first entries that are not stale."""
        self._drop_head()
        found: list[Ints] = []
        left = most
        for ticket, offsets in self._parts:
            for at in range(0, len(offsets), _SLICE):
                if left <= 0:
                    break
                some = offsets[at : at + _SLICE]
                found.append(some[self._live(some, ticket + at)][:left])
                left -= len(found[-1])
        return np.concatenate(found) if found else NO_INTS

    def all(self) -> Ints:
        """Return the offsets of all entries that are not stale, in order."""
        return self.peek(self._entries)

    def size_bytes(self) -> int:
        """Return the bytes that its entries occupy."""
        return 8 * self._entries

    def _drop_head(self) -> None:
        """Drop the stale entries at the front."""
        while self._parts:
            ticket, offsets = self._parts.popleft()
            some = offsets[:_SLICE]
            live = self._live(some, ticket)
            gone = int(live.argmax()) if live.any() else len(some)
            self._entries -= gone
            if gone < len(offsets):
                self._parts.appendleft((ticket + gone, offsets[gone:]))
            if gone < len(some):
                return

    def _live(self, offsets: Ints, ticket: int) -> Bools:
        return self._is_live(offsets, np.arange(ticket, ticket + len(offsets)))
