"""The acked-end slot when its own writes fail: errors instead of signals, and no false acked
end."""

from __future__ import annotations

import errno

import pytest
from support.disks.logs import DIRECTORY, Promises, append, check, commit, create, reopen
from support.disks.simfs import Fault, SimFileSystem

from liftlog.errors import DiskFull, StorageError
from liftlog.log import Log, LogConfig
from liftlog.log.files.acked_end import ACKED_END_NAME, AckedEnd, AckedEndFile, read_acked_end

BIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)
BOOT = "boot-1"


def _slot(fs: SimFileSystem) -> AckedEnd | None:
    return read_acked_end(fs, DIRECTORY, "lineage", boot_id=BOOT)


def _log(commits: int = 3) -> tuple[SimFileSystem, Log, Promises]:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    for _ in range(commits):
        commit(log, promises, 2)
    return fs, log, promises


@pytest.mark.parametrize("written", range(28))
def test_a_torn_update_leaves_the_one_before_it(written: int) -> None:
    """However often an update is torn, the next update does not overwrite the only intact entry."""
    fs = SimFileSystem()
    fs.make_directory(DIRECTORY)
    slot = AckedEndFile(fs, DIRECTORY, "lineage", boot_id=BOOT)
    slot.update(7)
    slot.update(8)
    for _ in range(3):
        fs.faults = [Fault("write", path=ACKED_END_NAME, short=written)]
        slot.update(9)
        assert slot.in_doubt
        assert _slot(fs) == (8, True)
    slot.write_pending()
    assert not slot.in_doubt
    assert _slot(fs) == (9, True)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_nothing_is_appended_while_the_slot_cannot_say_so(error: int) -> None:
    """Stored records stay acked. New messages are refused before a byte of them is written."""
    fs, log, promises = _log()
    fs.faults = [Fault("write", error=error, path=ACKED_END_NAME, times=3)]
    commit(log, promises, 2)
    check(log, promises)
    end, size = log.log_end_offset, log.segments[-1].size_bytes
    for _ in range(2):
        with pytest.raises((DiskFull, StorageError)):
            append(log, Promises(), 2)
        assert (log.log_end_offset, log.segments[-1].size_bytes) == (end, size)
    again, report = reopen(fs.kill(), config=BIG)
    assert again.log_end_offset == end
    assert not again.view.manifest.quarantined
    assert report.cut_bytes == 0
    check(again, promises)
    commit(log, promises, 2)
    state = read_acked_end(fs, DIRECTORY, log.view.manifest.lineage, boot_id=BOOT)
    assert state == (log.log_end_offset, True)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_log_opens_and_is_read_though_the_slot_cannot_be_written(error: int) -> None:
    fs, log, promises = _log()
    state = log.close()
    image = fs.kill()
    image.faults = [Fault("write", error=error, path=ACKED_END_NAME, times=2)]
    again, _ = reopen(image, clean=state, config=BIG)
    check(again, promises)
    with pytest.raises((DiskFull, StorageError)):
        append(again, Promises(), 1)
    commit(again, promises, 1)
    check(again, promises)


def test_an_unreadable_slot_is_told_and_made_again() -> None:
    fs, log, promises = _log()
    image = fs.kill()
    image.faults = [Fault("pread", path=ACKED_END_NAME, times=2)]
    again, report = reopen(image, config=BIG)
    assert any("acked cannot be read" in event for event in report.events)
    assert again.log_end_offset == log.log_end_offset
    check(again, promises)
    commit(again, promises, 2)
    assert read_acked_end(image, DIRECTORY, again.view.manifest.lineage, boot_id=BOOT) == (
        again.log_end_offset,
        True,
    )


def test_a_disk_that_needs_room_to_overwrite() -> None:
    """Like btrfs: the segment has its space, the slot has none."""
    fs, log, promises = _log()
    fs.copy_on_write = {ACKED_END_NAME}
    fs.free_bytes = 0
    commit(log, promises, 1)
    with pytest.raises(DiskFull):
        append(log, Promises(), 1)
    check(log, promises)
    fs.free_bytes = None
    commit(log, promises, 1)
    check(log, promises)
    again, _ = reopen(fs.kill(), config=BIG)
    check(again, promises)
