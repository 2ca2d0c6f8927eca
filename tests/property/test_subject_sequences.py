"""A table of limited size must return the right last offset of a subject, or "unknown"."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from support.rounds import examples

from liftlog.sequencing.subject_sequences import Notes, SubjectScan, SubjectSequences

SUBJECTS = [b"a", b"b", b"c", b"d", b"e"]
RUNS = st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        RUNS,
        RUNS,
        st.sampled_from(["commit", "commit", "fail", "retain", "expire", "expire less", "lose"]),
        st.tuples(st.just("delete"), st.sampled_from(SUBJECTS)),
        st.tuples(st.just("fail_at"), st.integers(0, 3)),
        st.tuples(st.just("erase"), st.integers(0, 60)),
        st.tuples(st.just("erase_last"), st.sampled_from(SUBJECTS), st.booleans()),
        st.sampled_from(["begin scan", "end scan"]),
        st.tuples(st.just("scan"), st.sets(st.integers(1, 60)), st.integers(0, 3)),
    ),
    max_size=40,
)


class World:
    """The stored records in plain lists, and the table."""

    def __init__(self, max_subjects: int, known_from: int) -> None:
        self.committed = [(offset, SUBJECTS[offset % 5]) for offset in range(1, known_from)]
        self.groups: list[tuple[list[tuple[int, bytes]], Notes]] = []
        self.next_offset = known_from
        self.log_start = 1
        self.written = len({subject for _, subject in self.committed})
        self.scanned = known_from == 1
        self.table = SubjectSequences(
            max_subjects,
            known_from=known_from,
            log_start_offset=lambda: self.log_start,
            tombstones_delete=True,
            hides=lambda offset: offset in self.erased,
        )
        self.erased: set[int] = set()
        self.unnoticed = False
        self.tombstones: set[int] = set()
        self.running: SubjectScan | None = None
        self.has_erased = False

    def run(self, subjects: list[bytes]) -> None:
        notes = Notes(self.table)
        self.table.note_run(notes, subjects, self.next_offset)
        stored = list(enumerate(subjects, self.next_offset))
        self.groups.append((stored, notes))
        self.next_offset += len(subjects)

    def delete(self, subject: bytes) -> None:
        notes = Notes(self.table)
        self.table.note(notes, subject, -self.next_offset)
        self.tombstones.add(self.next_offset)
        self.groups.append(([(self.next_offset, subject)], notes))
        self.next_offset += 1

    def commit(self) -> None:
        if self.groups:
            stored, notes = self.groups.pop(0)
            self.committed += stored
            self.table.committed(notes)

    def fail(self) -> None:
        if self.groups:
            self.next_offset = self.groups[0][0][0][0]
            self.groups.clear()
            self._taken_back()
            self.table.undone(self.next_offset)

    def fail_at(self, at: int) -> None:
        """Fail at this group. Earlier groups may still be committed."""
        if at < len(self.groups):
            self.next_offset = self.groups[at][0][0][0]
            del self.groups[at:]
            self._taken_back()
            self.table.undone(self.next_offset, [notes for _, notes in self.groups])

    def _taken_back(self) -> None:
        self.tombstones = {offset for offset in self.tombstones if offset < self.next_offset}

    def expire(self) -> None:
        """Records that are still in the log count as deleted."""
        if self.committed:
            below = self.committed[len(self.committed) // 2][0]
            self.scanned &= not self.table.expire(below)

    def expire_less(self) -> None:
        """Their retention time was raised, or a clock was set back."""
        self.scanned &= not self.table.expire(self.table.expired_below // 2)

    def retain(self) -> None:
        if self.committed:
            self.log_start = self.committed[len(self.committed) // 2][0]
            self.committed = [row for row in self.committed if row[0] >= self.log_start]

    def lose(self) -> None:
        """Lose records that were acked before their sync, because the sync failed."""
        self.fail()
        half = len(self.committed) // 2
        lost_from = self.committed[half][0] if half < len(self.committed) else self.next_offset
        self.committed = self.committed[:half]
        self.table.lost_from(lost_from, self.next_offset)
        self.scanned, self.running = False, None

    def erase(self, at: int, *, notices: bool = True) -> None:
        if at >= len(self.committed) or self.committed[at][0] in self.tombstones:
            return
        offset, subject = self.committed.pop(at)
        left = max((other for other, name in self.committed if name == subject), default=0)
        left = 0 if left in self.tombstones else left
        self.erased.add(offset)
        self.has_erased = True
        if notices:
            assert self.table.erased(subject, offset, left)
        else:
            self.scanned, self.running, self.unnoticed = False, None, True

    def erase_last(self, subject: bytes, notices: bool) -> None:
        places = [at for at, (_, name) in enumerate(self.committed) if name == subject]
        if places:
            self.erase(places[-1], notices=notices)

    def begin_scan(self) -> None:
        """A scan reads the log. Records that are erased from here on are in it."""
        self.running = self.table.new_scan()
        self.running.end = self.groups[0][0][0][0] if self.groups else self.next_offset
        for offset, subject in self.committed:
            self.running.add([subject], [-offset if offset in self.tombstones else offset])

    def end_scan(self) -> None:
        scan, self.running = self.running, None
        if scan is not None:
            adopted = self.table.adopt(scan)
            self.scanned |= adopted
            self.unnoticed &= not adopted

    def scan(self, removed: set[int], behind: int) -> None:
        """Compaction removes some records, and a scan reads the others. Or nothing is removed, and
        the scan ends before the last few records."""
        if not behind:
            self.committed = [row for row in self.committed if row[0] not in removed]
        end = self.groups[0][0][0][0] if self.groups else self.next_offset
        scan, self.running = self.table.new_scan(), None
        scan.end = max(1, end - behind)
        for offset, subject in self.committed:
            if offset < scan.end:
                scan.add([subject], [-offset if offset in self.tombstones else offset])
        if self.table.adopt(scan):
            self.scanned, self.unnoticed = True, False
        else:
            assert behind

    def check(self) -> None:
        everything = self.committed + [row for stored, _ in self.groups for row in stored]
        live = {subject for _, subject in everything}
        for subject in SUBJECTS:
            last = max((offset for offset, name in everything if name == subject), default=0)
            if last in self.tombstones or last < self.table.expired_below:
                last = 0
            said = self.table.last_offset(subject)
            assert said in (None, last), (subject, said, last)
            if self.scanned and self.table.max_subjects >= len(SUBJECTS):
                assert said == last
            if said is None and not self.unnoticed:
                assert not self.table.is_complete
        assert len(self.table) <= self.table.max_subjects
        # What was written last is known.
        for offset, subject in self.committed[-1:]:
            if self.scanned and not self.groups and not self.has_erased:
                is_gone = offset in self.tombstones or offset < self.table.expired_below
                assert self.table.last_offset(subject) == (0 if is_gone else offset)
        assert live <= set(SUBJECTS)
        if (count := self.table.count()) is not None and not self.unnoticed:
            newest = {name: offset for offset, name in sorted(self.committed)}
            gone = self.tombstones
            start = self.table.expired_below
            assert count == sum(one not in gone and one >= start for one in newest.values())


@settings(max_examples=examples(3))
@given(STEPS, st.sampled_from([1, 2, 3, 5, 10]), st.sampled_from([1, 1, 4, 9]))
def test_never_a_wrong_offset(steps: list[Any], max_subjects: int, known_from: int) -> None:
    world = World(max_subjects, known_from)
    for step in steps:
        if isinstance(step, list):
            world.run(step)
        elif isinstance(step, tuple):
            getattr(world, step[0])(*step[1:])
        else:
            getattr(world, step.replace(" ", "_"))()
        world.check()
    world.scan(set(), 0)
    world.check()
