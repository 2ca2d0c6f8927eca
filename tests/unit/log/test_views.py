"""The view that readers use: consistent, and unchanged when a change fails."""

from __future__ import annotations

import errno
import threading

import pytest
from support.disks.logs import (
    SMALL,
    Promises,
    append,
    commit,
    create,
    read_all,
)
from support.disks.simfs import Fault, SimFileSystem

from liftlog.errors import DiskFull, StorageError, SyncFailed
from liftlog.log import Log


def _log(groups: int = 12) -> tuple[SimFileSystem, Log, Promises]:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=SMALL)
    for _ in range(groups):
        commit(log, promises, 3)
    return fs, log, promises


def test_nothing_past_the_high_watermark_is_readable_or_measured() -> None:
    """Also in segments that begin after it, because replicas may lag by several segments."""
    _, log, promises = _log(3)
    committed = log.high_watermark
    for _ in range(12):
        append(log, promises, 3)
    log.sync()
    assert log.segment_count > 3
    assert log.high_watermark == committed
    view = log.view
    assert max(view.readable_end(segment).offset for segment in view.segments[1:]) <= max(
        committed, view.segments[-1].base_offset
    )
    assert all(
        view.readable_end(segment).position == 0
        for segment in view.segments
        if segment.base_offset >= committed
    )
    assert log.extents(1, 1)[-1].next_offset == committed
    assert log.read(committed, 1000) is None
    assert log.view.record_count == committed - 1


def test_an_old_view_stays_what_it_was() -> None:
    _, log, promises = _log(2)
    view = log.view
    active = view.segments[-1]
    before = (view.committed, view.record_count, len(view.active_index))
    assert not active.sealed
    log.writer.roll()
    for _ in range(8):
        commit(log, promises, 3)
    assert not active.sealed
    assert (view.committed, view.record_count, len(view.active_index)) == before
    assert log.segments[0].sealed
    assert log.segments[0].path == active.path


@pytest.mark.parametrize(
    "fault",
    [
        Fault("create", path=".index", error=errno.ENOSPC),
        Fault("fsync", path=".index", error=errno.ENOSPC),
        Fault("create", path=".log"),
        Fault("fsync-directory"),
        Fault("fsync", path="manifest"),
        Fault("rename", path="manifest"),
    ],
    ids=lambda fault: f"{fault.operation} {fault.path}",
)
@pytest.mark.parametrize("change", ["roll", "abandon", "abandon-acked", "cut", "skip", "drop"])
def test_a_change_that_fails_leaves_the_view_and_the_active_segment(
    change: str, fault: Fault
) -> None:
    fs, log, promises = _log()
    while log.segments[-1].record_count != 6:  # two groups are durable in the active segment
        commit(log, promises, 3)
    active = log.segments[-1]
    durable = (log.log_end_offset, active.size_bytes, active.record_count)
    append(log, promises, 2)
    assert log.segments[-1] is active
    if change.startswith("abandon"):
        fs.faults = [Fault("fsync", path=".log")]
        with pytest.raises(SyncFailed):
            log.sync()
    changes = {
        "roll": log.writer.roll,
        "abandon": lambda: log.writer.abandon_tail(keep_offsets=False),
        "abandon-acked": lambda: log.writer.abandon_tail(keep_offsets=True),
        "cut": lambda: log.truncate_suffix(log.high_watermark - 1),
        "skip": lambda: log.writer.skip_to(log.log_end_offset + 10),
        "drop": lambda: log.truncate_prefix(log.log_end_offset + 10),
    }
    ends = (log.log_end_offset, log.high_watermark)
    view, segment = log.view, log.segments[-1]
    numbers = [segment.size_bytes, segment.next_offset, segment.record_count]
    if change == "abandon":  # what the sync has lost is no part of the log any more
        ends = (durable[0], log.high_watermark)
        numbers = [durable[1], durable[0], durable[2]]
    entries = len(view.active_index)
    fs.faults = [Fault(fault.operation, fault.error, fault.path)]
    try:
        changes[change]()
    except (StorageError, DiskFull):
        assert log.view.segments is view.segments
        assert log.view.manifest is view.manifest
        assert log.view.committed == view.committed
        assert (log.log_end_offset, log.high_watermark) == ends
        assert [segment.size_bytes, segment.next_offset, segment.record_count] == numbers
        assert len(log.view.active_index) == entries
    else:
        # No step of this change goes that way: no index of an empty log is written.
        assert fs.faults
        assert change == "drop"
    fs.faults = []
    changes[change]()  # it may be tried again
    assert log.view.segments is not view.segments


def test_commits_and_changes_of_other_threads_do_not_undo_each_other() -> None:
    _, log, promises = _log(1)
    stop = threading.Event()
    failures: list[BaseException] = []
    written = 0

    def change() -> None:
        nonlocal written
        try:
            while not stop.is_set():
                written += 1
                log.structure.set_metadata({"n": written})
                assert log.view.manifest.metadata == {"n": written}
        except BaseException as error:
            failures.append(error)

    other = threading.Thread(target=change)
    other.start()
    try:
        for _ in range(300):
            commit(log, promises, 1)
            assert log.high_watermark == log.log_end_offset
    finally:
        stop.set()
        other.join()
    assert not failures
    assert log.view.manifest.metadata == {"n": written}
    assert len(read_all(log)) == log.view.record_count == log.log_end_offset - 1
