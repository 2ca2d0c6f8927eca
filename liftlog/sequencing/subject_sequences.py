"""The last offset of each subject, for publishers that state which one they expect.

Defined as in JetStream: the offset of the newest record of the subject that still exists, 0 without
one. The table is in memory, has a limited size, and is built from the log by a scan.

If a tombstone deletes its subject, the subject has no record after it. The tables note that as a
negative number: minus the offset of the tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from liftlog.sequencing.dedupe import Marks


def _offset_in(item: tuple[bytes, int]) -> int:
    return abs(item[1])


PARTIAL = b"$liftlog.below."
"""Prefix of the keys of tombstones that delete only some records of a subject: the last record
stays."""


def deletes_subject(key: bytes | None, value: bytes | None) -> bool:
    """Return True if a record is a tombstone of its whole subject, in a stream where tombstones
    delete."""
    return value is None and not (key is not None and key.startswith(PARTIAL))


class Notes(dict[bytes, int]):
    """The last offsets that a group of records brings, by mark, for the table that made them."""

    __slots__ = ("table",)

    def __init__(self, table: SubjectSequences) -> None:
        super().__init__()
        self.table = table


class SubjectSequences:
    """The last offset of at most `max_subjects` subjects: those that were written to last.

    For a subject that it has dropped, or that no scan has found yet, it answers "unknown", and
    never a wrong number.

    Judged records are pending until their group is committed, or durable and held; when a group
    fails, its pending records and those after it are undone.
    """

    def __init__(
        self,
        max_subjects: int,
        *,
        known_from: int,
        log_start_offset: Callable[[], int],
        tombstones_delete: bool = False,
    ) -> None:
        """The caller adds every record from offset `known_from` on; a scan adds older records.

        With `tombstones_delete` a tombstone deletes the records of its subject.
        """
        self.max_subjects = max_subjects
        self.tombstones_delete = tombstones_delete
        self.expired_below = 0
        """Records below this offset count as deleted, though they are still in the log; see
        `expire`."""
        self.known_from = known_from
        self.marks = Marks()
        self._log_start_offset = log_start_offset
        # A subject that is not in the table has no record at or above this offset.
        self._unknown_below = known_from
        self.needs_scan = not self.is_complete
        """True if a scan would find more subjects."""
        self._committed: dict[bytes, int] = {}  # in the order of their offsets
        self._pending: dict[bytes, int] = {}
        self._deleted = 0  # number of negative entries in `_committed`

    def __len__(self) -> int:
        return len(self._committed)

    @property
    def _start(self) -> int:
        return max(self._log_start_offset(), self.expired_below)

    @property
    def is_complete(self) -> bool:
        """True if every subject is known."""
        return self._unknown_below <= self._start

    def expire(self, below: int) -> bool:
        """Count records below this offset as deleted from now on, and those above it as existing,
        even if they counted as deleted before. Returns True if a scan has to find some of them
        again."""
        is_less = below < self.expired_below
        self.expired_below = below
        return is_less and not self.is_complete

    def last_offset(self, subject: bytes) -> int | None:
        """Return the offset of the newest record that still exists, 0 without one; None if it is
        not known."""
        mark = self.marks.of(subject)
        offset = self._pending.get(mark) or self._committed.get(mark)
        start = self._start
        if offset is not None:
            return offset if offset >= start else 0
        return 0 if self._unknown_below <= start else None

    def count(self) -> int | None:
        """Return how many subjects have a committed record that still exists; None if that is not
        known."""
        if not self.is_complete:
            return None
        table, start = self._committed, self._start
        while table and abs(next(iter(table.values()))) < start:
            removed = self._remove(next(iter(table)))
            # It may count again if a later call expires less.
            self._unknown_below = max(self._unknown_below, removed + 1)
        return len(table) - self._deleted

    def _remove(self, mark: bytes) -> int:
        offset = self._committed.pop(mark, 0)
        self._deleted -= offset < 0
        return abs(offset)

    def last_committed(self, subject: bytes) -> int | None:
        """As `last_offset`, without pending records."""
        offset = self._committed.get(self.marks.of(subject))
        start = self._start
        if offset is not None:
            return offset if offset >= start else 0
        return 0 if self._unknown_below <= start else None

    def resize(self, max_subjects: int) -> None:
        """Apply another size limit from now on. Subjects that a smaller one has dropped need a
        scan."""
        self.needs_scan |= max_subjects > self.max_subjects and not self.is_complete
        self.max_subjects = max_subjects
        self._let_go()

    # --- what is stored ---

    def note(self, notes: Notes, subject: bytes, offset: int) -> None:
        """Note a record that is about to be stored; `notes` are those of its group.

        `offset` is negative for a tombstone that deletes its subject.
        """
        mark = self.marks.of(subject)
        notes.pop(mark, None)  # so that they stay in the order of their offsets
        notes[mark] = self._pending[mark] = offset

    def note_run(self, notes: Notes, subjects: Sequence[bytes], first_offset: int) -> None:
        """As `note`, for consecutive records."""
        offsets = range(first_offset, first_offset + len(subjects))
        for subject, offset in last_of_each(subjects, offsets):
            self.note(notes, subject, offset)

    def committed(self, notes: Notes) -> None:
        """Note that the records of the oldest group that is out are durable. Notes for an earlier
        table, which this one has replaced, are ignored."""
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
        """Undo the pending records, except those in `kept`, which may be stored: notes of groups in
        their order. Offsets continue at `next_offset`."""
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
        """Note that committed records from `offset` on are lost; offsets continue at `next_offset`.
        A scan has to find the rest."""
        table = self._committed
        while table and abs(next(reversed(table.values()))) >= offset:
            self._remove(next(reversed(table)))
        self._unknown_below = self.known_from = next_offset
        self.needs_scan = True

    # --- scans ---

    def new_scan(self) -> SubjectScan:
        return SubjectScan(self.marks, self.max_subjects, self.tombstones_delete)

    def adopt(self, scan: SubjectScan) -> bool:
        """Adopt a scan of all committed records below `scan.end`, and keep the records that were
        committed since. Returns False, without a change, if the scan did not reach far enough."""
        if scan.end < self.known_from:
            return False
        found, mine = scan.last, self._committed
        newer = list(takewhile(lambda item: abs(item[1]) >= scan.end, reversed(mine.items())))
        for mark, offset in reversed(newer):
            found.pop(mark, None)
            found[mark] = offset
        self._committed = found
        self._deleted = sum(offset < 0 for offset in found.values())
        # The scan does not cover subjects that were dropped at or above its end.
        own = self._unknown_below if self._unknown_below > scan.end else 0
        self._unknown_below = max(scan.unknown_below, own)
        self.needs_scan = False
        self._let_go()
        return True

    # --- snapshots ---

    def snapshot(self, end: int) -> dict[str, Any]:
        """Return the committed state below offset `end` as JSON values.

        These are `key` of the hash, `last` as [mark, offset] in the order of the offsets, and
        `unknown_below`; key and marks in hexadecimal digits.
        """
        table = self._committed.items()
        last = [[mark.hex(), offset] for mark, offset in table if abs(offset) < end]
        return {"key": self.marks.key.hex(), "last": last, "unknown_below": self._unknown_below}

    def restore(self, content: Mapping[str, Any], end: int) -> bool:
        """Fill a table that has noted nothing yet with a snapshot of everything below `end`. Raises
        KeyError, TypeError, ValueError."""
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
    """Result so far of a walk through the log. Made in a thread, adopted on the event loop."""

    def __init__(self, marks: Marks, max_subjects: int, tombstones_delete: bool) -> None:
        self.tombstones_delete = tombstones_delete
        self.last: dict[bytes, int] = {}
        self.unknown_below = 0
        self.end = 0
        """All committed records below were seen."""
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
        """Note that records below `offset` could not be read: any subject may be among them."""
        self.last.clear()
        self.unknown_below = offset


def last_of_each(subjects: Sequence[bytes], offsets: Sequence[int]) -> Iterable[tuple[bytes, int]]:
    """Return each subject once with its last offset, in the order of these, whatever their
    signs."""
    if len(subjects) > 1 and subjects.count(subjects[0]) == len(subjects):
        return [(subjects[-1], offsets[-1])]
    last: Mapping[bytes, int] = dict(zip(subjects, offsets, strict=True))
    if len(last) == len(subjects):
        return last.items()
    return sorted(last.items(), key=_offset_in)
