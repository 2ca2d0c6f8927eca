"""The results of `read` and the look-ups, compared with a model: limits, holes, bounds, other
threads."""

from __future__ import annotations

import random
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
    check,
    commit,
    create,
    encode,
    environment,
    read_all,
    reopen,
    set_manifest,
)
from support.disks.simfs import SimFileSystem

from liftlog.errors import CorruptRange, OffsetOutOfRange
from liftlog.log import EncodedBatch, Log, LogConfig, OsFileSystem, open_log
from liftlog.log.files.manifest import SKIPPED, SegmentEntry
from liftlog.log.segment.index import INTERVAL_BYTES, SparseIndex
from liftlog.log.writing import MAX_NOTED_ENDS
from liftlog.records import encode_batch, iter_batches

BIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)


def _filled(
    config: LogConfig, groups: int, *, seed: int = 0, size: int = 40
) -> tuple[SimFileSystem, Log, list[tuple[int, int]]]:
    """Return a log and its batches as (base offset, next offset)."""
    rng = random.Random(seed)
    fs = SimFileSystem()
    log = create(fs, config=config)
    batches = []
    for _ in range(groups):
        values = [b"v" * rng.randrange(2 * size) for _ in range(rng.randrange(1, 6))]
        batch = encode(log, values)
        log.append([batch])
        log.commit_up_to(log.sync())
        batches.append((batch.base_offset, batch.next_offset))
    return fs, log, batches


@pytest.mark.parametrize("config", [SMALL, BIG])
def test_every_offset_is_found_in_its_batch(config: LogConfig) -> None:
    _, log, batches = _filled(config, 120, size=200)
    for first, following in batches:
        for offset in range(first, following):
            for max_bytes in (1, 700, 5000, 10**9):
                with log.read(offset, max_bytes) as piece:  # type: ignore[union-attr]
                    assert piece.first_offset == first
                    found = list(iter_batches(piece.pread()))
                    assert found[0].header.base_offset == first
                    assert found[-1].next_offset == piece.next_offset
                    assert len(found) == 1 or piece.length <= max_bytes
                    if max_bytes == 10**9:
                        segment = next(s for s in log.segments if s.next_offset > offset)
                        assert piece.next_offset == segment.next_offset


def test_max_records_ends_at_a_batch_border() -> None:
    _, log, batches = _filled(BIG, 120, size=200)
    borders = {following for _, following in batches}
    for offset in range(1, log.log_end_offset, 3):
        for most in (1, 2, 7, 50, 10**6):
            with log.read(offset, 10**9, most) as piece:  # type: ignore[union-attr]
                first_end = next(following for _, following in batches if following > offset)
                assert piece.next_offset in borders
                assert offset < piece.next_offset <= max(first_end, offset + most)


def test_the_first_batch_is_whole_however_large() -> None:
    fs = SimFileSystem()
    log = create(fs, config=BIG)
    log.append([encode(log, [b"x" * 100_000]), encode(log, [b"y"], first=2)])
    log.commit_up_to(log.sync())
    with log.read(1, 10) as piece:  # type: ignore[union-attr]
        assert (piece.first_offset, piece.next_offset) == (1, 2)
        assert next(iter_batches(piece.pread())).values() == [b"x" * 100_000]


def test_nothing_past_the_high_watermark_is_seen() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    commit(log, promises, 2)
    ends = []
    for _ in range(3):
        append(log, promises, 2)
        ends.append(log.log_end_offset)
    for offset in range(3, 10):
        assert log.read(offset, 1000) is None
    log.commit_up_to(ends[0] - 1)
    assert log.high_watermark == 3, "only the end of an append can be committed"
    for end in ends:
        log.commit_up_to(end)
        with log.read(3, 10**6) as piece:  # type: ignore[union-attr]
            assert piece.next_offset == end
        assert log.read(end, 1000) is None
    log.commit_up_to(4)
    assert log.high_watermark == ends[-1]


def test_any_offset_may_be_committed_and_the_watermark_goes_to_the_end_below_it() -> None:
    log = create(SimFileSystem(), config=SMALL)
    promises, ends = Promises(), [1]
    for number in range(30):
        append(log, promises, 1 + number % 3)
        ends.append(log.log_end_offset)
    assert log.segment_count > 2
    for offset in range(log.log_end_offset + 5):
        expected = max([end for end in ends if end <= offset], default=1)
        assert log.commit_up_to(offset) == log.high_watermark == expected
        assert log.commit_up_to(offset - 2) == expected, "the watermark never falls"
        found = read_all(log)
        assert set(found) == set(range(1, expected))


@pytest.mark.parametrize("count", [MAX_NOTED_ENDS, MAX_NOTED_ENDS + 1, 3 * MAX_NOTED_ENDS + 7])
def test_with_many_appends_to_commit_some_ends_are_forgotten_but_never_the_last(count: int) -> None:
    log = create(SimFileSystem(), config=BIG)
    for _ in range(count):
        log.append([encode(log, [b""])])
    end = log.log_end_offset
    reached = [log.commit_up_to(offset) for offset in range(2, end)]
    assert all(high <= offset for offset, high in enumerate(reached, 2))
    steps = sorted(set(reached))
    assert (len(steps) == count - 1) is (count <= MAX_NOTED_ENDS)
    assert MAX_NOTED_ENDS // 3 < len(steps) <= MAX_NOTED_ENDS
    assert max(b - a for a, b in pairwise([*steps, end][-MAX_NOTED_ENDS // 4 :])) <= 2
    assert log.commit_up_to(end) == end


def test_commits_go_on_beside_appends_of_another_thread() -> None:
    log = create(SimFileSystem(), config=BIG)
    total = 3 * MAX_NOTED_ENDS

    def write() -> None:
        for _ in range(total):
            log.append([encode(log, [b""])])

    reached = [1]
    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        reached.append(log.commit_up_to(max(log.log_end_offset - 5000, 0)))
    writer.join()
    assert reached == sorted(reached)
    assert log.commit_up_to(total + 1) == total + 1


def test_what_was_synced_can_be_committed_after_the_tail_was_abandoned() -> None:
    log = create(SimFileSystem(), config=BIG)
    for _ in range(2 * MAX_NOTED_ENDS + 1):
        log.append([encode(log, [b""])])
        if log.log_end_offset == MAX_NOTED_ENDS:
            durable = log.sync()
    log.writer.abandon_tail(keep_offsets=False)
    assert log.log_end_offset == durable == MAX_NOTED_ENDS
    assert log.commit_up_to(durable) == durable


def test_out_of_range_names_both_bounds() -> None:
    promises = Promises()
    log = create(SimFileSystem())
    for _ in range(9):
        commit(log, promises, 4)
    log.structure.remove_before(log.segments[1].base_offset + 1, 1)
    start, end = log.log_start_offset, log.log_end_offset
    for offset in (start - 1, end + 1, 0, 10**18):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(offset, 1)
        assert caught.value.details == {"log_start_offset": start, "log_end_offset": end}
    with log.read(start, 1) as piece:  # type: ignore[union-attr]
        assert piece.first_offset <= start


def test_records_below_the_start_are_there_for_rebuilding_state_only() -> None:
    promises = Promises()
    log = create(SimFileSystem())
    for _ in range(3):
        commit(log, promises, 2)
    log.structure.remove_before(4, 0)
    with log.read_stored(0, 10**6) as piece:  # type: ignore[union-attr]
        assert piece.first_offset == 1


def _with_a_hole() -> tuple[Log, Promises]:
    """Return a log without the offsets 4 to 7."""
    log, promises = create(SimFileSystem()), Promises()
    commit(log, promises, 3)
    append(log, promises, 4)
    log.writer.abandon_tail(keep_offsets=True)
    commit(log, promises, 2)
    return log, promises


def test_whoever_comes_to_a_loss_is_told_and_can_go_on_behind_it() -> None:
    log, promises = _with_a_hole()
    for offset in (4, 6, 7):
        with pytest.raises(CorruptRange) as told:
            log.read(offset, 1)
        assert (told.value.first_offset, told.value.next_offset) == (offset, 8)
    with log.read(8, 1) as piece:  # type: ignore[union-attr]
        assert piece.first_offset == 8
    with log.read(1, 1 << 20) as piece:  # type: ignore[union-attr]
        assert piece.next_offset == 4, "an answer reaches over a loss"
    check(log, promises)


def test_offsets_that_were_only_skipped_are_passed_over() -> None:
    log, promises = _with_a_hole()
    (lost,) = log.view.manifest.quarantined
    set_manifest(log, quarantined=(replace(lost, reason=SKIPPED),))
    for offset in (4, 6, 7, 8):
        with log.read(offset, 1) as piece:  # type: ignore[union-attr]
            assert piece.first_offset == 8
    check(log, promises)


def test_time_look_up_beside_a_model() -> None:
    rng = random.Random(1)
    for trial in range(12):
        fs = SimFileSystem()
        log = create(fs, config=LogConfig(segment_max_bytes=9000, segment_max_age_ns=None))
        stamps: list[int] = []
        now = BASE_NS
        for _ in range(60):
            now += rng.choice([0, 1000, 5_000_000])
            stamp = now if trial % 2 else now - rng.choice([0, 0, 0, 9_000_000, -90_000_000])
            steps = sorted(rng.randrange(0, 3000) for _ in range(rng.randrange(1, 4)))
            batch = _stamped(log, [stamp + 1000 * step for step in steps], rng.randrange(900))
            log.append([batch])
            log.commit_up_to(log.sync())
            stamps += [stamp + 1000 * (step - steps[0]) + 1000 * steps[0] for step in steps]
        if trial % 3 == 0:
            log.structure.remove_before(rng.randrange(1, len(stamps)), 0)
        if trial % 4 == 0:
            log, _ = reopen(fs.power_cut("none"), boot="boot-2")
        start = log.log_start_offset
        wanted = {*stamps, *(s + 1 for s in stamps), *(s - 1 for s in stamps), 0, 2**62}
        for wish in wanted:
            expected = next(
                (offset for offset, s in enumerate(stamps, 1) if s >= wish and offset >= start),
                log.high_watermark,
            )
            assert log.offset_for_timestamp(wish) == expected


def _stamped(log: Log, stamps: list[int], size: int) -> EncodedBatch:
    base, count = log.log_end_offset, len(stamps)
    data = encode_batch(
        base_offset=base,
        leader_epoch=log.leader_epoch,
        commit_group=log.writer.commit_group,
        stamps=[(stamp, 1) for stamp in stamps],
        subjects=[b"s"] * count,
        values=[b"v" * size] * count,
    )
    return EncodedBatch(data, base, base + count, count, stamps[0], max(stamps))


def test_the_time_of_an_uncommitted_record_is_not_found() -> None:
    promises = Promises()
    log = create(SimFileSystem(), config=BIG)
    commit(log, promises, 2, stamp=1000)
    append(log, promises, 2, stamp=2000)
    assert log.offset_for_timestamp(2000) == log.high_watermark == 3
    assert log.offset_for_timestamp(1000) == 1


def test_rolls_by_size_and_age_even_when_idle() -> None:
    clock = FakeClock()
    fs, promises = SimFileSystem(), Promises()
    fs.make_directory(DIRECTORY.parent)
    config = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=1000)
    log = Log.create(DIRECTORY, environment(fs, clock), config, boot_id="b")
    assert not log.writer.roll_if_due(), "an empty segment has no age"
    commit(log, promises, 2)
    assert not log.writer.is_roll_due()
    clock.now += 1000
    assert log.writer.roll_if_due()
    assert not log.writer.roll_if_due()
    assert [s.base_offset for s in log.segments] == [1, 3]
    assert [s.sealed for s in log.segments] == [True, False]
    assert fs.read(log.segments[0].path)[-1:] != b"", "what was allocated ahead is given back"
    assert len(fs.read(log.segments[0].path)) == log.segments[0].size_bytes
    commit(log, promises, 1, stamp=clock.now)
    clock.now += 1000
    commit(log, promises, 1, stamp=clock.now)
    assert [s.base_offset for s in log.segments] == [1, 3, 4]
    check(log, promises)


def test_what_was_not_synced_yet_bears_one_group_number_in_each_segment() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    while log.segment_count < 3:
        append(log, promises, 3)
    append(log, promises, 1)
    raw = fs.read(log.segments[-1].path)[: log.segments[-1].size_bytes]
    assert len({batch.header.commit_group for batch in iter_batches(raw)}) == 1
    log.sync()
    append(log, promises, 1)
    raw = fs.read(log.segments[-1].path)[: log.segments[-1].size_bytes]
    assert len({batch.header.commit_group for batch in iter_batches(raw)}) == 2


def test_a_group_larger_than_a_segment_gets_one_of_its_own() -> None:
    promises = Promises()
    log = create(SimFileSystem())
    for sizes in ((2,), (60, 60), (2,)):
        commit(log, promises, *sizes)
    assert [s.record_count for s in log.segments] == [2, 120, 2]
    check(log, promises)


def test_offsets_and_positions_must_be_given_in_order() -> None:
    log = create(SimFileSystem())
    with pytest.raises(ValueError, match="the log ends at 1"):
        log.append([encode(log, [b"x"], first=2)])


def test_offsets_are_reserved_ahead_before_they_are_used() -> None:
    fs = SimFileSystem()
    log = create(fs)
    set_manifest(log, reserved_offset=2)
    fs.log.clear()
    log.append([encode(log, [b"a"])])
    assert "rename manifest" not in fs.log
    log.append([encode(log, [b"b"])])
    steps = [step for step in fs.log if step.startswith(("rename", "write 0", "fsync"))]
    assert steps.index("rename manifest") < len(steps) - 1
    assert log.view.manifest.reserved_offset > 1000


def test_hundreds_of_segments_need_few_descriptors_and_little_memory() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=LogConfig(segment_max_bytes=200, segment_max_age_ns=None))
    for _ in range(300):
        commit(log, promises, 3)
    state = log.close()
    assert log.segment_count == 300
    env = environment(fs.kill(), files=8, indexes=4)
    image = env.fs
    assert isinstance(image, SimFileSystem)
    again, _ = open_log(DIRECTORY, env, SMALL, clean=state, boot_id="boot-1")
    for offset in random.Random(3).sample(range(1, 901), 200):
        piece = again.read(offset, 10)
        assert piece is not None
        piece.release()
        assert len(env.pool) <= 8
        assert image.open_files <= 10
    assert len(env.indexes) <= 4
    pieces = [again.read(offset, 10) for offset in range(1, 61, 3)]  # held: they stay open
    assert image.open_files == 22
    for piece in pieces:
        assert piece is not None
        assert piece.length
        piece.release()
    assert image.open_files <= 10
    again.close()
    env.pool.close()
    assert image.open_files == 0


def test_a_reader_keeps_a_file_that_retention_removed() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    for _ in range(12):
        commit(log, promises, 4)
    piece = log.read(1, 10**6)
    assert piece is not None
    before = piece.pread()
    log.structure.remove_before(log.segments[2].base_offset, 2)
    assert not fs.exists(DIRECTORY / "00000000000000000001.log")
    assert piece.pread() == before
    open_before = fs.open_files
    piece.release()
    piece.release()
    assert fs.open_files == open_before - 1


def test_no_index_is_left_of_a_file_that_retention_removed() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    for _ in range(2):
        commit(log, promises, 4)
        log.writer.roll()
    old, pool = log.segments[0], log.environment.pool
    reading = pool.acquire(old.path)
    log.structure.remove_before(old.next_offset, 1)
    # A reader that began before goes on with the file, and finds no index of it any more.
    log.environment.indexes.get(old, reading.file, log.incarnation)
    pool.release(reading)
    left = [name for name in fs.list_directory(DIRECTORY) if name.startswith(old.path.stem)]
    assert left == []


def test_reading_while_another_thread_appends_rolls_and_deletes(tmp_path: Path) -> None:
    log = Log.create(
        tmp_path / "s",
        environment(OsFileSystem(), files=4, indexes=2),
        LogConfig(segment_max_bytes=3000, segment_max_age_ns=None),
    )
    failures: list[BaseException] = []
    finished = threading.Event()
    reads = [0, 0]

    def reader(who: int) -> None:
        rng = random.Random(who)
        try:
            offset = 1
            while not finished.is_set() or offset < log.high_watermark:
                try:
                    piece = log.read(offset, rng.choice([1, 2000, 9000]))
                except OffsetOutOfRange as error:
                    offset = error.details["log_start_offset"]
                    continue
                if piece is None:
                    continue
                with piece:
                    for batch in iter_batches(piece.pread()):
                        for record in batch:
                            assert record.value == b"%d" % record.offset * 9
                            reads[who] += 1
                    offset = piece.next_offset
                found = log.offset_for_timestamp(offset * 1000)
                assert found >= offset
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=reader, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for i in range(300):
        base = log.log_end_offset
        count = i % 5 + 1
        values = [b"%d" % offset * 9 for offset in range(base, base + count)]
        log.append([encode(log, values, stamp=base * 1000)])
        log.commit_up_to(log.sync() if i % 50 == 0 else log.log_end_offset)
        if log.segment_count > 6:
            log.structure.remove_before(log.segments[3].base_offset, 3)
    finished.set()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures
    assert min(reads) > 20
    assert len(log.environment.pool) <= 4
    log.close()
    log.environment.pool.close()


class TestSparseIndex:
    def test_look_ups_beside_brute_force(self) -> None:
        rng = random.Random(5)
        index = SparseIndex(1000)
        batches = []
        offset, position, newest = 1000, 0, 0
        for _ in range(500):
            stamp = rng.randrange(10**6)
            newest = max(newest, stamp)
            index.maybe_add(offset, position, newest)
            batches.append((offset, position, stamp))
            offset += rng.randrange(1, 50)
            position += rng.randrange(1, 200) * 8
        entries = [index._entry(i) for i in range(len(index))]
        gaps = [b.position - a.position for a, b in pairwise(entries)]
        assert min(gaps) >= INTERVAL_BYTES
        assert {(o, p) for o, p in entries} <= {(o, p) for o, p, _ in batches}
        for wish in range(990, offset + 10, 7):
            best = max([e for e in entries if e.offset <= wish], default=(1000, 0))
            assert index.floor(wish) == best
        for wish in range(0, position + 100, 97):
            assert index.floor_position(wish) == max(
                [e for e in entries if e.position <= wish], key=lambda e: e.position
            )
            after = [e for e in entries if e.position > wish]
            assert index.after_position(wish) == (after[0] if after else None)
        for wish in range(0, 10**6 + 2, 997):
            start = index.floor_time(wish)
            assert all(s < wish for _, p, s in batches if p < start.position)

    def test_bytes_and_back(self) -> None:
        index = SparseIndex(7)
        for i in range(10):
            index.maybe_add(7 + i, i * INTERVAL_BYTES, 100 + i)
        named = SegmentEntry(7, 2, size_bytes=41_000), "history"
        raw = index.to_bytes(*named)
        assert len(raw) == 10 * 16 + 40
        again = SparseIndex.from_bytes(raw, *named)
        assert again is not None
        assert again.to_bytes(*named) == raw
        for bit in range(len(raw) * 8):
            bad = bytearray(raw)
            bad[bit // 8] ^= 1 << bit % 8
            assert SparseIndex.from_bytes(bytes(bad), *named) is None
        for cut in range(len(raw)):
            assert SparseIndex.from_bytes(raw[:cut], *named) is None
        empty = SparseIndex.from_bytes(SparseIndex(7).to_bytes(*named), *named)
        assert empty is not None
        assert empty.floor(100) == (7, 0)

    def test_an_index_counts_for_its_own_segment_alone(self) -> None:
        index = SparseIndex(7)
        for i in range(10):
            index.maybe_add(7 + i, i * INTERVAL_BYTES, 100 + i)
        segment = SegmentEntry(7, 2, size_bytes=41_000)
        raw = index.to_bytes(segment, "history")
        for other in (
            replace(segment, base_offset=8),
            replace(segment, generation=3),
            replace(segment, size_bytes=41_008),
        ):
            assert SparseIndex.from_bytes(raw, other, "history") is None
        assert SparseIndex.from_bytes(raw, segment, "another") is None
        cut = SparseIndex.from_bytes(raw, replace(segment, size_bytes=9_000), "history")
        assert cut is not None
        assert len(cut) == 3, "a segment that was cut has the entries up to its end"

    def test_entries_that_do_not_ascend_are_not_trusted(self) -> None:
        index = SparseIndex(1)
        for offset, position in ((1, 0), (6, 5000), (6, 10_000)):
            index.maybe_add(offset, position, 1)
        assert len(index) == 3
        named = SegmentEntry(1, size_bytes=20_000), "history"
        assert SparseIndex.from_bytes(index.to_bytes(*named), *named) is None

    def test_truncate_and_copy(self) -> None:
        index = SparseIndex(1)
        for i in range(5):
            index.maybe_add(1 + i, i * 5000, i)
        twin = index.copy()
        twin.truncate(10_000)
        assert (len(index), len(twin)) == (5, 2)
        assert twin.floor(100) == (2, 5000)


def test_read_all_sees_every_record_of_many_small_segments() -> None:
    _, log, batches = _filled(SMALL, 60)
    assert set(read_all(log)) == set(range(1, batches[-1][1]))
