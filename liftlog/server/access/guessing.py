"""How often who may be wrong about a token. Asked before anything expensive is done.

Three bounds, each a bucket that fills up again with time:

    place and principal   somebody guesses, or is configured wrong; nobody else suffers for it
    place                 somebody goes through names
    principal             many places guess for one principal

Whoever has logged in from a place as that principal is bound by the first alone: the others must
not become a way to lock out those who know the secret.
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
    """`burst` at once, then `per_second`."""

    burst: float
    per_second: float


PAIR = Rate(10, 0.2)
PLACE = Rate(50, 1)
PRINCIPAL = Rate(200, 2)


class Bounded(OrderedDict[Key, Kept], Generic[Key, Kept]):
    """Forgets what was not touched for longest when there is too much of it."""

    def keep(self, key: Key, value: Kept, bound: int) -> None:
        self[key] = value
        self.move_to_end(key)
        while len(self) > bound:
            self.popitem(last=False)


class Buckets(Generic[Key]):
    """One per key, full at first. Full ones are not kept."""

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
    """Belongs to one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic, max_kept: int = MAX_KEPT) -> None:
        self._pairs: Buckets[tuple[str, str]] = Buckets(PAIR, now, max_kept)
        self._places: Buckets[str] = Buckets(PLACE, now, max_kept)
        self._principals: Buckets[str] = Buckets(PRINCIPAL, now, max_kept)
        self._known: Bounded[tuple[str, str], None] = Bounded()
        self._max_kept = max_kept

    def __len__(self) -> int:
        """What it remembers."""
        kept = (self._pairs, self._places, self._principals, self._known)
        return sum([len(one) for one in kept])

    def begin(self, place: str, principal: str) -> bool:
        """Whether an attempt may be made. It counts as wrong until `succeeded` is told, so that
        many at the same time are no way round."""
        pair = (place, principal)
        known = pair in self._known
        if self._pairs.level(pair) < 1:
            return False
        if not known and (self._places.level(place) < 1 or self._principals.level(principal) < 1):
            return False
        self._change(pair, -1)
        return True

    def succeeded(self, place: str, principal: str) -> None:
        """The attempt was right: it does not count."""
        pair = (place, principal)
        self._change(pair, 1)
        self._known.keep(pair, None, self._max_kept)

    def _change(self, pair: tuple[str, str], amount: float) -> None:
        place, principal = pair
        self._pairs.change(pair, amount)
        self._places.change(place, amount)
        self._principals.change(principal, amount)
