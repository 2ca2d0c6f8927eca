"""The newest offset of each key, in bounded memory and without ever confusing two keys.

    words    the distinct keys one behind the other, as words (see keys.py)
    starts   where each key begins in `words`
    newest   its newest offset, less the first offset that was added
    table    open addressing, linear probing: number of the key, and above it as many bits of
             its hash as there is room for; 0 is free

A hash only says where to look: before two keys are taken for one, all their words are compared.
So hashes may collide, which a test can force; it costs time and nothing else.

Thousands of records are handled at a time by numpy; nothing here is done per record.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .keep import UNKNOWN
from .keys import HashWords, KeyColumn, KeyedHash, Words, groups_of, key_words

_LOAD = 0.66
_TABLE_GROWTH = 1.5
_ARRAY_GROWTH = 16  # by a sixteenth
_LEAST_SLOTS = 16
_CHUNK_RECORDS = 16_384
_CHUNK_BYTES = 1 << 20
_MAX_RELATIVE = 0xFFFF_FFFF


class _Group:
    """Records of a chunk whose keys have the same length, and what is known of them."""

    __slots__ = ("entries", "hashes", "rows", "slots", "words")

    def __init__(self, rows: NDArray[np.intp], words: Words, hashes: NDArray[np.uint64]) -> None:
        self.rows = rows
        self.words = words
        self.hashes = hashes
        self.entries = np.full(len(rows), UNKNOWN, np.intp)
        self.slots = np.empty(0, np.intp)


class KeyMap:
    """Not thread-safe. `memory_bytes` bounds the map itself; working on a chunk takes up to about
    4 MiB more for as long as a call lasts. An empty map takes at least one record, whatever its
    key's length, so that every pass gets ahead."""

    def __init__(self, memory_bytes: int, *, hash_words: HashWords | None = None) -> None:
        if memory_bytes < 1:
            raise ValueError("the memory of a key map must be greater than 0")
        self._memory_bytes = memory_bytes
        self._hash = hash_words or KeyedHash()
        self._count = 0
        self._first_offset = 0
        self._starts = np.zeros(1, np.uint32)
        self._newest = np.zeros(0, np.uint32)
        self._words = np.zeros(0, np.uint32)
        self._words_used = 0
        self._words_per_key: int | None = None  # if all have the same number
        self._new_table(_LEAST_SLOTS)

    def __len__(self) -> int:
        """How many distinct keys there are."""
        return self._count

    @property
    def memory_used_bytes(self) -> int:
        return self._table.nbytes + self._starts.nbytes + self._newest.nbytes + self._words.nbytes

    def add(self, keys: KeyColumn, offsets: NDArray[np.int64]) -> int:
        """Learn the offsets of these keys; returns how many records, from the first on, were taken.

        Fewer than were given means that memory is used up: what was not taken is left for another
        pass. Offsets ascend, also from call to call. Best called with thousands of records.
        """
        if not len(offsets):
            return 0
        if not self._count:
            self._first_offset = int(offsets[0])
        reachable = int(np.searchsorted(offsets, self._first_offset + _MAX_RELATIVE, "right"))
        taken = 0
        while taken < reachable:
            end = min(_chunk_end(keys, taken), reachable)
            count = self._add_chunk(keys.rows(taken, end), offsets[taken:end])
            if not count:
                break
            taken += count
        return taken

    def newest(self, keys: KeyColumn) -> NDArray[np.int64]:
        """The newest offset seen with each record's key; -1 for an unknown key and for none."""
        count = len(keys.valid)
        answer = np.full(count, UNKNOWN, np.int64)
        if not self._count:
            return answer
        first = 0
        while first < count:
            end = _chunk_end(keys, first)
            for group in self._look_up(keys.rows(first, end)):
                known = group.entries >= 0
                newest = self._newest[group.entries[known]]
                answer[first + group.rows[known]] = newest + np.int64(self._first_offset)
            first = end
        return answer

    # --- adding ---

    def _add_chunk(self, keys: KeyColumn, offsets: NDArray[np.int64]) -> int:
        groups = list(self._look_up(keys))
        count = self._fitting(groups, len(offsets))
        if count < len(offsets):
            groups = list(self._look_up(keys.rows(0, count)))
        new = sum(int((group.entries < 0).sum()) for group in groups)
        if new:
            new_words = sum(
                int((group.entries < 0).sum()) * group.words.shape[1] for group in groups
            )
            self._reserve(self._count + new, self._words_used + new_words, groups)
            for group in groups:
                self._insert(group)
        relative = (offsets[:count] - self._first_offset).astype(np.uint32)
        for group in groups:
            # Of equal entries the last assignment counts, and that is the newest offset.
            self._newest[group.entries] = relative[group.rows]
        return count

    def _fitting(self, groups: list[_Group], count: int) -> int:
        """How many of the first `count` records fit, taking all unknown keys for distinct."""
        keys = np.zeros(count, np.int64)
        words = np.zeros(count, np.int64)
        for group in groups:
            unknown = group.rows[group.entries < 0]
            keys[unknown] = 1
            words[unknown] = group.words.shape[1]
        keys_after = self._count + np.cumsum(keys)
        words_after = self._words_used + np.cumsum(words)
        too_much = (_cost(keys_after, words_after) > self._memory_bytes) & (keys > 0)
        if not too_much.any():
            return count
        fitting = int(too_much.argmax())
        return fitting or (0 if self._count else 1)

    def _reserve(self, count: int, words: int, groups: list[_Group]) -> None:
        if count > self._limit:
            self._grow_table(count, words)
            for group in groups:
                group.slots = self._home_slots(group.hashes)
        spare = max(0, self._memory_bytes - int(_cost(np.array(count), np.array(words)))) // 32
        _grow(self._newest, count, spare)
        _grow(self._starts, count + 1, spare)
        _grow(self._words, words, spare)

    def _insert(self, group: _Group) -> None:
        """Make entries for the keys of `group` that have none. There must be room."""
        table = self._table
        pending = np.flatnonzero(group.entries < 0)
        self._probe(group, pending)  # another group may have taken slots that were free
        while len(pending):
            # Every slot is free here, but several keys may want it: the last to write it has it.
            slots = group.slots[pending]
            marks = np.arange(1, len(pending) + 1, dtype=np.uint32)
            table[slots] = marks
            won = table[slots] == marks
            winners = pending[won]
            first, count = self._count, len(winners)
            entries = np.arange(first, first + count)
            table[slots[won]] = self._tags(group.hashes[winners]) | (entries + 1).astype(np.uint32)
            self._append(group.words[winners])
            group.entries[winners] = entries
            pending = pending[~won]
            # The others meet the winner: the same key, or they go on behind it.
            self._probe(group, pending)
            pending = pending[group.entries[pending] < 0]

    def _append(self, words: Words) -> None:
        count, per_key = words.shape
        if self._words_per_key is None:
            if not self._count:
                self._words_per_key = per_key
        elif self._words_per_key != per_key:
            self._words_per_key = None
        first, used = self._count, self._words_used
        self._words[used : used + count * per_key] = words.ravel()
        starts = np.arange(used + per_key, used + (count + 1) * per_key, per_key)
        self._starts[first + 1 : first + count + 1] = starts
        self._count += count
        self._words_used += count * per_key

    # --- looking up ---

    def _look_up(self, keys: KeyColumn) -> Iterator[_Group]:
        for rows, words in key_words(keys):
            group = _Group(rows, words, self._hash(words))
            group.slots = self._home_slots(group.hashes)
            self._probe(group, np.arange(len(rows)))
            yield group

    def _home_slots(self, hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
        scaled = (hashes >> np.uint64(32)) * np.uint64(len(self._table))
        return (scaled >> np.uint64(32)).astype(np.intp)

    def _tags(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
        tags: NDArray[np.uint32] = hashes.astype(np.uint32) & ~self._id_mask
        return tags

    def _probe(self, group: _Group, pending: NDArray[np.intp]) -> None:
        """Find the entries of the records `pending`, from their slots on.

        Of those that are unknown, the slot is then the free one at which the search ended.
        """
        table, id_mask, size = self._table, self._id_mask, len(self._table)
        tags = self._tags(group.hashes)
        slots = group.slots
        while len(pending):
            values = table[slots[pending]]
            used = values != 0
            alike = np.flatnonzero(((values ^ tags[pending]) <= id_mask) & used)
            if len(alike):
                records = pending[alike]
                entries = (values[alike] & id_mask).astype(np.intp) - 1
                same = self._equal(entries, group.words, records)
                group.entries[records[same]] = entries[same]
                used[alike[same]] = False
            pending = pending[used]
            following = slots[pending] + 1
            following[following == size] = 0
            slots[pending] = following

    def _equal(
        self, entries: NDArray[np.intp], words: Words, records: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        per_key = words.shape[1]
        starts = self._starts[entries]
        if self._words_per_key == per_key:
            return self._equal_words(starts, words[records])
        same: NDArray[np.bool_] = self._starts[entries + 1] - starts == per_key
        chosen = np.flatnonzero(same)
        if len(chosen):
            same[chosen] = self._equal_words(starts[chosen], words[records[chosen]])
        return same

    def _equal_words(self, starts: NDArray[np.uint32], words: Words) -> NDArray[np.bool_]:
        stored = self._stored(starts, words.shape[1])
        same: NDArray[np.bool_] = stored[:, 0] == words[:, 0]
        if words.shape[1] <= 8:
            for i in range(1, words.shape[1]):
                same &= stored[:, i] == words[:, i]
            return same
        whole: NDArray[np.bool_] = (stored == words).all(axis=1)
        return whole

    def _stored(self, starts: NDArray[np.uint32], per_key: int) -> Words:
        """The words of the keys that begin at `starts`; one copy of raw bytes for each."""
        raw = np.dtype((np.void, 4 * per_key))
        keys = np.ndarray((len(self._words) - per_key + 1,), raw, self._words, strides=(4,))
        return keys[starts].view(np.uint32).reshape(len(starts), per_key)

    # --- the table ---

    def _new_table(self, slots: int) -> None:
        self._table = np.zeros(slots, np.uint32)
        self._limit = int(slots * _LOAD)
        self._id_mask = np.uint32((1 << self._limit.bit_length()) - 1)

    def _grow_table(self, count: int, words: int) -> None:
        """Make it larger and fill it anew from the keys. The old one goes first."""
        needed = _slots_for(count)
        # Larger than this it would be full of keys only when memory is used up by the keys.
        per_key = 8 + 4 * words / count
        most = int(self._memory_bytes / (4 + _LOAD * per_key))
        size = max(needed, min(int(len(self._table) * _TABLE_GROWTH), most))
        del self._table
        self._new_table(size)
        for first in range(0, self._count, _CHUNK_RECORDS):
            end = min(first + _CHUNK_RECORDS, self._count)
            starts = self._starts[first : end + 1]
            widths = np.diff(starts).astype(np.intp)
            for per_key, members in groups_of(widths, np.arange(end - first)):
                stored = self._stored(starts[members], per_key)
                self._place(self._hash(stored), (first + 1 + members).astype(np.uint32))

    def _place(self, hashes: NDArray[np.uint64], ids: NDArray[np.uint32]) -> None:
        """Put keys that are known to be distinct and absent into the table."""
        table = self._table
        slots = self._home_slots(hashes)
        values = self._tags(hashes) | ids
        while len(slots):
            free = table[slots] == 0
            table[slots[free]] = values[free]
            left = table[slots] != values
            slots, values = slots[left] + 1, values[left]
            slots[slots == len(table)] = 0


def _slots_for(count: int) -> int:
    return max(_LEAST_SLOTS, int(count / _LOAD) + 2)


def _cost(keys: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bytes that a map with so many keys of so many words takes at least."""
    cost: NDArray[np.float64] = keys * (8 + 4 / _LOAD) + words * 4.0 + 4 * (_LEAST_SLOTS + 3)
    return cost


def _grow(array: NDArray[np.uint32], needed: int, spare: int) -> None:
    """Make `array` long enough, in place: where the allocator can, without a copy."""
    size = len(array)
    if needed > size:
        larger = max(needed, min(size + size // _ARRAY_GROWTH, needed + spare))
        array.resize(larger, refcheck=False)


def _chunk_end(keys: KeyColumn, first: int) -> int:
    """Where a chunk that begins at `first` ends: so many records, or so many bytes of keys."""
    by_bytes = int(np.searchsorted(keys.ends, int(keys.ends[first]) + _CHUNK_BYTES, "right")) - 1
    return min(max(by_bytes, first + 1), first + _CHUNK_RECORDS, len(keys.valid))
