"""Records that are too old, until they may be older again."""

from __future__ import annotations

import time

from liftlog.sequencing.subject_sequences import Notes, SubjectSequences


def test_what_was_too_old_is_found_again_when_it_is_not_any_more() -> None:
    table = SubjectSequences(10, known_from=1, log_start_offset=lambda: 1)
    notes = Notes(table)
    table.note_run(notes, [b"a", b"b"], 1)
    table.committed(notes)
    assert not table.expire(2)
    assert table.count() == 1
    assert table.last_offset(b"a") == 0
    assert not table.expire(3)
    assert table.count() == 0

    assert table.expire(1), "a scan is needed"
    assert table.count() is None
    assert table.last_offset(b"a") is None
    assert table.last_committed(b"a") is None

    scan = table.new_scan()
    scan.add([b"a", b"b"], [1, 2])
    scan.end = 3
    assert table.adopt(scan)
    assert table.count() == 2
    assert table.last_offset(b"a") == 1


def test_no_scan_for_what_is_still_noted() -> None:
    table = SubjectSequences(10, known_from=1, log_start_offset=lambda: 1)
    notes = Notes(table)
    table.note_run(notes, [b"a", b"b"], 1)
    table.committed(notes)
    assert not table.expire(2)
    assert not table.expire(0)
    assert table.last_offset(b"a") == 1


def test_many_subjects_are_forgotten_at_once() -> None:
    """The time is proportional to their number, because the event loop waits for it."""
    count, log_start = 30_000, 1
    table = SubjectSequences(count, known_from=1, log_start_offset=lambda: log_start)
    notes = Notes(table)
    table.note_run(notes, [b"s.%d" % number for number in range(count)], 1)
    table.committed(notes)
    assert table.count() == count
    log_start = count - 1
    began = time.process_time()
    assert table.count() == 2
    assert time.process_time() - began < 0.5
    assert table.last_offset(b"s.0") == 0
    assert table.last_offset(b"s.%d" % (count - 1)) == count
