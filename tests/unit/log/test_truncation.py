"""Truncating a log at either end, appending batches of another log, and continuing after that."""

from __future__ import annotations

import pytest
from support.disks.logs import (
    BASE_NS,
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
)
from support.disks.simfs import Fault, MachineStopped, SimFileSystem

from liftlog.errors import (
    CorruptBatch,
    OffsetOutOfRange,
    StorageError,
    SyncFailed,
    UnsupportedFormat,
)
from liftlog.log import Log, LogConfig
from liftlog.log.files.acked_end import AckedEnd, AckedEndFile
from liftlog.log.files.manifest import read_manifest
from liftlog.log.segment.index import index_path, read_index
from liftlog.records import encode_batch, iter_batches

BIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)


def _written(groups: int = 12, config: LogConfig = SMALL) -> tuple[SimFileSystem, Log, Promises]:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=config)
    for i in range(groups):
        commit(log, promises, 3, stamp=BASE_NS + i)
    return fs, log, promises


def _boundary(offset: int) -> int:
    """Batches have three records; the first offset is 1."""
    return offset - (offset - 1) % 3


@pytest.mark.parametrize("config", [SMALL, BIG], ids=["many segments", "one segment"])
def test_the_suffix_goes_at_every_offset(config: LogConfig) -> None:
    _, whole, _ = _written(12, config)
    for offset in range(1, whole.log_end_offset + 3):
        fs, log, promises = _written(12, config)
        state = log.checkpoint()
        end = log.truncate_suffix(offset)
        assert end == log.log_end_offset == min(_boundary(offset), whole.log_end_offset)
        assert (log.high_watermark, log.durable_end_offset) == (end, end)
        if end == whole.log_end_offset:
            assert log.view.manifest.lineage == log.incarnation
            continue
        promises.become(promises.without(end))
        check(log, promises)
        assert log.segments[-1].base_offset == end
        assert sum(segment.record_count for segment in log.segments) == end - 1
        # An old recovery point, and a slot that says more was acked: neither brings it back.
        for image in (fs.kill(), fs.power_cut("none"), fs.power_cut("all")):
            again, _ = reopen(image, boot="boot-1", recovery_point=state, config=config)
            check(again, promises)
            assert again.log_end_offset == end
        log = again
        for _ in range(12):
            commit(log, promises, 2)
        check(log, promises)
        again, _ = reopen(
            log.environment.fs.power_cut("none"),  # type: ignore[attr-defined]
            boot="boot-3",
            recovery_point=state,
            config=config,
        )
        check(again, promises)


def test_what_was_cut_is_neither_in_the_file_nor_in_the_index() -> None:
    fs, log, promises = _written()
    old = log.segments[1]
    sizes = old.size_bytes, old.record_count, old.max_timestamp_ns
    log.truncate_suffix(old.base_offset + 4)
    rest = log.segments[-2]
    assert rest.path == old.path
    assert 0 < rest.size_bytes < sizes[0]
    assert (rest.record_count, rest.next_offset) == (3, old.base_offset + 3)
    assert rest.max_timestamp_ns < sizes[2]
    assert len(fs.read(rest.path)) == rest.size_bytes
    file = fs.open(rest.path, writable=False)
    index = read_index(fs, file, rest, log.incarnation)
    assert index is not None
    assert index.after_position(rest.size_bytes - 1) is None
    assert rest.sealed
    for segment in log.segments[:-1]:
        assert fs.exists(index_path(segment.path))
    names = {segment.path.name for segment in log.segments}
    assert {name for name in fs.list_directory(DIRECTORY) if name.endswith(".log")} == names
    promises.become(promises.without(log.log_end_offset))
    check(log, promises)


def test_no_file_name_comes_twice() -> None:
    _, log, promises = _written()
    seen = {segment.path.name for segment in log.segments}
    for offset in (31, 19, 19, 7, 1):
        before = {segment.path.name for segment in log.segments}
        promises.become(promises.without(log.truncate_suffix(offset)))
        fresh = {segment.path.name for segment in log.segments} - before
        for _ in range(9):
            commit(log, promises, 3)
            fresh |= {segment.path.name for segment in log.segments} - before
        assert not fresh & seen
        seen |= fresh
        check(log, promises)


def test_an_uncommitted_tail_goes_and_what_stays_can_still_be_committed() -> None:
    _, log, promises = _written(2, BIG)
    rows = append(log, promises, 3, 3, 3)
    assert log.high_watermark == 7
    assert log.truncate_suffix(13) == 13
    assert log.high_watermark == 7
    log.commit_up_to(13)
    assert log.high_watermark == 13
    promises.become(promises.without(13))
    promises.acked.update((offset, value) for offset, value in rows if offset < 13)
    check(log, promises)
    commit(log, promises, 2)
    check(log, promises)


def test_the_suffix_in_and_around_a_hole() -> None:
    for offset, end in ((10, 10), (12, 10), (15, 15), (16, 15)):
        fs, log, promises = _written(3, BIG)
        append(log, promises, 5)
        fs.faults = [Fault("fsync", path=".log")]
        with pytest.raises(SyncFailed):
            log.sync()
        log.writer.abandon_tail(keep_offsets=True)
        assert [(q.first_offset, q.next_offset) for q in log.view.manifest.quarantined] == [
            (10, 15)
        ]
        commit(log, promises, 3)
        assert log.truncate_suffix(offset) == end
        assert len(log.view.manifest.quarantined) == (end == 15)
        promises.become(promises.without(end))
        for _ in range(3):
            commit(log, promises, 2)
            check(log, promises)
        again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=BIG)
        check(again, promises)
        assert again.log_end_offset == end + 6


def test_a_segment_that_is_gone_is_cut_as_well() -> None:
    fs, log, promises = _written()
    victim = log.segments[1]
    state = log.close()
    image = fs.kill()
    image.remove(victim.path)
    log, _ = reopen(image, clean=state)
    assert log.truncate_suffix(victim.next_offset + 4) == victim.next_offset + 3
    assert len(log.view.manifest.quarantined) == 1
    assert log.truncate_suffix(victim.base_offset + 1) == victim.base_offset
    assert not log.view.manifest.quarantined
    promises.become(promises.without(victim.base_offset))
    commit(log, promises, 4)
    check(log, promises)


def test_the_suffix_cannot_go_below_what_is_stored() -> None:
    _, log, promises = _written()
    base = log.segments[1].base_offset
    log.structure.remove_before(base + 4, 1)
    with pytest.raises(OffsetOutOfRange):
        log.truncate_suffix(base - 1)
    # The batch that holds the log start goes as a whole, and nothing readable is left.
    assert log.truncate_suffix(base + 5) == base + 3
    assert log.log_start_offset == log.log_end_offset == base + 3
    promises.become(promises.without(base + 3))
    commit(log, promises, 4)
    assert sorted(read_all(log)) == list(range(base + 3, base + 7))


@pytest.mark.parametrize("offset", [4, 5, 6])
def test_the_suffix_goes_in_the_hole_with_which_a_log_begins(offset: int) -> None:
    """The leader of a replica had no records before 7, and retention deleted the segment before
    that."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    commit(log, promises, 3)
    log.writer.append_gap(7, "skipped", is_loss=False, epochs=((2, 4),))
    commit(log, promises, 3)
    log.structure.remove_before(4, 1)
    promises.start = 4
    assert (log.view.first_stored_offset, log.segments[0].base_offset) == (4, 7)
    with pytest.raises(OffsetOutOfRange):
        log.truncate_suffix(3)
    assert log.truncate_suffix(offset) == log.log_end_offset == log.view.first_stored_offset == 4
    assert not log.view.manifest.quarantined
    promises.become(promises.without(4))
    commit(log, promises, 4)
    check(log, promises)
    again, _ = reopen(fs.power_cut("none"), boot="boot-2")
    check(again, promises)
    assert sorted(read_all(again)) == [4, 5, 6, 7]


def test_the_epoch_cache_follows() -> None:
    fs, log, promises = _written(3, BIG)
    for boot in (2, 3):
        log, _ = reopen(fs.power_cut("none"), boot=f"boot-{boot}", config=BIG)
        assert isinstance(log.environment.fs, SimFileSystem)
        fs = log.environment.fs
        commit(log, promises, 3)
    assert log.view.manifest.epochs == ((1, 1), (2, 10), (3, 13))
    assert [log.epoch_end(epoch) for epoch in range(5)] == [1, 10, 13, 16, 16]
    log.truncate_suffix(13)
    assert log.view.manifest.epochs == ((1, 1), (2, 10)), "no record of epoch 3 is left"
    log.writer.begin_epoch(3)
    assert log.view.manifest.epochs == ((1, 1), (2, 10), (3, 13))
    log.truncate_suffix(11)
    assert log.view.manifest.epochs == ((1, 1),)
    assert (log.leader_epoch, log.last_epoch) == (3, 1)
    log.writer.begin_epoch(3)
    assert log.view.manifest.epochs == ((1, 1), (3, 10))
    assert [log.epoch_end(epoch) for epoch in range(5)] == [1, 10, 10, 10, 10]
    promises.become(promises.without(10))
    commit(log, promises, 3, 2)
    assert log.epoch_end(1) == 10
    log.structure.remove_before(12, 0)
    assert log.view.manifest.epochs == ((3, 10),)
    again, _ = reopen(fs.power_cut("none"), boot="boot-4", config=BIG)
    assert again.view.manifest.epochs == ((3, 10), (4, 15))


def test_an_epoch_begins_at_the_log_end_and_is_on_disk_before_its_first_record() -> None:
    fs, log, promises = _written(2, BIG)
    before = fs.operations
    log.writer.begin_epoch(1)
    assert fs.operations == before, "it was noted already"
    log.writer.begin_epoch(4)
    assert log.view.manifest.epochs == ((1, 1), (4, 7))
    assert (log.leader_epoch, log.last_epoch) == (4, 1)
    found = read_manifest(fs.power_cut("none"), DIRECTORY)
    assert found is not None
    assert (found.leader_epoch, found.epochs, found.high_watermark) == (
        4,
        log.view.manifest.epochs,
        7,
    )
    with pytest.raises(ValueError, match="3 is older than 4"):
        log.writer.begin_epoch(3)
    log.writer.begin_epoch(6)
    assert log.view.manifest.epochs == ((1, 1), (6, 7)), "epoch 4 has no record here"
    commit(log, promises, 2)
    assert log.last_epoch == 6
    check(reopen(fs.power_cut("none"), boot="boot-2", config=BIG)[0], promises)


def test_an_epoch_that_could_not_be_noted_has_not_begun() -> None:
    fs, log, promises = _written(2, BIG)
    fs.faults = [Fault("rename", path="manifest")]
    with pytest.raises(StorageError):
        log.writer.begin_epoch(2)
    assert (log.leader_epoch, log.view.manifest.epochs) == (1, ((1, 1),))
    fs.faults = []
    log.writer.begin_epoch(2)
    commit(log, promises, 1)
    assert [batch.header.leader_epoch for batch in iter_batches(_bytes(log))] == [1, 1, 2]


def test_where_an_epoch_ends() -> None:
    _, log, promises = _written(1, BIG)
    assert [log.end_of_epoch(epoch) for epoch in range(3)] == [(0, 1), (1, 4), (1, 4)]
    for epoch in (3, 5):
        log.writer.begin_epoch(epoch)
        commit(log, promises, 2)
    assert log.view.manifest.epochs == ((1, 1), (3, 4), (5, 6))
    expected = [(0, 1), (1, 4), (1, 4), (3, 6), (3, 6), (5, 8), (5, 8)]
    assert [log.end_of_epoch(epoch) for epoch in range(7)] == expected
    log.structure.remove_before(7, 0)
    assert [log.end_of_epoch(epoch) for epoch in (4, 5)] == [(0, 6), (5, 8)]


def test_a_log_may_be_given_its_incarnation() -> None:
    fs = SimFileSystem()
    assert create(fs, incarnation="of all replicas").incarnation == "of all replicas"
    assert reopen(fs.kill())[0].incarnation == "of all replicas"


@pytest.mark.parametrize("config", [SMALL, BIG], ids=["many segments", "one segment"])
def test_the_prefix_goes_at_every_offset(config: LogConfig) -> None:
    _, whole, _ = _written(12, config)
    for offset in range(whole.log_end_offset + 40):
        fs, log, promises = _written(12, config)
        state = log.checkpoint()
        log.truncate_prefix(offset)
        end = max(whole.log_end_offset, offset)
        assert (log.log_start_offset, log.log_end_offset) == (max(offset, 1), end)
        assert log.high_watermark == end
        promises.start = max(offset, 1)
        promises.end = end
        assert set(check(log, promises)) == set(range(max(offset, 1), whole.log_end_offset))
        assert all(segment.next_offset > offset for segment in log.segments[:-1])
        if offset >= end:
            assert log.view.size_bytes == 0
        for image in (fs.kill(), fs.power_cut("none")):
            again, _ = reopen(image, boot="boot-1", recovery_point=state, config=config)
            assert again.log_start_offset == max(offset, 1)
            assert again.log_end_offset == end
            check(again, promises)
        commit(again, promises, 2)
        assert set(read_all(again)) >= {end, end + 1}


def test_the_prefix_cannot_end_in_an_uncommitted_tail() -> None:
    _, log, promises = _written(2)
    append(log, promises, 3)
    with pytest.raises(ValueError, match="uncommitted"):
        log.truncate_prefix(8)
    log.truncate_prefix(10)
    assert log.high_watermark == 10
    assert log.view.size_bytes == 0


@pytest.mark.parametrize("what", ["suffix", "prefix"])
def test_a_truncation_that_fails_changes_nothing_and_can_be_repeated(what: str) -> None:
    operations = ["create", "write", "fsync", "rename", "fsync-directory"]
    for operation in operations:
        for after in (False, True):
            fs, log, promises = _written()
            target = 17 if what == "suffix" else log.log_end_offset
            call = log.truncate_suffix if what == "suffix" else log.truncate_prefix
            fs.faults = [
                Fault(operation, path="" if operation != "create" else ".log", after=after)
            ]
            with pytest.raises(StorageError):
                call(target)
            check(log, promises)
            assert log.log_end_offset == 37
            fs.faults = []
            commit(log, promises, 1)
            check(log, promises)
            again, _ = reopen(fs.power_cut("none"), boot="boot-2")
            check(again, promises)
            call(target)
            if what == "suffix":
                promises.become(promises.without(16))
            else:
                promises.start = promises.end = log.log_end_offset
            check(log, promises)
            commit(log, promises, 4)
            check(log, promises)


@pytest.mark.parametrize("offset", [7, 19, 30])
def test_what_was_acked_of_the_old_tail_protects_nothing_of_it(offset: int) -> None:
    """After a kill in the middle, the log ends at the old place or at the new one, and nowhere
    else."""
    ends = set()
    for steps in range(40):
        fs, log, _ = _written()
        fs.stop_at = fs.operations + steps
        try:
            log.truncate_suffix(offset)
        except MachineStopped:
            pass
        else:
            fs.stopped = True
        image = fs.kill()
        again, _ = reopen(image, boot="boot-1")
        assert not again.view.manifest.quarantined
        ends.add(again.log_end_offset)
    assert ends == {37, _boundary(offset)}


def test_the_slot_is_exact_again_after_a_truncation() -> None:
    fs, log, promises = _written()
    log.truncate_suffix(16)
    for end in (16, 18):
        slot = AckedEndFile(fs.kill(), DIRECTORY, log.view.manifest.lineage, boot_id="boot-1")
        assert slot.recovered == AckedEnd(end, exact=True)
        commit(log, promises, 2)


# --- batches of another log ---


def _bytes(log: Log) -> bytes:
    found = []
    offset = log.log_start_offset
    while (piece := log.read(offset, 1 << 20)) is not None:
        with piece:
            found.append(piece.pread())
            offset = piece.next_offset
    return b"".join(found)


def _copy(source: Log, target: Log, max_bytes: int) -> None:
    while target.log_end_offset < source.high_watermark:
        piece = source.read(target.log_end_offset, max_bytes)
        assert piece is not None
        with piece:
            target.writer.append_raw(piece.pread())
        target.commit_up_to(target.sync())


def _follower(fs: SimFileSystem) -> Log:
    return create(fs, directory=DIRECTORY.with_name("copy"), boot="boot-1")


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_a_log_fed_with_batches_is_the_same_log(max_bytes: int) -> None:
    fs, leader, promises = _written()
    follower = _follower(fs)
    _copy(leader, follower, max_bytes)
    assert _bytes(follower) == _bytes(leader)
    # The leader loses its tail and goes on in a new epoch; the follower finds where they part.
    fs.faults = []
    leader.truncate_suffix(26)
    promises.become(promises.without(25))
    leader, _ = reopen(fs.kill(), boot="boot-2")
    assert leader.leader_epoch == 2
    for _ in range(4):
        commit(leader, promises, 2)
    follower, _ = reopen(
        leader.environment.fs, directory=follower.directory, boot="boot-1"
    )  # an unclean start of its own
    assert follower.truncate_suffix(leader.epoch_end(1)) == 25
    _copy(leader, follower, max_bytes)
    assert _bytes(follower) == _bytes(leader)
    assert follower.view.manifest.epochs == leader.view.manifest.epochs == ((1, 1), (2, 25))
    check(follower, promises)
    # And once more after a stop, from a recovery point.
    state = follower.checkpoint()
    commit(leader, promises, 5)
    _copy(leader, follower, max_bytes)
    again, report = reopen(
        leader.environment.fs, directory=follower.directory, boot="boot-1", recovery_point=state
    )
    assert not again.view.manifest.quarantined
    assert report.cut_bytes == 0
    check(again, promises)


def test_a_log_that_takes_over_encodes_another_commit_group() -> None:
    fs, leader, promises = _written(4, BIG)
    follower = _follower(fs)
    _copy(leader, follower, 1 << 20)
    last = [batch.header.commit_group for batch in iter_batches(_bytes(follower))][-1]
    follower.append([encode(follower, [promises.value(13)])])
    taken = [batch.header.commit_group for batch in iter_batches(_bytes(leader))]
    assert last == taken[-1]
    follower.commit_up_to(follower.sync())
    groups = [batch.header.commit_group for batch in iter_batches(_bytes(follower))]
    assert groups[:-1] == taken
    assert groups[-1] != last


def test_batches_that_do_not_continue_the_log_are_refused() -> None:
    _, leader, _ = _written(4, BIG)
    raw = _bytes(leader)
    fs = SimFileSystem()
    follower = _follower(fs)

    def batch(base: int, epoch: int = 1) -> bytes:
        return bytes(
            encode_batch(
                base_offset=base, leader_epoch=epoch, commit_group=1, stamps=[(1, 1)],
                subjects=[b"s"], values=[b"x"],
            )
        )  # fmt: skip

    flipped = bytearray(raw)
    flipped[-20] ^= 1
    unknown = bytearray(batch(1))
    unknown[3] = 9
    refused = [
        (CorruptBatch, raw[:-8]),
        (CorruptBatch, raw + b"\0" * 8),
        (CorruptBatch, bytes(flipped)),
        (ValueError, raw[_length(raw) :]),
        (ValueError, raw + raw),
        (ValueError, batch(1) + batch(3)),
        (ValueError, batch(1, epoch=4) + batch(2, epoch=3)),
        ((UnsupportedFormat, CorruptBatch), bytes(unknown)),
    ]
    for error, data in refused:
        with pytest.raises(error):
            follower.writer.append_raw(data)
        assert (follower.log_end_offset, follower.view.size_bytes) == (1, 0)
        assert follower.view.manifest.epochs == ((1, 1),)
    follower.writer.append_raw(b"")
    follower.writer.append_raw(batch(1, epoch=2) + batch(2, epoch=5))
    assert follower.view.manifest.epochs == ((2, 1), (5, 2))
    assert follower.leader_epoch == 5
    with pytest.raises(ValueError, match="epoch 4"):
        follower.writer.append_raw(batch(3, epoch=4))


@pytest.mark.parametrize("kept", [[], [3], [2, 3, 9], [1, 5, 6, 10]])
def test_the_first_batch_may_begin_below_the_log_end(kept: list[int]) -> None:
    """The leader has joined batches in the meantime, and compacted them."""
    rows = {offset: b"value %d" % offset for offset in range(1, 11)}
    whole = encode_batch(
        base_offset=1, leader_epoch=1, commit_group=4, stamps=[(BASE_NS, len(kept))],
        subjects=[b"orders.new"] * len(kept), values=[rows[offset] for offset in kept],
        offsets=kept, last_offset=10,
    )  # fmt: skip
    behind = encode_batch(
        base_offset=11, leader_epoch=1, commit_group=4, stamps=[(BASE_NS, 1)],
        subjects=[b"orders.new"], values=[b"behind"],
    )  # fmt: skip
    for end in range(1, 11):
        fs = SimFileSystem()
        log = create(fs, config=BIG)
        for offset in range(1, end):
            log.append([encode(log, [rows[offset]])])
        log.writer.append_raw(bytes(whole + behind))
        log.commit_up_to(log.sync())
        expected = {o: v for o, v in rows.items() if o < end or o in kept} | {11: b"behind"}
        assert read_all(log) == expected
        with pytest.raises(ValueError, match="expected 12"):
            log.writer.append_raw(bytes(behind))
        again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=BIG)
        assert read_all(again) == expected


def _length(raw: bytes) -> int:
    return next(iter_batches(raw)).header.length


@pytest.mark.parametrize("operation", ["write", "fsync", "rename"])
def test_an_epoch_is_on_disk_before_its_first_batch(operation: str) -> None:
    fs = SimFileSystem()
    follower = _follower(fs)
    later = bytes(
        encode_batch(
            base_offset=1, leader_epoch=7, commit_group=1, stamps=[(1, 1)], subjects=[b"s"],
            values=[b"x"],
        )
    )  # fmt: skip
    fs.faults = [Fault(operation, path="manifest")]
    with pytest.raises(StorageError):
        follower.writer.append_raw(later)
    assert (follower.log_end_offset, follower.view.size_bytes, follower.leader_epoch) == (1, 0, 1)
    follower.writer.append_raw(later)
    assert (follower.log_end_offset, follower.leader_epoch) == (2, 7)


def test_an_empty_segment_before_a_hole_goes_with_the_hole() -> None:
    """Otherwise the new segment would begin at the same offset as the empty one."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    append(log, promises, 3)
    fs.faults = [Fault("fsync", path=".log")]
    with pytest.raises(SyncFailed):
        log.sync()
    log.writer.abandon_tail(keep_offsets=True)
    assert [segment.base_offset for segment in log.segments] == [1, 4]
    assert log.truncate_suffix(2) == 1
    assert [segment.base_offset for segment in log.segments] == [1]
    assert not log.view.manifest.quarantined
    promises.become(promises.without(1))
    commit(log, promises, 2)
    check(log, promises)
