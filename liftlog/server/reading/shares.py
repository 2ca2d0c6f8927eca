"""The slots that members of groups ask for, and how records are grouped for them.

A fetch names any slots and any number of slots, so one limit applies to everything that is
remembered of all fetches, and to the time for searching it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from time import monotonic
from weakref import ref

import numpy as np

from liftlog.log import Log
from liftlog.records.columns.slots import WantedSlots, flags_of

_MOST_SHARES = 1024
"""Limit for one log and number of slots: enough for members with one slot each."""
_MOST_OF_ALL = 8192
"""Limit for all logs. A share takes half a kilobyte at most, whatever slots it has."""
_KEPT_SECONDS = 10.0
"""A member asks more often than this. Records of older shares need not be grouped."""
_SHARE_BYTES = 256
"""Size counted for a share in a division."""


class Division:
    """Defines which records are kept together: those of one member if the members are known,
    otherwise those of one slot. A share is given as `WantedSlots.bits`."""

    def __init__(self, slot_count: int, shares: Iterable[int]) -> None:
        """If shares overlap, the first one counts."""
        self.places = np.arange(slot_count, dtype=np.uint16)
        self._place_of: dict[int, int] = {}
        free = (1 << slot_count) - 1
        for share in shares:
            if share & free == share:
                free ^= share
                place = (share & -share).bit_length() - 1  # its first slot
                if share.bit_count() > 1:
                    self.places[flags_of(share, slot_count)] = place
                self._place_of[share] = place
                if not free:
                    break

    @property
    def size_bytes(self) -> int:
        return self.places.nbytes + _SHARE_BYTES * len(self._place_of)

    def place_of(self, share: int) -> int | None:
        """Return the place that has exactly the records of these slots; None if there is no such
        place."""
        return self._place_of.get(share)


class _Noted:
    """For one log and number of slots: the time of the last request for each share, the oldest
    first; and the division of the records, which is valid while only these shares are requested."""

    __slots__ = ("division", "shares")

    def __init__(self) -> None:
        self.shares: OrderedDict[int, float] = OrderedDict()
        self.division: Division | None = None


class Shares:
    """The shares that were requested of all logs, with the times. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The least recently requested first.
        self._noted: OrderedDict[tuple[ref[Log], int], _Noted] = OrderedDict()
        self._count = 0  # of shares

    def __len__(self) -> int:
        return self._count

    def note(self, log: Log, wanted: WantedSlots) -> None:
        """Note that a member with these slots is about to read."""
        key, share, now = (ref(log), wanted.slot_count), wanted.bits, monotonic()
        with self._lock:
            noted = self._noted.get(key)
            if noted is None:
                noted = self._noted[key] = _Noted()
            self._noted.move_to_end(key)
            shares = noted.shares
            self._count += share not in shares
            shares[share] = now
            shares.move_to_end(share)
            if noted.division is not None and noted.division.place_of(share) is None:
                noted.division = None
            while len(shares) > _MOST_SHARES or _first(shares) < now - _KEPT_SECONDS:
                shares.popitem(last=False)
                self._count -= 1
            self._forget(now - _KEPT_SECONDS)

    def _forget(self, before: float) -> None:
        """Forget shares that are too old or too many, but none that was noted just now."""
        while True:
            key, noted = next(iter(self._noted.items()))
            last = next(reversed(noted.shares.values()))
            if self._count <= _MOST_OF_ALL and last >= before:
                return
            del self._noted[key]
            self._count -= len(noted.shares)

    def division(self, log: Log, slot_count: int) -> Division:
        """Return the division by the members' present slots: the last requests count."""
        with self._lock:
            noted = self._noted.get((ref(log), slot_count))
            if noted is None:
                return Division(slot_count, ())
            if noted.division is not None:
                return noted.division
            shares = [*reversed(noted.shares)]
        # The event loop notes shares and must not wait for this. A share that is noted meanwhile is
        # missing here, and is included the next time that it is noted.
        noted.division = division = Division(slot_count, shares)
        return division


def _first(shares: OrderedDict[int, float]) -> float:
    return next(iter(shares.values()))
