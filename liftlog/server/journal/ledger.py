"""Stores, for each consumer, the offsets and sizes of its snapshot and of its newest record in the
log. Marks consumers whose records may be lost. Pure.

The ledger processes the log record by record, at the start (`replay`) and with each append (`add`).
Changes that are not synced can be rolled back, because a failed sync drops the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import NamedTuple

from liftlog.server.journal.records import (
    UNCERTAIN,
    Chaining,
    Change,
    ConsumerKey,
    Head,
    Kind,
    StateVersion,
    size_of,
)

MAX_DELTA_BYTES = 64 * 1024
"""Maximum number of bytes of a consumer's deltas. If it has more, it gets a new snapshot, unless
its present snapshot is larger than the deltas."""


class Entry(NamedTuple):
    """A consumer in the log: its snapshot `base` and its newest record `last`."""

    base: int
    last: int
    base_bytes: int
    delta_bytes: int
    epoch: int
    number: int
    is_uncertain: bool
    """True if records of the consumer may be lost."""

    @property
    def version(self) -> StateVersion:
        """The version of the consumer's newest change."""
        return StateVersion(self.epoch, self.number)

    @property
    def is_heavy(self) -> bool:
        """True if a snapshot should replace the consumer's deltas."""
        return self.delta_bytes >= MAX_DELTA_BYTES and self.delta_bytes >= self.base_bytes

    @property
    def size_bytes(self) -> int:
        return self.base_bytes + self.delta_bytes


Undo = dict[ConsumerKey, Entry | None]
"""The entry of each consumer before its first unsynced change; None if it had no entry."""


class Ledger:
    def __init__(self) -> None:
        self.entries: dict[ConsumerKey, Entry] = {}
        self.lost: set[ConsumerKey] = set()
        """Consumers with deltas in the log, but without a snapshot."""
        self.base_bytes = 0
        self.delta_bytes = 0
        self._by_stream: dict[str, set[str]] = {}
        self._may_be_uncertain = False
        self._unsynced: Undo = {}
        self._syncing: Undo = {}

    # --- looking ---

    def __len__(self) -> int:
        """Number of consumers."""
        return len(self.entries)

    def incarnations(self) -> list[str]:
        """Return the incarnations of streams that have consumers."""
        return list(self._by_stream)

    def consumers_of(self, incarnation: str) -> list[str]:
        """Return the consumers of a stream, in order."""
        return sorted(self._by_stream.get(incarnation, ()))

    def version_of(self, key: ConsumerKey) -> StateVersion | None:
        """Return the version of the newest written change of a consumer."""
        entry = self.entries.get(key)
        return None if entry is None else entry.version

    def is_uncertain(self, key: ConsumerKey) -> bool:
        """Return True if synced changes of the consumer may be lost."""
        entry = self.entries.get(key)
        return entry is not None and entry.is_uncertain

    def floor(self) -> int | None:
        """Return the lowest offset of the needed records; None if no record is needed. Records that
        a rollback of the unsynced changes would need are included."""
        bases = [one.base for one in self.entries.values()]
        for undo in (self._unsynced, self._syncing):
            bases += [one.base for one in undo.values() if one is not None]
        return min(bases, default=None)

    def based_below(self, offset: int) -> list[ConsumerKey]:
        """Return the consumers whose snapshots are below `offset`."""
        return [key for key, one in self.entries.items() if one.base < offset]

    def heaviest(self, excess_bytes: int) -> list[ConsumerKey]:
        """Return the consumers with the most bytes of deltas. The deltas of the returned consumers
        have at least `excess_bytes` in total."""
        found: list[ConsumerKey] = []
        count = 16
        while True:
            largest = nlargest(count, self.entries.items(), key=lambda one: one[1].delta_bytes)
            found, freed = [], 0
            for key, entry in largest:
                if freed >= excess_bytes:
                    return found
                found.append(key)
                freed += entry.delta_bytes
            if count >= len(self.entries):
                return found
            count *= 4

    def uncertain(self) -> list[ConsumerKey]:
        """Return the consumers whose synced changes may be lost."""
        if not self._may_be_uncertain:
            return []
        return [key for key, one in self.entries.items() if one.is_uncertain]

    # --- following the log ---

    def add(self, change: Change, offset: int) -> None:
        """Note a record that was appended."""
        key = change.key
        for one in self._meant(key) if change.kind is Kind.DELETED else (key,):
            self._unsynced.setdefault(one, self.entries.get(one))
        entry = self.entries.get(key)
        is_uncertain = entry is not None and entry.is_uncertain and not change.settles
        self._take(key, change.kind, change.version, size_of(change), offset, is_uncertain)

    def replay(
        self, key: ConsumerKey, head: Head, size: int, offset: int, losses: Sequence[int] = ()
    ) -> None:
        """Add a record of `size` bytes that was read. Call this method in the order of offsets. If
        the record does not follow the last known record of its consumer, the consumer returns to an
        older state.

        `losses` are the first offsets of the lost ranges before this record. If none of the lost
        records had been synced, the consumer does not become uncertain.
        """
        kind, flags, _, epoch, unsynced, number, previous = head
        if kind is Kind.DELTA or kind is Kind.SETTINGS:
            entry = self.entries.get(key)
            if entry is None:
                self.lost.add(key)
                return
            if entry[1] != previous:
                if any(entry.last < first < offset - unsynced for first in losses):
                    self._doubt(key, entry)
                return
        self._may_be_uncertain = self._may_be_uncertain or bool(flags & UNCERTAIN)
        self._take(key, kind, (epoch, number), size, offset, bool(flags & UNCERTAIN))

    def doubt_before(self, offset: int) -> None:
        """Mark the consumers that may have had a record at or above `offset`, because synced
        records from this offset on are lost."""
        for key, entry in self.entries.items():
            if entry.last < offset:
                self._doubt(key, entry)

    def _doubt(self, key: ConsumerKey, entry: Entry) -> None:
        self._may_be_uncertain = True
        self.entries[key] = entry._replace(is_uncertain=True)

    def _take(
        self,
        key: ConsumerKey,
        kind: Kind,
        version: tuple[int, int],
        size: int,
        offset: int,
        is_uncertain: bool,
    ) -> None:
        if kind is Kind.DELETED:
            for one in self._meant(key):
                self._put(one, None)
            return
        entry = self.entries.get(key)
        if kind is Kind.SNAPSHOT or entry is None:
            self._put(key, Entry(offset, offset, size, 0, *version, is_uncertain))
            return
        base, _, base_bytes, delta_bytes = entry[:4]
        # This code runs for each delta. The constructor of the NamedTuple would take twice as long.
        fields = (base, offset, base_bytes, delta_bytes + size, *version, is_uncertain)
        self.entries[key] = tuple.__new__(Entry, fields)
        self.delta_bytes += size

    def _meant(self, key: ConsumerKey) -> Iterator[ConsumerKey]:
        if key.consumer:
            yield key
            return
        for consumer in self.consumers_of(key.incarnation):
            yield ConsumerKey(key.incarnation, consumer)
        for lost in [one for one in self.lost if one.incarnation == key.incarnation]:
            self.lost.discard(lost)

    def _put(self, key: ConsumerKey, entry: Entry | None) -> None:
        """Replace the entry of a consumer. None removes the entry."""
        self.lost.discard(key)
        before = self.entries.pop(key, None)
        if before is not None:
            self.base_bytes -= before.base_bytes
            self.delta_bytes -= before.delta_bytes
        if entry is not None:
            self.entries[key] = entry
            self._by_stream.setdefault(key.incarnation, set()).add(key.consumer)
            self.base_bytes += entry.base_bytes
            self.delta_bytes += entry.delta_bytes
        elif before is not None:
            consumers = self._by_stream[key.incarnation]
            consumers.discard(key.consumer)
            if not consumers:
                del self._by_stream[key.incarnation]

    # --- syncs ---

    def sync_begins(self) -> None:
        """Note that a sync begins. It covers the records that were added so far, and no later
        records."""
        for key, entry in self._unsynced.items():
            self._syncing.setdefault(key, entry)
        self._unsynced = {}

    def synced(self) -> None:
        """Note that the sync has succeeded."""
        self._syncing = {}

    def take_back(self) -> None:
        """Roll back to the last synced state, because the log was truncated there."""
        for undo in (self._unsynced, self._syncing):
            for key, entry in undo.items():
                self._put(key, entry)
        self._unsynced, self._syncing = {}, {}


class Chainer:
    """Chains changes that are about to be appended in one append, on top of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._entries = ledger.entries
        self._ends: dict[ConsumerKey, tuple[int, bool]] = {}
        self._deleted: set[str] = set()

    def chain(self, change: Change, offset: int, durable_end: int) -> Chaining | None:
        """Return the header fields that chain a change at `offset`. Return None if the consumer
        does not exist, so that the change has no effect. Call this method in the order of
        offsets."""
        key = change.key
        last, is_uncertain = self._end(key)
        if not last and change.kind in (Kind.DELTA, Kind.SETTINGS):
            return None
        is_uncertain = is_uncertain and not change.settles
        if change.kind is not Kind.DELETED:
            self._ends[key] = offset, is_uncertain
        elif key.consumer:
            self._ends[key] = 0, False
        else:
            self._deleted.add(key.incarnation)
            for one in [one for one in self._ends if one.incarnation == key.incarnation]:
                del self._ends[one]
        return Chaining(last, offset - durable_end, is_uncertain)

    def _end(self, key: ConsumerKey) -> tuple[int, bool]:
        """Return the offset of the newest record of a consumer; 0 if it has none. Also return True
        if the consumer is uncertain."""
        found = self._ends.get(key)
        if found is not None:
            return found
        entry = self._entries.get(key)
        if entry is None or key.incarnation in self._deleted:
            return 0, False
        return entry.last, entry.is_uncertain
