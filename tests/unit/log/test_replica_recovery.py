"""Starts of a log that is one of several replicas, and its reports to the other replicas."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from support.disks.logs import DIRECTORY, SMALL, Promises, append, create, encode, read_all, reopen
from support.disks.simfs import Fault, Keep, MachineStopped, SimFileSystem

from liftlog.errors import StorageError
from liftlog.log import ActiveState, Log, LogConfig, RecoveryReport
from liftlog.log.files.manifest import read_manifest
from liftlog.log.read.slices import LogSlice
from liftlog.records import iter_batches

REPLICA = replace(SMALL, replicated=True)
ONE_FILE = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None, replicated=True)


def _written(
    groups: int, config: LogConfig = ONE_FILE, *, synced: bool = True
) -> tuple[SimFileSystem, Log, list[int]]:
    """Return a replica with groups of two uncommitted batches, and the ends of its batches."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=config)
    ends = [1]
    for _ in range(groups):
        append(log, promises, 2, 1)
        ends += [log.log_end_offset - 1, log.log_end_offset]
        if synced:
            log.sync()
    return fs, log, ends


def _open(
    fs: SimFileSystem,
    boot: str = "boot-1",
    *,
    clean: ActiveState | None = None,
    point: ActiveState | None = None,
    config: LogConfig = ONE_FILE,
) -> tuple[Log, RecoveryReport]:
    return reopen(fs, boot=boot, clean=clean, recovery_point=point, config=config)


def _position(fs: SimFileSystem, log: Log, offset: int) -> int:
    """Return the position of the batch of `offset` in the active segment."""
    active = log.segments[-1]
    batches = iter_batches(fs.read(active.path)[: active.size_bytes])
    sizes = [one.size_bytes for one in batches if one.next_offset <= offset]
    return sum(sizes)


def _hurt(fs: SimFileSystem, log: Log, offset: int) -> None:
    """Flip a bit of the batch of `offset` in the active segment."""
    path, position = log.segments[-1].path, _position(fs, log, offset)
    raw = bytearray(fs.read(path))
    raw[position + 70] ^= 1
    fs.replace(path, bytes(raw))


# --- the high watermark ---


def test_a_start_does_not_commit_the_hole_with_which_a_log_begins() -> None:
    """The hole may not be the leader's: the leader may have a record there, and this log would have
    to be cut below its high watermark."""
    fs = SimFileSystem()
    log = create(fs, config=ONE_FILE)
    append(log, Promises(), 3)
    log.sync()
    assert log.commit_up_to(4) == 4
    log.writer.append_gap(7, "skipped", is_loss=False, epochs=())
    log.structure.remove_before(4, 1)
    assert (log.high_watermark, log.log_end_offset, log.segments[0].base_offset) == (4, 7, 7)
    for boot in ("boot-2", "boot-3"):
        log, _ = _open(fs.power_cut("none"), boot)
        fs = log.environment.fs  # type: ignore[assignment]
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (4, 4, 7)
    assert log.commit_up_to(6) == 4, "not before the end of the hole"
    assert log.truncate_suffix(4) == log.log_end_offset == log.high_watermark == 4
    append(log, Promises(), 2)
    log.sync()
    assert log.commit_up_to(6) == 6
    assert sorted(read_all(log)) == [4, 5]


@pytest.mark.parametrize("config", [REPLICA, ONE_FILE], ids=["many segments", "one segment"])
@pytest.mark.parametrize("how", ["clean", "point", "killed"])
def test_a_start_commits_nothing_and_all_can_be_committed_later(
    config: LogConfig, how: str
) -> None:
    _, whole, ends = _written(12, config)
    assert whole.high_watermark == 1, "a replica's own fsync commits nothing"
    for committed in range(1, whole.log_end_offset + 2, 3):
        fs, log, _ = _written(12, config)
        high = log.commit_up_to(committed)
        state = log.close() if how == "clean" else log.checkpoint()
        clean, point = (state, None) if how == "clean" else (None, state)
        if how == "killed":
            log.writer.begin_epoch(2)  # stores the high watermark
            point = None
        again, report = _open(fs.kill(), clean=clean, point=point, config=config)
        assert report.clean is (how == "clean")
        assert again.high_watermark == high == max(end for end in ends if end <= committed)
        assert again.log_end_offset == again.durable_end_offset == ends[-1]
        assert set(read_all(again)) == set(range(1, high))
        if how != "killed":  # a boundary of batches suffices, it need not be one of appends
            for offset in range(high, ends[-1] + 2):
                assert again.commit_up_to(offset) == max(end for end in ends if end <= offset)
        assert again.commit_up_to(ends[-1]) == ends[-1]
        assert set(read_all(again)) == set(range(1, ends[-1]))


def test_without_any_mark_the_start_of_the_log_is_committed() -> None:
    fs, _, ends = _written(3)
    again, report = _open(fs.power_cut("none"), "boot-2")
    assert (again.high_watermark, again.log_end_offset) == (1, ends[-1])
    assert report.incomplete == again.view.manifest.incomplete == ""


def test_a_replica_commits_no_more_than_what_is_durable() -> None:
    _, log, ends = _written(2, synced=False)
    assert log.commit_up_to(ends[-1]) == 1
    log.sync()
    assert log.commit_up_to(ends[-1]) == ends[-1]


def test_alone_again_all_is_committed() -> None:
    fs, log, ends = _written(3)
    state = log.close()
    again, _ = _open(fs.kill(), clean=state, config=replace(ONE_FILE, replicated=False))
    assert again.high_watermark == ends[-1]


# --- epochs ---


def test_a_replica_invents_no_epoch() -> None:
    fs, log, ends = _written(2)
    log.writer.begin_epoch(4)
    append(log, Promises(), 1)
    log.sync()
    log.writer.begin_epoch(7)
    again, _ = _open(fs.power_cut("none"), "boot-2")
    assert again.view.manifest.epochs == ((1, 1), (4, ends[-1])), "of epoch 7 there is no record"
    assert (again.leader_epoch, again.last_epoch) == (7, 4)


def test_an_epoch_whose_records_were_lost_is_forgotten() -> None:
    fs, log, ends = _written(2)
    append(log, Promises(), 2)
    log.writer.begin_epoch(3)
    append(log, Promises(), 2)
    again, _ = _open(fs.power_cut("none"), "boot-2")
    assert again.log_end_offset == ends[-1]
    assert again.view.manifest.epochs == ((1, 1),)
    again.append([encode(again, [b"x"])])
    assert again.sync() == ends[-1] + 1


# --- the end ---


@pytest.mark.parametrize("killed", [True, False])
def test_every_byte_of_an_unconfirmed_tail_may_be_missing(killed: bool) -> None:
    fs, log, ends = _written(2)
    start = log.active_state().position
    append(log, Promises(), 2, 1)
    path, end = log.segments[-1].path, log.segments[-1].size_bytes
    whole = fs.read(path)[:end]
    reached = set()
    for length in range(start, end + 1):
        for filler in (b"", b"\0" * 100, b"\xff" * 20):
            trial = fs.power_cut("all")
            trial.replace(path, whole[:length] + filler)
            again, report = _open(trial, "boot-1" if killed else "boot-2")
            assert again.log_end_offset in (ends[-1], ends[-1] + 2, ends[-1] + 3)
            assert (again.log_end_offset == ends[-1] + 3) is (
                length == end or (whole[length:].strip(b"\0") == b"" and filler[:1] == b"\0")
            )
            assert (
                again.view.manifest.incomplete,
                again.view.manifest.quarantined,
                again.high_watermark,
            ) == ("", (), 1)
            assert again.view.manifest.lineage == again.incarnation
            kept = [name for name in trial.list_directory(DIRECTORY) if "broken" in name]
            assert bool(kept) is bool(report.cut_bytes)
            reached.add(again.log_end_offset)
    assert reached == {ends[-1], ends[-1] + 2, ends[-1] + 3}


def test_the_log_is_cut_at_the_first_damage_though_good_batches_follow() -> None:
    fs, log, ends = _written(2)
    for _ in range(3):
        append(log, Promises(), 2)
    image = fs.power_cut("all")
    _hurt(image, log, ends[-1])
    again, report = _open(image, "boot-2")
    assert again.log_end_offset == ends[-1]
    assert report.cut_bytes
    assert (again.view.manifest.incomplete, again.view.manifest.quarantined) == ("", ())


@pytest.mark.parametrize("witness", ["slot", "point", "clean", "watermark"])
def test_a_replica_that_lost_what_it_confirmed_says_so_until_it_is_told_otherwise(
    witness: str,
) -> None:
    fs, log, ends = _written(4)
    point = log.checkpoint() if witness == "point" else None
    clean = None
    if witness == "watermark":
        log.commit_up_to(ends[-1])
        log.writer.begin_epoch(2)
    if witness == "clean":
        clean = log.close()
    image = fs.power_cut("all")
    if witness != "slot":
        image.remove(DIRECTORY / "acked")
    if witness in ("point", "clean"):  # what lies below them is not looked at
        path, position = log.segments[-1].path, _position(image, log, ends[-2])
        image.replace(path, image.read(path)[: position + 10])
    else:
        _hurt(image, log, ends[-2])
    boot = "boot-2"
    again, report = _open(image, boot, clean=clean, point=point)
    assert again.log_end_offset == ends[-2]
    assert again.high_watermark <= again.log_end_offset
    assert "confirmed" in report.incomplete
    assert again.view.manifest.incomplete == report.incomplete
    assert again.view.manifest.lineage != again.incarnation
    assert again.view.manifest.quarantined == ()
    assert set(read_all(again)) == set(range(1, again.high_watermark))
    # Whatever is fetched again meanwhile, the next starts say the same.
    end = again.log_end_offset
    append(again, Promises(), 3)
    again.sync()
    for _ in range(2):
        again, second = _open(image, boot, point=point)
        assert second.incomplete == report.incomplete
        assert again.log_end_offset == end + 3
    again.structure.note_complete()
    again, third = _open(image, boot, point=point)
    assert (third.incomplete, again.view.manifest.incomplete) == ("", "")
    found = read_manifest(image, DIRECTORY)
    assert found is not None
    assert found.incomplete == ""


@pytest.mark.parametrize("damage", ["flip", "page", "end", "file"])
def test_a_stop_during_the_recovery_loses_no_word_of_what_is_missing(damage: str) -> None:
    fs, log, ends = _written(4)
    image, path = fs.power_cut("all"), log.segments[-1].path
    raw = image.read(path)
    if damage == "flip":
        _hurt(image, log, ends[-3])
    elif damage == "page":
        image.lose_page(path, log.segments[-1].size_bytes - 1)
    elif damage == "end":
        image.replace(path, raw[: log.segments[-1].size_bytes - 50])
    else:
        image.remove(path)
    reasons = set()
    stop_at: int | None = 0
    keeps: list[Keep] = ["none", "all", "some", "last"]
    while stop_at is not None:
        trial = image.power_cut("all")
        trial.stop_at = stop_at
        try:
            _open(trial, "boot-1")
            stop_at = None
        except MachineStopped:
            stop_at += 1
        images = [(trial.power_cut(keep, stop_at or 0), "boot-2") for keep in keeps]
        for second, boot in [*images, (trial.kill(), "boot-1")]:
            again, report = _open(second, boot)
            reasons.add(report.incomplete)
            assert again.log_end_offset < ends[-1]
            append(again, Promises(), 2)
            again.sync()
            third, report = _open(second.power_cut("none"), "boot-3")
            assert report.incomplete
            assert third.log_end_offset == again.log_end_offset
    assert "" not in reasons


def test_a_sealed_segment_that_is_gone_makes_the_replica_incomplete() -> None:
    fs, log, ends = _written(12, REPLICA)
    assert log.segment_count > 3
    log.commit_up_to(ends[-1])
    lost = log.segments[1]
    image = fs.power_cut("all")
    image.remove(lost.path)
    again, report = _open(image, "boot-2", config=REPLICA)
    assert "sealed" in report.incomplete
    assert again.is_quarantined(lost.base_offset, lost.next_offset)
    assert again.log_end_offset == ends[-1], "what lies behind is kept: the rest can be mended"


def test_a_slot_that_cannot_be_read_makes_the_replica_incomplete() -> None:
    fs, log, ends = _written(2)
    image = fs.kill()
    image.faults = [Fault("pread", path="acked", times=99)]
    again, report = _open(image)
    assert "acked" in report.incomplete
    assert again.log_end_offset == ends[-1]
    assert log.log_end_offset == ends[-1]


def test_kills_and_power_cuts_leave_no_replica_incomplete() -> None:
    keeps: list[Keep] = ["none", "all", "some", "last"]
    for groups in range(1, 8):
        fs, log, ends = _written(groups, REPLICA)
        append(log, Promises(), 2, 2)
        for seed, keep in enumerate(keeps):
            again, report = _open(fs.power_cut(keep, seed), "boot-2", config=REPLICA)
            assert report.incomplete == ""
            assert again.log_end_offset >= ends[-1]
        again, report = _open(fs.kill(), config=REPLICA)
        assert report.incomplete == ""
        assert again.log_end_offset == ends[-1] + 4


def test_the_slot_is_written_before_a_sync_returns() -> None:
    fs, log, ends = _written(1)
    append(log, Promises(), 3)
    before = fs.operations
    log.sync()
    calls = fs.operations - before
    for stop in range(calls):
        fs, log, ends = _written(1)
        append(log, Promises(), 3)
        fs.stop_at = fs.operations + stop
        with pytest.raises(MachineStopped):
            log.sync()
    assert calls == 2, "fdatasync and slot"
    assert ends[-1] == 4


def test_a_replica_is_not_cut_below_its_high_watermark() -> None:
    _, log, ends = _written(3)
    high = log.commit_up_to(ends[4])
    assert high == ends[4]
    with pytest.raises(ValueError, match="below its high watermark"):
        log.truncate_suffix(high - 1)
    assert log.truncate_suffix(ends[5]) == ends[5]
    assert log.truncate_suffix(high) == log.log_end_offset == high == log.high_watermark
    assert log.truncate_suffix(ends[3], below_high_watermark=True) == ends[3] == log.high_watermark


def test_a_failed_sync_gives_up_what_was_not_durable_and_not_what_was_confirmed() -> None:
    fs, log, ends = _written(2)
    append(log, Promises(), 2)
    fs.faults = [Fault("fsync", path=".log")]
    with pytest.raises(StorageError):
        log.sync()
    log.writer.abandon_tail(keep_offsets=False)
    assert log.log_end_offset == ends[-1]
    append(log, Promises(), 1)
    log.sync()
    again, report = _open(fs.power_cut("none"), "boot-2")
    assert (again.log_end_offset, report.incomplete) == (ends[-1] + 1, "")
    assert all(one < other for one, other in pairwise(sorted(ends)))


def test_what_a_failed_sync_gave_up_is_no_part_of_a_later_epoch() -> None:
    """The disk could not store a new segment, so the old file is still active, and the given-up
    records follow the end of the log in it."""
    fs, log, ends = _written(2)
    log.writer.roll()
    append(log, Promises(), 2)
    fs.faults = [Fault("fsync", path=".log")]
    with pytest.raises(StorageError):
        log.sync()
    fs.faults = [Fault("create", path=".log")]
    with pytest.raises(StorageError):
        log.writer.abandon_tail(keep_offsets=False)
    fs.faults = []
    log.writer.begin_epoch(2)
    again, report = _open(fs.kill())
    assert (again.log_end_offset, report.incomplete) == (ends[-1], "")
    assert report.cut_bytes
    reached = 1
    while (found := again.read_replica(reached, 1)) is not None:
        assert isinstance(found, LogSlice)
        with found:
            reached = found.next_offset
    assert reached == ends[-1]
