"""Decides which consumers are written again as snapshots, so that the log stays short.

A consumer is written again in three cases:

- It has many deltas.
- All consumers together have too many deltas.
- Its records keep old segments on the disk.

The owner of the consumers creates the snapshot. If the owner does not have a consumer in memory,
the records of that consumer are copied unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from liftlog.server.journal.ledger import MAX_DELTA_BYTES, Ledger
from liftlog.server.journal.records import Change, ConsumerKey
from liftlog.server.journal.storing import SEGMENT_BYTES

MAX_ALL_DELTA_BYTES = 16 * 1024 * 1024
"""Maximum number of bytes of deltas in the log. The limit exists because a start has to apply all
of them."""

_KEPT_DELTA_BYTES = 12 * 1024 * 1024
_TURN_SECONDS = 0.002
_SPARE_BYTES = 2 * SEGMENT_BYTES

Owner = Callable[[ConsumerKey], Change | None]
"""Function that returns the snapshot of a consumer. The snapshot contains exactly the changes that
were passed to the journal. Returns None if the consumer is not in memory."""


class Snapshots:
    """The consumers whose snapshots or copies are due. Belongs to the event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self.owner: Owner = lambda key: None
        self.copies: dict[ConsumerKey, None] = {}
        """Consumers whose records are due to be copied."""
        self._ledger = ledger
        self._heavy: dict[ConsumerKey, None] = {}
        self._moving: dict[ConsumerKey, None] = {}
        # Bytes of deltas of consumers whose owner gave no snapshot.
        self._refused: dict[ConsumerKey, int] = {}
        self._looked_at_bytes = 0  # bytes of all deltas when they last exceeded the limit

    @property
    def are_due(self) -> bool:
        return bool(self._heavy or self._moving)

    @property
    def are_moving(self) -> bool:
        """True while consumers are being written again to free a segment."""
        return bool(self._moving or self.copies)

    def changed(self, key: ConsumerKey) -> None:
        """Schedule a snapshot of a consumer if it is due because of the consumer's latest delta."""
        entry = self._ledger.entries.get(key)
        if entry is None or not entry.is_heavy:
            return
        if entry.delta_bytes >= self._refused.get(key, 0) + MAX_DELTA_BYTES:
            self._heavy[key] = None

    def look_at_all(self) -> None:
        """Schedule snapshots of the consumers with the most deltas if the deltas of all consumers
        exceed the limit."""
        total = self._ledger.delta_bytes
        if total <= MAX_ALL_DELTA_BYTES:
            self._looked_at_bytes = 0
            return
        is_waiting = self._heavy or self._refused
        if is_waiting and total < self._looked_at_bytes + MAX_DELTA_BYTES:
            return  # the snapshots that were chosen last are not written yet
        self._looked_at_bytes = total
        for key in self._ledger.heaviest(total - _KEPT_DELTA_BYTES):
            self._heavy[key] = None

    def is_too_large(self, size_bytes: int) -> bool:
        """Return True if a log of this size contains more old records than needed records."""
        ledger = self._ledger
        return size_bytes > 2 * (ledger.base_bytes + ledger.delta_bytes) + _SPARE_BYTES

    def move_from(self, offset: int) -> None:
        """Schedule the consumers whose snapshots are below `offset` to be written again."""
        self._moving.update(dict.fromkeys(self._ledger.based_below(offset)))

    def collect(self) -> list[Change]:
        """Request due snapshots from the owner, for at most about 2 ms."""
        found: list[Change] = []
        until = time.monotonic() + _TURN_SECONDS
        for waiting in (self._heavy, self._moving):
            while waiting and time.monotonic() < until:
                key = next(iter(waiting))
                del waiting[key]
                change = self._ask(key, is_moving=waiting is self._moving)
                if change is not None:
                    found.append(change)
        return found

    def _ask(self, key: ConsumerKey, *, is_moving: bool) -> Change | None:
        entry = self._ledger.entries.get(key)
        if entry is None:
            return None
        change = self.owner(key)
        if change is not None:
            self._refused.pop(key, None)
            return change
        if is_moving:
            self.copies[key] = None
        else:
            self._refused[key] = entry.delta_bytes
        return None

    def forget(self, key: ConsumerKey) -> None:
        """Drop a consumer that was deleted."""
        self._refused.pop(key, None)
