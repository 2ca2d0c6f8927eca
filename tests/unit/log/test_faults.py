"""Operations that fail on purpose: no half-finished change stays, and no acked record is lost."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from support.disks.logs import (
    DIRECTORY,
    SMALL,
    Promises,
    append,
    check,
    commit,
    create,
    encode,
    read_all,
    reopen,
    set_manifest,
)
from support.disks.simfs import Fault, MachineStopped, SimFileSystem

from liftlog.errors import DiskFull, StorageError, SyncFailed
from liftlog.log import Log, LogConfig

BIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)
READ_ONLY = Fault("truncate", error=errno.EROFS)


def _log(groups: int = 3, config: LogConfig = BIG) -> tuple[SimFileSystem, Log, Promises]:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=config)
    for _ in range(groups):
        commit(log, promises, 3)
    return fs, log, promises


def _survives(fs: SimFileSystem, promises: Promises, config: LogConfig = BIG) -> None:
    for image in (fs.power_cut("none"), fs.power_cut("all"), fs.power_cut("some", 1)):
        again, _ = reopen(image, boot="boot-2", config=config)
        check(again, promises)


@pytest.mark.parametrize("short", [None, 0, 1, 70, 200])
def test_a_failed_write_is_rolled_back(short: int | None) -> None:
    fs, log, promises = _log()
    size = log.segments[-1].size_bytes
    end = log.log_end_offset
    # A short write is gone on with; so the second one fails.
    fs.faults = [Fault("write")]
    if short is not None:
        fs.faults.insert(0, Fault("write", short=short))
    with pytest.raises(StorageError):
        append(log, promises, 2, 2)
    assert log.log_end_offset == end
    assert log.view.size_bytes == size
    assert fs.read(log.segments[-1].path) == fs.read(log.segments[-1].path)[:size]
    _survives(fs, promises)
    commit(log, promises, 4)
    check(log, promises)
    _survives(fs, promises)


def test_short_writes_are_gone_on_with() -> None:
    fs, log, promises = _log()
    fs.faults = [Fault("write", short=10), Fault("write", short=1)]
    commit(log, promises, 2, 5)
    check(log, promises)
    _survives(fs, promises)


def test_a_full_disk_refuses_and_then_goes_on() -> None:
    fs, log, promises = _log()
    fs.free_bytes = 100
    rows = log.log_end_offset
    with pytest.raises(DiskFull):
        append(log, promises, 3000)  # more than was allocated ahead
    assert log.log_end_offset == rows
    _survives(fs, promises)
    fs.free_bytes = None
    commit(log, promises, 3)
    _survives(fs, promises)


def test_what_a_failed_roll_back_left_is_removed_before_the_next_append() -> None:
    """Otherwise its second batch would continue an acked group with rejected messages."""
    fs, log, promises = _log()
    base = log.log_end_offset
    value = b"same length"
    fs.faults = [
        Fault("write", short=100_000),
        Fault("write"),
        Fault("truncate"),
    ]
    nacked = [encode(log, [value], first=base), encode(log, [b"NACKED"], first=base + 1)]
    total = sum(len(batch.data) for batch in nacked)
    fs.faults[0].short = total - 1
    with pytest.raises(StorageError):
        log.append(nacked)
    assert b"NACKED" in fs.read(log.segments[-1].path)
    log.append([encode(log, [value], first=base)])
    log.commit_up_to(log.sync())
    again, _ = reopen(fs.kill(), config=BIG)
    assert read_all(again)[base] == value
    assert base + 1 not in read_all(again)
    assert promises.acked.items() <= read_all(again).items()


def test_appends_stop_while_leftovers_cannot_be_removed() -> None:
    fs, log, promises = _log()
    fs.faults = [Fault("write"), Fault("truncate", error=errno.EPERM, times=2)]
    with pytest.raises(StorageError):
        append(log, promises, 1)
    with pytest.raises(StorageError):
        append(log, promises, 1)
    commit(log, promises, 1)
    _survives(fs, promises)


def test_appends_leave_a_file_whose_last_page_cannot_be_read() -> None:
    """If the kernel has dropped the page, it has to read the page before it adds bytes to it or
    cuts it."""
    fs, log, promises = _log()
    active = log.segments[-1]
    fs.lose_page(active.path, active.size_bytes)
    with pytest.raises(StorageError):
        append(log, promises, 1)
    commit(log, promises, 1)
    assert log.segments[-1].path != active.path
    assert log.log_end_offset == max(promises.acked) + 1
    commit(log, promises, 2)
    again, _ = reopen(fs.kill())
    lost = range(active.base_offset, active.next_offset)
    again.quarantine_damage(lost.start, lost.stop)
    assert again.is_quarantined(lost.start, lost.stop)
    check(again, promises, lost=lost)


@pytest.mark.parametrize("groups", [0, 3])
@pytest.mark.parametrize("keep", [False, True])
def test_after_a_failed_sync_nothing_behind_the_last_good_one_is_trusted(
    keep: bool, groups: int
) -> None:
    fs, log, promises = _log(groups)
    durable = log.log_end_offset
    append(log, promises, 2)
    append(log, promises, 3)
    fs.faults = [Fault("fsync", path=".log")]
    with pytest.raises(SyncFailed):
        log.sync()
    assert log.high_watermark == durable
    _survives(fs, promises)
    log.writer.abandon_tail(keep_offsets=keep)
    assert log.log_end_offset == (durable + 5 if keep else durable)
    assert log.durable_end_offset == log.log_end_offset
    assert log.high_watermark == log.log_end_offset
    lost = [(bad.first_offset, bad.next_offset) for bad in log.view.manifest.quarantined]
    assert lost == ([(durable, durable + 5)] if keep else [])
    assert sum(segment.record_count for segment in log.segments) == 3 * groups
    check(log, promises)
    commit(log, promises, 2)
    commit(log, promises, 1, 1)
    found = check(log, promises)
    assert sorted(found) == [
        *range(1, durable),
        *range(log.log_end_offset - 4, log.log_end_offset),
    ]
    _survives(fs, promises)
    state = log.close()
    again, report = reopen(fs.kill(), clean=state, config=BIG)
    assert report.clean
    check(again, promises)


def test_starting_anew_may_fail_too_and_be_tried_again() -> None:
    fs, log, promises = _log()
    durable = log.log_end_offset
    append(log, promises, 2)
    fs.faults = [Fault("fsync", path=".log"), Fault("create", path=".log")]
    with pytest.raises(SyncFailed):
        log.sync()
    with pytest.raises(StorageError):
        log.writer.abandon_tail(keep_offsets=True)
    _survives(fs, promises)
    log.writer.abandon_tail(keep_offsets=True)
    assert len(log.view.manifest.quarantined) == 1
    assert log.segments[0].record_count == 9
    assert log.log_end_offset == durable + 2
    commit(log, promises, 2)
    _survives(fs, promises)


@pytest.mark.parametrize(
    ("groups", "second"),
    [
        (3, READ_ONLY),
        (3, Fault("create", path=".log")),
        (0, Fault("create", path=".log")),
        (3, Fault("rename", path="manifest")),
        (0, Fault("rename", path="manifest")),
    ],
)
def test_a_log_ends_where_it_is_durable_though_the_disk_takes_no_new_segment(
    groups: int, second: Fault
) -> None:
    """A replica reports the end of its log to the others, which rely on it."""
    fs, log, promises = _log(groups)
    durable = log.log_end_offset
    append(log, promises, 2)
    append(log, promises, 300)  # enough for entries of the index
    fs.faults = [Fault("fsync", path=".log"), replace(second, times=2)]
    with pytest.raises(SyncFailed):
        log.sync()
    for _ in range(2):
        with pytest.raises(StorageError):
            log.writer.abandon_tail(keep_offsets=False)
        assert log.log_end_offset == log.durable_end_offset == log.sync() == durable
        assert log.commit_up_to(durable + 300) == durable
        check(log, promises)
        _survives(fs, promises)
    commit(log, promises, 1)
    assert log.log_end_offset == durable + 1
    commit(log, promises, 2, 1)
    check(log, promises)
    assert not log.view.manifest.quarantined
    _survives(fs, promises)
    state = log.close()
    again, report = reopen(fs.kill(), clean=state, config=BIG)
    assert report.clean
    check(again, promises)


def test_a_file_whose_sync_failed_is_not_synced_again() -> None:
    """Another sync would succeed although the data of the first one are lost."""
    fs, log, promises = _log()
    append(log, promises, 2)
    fs.faults = [Fault("fsync", path=".log")]
    for _ in range(2):
        with pytest.raises(SyncFailed):
            log.sync()
    assert log.close() is None, "not a clean stop"
    again, report = reopen(fs.kill(), config=BIG)
    assert not report.clean
    check(again, promises)


def test_a_sync_that_fails_is_never_repeated_as_if_nothing_had_been() -> None:
    """The simulated disk drops the pages, like Linux, so a second fsync would succeed."""
    fs, log, promises = _log()
    append(log, promises, 2)
    fs.faults = [Fault("fsync", path=".log")]
    with pytest.raises(SyncFailed):
        log.sync()
    log.writer.abandon_tail(keep_offsets=False)
    commit(log, promises, 3)
    _survives(fs, promises)


_STEPS = [
    Fault("fsync", path=".log"),
    Fault("create", path=".index"),
    Fault("write", path=".index"),
    Fault("fsync", path=".index"),
    Fault("create", path=".log"),
    Fault("create", path="manifest"),
    Fault("write", path="manifest", error=errno.ENOSPC),
    Fault("fsync", path="manifest"),
    Fault("rename", path="manifest"),
    Fault("rename", path="manifest", after=True),
    Fault("fsync-directory"),
]


def fill_segment(log: Log, promises: Promises) -> None:
    """Append until the next append begins another segment."""
    while not log.writer.must_roll(400, 0):
        commit(log, promises, 1)


@pytest.mark.parametrize("step", range(len(_STEPS)))
@pytest.mark.parametrize("what", ["roll", "retention", "metadata", "reserve"])
def test_any_step_of_a_change_of_structure_may_fail(what: str, step: int) -> None:
    fs, log, promises = _log(12, SMALL)
    template = _STEPS[step]
    fault = Fault(template.operation, template.error, template.path, after=template.after)
    if what == "roll":
        fill_segment(log, promises)
    if what == "reserve":
        set_manifest(log, reserved_offset=log.log_end_offset)
    fs.faults = [fault]
    end = log.log_end_offset
    try:
        if what in ("roll", "reserve"):
            rows = append(log, promises, 8 if what == "roll" else 1)
            log.commit_up_to(log.sync())
            promises.acked.update(rows)
        elif what == "retention":
            promises.start = log.segments[1].base_offset
            log.structure.remove_before(promises.start, 1)
        else:
            log.structure.set_metadata({"n": 1})
    except SyncFailed:
        log.writer.abandon_tail(keep_offsets=False)
    except (StorageError, DiskFull):
        assert log.log_end_offset == end
    fs.faults = []
    check(log, promises)
    _survives(fs, promises, SMALL)
    for _ in range(6):
        commit(log, promises, 3)
    check(log, promises)
    _survives(fs, promises, SMALL)
    state = log.close()
    again, _ = reopen(fs.kill(), clean=state)
    check(again, promises)


def test_a_manifest_in_doubt_is_settled_before_anything_is_appended() -> None:
    """The manifest was renamed, but its directory is not synced. The disk may already list the
    segment as sealed."""
    fs, log, promises = _log(12, SMALL)
    fill_segment(log, promises)
    fs.faults = [Fault("rename", path="manifest", after=True)]
    with pytest.raises(StorageError):
        append(log, promises, 8)
    fs.faults = [Fault("fsync", path="manifest", times=3)]
    with pytest.raises(StorageError):
        append(log, promises, 1)
    fs.faults = []
    commit(log, promises, 1)
    again, _ = reopen(fs.power_cut("all"), boot="boot-2")
    check(again, promises)
    assert fs.open_files == 2 + len(log.environment.pool)


def test_retention_goes_on_when_a_file_cannot_be_unlinked() -> None:
    fs, log, promises = _log(12, SMALL)
    victim = log.segments[0].path
    fs.faults = [Fault("unlink", path=".log")]
    promises.start = log.segments[2].base_offset
    assert log.structure.remove_before(promises.start, 2) > 0
    assert fs.exists(victim)
    check(log, promises)
    again, _ = reopen(fs.kill())
    assert not again.environment.fs.exists(victim), "the next start removes it"


def test_retention_refuses_what_makes_no_sense() -> None:
    _, log, promises = _log(12, SMALL)
    assert log.structure.remove_before(2, log.segment_count) == 0
    assert log.log_start_offset == 2, "no file goes that holds more than what is below it"
    with pytest.raises(ValueError, match="high watermark"):
        log.structure.remove_before(log.high_watermark + 1, 0)
    log.structure.remove_before(5, 0)
    assert log.structure.remove_before(3, 0) == 0
    assert log.log_start_offset == 5
    promises.start = 5
    assert set(check(log, promises)) == set(range(5, log.log_end_offset))


def test_a_tail_that_cannot_be_kept_aside_is_cut_all_the_same() -> None:
    fs, log, promises = _log()
    append(log, promises, 3)
    path = log.segments[-1].path
    image = fs.power_cut("all")
    image.replace(path, image.read(path)[: log.segments[-1].size_bytes - 9])
    image.faults = [Fault("write", path=".broken", error=errno.ENOSPC)]
    again, report = reopen(image, boot="boot-2", config=BIG)
    check(again, promises)
    assert report.cut_bytes > 0
    assert "could not be kept" in report.events[-1]


def test_a_close_that_fails_leaves_no_clean_state() -> None:
    fs, log, promises = _log()
    append(log, promises, 3)
    fs.faults = [Fault("fsync", path=".log")]
    assert log.close() is None
    assert log.close() is None
    _survives(fs, promises)
    assert fs.open_files == 0


def test_a_new_stream_is_durable_when_create_returns() -> None:
    fs = SimFileSystem()
    create(fs)
    again, _ = reopen(fs.power_cut("none"), boot="boot-2")
    assert (again.log_start_offset, again.log_end_offset) == (1, 1)
    for stop_at in range(fs.operations):
        trial = SimFileSystem()
        trial.stop_at = stop_at
        with pytest.raises(MachineStopped):
            create(trial)


def test_the_oldest_manifest_fields_survive_every_rewrite() -> None:
    fs, log, promises = _log(12, SMALL)
    log.structure.set_metadata({"subject": "orders.>"})
    for _ in range(10):
        commit(log, promises, 3)
    again, _ = reopen(fs.power_cut("none"), boot="boot-2")
    assert again.view.manifest.metadata == {"subject": "orders.>"}
    assert again.incarnation == log.incarnation
    assert fs.exists(DIRECTORY / "manifest")
