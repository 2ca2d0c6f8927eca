"""Reads of one replica for another, and the result there; gaps; starting over."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from support.disks.logs import (
    BASE_NS,
    DIRECTORY,
    SMALL,
    FakeClock,
    Promises,
    append,
    create,
    encode,
    environment,
    flip,
    read_all,
    reopen,
)
from support.disks.simfs import Fault, MachineStopped, SimFileSystem

from liftlog.errors import CorruptRange, OffsetOutOfRange, StorageError
from liftlog.log import EncodedBatch, Log, LogConfig, LogSlice, OsFileSystem
from liftlog.log.files.manifest import NOT_SYNCED, SKIPPED, QuarantinedRange, epoch_before
from liftlog.log.read.reading import Gap
from liftlog.records import encode_batch, iter_batches

REPLICA = replace(SMALL, replicated=True)
ONE_FILE = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None, replicated=True)
COPY = DIRECTORY.with_name("copy")


def _log(groups: int = 8, config: LogConfig = REPLICA) -> tuple[SimFileSystem, Log]:
    fs = SimFileSystem()
    log = create(fs, config=config)
    for _ in range(groups):
        append(log, Promises(), 2, 1)
        log.sync()
    return fs, log


def _empty_batch(log: Log, size: int) -> EncodedBatch:
    """Return a batch without records, as compaction leaves it."""
    base = log.log_end_offset
    raw = encode_batch(
        base_offset=base, last_offset=base + size - 1, leader_epoch=log.leader_epoch,
        commit_group=log.writer.commit_group, stamps=[], subjects=[], values=[],
    )  # fmt: skip
    return EncodedBatch(raw, base, base + size, 0, BASE_NS, BASE_NS)


def _follow(leader: Log, follower: Log, max_bytes: int = 300) -> list[Gap]:
    """Copy all records. Damage is examined as in the daemon."""
    gaps = []
    while True:
        offset = follower.log_end_offset
        told: CorruptRange | None
        try:
            found = leader.read_replica(offset, max_bytes)
        except CorruptRange as damage:
            told = damage
        else:
            told = None
        if told is not None:
            assert told.first_offset == offset < told.next_offset
            leader.quarantine_damage(told.first_offset, told.next_offset)
            continue
        if found is None:
            assert follower.log_end_offset == leader.log_end_offset
            return gaps
        if isinstance(found, Gap):
            assert found.first_offset == offset
            gaps.append(found)
            follower.writer.append_gap(found.next_offset, found.reason, is_loss=found.is_loss)
            continue
        with found:
            assert found.first_offset <= offset < found.next_offset <= leader.log_end_offset
            follower.writer.append_raw(found.pread())
            assert follower.log_end_offset == found.next_offset
        follower.sync()


def _follower(fs: SimFileSystem, config: LogConfig = REPLICA) -> Log:
    return create(fs, directory=COPY, config=config)


def _same(leader: Log, follower: Log) -> None:
    for log in (leader, follower):
        log.sync()
        log.commit_up_to(log.log_end_offset)
        assert log.high_watermark == log.log_end_offset
    assert read_all(follower) == read_all(leader)
    ranges = [
        sorted(
            (bad.first_offset, bad.next_offset)
            for bad in log.view.manifest.quarantined
            if bad.is_loss
        )
        for log in (leader, follower)
    ]
    assert ranges[0] == ranges[1]


# --- reading ---


@pytest.mark.parametrize("config", [REPLICA, ONE_FILE], ids=["many segments", "one segment"])
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_a_replica_reads_all_that_was_written(config: LogConfig, max_bytes: int) -> None:
    fs, log = _log(8, config)
    log.append([_empty_batch(log, 5)])
    append(log, Promises(), 3)
    log.append([_empty_batch(log, 2)])
    assert log.durable_end_offset < log.log_end_offset
    assert log.high_watermark == 1
    whole = b"".join(fs.read(one.path)[: one.size_bytes] for one in log.segments)
    batches = list(iter_batches(whole))
    for offset in range(1, log.log_end_offset):
        found = log.read_replica(offset, max_bytes)
        assert isinstance(found, LogSlice)
        with found:
            raw = found.pread()
            first = next(one for one in batches if one.next_offset > offset)
            assert found.first_offset == first.header.base_offset <= offset < found.next_offset
            assert raw in whole
            assert len(raw) <= max(max_bytes, first.size_bytes)
            assert next(iter_batches(raw)).next_offset == first.next_offset
            assert list(iter_batches(raw))[-1].next_offset == found.next_offset
    assert log.read_replica(log.log_end_offset, max_bytes) is None
    for outside in (0, log.log_end_offset + 1):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read_replica(outside, max_bytes)
        bounds = {"log_start_offset": 1, "log_end_offset": log.log_end_offset}
        assert caught.value.details == bounds


def test_a_replica_reads_from_the_first_stored_batch_below_the_log_start() -> None:
    _, log = _log(8)
    log.commit_up_to(log.log_end_offset)
    start = log.segments[2].base_offset + 1
    log.structure.remove_before(start, 1)
    first = log.segments[0].base_offset
    assert 1 < first < log.log_start_offset == start
    found = log.read_replica(first, 1 << 20)
    assert isinstance(found, LogSlice)
    with found:
        assert found.first_offset == first
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read_replica(first - 1, 100)
    assert caught.value.details["log_start_offset"] == first == log.view.first_stored_offset


def test_a_replica_knows_the_epochs_of_all_that_it_stores_and_of_the_record_before() -> None:
    """By these epochs it detects whether another replica has another history."""
    _, log = _log(2)
    for epoch in range(2, 12):
        log.writer.begin_epoch(epoch)
        append(log, Promises(), 2, 1, 2)
        log.sync()
    log.commit_up_to(log.log_end_offset)
    whole = log.view.manifest.epochs
    assert log.segment_count > 3
    for number in range(1, log.segment_count):
        first = log.segments[1].base_offset
        log.structure.remove_before(log.high_watermark, 1)
        assert log.view.first_stored_offset == first
        kept = [one for one in whole if one in log.view.manifest.epochs]
        assert kept == list(log.view.manifest.epochs) == list(whole[-len(kept) :])
        assert kept[0][1] < first
        assert len(kept) == 1 or kept[1][1] >= first, f"more than needed after {number}"


def test_an_answer_ends_where_an_epoch_begins() -> None:
    _, log = _log(2, ONE_FILE)
    log.writer.begin_epoch(5)
    log.append([_empty_batch(log, 3)])
    found = log.read_replica(1, 1 << 20)
    assert isinstance(found, LogSlice)
    with found:
        assert found.next_offset == 7
    found = log.read_replica(8, 1 << 20)
    assert isinstance(found, LogSlice)
    with found:
        assert [one.header.leader_epoch for one in iter_batches(found.pread())] == [5]


def test_a_replica_reads_beside_a_writer_that_rolls(tmp_path: Path) -> None:
    log = Log.create(
        tmp_path / "orders",
        environment(OsFileSystem(), FakeClock()),
        LogConfig(segment_max_bytes=1500, segment_max_age_ns=None, replicated=True),
    )
    total = 700

    def write() -> None:
        for i in range(total):
            log.append([encode(log, [b"%d" % i])])
            if i % 7 == 0:
                log.sync()

    writer = threading.Thread(target=write)
    writer.start()
    offset, seen = 1, []
    while offset <= total:
        found = log.read_replica(offset, 500)
        if found is None:
            continue
        assert isinstance(found, LogSlice)
        with found:
            for batch in iter_batches(found.pread()):
                seen += batch.values()
            offset = found.next_offset
    writer.join()
    assert seen == [b"%d" % i for i in range(total)]
    assert log.segment_count > 20
    log.close()


# --- gaps ---


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("where", [0, 1, -1])
def test_damage_becomes_a_gap_of_the_same_offsets(where: int, committed: bool) -> None:
    fs, leader = _log(8)
    if committed:
        leader.commit_up_to(leader.log_end_offset)
    segment = leader.segments[where]
    flip(fs, segment.path, 70)
    flip(fs, segment.path, 5)  # of the header: it can be told without reading the body
    follower = _follower(fs)
    gaps = _follow(leader, follower)
    (gap,) = gaps
    assert (gap.first_offset, gap.next_offset) == (segment.base_offset, segment.base_offset + 2)
    assert gap.is_loss
    assert follower.view.manifest.quarantined[0].reason == gap.reason
    _same(leader, follower)
    assert follower.segment_count >= 2


def test_bad_bytes_are_refused_and_examined_and_then_a_gap() -> None:
    """A body with a wrong checksum is sent with the slice, and the follower detects it."""
    fs, leader = _log(4, ONE_FILE)
    flip(fs, leader.segments[0].path, 70)
    follower = _follower(fs)
    found = leader.read_replica(1, 1 << 20)
    assert isinstance(found, LogSlice)
    with found:
        with pytest.raises(Exception, match="checksum"):
            follower.writer.append_raw(found.pread())
        found.quarantine()
    assert leader.is_quarantined(1, 3)
    assert [gap[:2] for gap in _follow(leader, follower)] == [(1, 3)]
    _same(leader, follower)


def test_a_missing_file_is_a_gap_and_what_follows_is_copied() -> None:
    fs, leader = _log(8)
    lost = leader.segments[1]
    fs.remove(lost.path)
    leader, _ = reopen(fs.kill(), config=REPLICA)
    follower = _follower(fs)
    gaps = _follow(leader, follower)
    assert [gap[:2] for gap in gaps] == [(lost.base_offset, lost.next_offset)]
    _same(leader, follower)


def test_skipped_offsets_and_losses_beside_each_other_stay_apart() -> None:
    """A leader whose log had no replicas before: it skipped offsets, and lost some acked ones."""
    fs, leader = _log(2, ONE_FILE)
    end = leader.log_end_offset
    for size, reason, is_loss in [(10, SKIPPED, False), (5, "rot", True), (7, NOT_SYNCED, True)]:
        leader.writer.append_gap(leader.log_end_offset + size, reason, is_loss=is_loss)
    append(leader, Promises(), 2)
    leader.writer.append_gap(leader.log_end_offset + 3, "anything", is_loss=False)
    follower = _follower(fs, ONE_FILE)
    found = [(*gap[:2], gap.is_loss) for gap in _follow(leader, follower)]
    assert found == [
        (end, end + 10, False),
        (end + 10, end + 15, True),
        (end + 15, end + 22, True),
        (end + 24, end + 27, False),
    ]
    _same(leader, follower)
    assert follower.log_end_offset == end + 27
    # A reader of either is told of the losses, and passes over the rest.
    for log in (leader, follower):
        with pytest.raises(CorruptRange) as caught:
            log.read(end, 100)
        assert (caught.value.first_offset, caught.value.next_offset) == (end + 10, end + 15)
    again, report = reopen(fs.kill(), directory=COPY, config=ONE_FILE)
    assert report.incomplete == ""
    assert again.log_end_offset == end + 27
    assert [gap[:2] for gap in _follow(again, create(SimFileSystem(), config=REPLICA))] == [
        one[:2] for one in found
    ]


def test_overlapping_ranges_make_gaps_that_follow_each_other() -> None:
    _, log = _log(2, ONE_FILE)
    end = log.log_end_offset
    log.writer.append_gap(end + 10, SKIPPED, is_loss=False)
    name = log.segments[0].path.name
    position = log.segments[0].size_bytes
    for first, following in ((end + 2, end + 4), (end + 3, end + 6)):
        bad = QuarantinedRange(first, following, name, position, position, "rot")
        log._state.store(
            log.view.manifest.with_changes(quarantined=(*log.view.manifest.quarantined, bad))
        )
    found = []
    while log.log_end_offset > (found[-1][1] if found else end):
        gap = log.read_replica(found[-1][1] if found else end, 100)
        assert isinstance(gap, Gap)
        found.append((gap.first_offset, gap.next_offset, gap.is_loss))
    assert [(one[0] - end, one[1] - end, one[2]) for one in found] == [
        (0, 2, False),
        (2, 4, True),
        (4, 6, True),
        (6, 10, False),
    ]


def test_a_gap_is_not_committed_before_it_is() -> None:
    fs, log = _log(2, ONE_FILE)
    end = log.log_end_offset
    log.writer.append_gap(end + 10, "rot", is_loss=True)
    assert (log.high_watermark, log.durable_end_offset) == (1, end + 10)
    assert log.commit_up_to(end + 5) == end
    append(log, Promises(), 1)
    log.sync()
    assert log.commit_up_to(end + 10) == end + 10
    assert log.commit_up_to(end + 11) == end + 11
    again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=ONE_FILE)
    assert again.log_end_offset == end + 11
    with pytest.raises(ValueError, match="a gap up to"):
        log.writer.append_gap(end + 11, "rot", is_loss=True)


def test_a_log_can_be_cut_inside_and_before_a_gap() -> None:
    for cut in (-1, 0, 5, 10):
        fs, log = _log(2, ONE_FILE)
        end = log.log_end_offset
        log.writer.append_gap(end + 10, "rot", is_loss=True)
        append(log, Promises(), 1)
        reached = log.truncate_suffix(end + cut)
        assert reached == {-1: end - 1, 0: end, 5: end, 10: end + 10}[cut]
        assert bool(log.view.manifest.quarantined) is (cut == 10)
        again, report = reopen(fs.power_cut("none"), boot="boot-2", config=ONE_FILE)
        assert (again.log_end_offset, report.incomplete) == (reached, "")


def test_the_epochs_of_a_gap_are_known_wherever_the_machine_stops() -> None:
    fs, log = _log(2, ONE_FILE)
    end, known = log.log_end_offset, log.view.manifest.epochs
    in_gap = ((7, end + 1), (9, end + 4))
    fs.stop_at = fs.operations
    while True:
        fs.stop_at += 1
        copy = fs.power_cut("all")
        other, _ = reopen(copy, boot="boot-1", config=ONE_FILE)
        copy.stop_at = copy.operations + fs.stop_at - fs.operations
        try:
            other.writer.append_gap(end + 10, "rot", is_loss=True, epochs=(*known, *in_gap))
        except MachineStopped:
            again, _ = reopen(copy.power_cut("some"), boot="boot-2", config=ONE_FILE)
            assert again.log_end_offset in (end, end + 10)
            if again.log_end_offset == end + 10:
                assert again.last_epoch == 9
            else:
                again.writer.append_gap(end + 10, "rot", is_loss=True, epochs=in_gap)
                assert again.last_epoch == 9
            assert again.view.manifest.epochs == (*known, *in_gap)
        else:
            assert (other.last_epoch, other.view.manifest.epochs) == (9, (*known, *in_gap))
            return


def test_a_gap_that_cannot_be_noted_changes_nothing() -> None:
    fs, log = _log(2, ONE_FILE)
    end = log.log_end_offset
    fs.faults = [Fault("rename", path="manifest")]
    with pytest.raises(StorageError):
        log.writer.append_gap(end + 10, "rot", is_loss=True)
    assert (log.log_end_offset, log.view.manifest.quarantined) == (end, ())
    log.writer.append_gap(end + 12, "rot", is_loss=True)
    assert [bad.next_offset for bad in log.view.manifest.quarantined] == [end + 12]


# --- starting over ---


@pytest.mark.parametrize("step", [-3, 0, 40])
def test_a_log_that_starts_over_is_empty_there(step: int) -> None:
    fs, log = _log(8)
    log.commit_up_to(log.log_end_offset - 4)
    state, old = log.checkpoint(), log.log_end_offset
    offset = old + step
    log.start_over(offset, tombstones_removed_below=offset + 2)
    ends = (log.log_start_offset, log.high_watermark, log.durable_end_offset, log.log_end_offset)
    assert ends == (offset,) * 4
    assert (log.view.manifest.epochs, log.last_epoch, log.view.manifest.quarantined) == ((), 0, ())
    assert log.view.manifest.tombstones_removed_below == offset + 2
    assert log.end_of_epoch(1) == (0, offset)
    assert log.segment_count == 1
    source = create(SimFileSystem(), directory=COPY, config=REPLICA)
    source.start_over(offset)
    source.writer.begin_epoch(3)
    promises = Promises()
    for _ in range(5):
        append(source, promises, 2)
    _follow(source, log)
    assert log.view.manifest.epochs == source.view.manifest.epochs == ((3, offset),)
    assert log.commit_up_to(offset + 4) == offset + 4
    again, report = reopen(
        fs.power_cut("none"), boot="boot-2", config=REPLICA, recovery_point=state
    )
    assert (again.log_start_offset, again.log_end_offset) == (offset, offset + 10)
    assert report.incomplete == ""
    _same(source, again)


def test_a_log_that_started_over_can_be_compared_with_one_that_ends_there() -> None:
    _, leader = _log(8)
    leader.commit_up_to(leader.log_end_offset)
    leader.structure.remove_before(leader.high_watermark, 2)
    first = leader.view.first_stored_offset
    assert first > 1
    fs = SimFileSystem()
    follower = _follower(fs)
    follower.start_over(first, epoch_before=epoch_before(leader.view.manifest.epochs, first))
    assert (follower.last_epoch, follower.log_end_offset) == (1, first)
    leader.writer.begin_epoch(4)
    append(leader, Promises(), 2)
    _follow(leader, follower)
    assert follower.view.manifest.epochs == ((1, first - 1), (4, leader.log_end_offset - 2))
    again, _ = reopen(fs.power_cut("none"), directory=COPY, boot="boot-2", config=REPLICA)
    for log in (leader, follower, again):
        assert [log.end_of_epoch(epoch)[0] for epoch in (1, 3, 4)] == [1, 1, 4]
        assert log.end_of_epoch(1)[1] == leader.log_end_offset - 2


@pytest.mark.parametrize("step", [-3, 0, 40])
def test_a_stop_while_starting_over_leaves_the_old_log_or_the_new_one(step: int) -> None:
    outcomes = []
    stop_at: int | None = 0
    while stop_at is not None:
        fs, log = _log(4)
        log.commit_up_to(log.log_end_offset)
        state, old = log.checkpoint(), read_all(log)
        end = log.log_end_offset
        before = fs.operations
        fs.stop_at = before + stop_at
        try:
            log.start_over(end + step)
            stop_at = None
        except MachineStopped:
            stop_at += 1
        for image, boot in [
            *((fs.power_cut(keep, before), "boot-2") for keep in ("none", "all", "some", "last")),
            (fs.kill(), "boot-1"),
        ]:
            again, report = reopen(image, boot=boot, config=REPLICA, recovery_point=state)
            assert report.incomplete == ""
            is_new = again.view.manifest.lineage != log.incarnation
            outcomes.append(is_new)
            if is_new:
                assert (again.log_start_offset, again.log_end_offset) == (end + step, end + step)
                assert read_all(again) == {}
            else:
                again.commit_up_to(end)
                assert read_all(again) == old
            append(again, Promises(), 2)
            again.sync()
            third, report = reopen(image.power_cut("none"), boot="boot-3", config=REPLICA)
            assert (third.log_end_offset, report.incomplete) == (again.log_end_offset, "")
    assert set(outcomes) == {True, False}
    assert outcomes[-1]


def test_starting_over_that_fails_changes_nothing() -> None:
    fs, log = _log(4)
    log.commit_up_to(log.log_end_offset)
    old, end = read_all(log), log.log_end_offset
    fs.faults = [Fault("rename", path="manifest", times=2)]
    with pytest.raises(StorageError):
        log.start_over(1)
    fs.faults = []
    assert (log.high_watermark, log.log_end_offset) == (end, end)
    assert read_all(log) == old
    append(log, Promises(), 2)
    log.sync()
    log.start_over(1)
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    assert all(one <= other for one, other in pairwise(sorted(old)))


def test_a_gap_is_read_when_all_before_it_is_deleted() -> None:
    """It may not be committed yet, so another replica may still need it."""
    fs, log = _log(2)
    log.writer.roll()
    end = log.log_end_offset
    log.commit_up_to(end)
    log.writer.append_gap(end + 5, "rot", is_loss=False)
    append(log, Promises(), 1)
    log.structure.remove_before(end, len(log.segments) - 1)
    assert [one.base_offset for one in log.segments] == [end + 5]
    assert log.log_start_offset == log.high_watermark == end
    assert log.view.first_stored_offset == end
    assert log.read_replica(end, 100) == Gap(end, end + 5, SKIPPED, False)
    with pytest.raises(OffsetOutOfRange):
        log.read_replica(end - 1, 100)
    follower = _follower(fs)
    follower.start_over(end)
    assert [gap.next_offset for gap in _follow(log, follower)] == [end + 5]
