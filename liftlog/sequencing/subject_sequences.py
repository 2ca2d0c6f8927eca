"""Tracks the last offset of each subject, for publishers that send an expected last offset.

The last offset is defined as in JetStream: the offset of the newest existing record of the subject,
or 0 if the subject has no record. The table is in memory, has a limited size, and is built by a
scan of the log.

If the newest record of a subject is a tombstone that deletes the subject, the subject has no
record. The tables then store a negative number: minus the offset of the tombstone. If all records
of a subject were erased, the tables store minus the offset of its last record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftlog.sequencing.dedupe import Marks


def _offset_in(item: tuple[bytes, int]) -> int:
    return abs(item[1])


PARTIAL = b"$liftlog.below."
"""Prefix of the keys of tombstones that delete some records of a subject, but never its last
record."""
_MOST_ERASED = 10_000
"""Maximum number of subjects in `_older`."""


def deletes_subject(key: bytes | None, value: bytes | None) -> bool:
    """Return True if a record is a tombstone that deletes its whole subject, in a stream whose
    tombstones delete."""
    return value is None and not (key is not None and key.startswith(PARTIAL))


class Notes(dict[bytes, int]):
    """Maps the mark of each subject in one commit group to the last offset of the subject there.
    Belongs to one table."""

    __slots__ = ("table",)

    def __init__(self, table: SubjectSequences) -> None:
        super().__init__()
        self.table = table


class SubjectSequences:
    """The last offsets of the `max_subjects` subjects that were written to last.

    For a subject that the table has dropped, or that no scan has found yet, the result is
    "unknown", and never a wrong offset.

    Judged records are pending until their group is committed, or durable and held. When a group
    fails, its pending records and all later pending records are undone.
    """

    def __init__(
        self,
        max_subjects: int,
        *,
        known_from: int,
        log_start_offset: Callable[[], int],
        tombstones_delete: bool = False,
        hides: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Make an empty table. The caller adds every record from offset `known_from` on; a scan
        adds older records. `hides` returns True for the offset of an erased record. If it was the
        last record of its subject, the last offset of the subject is unknown until `erased` or a
        scan has found the record before it.

        With `tombstones_delete` a tombstone deletes the records of its subject.
        """
        self.max_subjects = max_subjects
        self.tombstones_delete = tombstones_delete
        self.expired_below = 0
        """Records below this offset count as deleted, although the log still contains them; see
        `expire`."""
        self.known_from = known_from
        self.marks = Marks()
        self._log_start_offset = log_start_offset
        self._hides = hides
        # A subject that is not in the table has no record at or above this offset.
        self._unknown_below = known_from
        self.needs_scan = not self.is_complete
        """True if a scan would find more subjects."""
        self._committed: dict[bytes, int] = {}  # in the order of their offsets
        self._pending: dict[bytes, int] = {}
        self._deleted = 0  # number of negative entries in `_committed`
        self._older: dict[bytes, tuple[int, int]] = {}
        """Maps a subject whose last record was erased to the offset of this record, which stays in
        `_committed` to keep its order, and the offset of the last record that is left."""
        self._erased: set[bytes] = set()
        """Subjects whose last record was erased since the last scan began."""
        self._erased_below = 0
        """All records below this offset were erased; the table has none of them."""

    def __len__(self) -> int:
        return len(self._committed)

    @property
    def _start(self) -> int:
        return max(self._log_start_offset(), self.expired_below)

    @property
    def is_complete(self) -> bool:
        """True if the table contains every subject."""
        return self._unknown_below <= self._start

    def expire(self, below: int) -> bool:
        """Treat records below this offset as deleted from now on, and all other records as
        existing, even if an earlier call has expired some of them. Returns True if a scan must find
        such records again."""
        is_less = below < self.expired_below
        self.expired_below = below
        return is_less and not self.is_complete

    def last_offset(self, subject: bytes) -> int | None:
        """Return the offset of the newest existing record of the subject, or 0 if there is no such
        record. Returns None if the offset is unknown."""
        mark = self.marks.of(subject)
        return self._existing(self._pending.get(mark) or self._last_left(mark))

    def _existing(self, offset: int | None) -> int | None:
        start = self._start
        if offset is not None:
            if offset < start:
                return 0
            return None if self._hides(offset) else offset
        return 0 if self._unknown_below <= start else None

    def count(self) -> int | None:
        """Return the number of subjects with an existing committed record; None if the number is
        unknown."""
        if not self.is_complete:
            return None
        table, start = self._committed, self._start
        # Not removed one by one: each removal makes it slower to find the first item of a dict.
        old = list(takewhile(lambda item: abs(item[1]) < start, table.items()))
        for mark, _ in old:
            self._remove(mark)
        if old:  # the subjects may exist again if a later call expires less
            self._unknown_below = max(self._unknown_below, abs(old[-1][1]) + 1)
        expired = sum(left < start for _, left in self._older.values())
        return len(table) - self._deleted - expired

    def _remove(self, mark: bytes) -> int:
        offset = self._committed.pop(mark, 0)
        self._older.pop(mark, None)
        self._erased.discard(mark)
        self._deleted -= offset < 0
        return abs(offset)

    def _last_left(self, mark: bytes) -> int | None:
        older = self._older.get(mark)
        return self._committed.get(mark) if older is None else older[1]

    def last_committed(self, subject: bytes) -> int | None:
        """Return the same as `last_offset`, but ignore pending records."""
        return self._existing(self._last_left(self.marks.of(subject)))

    def erased_last(self, subject: bytes) -> int:
        """Return the offset of the last committed record of the subject if this record was erased
        and the record before it is unknown; otherwise return 0."""
        offset = self._last_left(self.marks.of(subject)) or 0
        return offset if offset > 0 and self._hides(offset) else 0

    def resize(self, max_subjects: int) -> None:
        """Apply another size limit from now on. If the limit grows, a scan must find the subjects
        that were dropped before."""
        self.needs_scan |= max_subjects > self.max_subjects and not self.is_complete
        self.max_subjects = max_subjects
        self._let_go()

    # --- what is stored ---

    def note(self, notes: Notes, subject: bytes, offset: int) -> None:
        """Add a pending record, which is about to be stored; `notes` are the notes of its group.

        `offset` is negative for a tombstone that deletes its subject.
        """
        mark = self.marks.of(subject)
        notes.pop(mark, None)  # removed first, so that the entries stay in the order of offsets
        notes[mark] = self._pending[mark] = offset

    def note_run(self, notes: Notes, subjects: Sequence[bytes], first_offset: int) -> None:
        """Add consecutive pending records; see `note`."""
        offsets = range(first_offset, first_offset + len(subjects))
        for subject, offset in last_of_each(subjects, offsets):
            self.note(notes, subject, offset)

    def committed(self, notes: Notes) -> None:
        """Add the pending records of the oldest uncommitted group to the committed records. Ignores
        notes for an earlier table that this table has replaced."""
        if notes.table is not self:
            return
        table, pending = self._committed, self._pending
        for mark, offset in notes.items():
            self._remove(mark)
            table[mark] = offset
            self._deleted += offset < 0
            if pending.get(mark) == offset:
                del pending[mark]
        self._let_go()

    def undone(self, next_offset: int, kept: Iterable[Notes | None] = ()) -> None:
        """Undo the pending records, except the records of groups that may still be stored: `kept`
        has the notes of these groups, in order. Offsets continue at `next_offset`."""
        self._pending.clear()
        for notes in kept:
            if notes is not None and notes.table is self:
                self._pending.update(notes)
        self.known_from = min(self.known_from, next_offset)

    def _let_go(self) -> None:
        table = self._committed
        while len(table) > self.max_subjects:
            mark = next(iter(table))
            self._unknown_below = max(self._unknown_below, self._remove(mark) + 1)

    def lost_from(self, offset: int, next_offset: int) -> None:
        """Remove the committed records from `offset` on, because they are lost. Offsets continue at
        `next_offset`. A scan has to find the older records."""
        table = self._committed
        while table and abs(next(reversed(table.values()))) >= offset:
            self._remove(next(reversed(table)))
        self._unknown_below = self.known_from = next_offset
        self.needs_scan = True

    def erased(self, subject: bytes, offset: int, left: int) -> bool:
        """Note that the committed record at `offset` was erased. If it was the last one of its
        subject, `left` is the offset of the last record that is left; 0 if there is none. Returns
        False if only a scan can correct the table."""
        mark = self.marks.of(subject)
        if self._last_left(mark) != offset:
            return True
        if max(len(self._older), len(self._erased)) >= _MOST_ERASED:
            return False
        stored = self._committed[mark]
        self._erased.add(mark)
        if left:
            self._older[mark] = stored, left
        else:
            self._older.pop(mark, None)
            self._committed[mark] = -stored
            self._deleted += 1
        return True

    def erased_whole(self, which: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> None:
        """Note that subjects were erased as a whole: those whose last committed record is erased.
        `which` returns True for each erased offset of an array. Calls it with whole columns,
        because a table can have millions of subjects."""
        table, older = self._committed, self._older
        left = np.array([one for _, one in older.values()], np.int64)
        found = [mark for mark, one in zip(older, which(left).tolist(), strict=True) if one]
        stored = np.fromiter(table.values(), np.int64, len(table))
        rows = np.flatnonzero((stored > 0) & which(stored)).tolist()
        if rows:
            marks = list(table)
            found += [marks[row] for row in rows if marks[row] not in older]
        for mark in found:
            older.pop(mark, None)
            table[mark] = -table[mark]
        self._erased.update(found)
        self._deleted += len(found)

    def erased_below(self, offset: int) -> None:
        """Note that all records below `offset` were erased."""
        for mark, (stored, left) in list(self._older.items()):
            if left < offset:
                del self._older[mark]
                self._committed[mark] = -stored
        items = reversed(self._committed.items())
        newer = list(takewhile(lambda item: abs(item[1]) >= offset, items))
        self._committed = dict(reversed(newer))
        self._deleted = sum(one < 0 for one in self._committed.values())
        self._erased &= self._committed.keys()
        self._erased_below = max(self._erased_below, offset)
        if max(self.known_from, self._unknown_below) <= offset:  # all later records are here
            self._unknown_below = 0
            self.needs_scan = False

    # --- scans ---

    def new_scan(self) -> SubjectScan:
        self._erased.clear()
        return SubjectScan(self.marks, self.max_subjects, self.tombstones_delete)

    def adopt(self, scan: SubjectScan) -> bool:
        """Replace the table by a scan of all committed records below `scan.end`, and keep the
        records that were committed after the scan. Returns False, without a change, if the scan
        ended too early."""
        if scan.end < self.known_from:
            return False
        found, mine = scan.last, self._committed
        if found and abs(next(iter(found.values()))) < self._erased_below:
            found = {mark: at for mark, at in found.items() if abs(at) >= self._erased_below}
        newer = list(takewhile(lambda item: abs(item[1]) >= scan.end, reversed(mine.items())))
        for mark, offset in reversed(newer):
            found.pop(mark, None)
            found[mark] = offset
        self._older = self._correct(found)
        self._committed = found
        self._deleted = sum(offset < 0 for offset in found.values())
        # The scan does not contain subjects that were dropped at or above its end.
        own = self._unknown_below if self._unknown_below > scan.end else 0
        self._unknown_below = max(scan.unknown_below, own)
        self.needs_scan = False
        self._let_go()
        return True

    def _correct(self, found: dict[bytes, int]) -> dict[bytes, tuple[int, int]]:
        """Correct the last offsets that a scan may have found before their records were erased.
        Returns the content of `_older` that belongs to `found`."""
        older: dict[bytes, tuple[int, int]] = {}
        for mark in self._erased & found.keys():
            stored, left = found[mark], self._last_left(mark) or 0
            if left < 0:
                found[mark] = -abs(stored)
            elif left != stored:
                older[mark] = stored, left
        return older

    # --- snapshots ---

    def snapshot(self, end: int) -> dict[str, Any]:
        """Return the committed state below offset `end` as JSON values.

        The values are `key`, the key of the hash; `last`, with [mark, offset] of each subject in
        the order of offsets; and `unknown_below`. Key and marks are in hexadecimal digits.
        """
        table: Iterable[tuple[bytes, int]] = self._committed.items()
        if self._older:
            left = {mark: offset for mark, (_, offset) in self._older.items()}
            table = sorted({**self._committed, **left}.items(), key=_offset_in)
        last = [[mark.hex(), offset] for mark, offset in table if abs(offset) < end]
        return {"key": self.marks.key.hex(), "last": last, "unknown_below": self._unknown_below}

    def restore(self, content: Mapping[str, Any], end: int) -> bool:
        """Fill an empty table from a snapshot of the records below `end`. Raises KeyError,
        TypeError, ValueError."""
        marks = Marks(bytes.fromhex(content["key"]))
        scan = SubjectScan(marks, self.max_subjects, self.tombstones_delete)
        scan.last = {bytes.fromhex(mark): int(offset) for mark, offset in content["last"]}
        scan.unknown_below = int(content["unknown_below"])
        scan.end = end
        offsets = [abs(offset) for offset in scan.last.values()]
        if offsets != sorted(offsets):
            raise ValueError("the offsets do not ascend")
        self.marks = marks
        return self.adopt(scan)


class SubjectScan:
    """The current result of a scan of the log. A thread builds the result, and the event loop
    adopts it."""

    def __init__(self, marks: Marks, max_subjects: int, tombstones_delete: bool) -> None:
        self.tombstones_delete = tombstones_delete
        self.last: dict[bytes, int] = {}
        self.unknown_below = 0
        self.end = 0
        """The scan has read all committed records below this offset."""
        self._marks = marks
        self._max_subjects = max_subjects

    def add(self, subjects: Sequence[bytes], offsets: Sequence[int]) -> None:
        """Add records that follow all earlier ones. The offset of a tombstone that deletes its
        subject is negative."""
        last = self.last
        for subject, offset in last_of_each(subjects, offsets):
            mark = self._marks.of(subject)
            last.pop(mark, None)
            last[mark] = offset
        while len(last) > self._max_subjects:
            mark = next(iter(last))
            self.unknown_below = abs(last.pop(mark)) + 1

    def lost_below(self, offset: int) -> None:
        """Record that records below `offset` could not be read, and may have been of any
        subject."""
        self.last.clear()
        self.unknown_below = offset


def last_of_each(subjects: Sequence[bytes], offsets: Sequence[int]) -> Iterable[tuple[bytes, int]]:
    """Return each subject once with its last offset, in the order of the absolute values of the
    offsets."""
    if len(subjects) > 1 and subjects.count(subjects[0]) == len(subjects):
        return [(subjects[-1], offsets[-1])]
    last: Mapping[bytes, int] = dict(zip(subjects, offsets, strict=True))
    if len(last) == len(subjects):
        return last.items()
    return sorted(last.items(), key=_offset_in)
