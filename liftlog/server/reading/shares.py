"""The slots that members of groups request, and how records are grouped for them.

A share is the set of slots that one fetch requests. A client can request any slots. Therefore the
number of stored shares is limited for all fetches together, and so is the time for searching
shares.
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
"""Maximum number of shares for one log and number of slots. It is sufficient for members with one
slot each."""
_MOST_OF_ALL = 8192
"""Maximum number of shares of all logs. A share takes at most half a kilobyte, regardless of its
number of slots."""
_KEPT_SECONDS = 10.0
"""If a share was not requested for this time (in seconds), it is removed. Members that are alive
send requests more often."""
_SHARE_BYTES = 256
"""Number of bytes that are counted for a share of a division."""


class Division:
    """Groups slots so that the records of one member are stored together. Each slot of an unknown
    member forms its own group. A share is given as `WantedSlots.bits`."""

    def __init__(self, slot_count: int, shares: Iterable[int]) -> None:
        """Create the groups. If two shares overlap, only the first one gets a group."""
        self.places = np.arange(slot_count, dtype=np.uint16)
        self._place_of: dict[int, int] = {}
        free = (1 << slot_count) - 1
        for share in shares:
            if share & free == share:
                free ^= share
                place = (share & -share).bit_length() - 1  # the first slot of the share
                if share.bit_count() > 1:
                    self.places[flags_of(share, slot_count)] = place
                self._place_of[share] = place
                if not free:
                    break

    @property
    def size_bytes(self) -> int:
        return self.places.nbytes + _SHARE_BYTES * len(self._place_of)

    def place_of(self, share: int) -> int | None:
        """Return the place of the group with exactly these slots; None if there is no such
        group."""
        return self._place_of.get(share)


class _Noted:
    """The requested shares of one log, for one number of slots. `shares` maps each share to the
    time of its last request, the oldest first. `division` is valid as long as no other share is
    requested."""

    __slots__ = ("division", "shares")

    def __init__(self) -> None:
        self.shares: OrderedDict[int, float] = OrderedDict()
        self.division: Division | None = None


class Shares:
    """The requested shares of all logs, with the times of the requests. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The entry that was requested longest ago comes first.
        self._noted: OrderedDict[tuple[ref[Log], int], _Noted] = OrderedDict()
        self._count = 0  # number of shares

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
        """Remove logs whose shares are too old. While there are too many shares, also remove the
        oldest logs. The share that was just stored is never removed."""
        while True:
            key, noted = next(iter(self._noted.items()))
            last = next(reversed(noted.shares.values()))
            if self._count <= _MOST_OF_ALL and last >= before:
                return
            del self._noted[key]
            self._count -= len(noted.shares)

    def division(self, log: Log, slot_count: int) -> Division:
        """Return the division for the members' current slots. If shares overlap, the most recently
        requested share counts."""
        with self._lock:
            noted = self._noted.get((ref(log), slot_count))
            if noted is None:
                return Division(slot_count, ())
            if noted.division is not None:
                return noted.division
            shares = [*reversed(noted.shares)]
        # Computed without the lock, because the event loop adds shares and must not wait. A share
        # that is added in the meantime is missing in this division. It is included after its next
        # request.
        noted.division = division = Division(slot_count, shares)
        return division


def _first(shares: OrderedDict[int, float]) -> float:
    return next(iter(shares.values()))
