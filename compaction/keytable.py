"""A table of distinct keys that all have the same number of words.

    words    the keys, one per row, in the order of insertion: a row is an entry
    newest   for each entry, a number that the map keeps there
    slots    open addressing, linear probing: the number of the entry plus one, and above it as many
             bits of the hash as fit; 0 means free

A hash only says where to look: two keys are the same only if all their words are.

`take` and `compress` are up to four times as fast as indexing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .keys import HashWords, Words

LOAD = 0.5
LEAST_SLOTS = 16
_SLOTS_GROWTH = 1.5
_ROWS_GROWTH = 16  # by a sixteenth
_CHUNK = 16_384

Numbers = NDArray[np.intp]


class Search:
    """Where the keys of some records are. `entries` is -1 for keys that are not in the table."""

    __slots__ = ("entries", "hashes", "size", "slots", "words")

    def __init__(self, words: Words, hashes: NDArray[np.uint64]) -> None:
        self.words = words
        self.hashes = hashes
        self.entries = np.full(len(words), -1, np.intp)
        self.slots: Numbers = np.empty(0, np.intp)
        self.size = 0
        """The number of slots that the table had. After a resize, `slots` is invalid."""


class KeyTable:
    def __init__(self, per_key: int, hash_words: HashWords) -> None:
        self.per_key = per_key
        self.count = 0
        self._hash = hash_words
        self._rows: Words = np.zeros((0, per_key), np.uint32)
        self.newest = np.zeros(0, np.uint32)
        self._new_slots(LEAST_SLOTS)

    @property
    def memory_used_bytes(self) -> int:
        return self._slots.nbytes + self._rows.nbytes + self.newest.nbytes

    def search(self, words: Words) -> Search:
        found = Search(words, self._hash(words))
        self._search_from_home(found)
        return found

    def insert(self, found: Search, spare_bytes: int) -> None:
        """Make entries for the keys of `found` that have none. Equal keys get the same entry.

        Memory grows by what is needed, and in advance by at most part of `spare_bytes`.
        """
        missing = (found.entries < 0).nonzero()[0]
        self._reserve(self.count + len(missing), spare_bytes)
        if found.size != len(self._slots):
            self._begin(found)
        # Slots that were free at the search may have been taken since.
        self._probe(found, missing)
        missing = missing.compress(found.entries.take(missing) < 0)
        slots = self._slots
        while len(missing):
            # These slots are all free, but several keys may want the same one: the last to write
            # wins.
            wanted = found.slots.take(missing)
            marks = np.arange(1, len(missing) + 1, dtype=np.uint32)
            slots[wanted] = marks
            won = slots.take(wanted) == marks
            winners = missing.compress(won)
            entries = np.arange(self.count, self.count + len(winners))
            tags = self._tags(found.hashes.take(winners))
            slots[wanted.compress(won)] = tags | (entries + 1).astype(np.uint32)
            self._rows[self.count : self.count + len(winners)] = found.words.take(winners, axis=0)
            self.count += len(winners)
            found.entries[winners] = entries
            # The others find the winner there: either it is their key, or they probe on.
            missing = missing.compress(~won)
            self._probe(found, missing)
            missing = missing.compress(found.entries.take(missing) < 0)

    # --- searching ---

    def _begin(self, found: Search) -> None:
        found.slots = self._home_slots(found.hashes)
        found.size = len(self._slots)

    def _home_slots(self, hashes: NDArray[np.uint64]) -> Numbers:
        scaled = (hashes >> np.uint64(32)) * np.uint64(len(self._slots))
        return (scaled >> np.uint64(32)).astype(np.intp)

    def _tags(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
        tags: NDArray[np.uint32] = hashes.astype(np.uint32) & ~self._entry_mask
        return tags

    def _search_from_home(self, found: Search) -> None:
        """Search from the home slots on. Most keys are found there, so compare all of them at
        once."""
        self._begin(found)
        if not self.count:
            return
        values = self._slots.take(found.slots)
        used = values != 0
        same = ((values ^ self._tags(found.hashes)) <= self._entry_mask) & used
        # Where the tag differs, any row will do for the comparison.
        entries = (values & self._entry_mask).astype(np.intp) - 1
        stored = self._rows.take(entries, axis=0, mode="clip")
        same &= _equal_rows(stored, found.words)
        found.entries = np.where(same, entries, -1)
        self._probe(found, (used & ~same).nonzero()[0], behind=True)

    def _probe(self, found: Search, pending: Numbers, *, behind: bool = False) -> None:
        """Search for the records `pending` from their slots on, or from the next slots (`behind`).

        If a record is not found, its slot becomes the free one at which the search ended.
        """
        if not len(pending):
            return
        slots = found.slots.take(pending)
        tags = self._tags(found.hashes.take(pending))
        while len(pending):
            if behind:
                slots = slots + 1
                slots[slots == len(self._slots)] = 0
            behind = True
            values = self._slots.take(slots)
            going_on = values != 0
            found.slots[pending] = slots
            alike = (((values ^ tags) <= self._entry_mask) & going_on).nonzero()[0]
            if len(alike):
                records = pending.take(alike)
                entries = (values.take(alike) & self._entry_mask).astype(np.intp) - 1
                stored = self._rows.take(entries, axis=0)
                same = _equal_rows(stored, found.words.take(records, axis=0))
                found.entries[records.compress(same)] = entries.compress(same)
                going_on[alike.compress(same)] = False
            pending = pending.compress(going_on)
            slots, tags = slots.compress(going_on), tags.compress(going_on)

    # --- memory ---

    def _reserve(self, count: int, spare_bytes: int) -> None:
        """Make room for `count` entries."""
        room = len(self.newest)
        if count > room:
            spare = max(0, spare_bytes) // (4 * _ROWS_GROWTH * (1 + self.per_key))
            larger = max(count, min(room + room // _ROWS_GROWTH, count + spare))
            # In place: where the allocator can, without a copy.
            self.newest.resize(larger, refcheck=False)
            self._rows.resize((larger, self.per_key), refcheck=False)
        if count > self._limit:
            needed = slots_for(count)
            grown = int(len(self._slots) * _SLOTS_GROWTH)
            self._refill(max(needed, min(grown, needed + max(0, spare_bytes) // 8)))

    def _new_slots(self, size: int) -> None:
        self._slots = np.zeros(size, np.uint32)
        self._limit = int(size * LOAD)
        self._entry_mask = np.uint32((1 << self._limit.bit_length()) - 1)

    def _refill(self, size: int) -> None:
        """Other slots, filled from the keys. The old ones go first: both would need more memory."""
        del self._slots
        self._new_slots(size)
        for first in range(0, self.count, _CHUNK):
            end = min(first + _CHUNK, self.count)
            hashes = self._hash(self._rows[first:end])
            values = self._tags(hashes) | np.arange(first + 1, end + 1, dtype=np.uint32)
            slots = self._home_slots(hashes)
            while len(slots):  # the keys are distinct, so none has to be compared
                free = self._slots.take(slots) == 0
                self._slots[slots.compress(free)] = values.compress(free)
                left = self._slots.take(slots) != values
                slots, values = slots.compress(left) + 1, values.compress(left)
                slots[slots == size] = 0


def slots_for(count: int) -> int:
    return max(LEAST_SLOTS, int(count / LOAD) + 2)


def _equal_rows(some: Words, others: Words) -> NDArray[np.bool_]:
    width = some.shape[1]
    same: NDArray[np.bool_] = some[:, 0] == others[:, 0]
    if width > 16:
        whole: NDArray[np.bool_] = (some == others).all(axis=1)
        return whole
    for i in range(1, width):
        same &= some[:, i] == others[:, i]
    return same
