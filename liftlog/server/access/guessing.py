"""Limits the number of wrong tokens of a client. Checked before any expensive work.

There are three limits. Each limit is a bucket that fills up again with time:

    place and principal   against guesses and wrong configurations; no other client is affected
    place                 against one client that tries many names
    principal             against guesses for one principal from many places

After a principal has logged in from a place, only the first limit applies to this principal at this
place. Otherwise an attacker could use the other two limits to lock out clients that have a valid
token.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept")

MAX_KEPT = 4096


class Rate(NamedTuple):
    """A rate limit: `burst` events at once, then `per_second`."""

    burst: float
    per_second: float


PAIR = Rate(10, 0.2)
PLACE = Rate(50, 1)
PRINCIPAL = Rate(200, 2)


class Bounded(OrderedDict[Key, Kept], Generic[Key, Kept]):
    """A dictionary that drops its least recently used entries when it exceeds a maximum size."""

    def keep(self, key: Key, value: Kept, bound: int) -> None:
        self[key] = value
        self.move_to_end(key)
        while len(self) > bound:
            self.popitem(last=False)


class Buckets(Generic[Key]):
    """One bucket per key, full at first. Full buckets are not stored."""

    def __init__(self, rate: Rate, now: Callable[[], float], max_kept: int = MAX_KEPT) -> None:
        self._rate = rate
        self._now = now
        self._max_kept = max_kept
        self._levels: Bounded[Key, tuple[float, float]] = Bounded()

    def __len__(self) -> int:
        return len(self._levels)

    def level(self, key: Key) -> float:
        level, since = self._levels.get(key, (self._rate.burst, 0.0))
        return min(self._rate.burst, level + (self._now() - since) * self._rate.per_second)

    def change(self, key: Key, amount: float) -> None:
        level = self.level(key) + amount
        if level >= self._rate.burst:
            self._levels.pop(key, None)
        else:
            self._levels.keep(key, (level, self._now()), self._max_kept)


class GuessLimiter:
    """Applies the three limits. Belongs to one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic, max_kept: int = MAX_KEPT) -> None:
        self._pairs: Buckets[tuple[str, str]] = Buckets(PAIR, now, max_kept)
        self._places: Buckets[str] = Buckets(PLACE, now, max_kept)
        self._principals: Buckets[str] = Buckets(PRINCIPAL, now, max_kept)
        self._known: Bounded[tuple[str, str], None] = Bounded()
        self._max_kept = max_kept

    def __len__(self) -> int:
        """Return the number of stored entries."""
        kept = (self._pairs, self._places, self._principals, self._known)
        return sum([len(one) for one in kept])

    def begin(self, place: str, principal: str) -> bool:
        """Return True if an attempt may be made. An attempt counts as wrong until `succeeded` is
        called, so that concurrent attempts cannot exceed the limit."""
        pair = (place, principal)
        known = pair in self._known
        if self._pairs.level(pair) < 1:
            return False
        if not known and (self._places.level(place) < 1 or self._principals.level(principal) < 1):
            return False
        self._change(pair, -1)
        return True

    def succeeded(self, place: str, principal: str) -> None:
        """Note that the token was valid, so that the attempt does not count."""
        pair = (place, principal)
        self._change(pair, 1)
        self._known.keep(pair, None, self._max_kept)

    def _change(self, pair: tuple[str, str], amount: float) -> None:
        place, principal = pair
        self._pairs.change(pair, amount)
        self._places.change(place, amount)
        self._principals.change(principal, amount)
