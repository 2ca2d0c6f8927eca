"""Maps each key to its newest offset, exactly, in bounded memory.

Keys are stored whole, in one table for each number of words, with their newest offset as 32 bits
relative to the first offset that was added. An 11-byte key takes 12 bytes, plus 4 for the offset
and 8 to 12 for its slot. Hashes may collide. A collision only takes time, because the keys
themselves are compared.

numpy processes thousands of records at a time; no step runs per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from .keep import UNKNOWN
from .keys import HashWords, KeyColumn, KeyedHash, Words, key_words

LOAD = 0.5
LEAST_SLOTS = 16
_SLOTS_GROWTH = 1.5
_ROWS_GROWTH = 16  # grows by a sixteenth
_CHUNK = 16_384

Numbers = NDArray[np.intp]

_CHUNK_RECORDS = 16_384
_CHUNK_BYTES = 1 << 20
_MAX_RELATIVE = 0xFFFF_FFFF
_PER_TABLE = 4 * (LEAST_SLOTS + 2)

OnSuperseded = Callable[[NDArray[np.int64]], None]


class Search:
    """The places of the keys of some records. In `entries`, -1 stands for a key that is not in the
    table."""

    __slots__ = ("entries", "hashes", "size", "slots", "words")

    def __init__(self, words: Words, hashes: NDArray[np.uint64]) -> None:
        self.words = words
        self.hashes = hashes
        self.entries = np.full(len(words), -1, np.intp)
        self.slots: Numbers = np.empty(0, np.intp)
        self.size = 0
        """Number of slots of the table at the time of the search. After a resize, `slots` is
        invalid."""


class KeyTable:
    """A table of distinct keys that all have the same number of words.

        words    the keys, one per row, in the order of insertion: a row is an entry
        newest   for each entry, a number that the map stores there
        slots    a hash table with open addressing and linear probing. A free slot is 0. In other
                 slots, the low bits are the number of the entry plus one, and the high bits are
                 bits of the hash of its key

    A hash only gives the place to search: two keys are equal only if all their words are.
    The code uses numpy's `take` and `compress`, which are up to four times as fast as indexing with
    an array.
    """

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
        """Create entries for the keys of `found` that have none. Equal keys get the same entry.

        Memory grows as needed, and in advance by at most a part of `spare_bytes`.
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
            # These slots are all free, but several keys may need the same one: the last write wins.
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
            # The other records find the winner's key in the slot. It is either their own key, or
            # they probe further.
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
        """Search from the home slots on. Compares all keys at once, because most keys are found in
        their home slots."""
        self._begin(found)
        if not self.count:
            return
        values = self._slots.take(found.slots)
        used = values != 0
        same = ((values ^ self._tags(found.hashes)) <= self._entry_mask) & used
        # If the tag differs, any row can be used for the comparison.
        entries = (values & self._entry_mask).astype(np.intp) - 1
        stored = self._rows.take(entries, axis=0, mode="clip")
        same &= _equal_rows(stored, found.words)
        found.entries = np.where(same, entries, -1)
        self._probe(found, (used & ~same).nonzero()[0], behind=True)

    def _probe(self, found: Search, pending: Numbers, *, behind: bool = False) -> None:
        """Search for the records `pending`. The search for each record begins at its slot or, with
        `behind`, at the next slot.

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
        """Allocate memory for `count` entries."""
        room = len(self.newest)
        if count > room:
            spare = max(0, spare_bytes) // (4 * _ROWS_GROWTH * (1 + self.per_key))
            larger = max(count, min(room + room // _ROWS_GROWTH, count + spare))
            # Resized in place, without a copy if the allocator can do that.
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
        """Replace the slots by `size` new slots, filled from the keys. Frees the old slots first,
        to need less memory."""
        del self._slots
        self._new_slots(size)
        for first in range(0, self.count, _CHUNK):
            end = min(first + _CHUNK, self.count)
            hashes = self._hash(self._rows[first:end])
            values = self._tags(hashes) | np.arange(first + 1, end + 1, dtype=np.uint32)
            slots = self._home_slots(hashes)
            while len(slots):  # the keys are distinct, so none is compared
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


_Part = tuple[NDArray[np.intp], KeyTable, Search]
"""The records of a chunk with keys of one number of words, the table for these keys, and the result
of the search."""


class KeyMap:
    """Maps each key to its newest offset. Not thread-safe.

    `memory_bytes` limits the map itself; during a call the map needs up to about 4 MiB more. An
    empty map accepts at least one record, even with a long key, so that every pass makes progress.
    """

    def __init__(self, memory_bytes: int, *, hash_words: HashWords | None = None) -> None:
        if memory_bytes < 1:
            raise ValueError("the memory of a key map must be greater than 0")
        self._memory_bytes = memory_bytes
        self._hash = hash_words or KeyedHash()
        self._first_offset: int | None = None
        self._tables: dict[int, KeyTable] = {}

    def __len__(self) -> int:
        """The number of distinct keys."""
        return sum(table.count for table in self._tables.values())

    @property
    def memory_used_bytes(self) -> int:
        return sum(table.memory_used_bytes for table in self._tables.values())

    def add(
        self,
        keys: KeyColumn,
        offsets: NDArray[np.int64],
        on_superseded: OnSuperseded | None = None,
    ) -> int:
        """Add the offsets of these keys; return the number of records that were added, from the
        first on.

        If fewer records were added than given, the memory is full, and another pass has to handle
        the rest. Offsets must ascend, also from one call to the next. Most efficient with thousands
        of records per call. `on_superseded` is called with the added offsets that are no longer the
        newest of their key, in no particular order and each at least once.
        """
        if not len(offsets):
            return 0
        if self._first_offset is None:
            self._first_offset = int(offsets[0])
        reachable = int(np.searchsorted(offsets, self._first_offset + _MAX_RELATIVE, "right"))
        taken = 0
        while taken < reachable:
            end = min(_chunk_end(keys, taken), reachable)
            count = self._add_chunk(
                keys.rows(taken, end), offsets[taken:end], self._first_offset, on_superseded
            )
            if not count:
                break
            taken += count
        return taken

    def newest(self, keys: KeyColumn) -> NDArray[np.int64]:
        """Return the newest offset of each record's key; -1 if the key is unknown or missing."""
        count = len(keys.valid)
        answer = np.full(count, UNKNOWN, np.int64)
        first = 0
        while first < count and self._first_offset is not None:
            end = _chunk_end(keys, first)
            for rows, table, found in self._search(keys.rows(first, end)):
                if table.count:
                    newest = table.newest.take(found.entries, mode="clip") + np.int64(
                        self._first_offset
                    )
                    newest[found.entries < 0] = UNKNOWN
                    answer[first + rows] = newest
            first = end
        return answer

    def _search(self, keys: KeyColumn) -> Iterator[_Part]:
        for rows, words in key_words(keys):
            per_key = words.shape[1]
            table = self._tables.get(per_key)
            if table is None:
                table = KeyTable(per_key, self._hash)
            yield rows, table, table.search(words)

    def _add_chunk(
        self,
        keys: KeyColumn,
        offsets: NDArray[np.int64],
        first_offset: int,
        on_superseded: OnSuperseded | None,
    ) -> int:
        parts = list(self._search(keys))
        count = self._fitting(parts, len(offsets))
        if count < len(offsets):
            parts = list(self._search(keys.rows(0, count)))
        relative = (offsets[:count] - first_offset).astype(np.uint32)
        for rows, table, found in parts:
            self._tables[table.per_key] = table
            if on_superseded is not None:
                known = found.entries.compress(found.entries >= 0)
                on_superseded(table.newest.take(known) + np.int64(first_offset))
            if found.entries.min(initial=0) < 0:
                table.insert(found, self._memory_bytes - self.memory_used_bytes)
            # Among equal entries the last assignment wins: the newest offset.
            own = relative.take(rows)
            table.newest[found.entries] = own
            if on_superseded is not None:
                lost = own.compress(table.newest.take(found.entries) != own)
                on_superseded(lost + np.int64(first_offset))
        return count

    def _fitting(self, parts: list[_Part], count: int) -> int:
        """Return how many of the first `count` records fit, if all unknown keys are distinct."""
        cost = np.zeros(count)
        for rows, table, found in parts:
            unknown = rows.compress(found.entries < 0)
            cost[unknown] = 4 * (1 + table.per_key + 1 / LOAD)
            if not table.count and len(unknown):
                cost[unknown.min()] += _PER_TABLE
        if not cost.any():
            return count
        free = self._memory_bytes - sum(
            _PER_TABLE + 4 * table.count * (1 + table.per_key + 1 / LOAD)
            for table in self._tables.values()
        )
        too_much = (np.cumsum(cost) > free) & (cost > 0)
        if not too_much.any():
            return count
        fitting = int(too_much.argmax())
        return fitting or (0 if self._tables else 1)


def _chunk_end(keys: KeyColumn, first: int) -> int:
    """Return the end of the chunk that begins at `first`, limited by records and bytes of keys."""
    ends = keys.ends
    end = min(first + _CHUNK_RECORDS, len(keys.valid))
    if int(ends[end]) - int(ends[first]) > _CHUNK_BYTES:
        limit = ends.dtype.type(int(ends[first]) + _CHUNK_BYTES)
        end = max(int(ends.searchsorted(limit, "right")) - 1, first + 1)
    return end
