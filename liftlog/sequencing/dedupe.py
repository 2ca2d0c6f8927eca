"""The message ids received within the dedupe window, kept in memory and rebuilt from the log.

While the daemon runs, the age of an id comes from a clock that does not step with the wall clock.
After a start, the age of an id from the log comes from the timestamp of its record.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, chain, compress, groupby, islice, repeat
from operator import eq, not_, sub
from typing import Any, NamedTuple

from liftlog.records.decode import RecordBatch
from liftlog.records.message_headers import first_value
from liftlog.sequencing.control import MESSAGE_ID
from liftlog.sequencing.header_columns import header_columns

KEPT_BYTES = 47
"""Ids up to this length are stored unhashed. Such an id takes 80 bytes of memory, and a hash only
64. But an unhashed id saves the time for computing the hash."""
_MARK_BYTES = 16


class Marks:
    """Makes marks: substitutes of 16 bytes for text of any length that publishers choose.

    A mark is a hash with a secret key. Publishers do not have the key, so they cannot search for
    two texts with the same mark. If a million texts are stored, the probability that the next text
    has the same mark as one of them is 3e-33.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = secrets.token_bytes(_MARK_BYTES) if key is None else key
        self._keyed = blake2b(digest_size=_MARK_BYTES, key=self.key)

    def of(self, text: bytes) -> bytes:
        hashed = self._keyed.copy()
        hashed.update(text)
        return hashed.digest()


class AddedRun(NamedTuple):
    """The result of `DedupeWindow.add_run`."""

    new: Sequence[bytes]
    """The marks that were not in the window."""
    is_new: Sequence[bool]
    """One flag per mark; empty if all marks are new."""
    offsets: Sequence[int]
    """The offset of each message; duplicates have the offset of their original."""


class DedupeWindow:
    """Stores the offset of each message id, for `window_ns` nanoseconds and at most `max_ids` ids.

    The window stores the mark of an id: a short id itself, and a keyed hash in place of a long id,
    so that long ids take no more memory.

    An id is added when its message is judged, before the commit; `forget_newest` removes the ids of
    a failed commit group.
    """

    def __init__(self, window_ns: int, max_ids: int) -> None:
        self.window_ns = window_ns
        self.max_ids = max_ids
        self.evicted_early = 0
        self._marks = Marks()
        self._kept: frozenset[bytes] = frozenset()
        self._kept_until_ns = 0
        self._offsets: dict[bytes, int] = {}
        self._order: deque[bytes] = deque()
        self._stamps: deque[tuple[int, int]] = deque()
        """Pairs of a timestamp in ns and the number of consecutive marks in `_order` with this
        timestamp."""

    def mark(self, message_id: bytes) -> bytes:
        """Return the mark of an id; the other methods take marks."""
        if len(message_id) > KEPT_BYTES:
            return self._marks.of(message_id)
        if self._kept and (kept := self._marks.of(message_id)) in self._kept:
            return kept
        return message_id

    def marks(self, message_ids: Sequence[bytes]) -> Sequence[bytes]:
        """Return the marks of many ids; see `mark`."""
        if not self._kept and len(max(message_ids, key=len, default=b"")) <= KEPT_BYTES:
            return message_ids
        return list(map(self.mark, message_ids))

    def resize(self, window_ns: int, max_ids: int) -> None:
        """Apply other limits from now on. Ids that a smaller window has dropped are not restored.
        So a larger window is complete only when its whole duration has passed."""
        self.window_ns = window_ns
        self.max_ids = max_ids
        self._drop_oldest(len(self._order) - max_ids if window_ns else len(self._order))

    def __len__(self) -> int:
        return len(self._offsets)

    def lookup(self, mark: bytes) -> int | None:
        """Return the offset of the original message with this mark; None if the mark is not
        stored."""
        return self._offsets.get(mark)

    def may_evict(self, marks: Sequence[bytes]) -> bool:
        """Return True if the addition of these marks could evict one of these marks, or an equal
        stored mark."""
        excess = len(self._order) + len(marks) - self.max_ids
        if excess <= 0:
            return False
        return excess > len(self._order) or not {*islice(self._order, excess)}.isdisjoint(marks)

    def add(self, mark: bytes, offset: int, timestamp_ns: int) -> bool:
        """Add an id. Returns False if the window already contains the id; the entry of the original
        message then stays unchanged."""
        if mark in self._offsets:
            return False
        self._offsets[mark] = offset
        self._order.append(mark)
        self._added(1, timestamp_ns)
        return True

    def add_run(self, marks: Sequence[bytes], offsets: list[int], timestamp_ns: int) -> AddedRun:
        """Add the ids of a run. `offsets` are the offsets of the messages if the run contains no
        duplicate. Call this method only if `may_evict` returns False."""
        if not marks:
            return AddedRun(marks, [], offsets)
        table = self._offsets
        # A single lookup per mark returns the entry of the mark, or adds one.
        found = list(map(table.setdefault, marks, offsets))
        if found == offsets:
            self._order += marks
            self._added(len(marks), timestamp_ns)
            return AddedRun(marks, [], offsets)
        is_new = list(map(eq, found, offsets))
        new = list(compress(marks, is_new))
        if new:
            # Messages after a duplicate get a lower offset.
            if offsets[-1] - offsets[0] == len(offsets) - 1:
                moved: Iterable[int] = range(offsets[0], offsets[0] + len(new))
            else:
                moved = compress(map(sub, offsets, accumulate(map(not_, is_new))), is_new)
            table.update(zip(new, moved, strict=True))
            self._order += new
            self._added(len(new), timestamp_ns)
        return AddedRun(new, is_new, list(map(table.__getitem__, marks)))

    def _added(self, count: int, timestamp_ns: int) -> None:
        if self._stamps and self._stamps[-1][0] == timestamp_ns:
            count += self._stamps.pop()[1]
        self._stamps.append((timestamp_ns, count))
        excess = len(self._order) - self.max_ids
        if excess > 0:
            self.evicted_early += excess
            self._drop_oldest(excess)

    def expire(self, now_ns: int) -> None:
        """Remove the ids that are older than the window."""
        limit = now_ns - self.window_ns
        if self._kept and self._kept_until_ns < limit:
            self._kept = frozenset()
        while self._stamps and self._stamps[0][0] < limit:
            self._drop_oldest(self._stamps[0][1])

    def _drop_oldest(self, count: int) -> None:
        order, offsets, stamps = self._order, self._offsets, self._stamps
        for _ in range(count):
            del offsets[order.popleft()]
        while count > 0:
            stamp, bearers = stamps.popleft()
            if bearers > count:
                stamps.appendleft((stamp, bearers - count))
            count -= bearers

    def forget_newest(self, marks: Iterable[bytes]) -> None:
        """Remove the ids that were added last; `marks` has the order in which they were added."""
        for mark in reversed(list(marks)):
            if self._order and self._order[-1] == mark:
                del self._offsets[self._order.pop()]
                stamp, bearers = self._stamps.pop()
                if bearers > 1:
                    self._stamps.append((stamp, bearers - 1))

    # --- ids of records whose bytes are gone ---

    @property
    def key(self) -> bytes:
        """The key of the hashes."""
        return self._marks.key

    def hash_of(self, message_id: bytes) -> bytes:
        """Return the hash of an id, even if the id is short. Where the id itself must not be stored
        any more, the hash is stored instead."""
        return self._marks.of(message_id)

    def recall(self, key: bytes, hashes: Iterable[bytes], until_ns: int) -> None:
        """Use these hashes as the marks of their ids, if `add_stored` or a snapshot adds them. The
        hashes were made with `key`, and the newest has the timestamp `until_ns`. The window must be
        empty."""
        self._marks = Marks(key)
        self._kept, self._kept_until_ns = frozenset(hashes), until_ns

    # --- rebuilding ---

    def add_stored(self, found: StoredIds) -> None:
        """Add the ids of stored records, in the order of the log.

        Each id is judged as if its record had just arrived, at the time of the record's timestamp.
        If an id was used again after its window, the later record counts as the original.
        """
        marks, at = self.marks(found.ids), 0
        for stamp, run in groupby(found.stamps_ns):
            end = at + len(list(run))
            self.expire(stamp)
            self._learn(marks[at:end], found.offsets[at:end], stamp)
            at = end

    def _learn(self, marks: Sequence[bytes], offsets: Sequence[int], timestamp_ns: int) -> None:
        """Add many ids; see `add`."""
        table, count = self._offsets, len(marks)
        if table.keys().isdisjoint(marks) and len(set(marks)) == count:
            table.update(zip(marks, offsets, strict=True))
            self._order += marks
            self._added(count, timestamp_ns)
            return
        for mark, offset in zip(marks, offsets, strict=True):
            self.add(mark, offset, timestamp_ns)

    def is_due(self, now_ns: int) -> bool:
        """Return True if `expire` would remove an id."""
        return bool(self._stamps) and self._stamps[0][0] < now_ns - self.window_ns

    def snapshot(self, hashes: Mapping[int, bytes] | None = None) -> dict[str, Any]:
        """Return the whole state as JSON values: `key` is the key of the hash, `remembered`
        contains an entry [timestamp_ns, mark, offset] for each id. Key and marks are in hexadecimal
        digits. `hashes` maps offsets of messages to hashes; these are stored instead of ids that
        must not be stored any more."""
        stamps = chain.from_iterable(repeat(stamp, count) for stamp, count in self._stamps)
        offsets = self._offsets
        pairs = zip(stamps, self._order, strict=True)
        marks: list[list[Any]] = [[stamp, mark.hex(), offsets[mark]] for stamp, mark in pairs]
        known = {} if hashes is None else hashes
        for entry in marks if known else ():
            if entry[2] in known:
                entry[1] = known[entry[2]].hex()
        return {"key": self._marks.key.hex(), "remembered": marks}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Fill an empty window from a snapshot.

        Snapshots of the first versions of liftlog, with the ids as Latin-1 text in the field `ids`,
        are supported. Snapshots of later versions, which also hashed short ids and have a field
        `marks`, are not supported. An older version finds neither field in a snapshot of this
        version, and reads the log instead. Raises KeyError, TypeError, ValueError.
        """
        if "remembered" in content:
            self._marks = Marks(bytes.fromhex(content["key"]))
            entries = [
                (stamp, bytes.fromhex(mark), offset)
                for stamp, mark, offset in content["remembered"]
            ]
        else:
            entries = [
                (stamp, self.mark(text.encode("latin-1")), offset)
                for stamp, text, offset in content["ids"]
            ]
        for stamp, mark, offset in entries:
            self.add(mark, offset, stamp)


class StoredIds(NamedTuple):
    """The message ids of stored records; each field has one entry per record with an id."""

    offsets: Sequence[int]
    stamps_ns: Sequence[int]
    ids: Sequence[bytes]


class StoredHeaders:
    """Collects the header blocks of stored records, to find their message ids.

    One search covers the blocks of many batches, because a call takes as long as a search of some
    dozens of blocks.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._stamps_ns: list[int] = []
        self._blocks: list[bytes] = []

    def add(self, batch: RecordBatch, ahead_ns: int = 0, latest_ns: int | None = None) -> None:
        """Add the header blocks of a batch.

        `ahead_ns` is added to the timestamps of the batch, because their clock is behind the
        reference clock by this amount. The results are limited to `latest_ns`, because no stored
        record can be from the future. Raises CorruptBatch; in that case no block of the batch is
        added.
        """
        blocks = batch.headers()
        if not any(blocks):
            return
        offsets, stamps = batch.offsets(), batch.timestamps_ns()
        self._offsets += offsets
        stamps = [stamp + ahead_ns for stamp in stamps] if ahead_ns else stamps
        if latest_ns is not None and max(stamps, default=0) > latest_ns:
            stamps = [min(stamp, latest_ns) for stamp in stamps]
        self._stamps_ns += stamps
        self._blocks += blocks

    def ids(self) -> StoredIds:
        offsets, stamps, blocks = self._offsets, self._stamps_ns, self._blocks
        if not blocks:
            return StoredIds((), (), ())
        _, columns, odd = header_columns(blocks)
        ids = list(columns or [None] * len(blocks))
        for row in odd:
            ids[row] = first_value(blocks[row], MESSAGE_ID)
        there = [message_id for message_id in ids if message_id]
        if len(there) < len(ids):
            offsets, stamps = list(compress(offsets, ids)), list(compress(stamps, ids))
        return StoredIds(offsets, stamps, there)
