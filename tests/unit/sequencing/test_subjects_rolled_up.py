"""Subjects whose records were all erased at once, by a roll-up."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from liftlog.sequencing.subject_sequences import Notes, SubjectSequences

COUNT = 100_000


def table_of(subjects: list[bytes], *, gone: set[int] | None = None) -> SubjectSequences:
    hidden = set[int]() if gone is None else gone
    table = SubjectSequences(
        COUNT, known_from=1, log_start_offset=lambda: 1, hides=lambda offset: offset in hidden
    )
    notes = Notes(table)
    table.note_run(notes, subjects, 1)
    table.committed(notes)
    return table


def test_all_subjects_of_a_large_table_at_once() -> None:
    """The event loop waits for it, so it takes little time, also when it is repeated."""
    table = table_of([b"s.%d" % number for number in range(COUNT)])
    began = time.process_time()
    for _ in range(10):
        table.erased_below(COUNT)
    assert time.process_time() - began < 0.2
    assert table.count() == 1
    assert table.last_offset(b"s.0") == 0
    assert table.last_offset(b"s.%d" % (COUNT - 1)) == COUNT


def test_a_scan_that_began_before_adds_no_erased_record() -> None:
    table = table_of([b"a", b"b", b"c"])
    scan = table.new_scan()
    scan.add([b"a", b"b", b"c"], [1, 2, 3])
    scan.end = 4
    table.erased_below(3)
    assert table.adopt(scan)
    assert table.count() == 1
    assert (table.last_offset(b"a"), table.last_offset(b"c")) == (0, 3)


def test_a_dropped_subject_after_the_rollup_stays_unknown() -> None:
    """The table has no place for a later record: it must not count as missing."""
    table = table_of([b"a", b"b", b"c", b"d"])
    table.resize(1)
    table.erased_below(3)
    assert table.last_offset(b"c") is None
    assert table.last_offset(b"d") == 4


@pytest.mark.parametrize("seed", range(20))
def test_the_same_as_one_by_one(seed: int) -> None:
    """Beside erasures of single records, both calls leave what a simple model leaves."""
    chance = random.Random(seed)
    subjects = [b"s.%d" % chance.randrange(12) for _ in range(40)]
    gone = set[int]()
    table = table_of(subjects, gone=gone)
    left = dict(enumerate(subjects, 1))

    def last(subject: bytes) -> int:
        return max([at for at, one in left.items() if one == subject], default=0)

    for _ in range(12):
        match chance.randrange(3):
            case 0 if left:
                at = chance.choice(list(left))
                subject, was_last = left[at], last(left[at]) == at
                del left[at]
                gone.add(at)
                if was_last:
                    assert table.erased(subject, at, last(subject))
            case 1:
                wanted = {b"s.%d" % chance.randrange(12) for _ in range(3)}
                some = [at for at, one in left.items() if one in wanted]
                gone.update(some)
                for at in some:
                    del left[at]
                erased = np.array(some, np.int64)
                table.erased_whole(lambda offsets, erased=erased: np.isin(offsets, erased))  # type: ignore[misc]
            case _:
                below = chance.randrange(1, 30)
                gone.update(at for at in left if at < below)
                left = {at: one for at, one in left.items() if at >= below}
                table.erased_below(below)
        for subject in set(subjects):
            known = table.last_offset(subject)
            assert known == last(subject)
        assert table.count() == len(set(left.values()))
