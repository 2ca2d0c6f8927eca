"""The newest offset of each key, in bounded memory and without ever confusing two keys.

Keys are kept whole, in one table for each number of words (see keytable.py), with their newest
offset as 32 bits relative to the first offset that was added. An 11-byte key takes 12 bytes, 4 for
the offset and 8 to 12 for its slot. Hashes may collide (a test can force it): that costs only time,
since the keys themselves are compared.

numpy handles thousands of records at a time; nothing here is done per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from .keep import UNKNOWN
from .keys import HashWords, KeyColumn, KeyedHash, key_words
from .keytable import LEAST_SLOTS, LOAD, KeyTable, Search

_CHUNK_RECORDS = 16_384
_CHUNK_BYTES = 1 << 20
_MAX_RELATIVE = 0xFFFF_FFFF
_PER_TABLE = 4 * (LEAST_SLOTS + 2)

OnSuperseded = Callable[[NDArray[np.int64]], None]

_Part = tuple[NDArray[np.intp], KeyTable, Search]
"""The records of a chunk whose keys have the same number of words, by their numbers in it."""


class KeyMap:
    """The newest offset of each key. Not thread-safe.

    `memory_bytes` bounds the map itself; during a call it needs up to about 4 MiB more. An empty
    map takes at least one record, however long its key, so that every pass makes progress.
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
        """Add the offsets of these keys; returns how many records were taken, from the first on.

        Fewer than given means that the memory is full: the rest is left for another pass. Offsets
        must ascend, also from call to call. Best called with thousands of records.
        `on_superseded` gets, in no particular order, the offsets added so far that are no longer
        the newest of their key; each at least once.
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
        """The newest offset seen with each record's key; -1 if the key is unknown or missing."""
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
            # Among equal entries the last assignment wins, and that is the newest offset.
            own = relative.take(rows)
            table.newest[found.entries] = own
            if on_superseded is not None:
                lost = own.compress(table.newest.take(found.entries) != own)
                on_superseded(lost + np.int64(first_offset))
        return count

    def _fitting(self, parts: list[_Part], count: int) -> int:
        """How many of the first `count` records fit, if all unknown keys were distinct."""
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
    """The end of the chunk that begins at `first`, bounded by records and by bytes of keys."""
    ends = keys.ends
    end = min(first + _CHUNK_RECORDS, len(keys.valid))
    if int(ends[end]) - int(ends[first]) > _CHUNK_BYTES:
        limit = ends.dtype.type(int(ends[first]) + _CHUNK_BYTES)
        end = max(int(ends.searchsorted(limit, "right")) - 1, first + 1)
    return end
