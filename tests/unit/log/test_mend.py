"""Damage in a sealed segment is mended with the batches of another replica."""

from __future__ import annotations

import random

import pytest
from support.disks.logs import BASE_NS, DIRECTORY, flip, reopen, set_view
from support.disks.mending import (
    BATCHES,
    PATCH,
    batch_places,
    examine,
    job_of,
    mend_from,
    pair,
    spoil,
    write_patch,
)
from support.disks.simfs import PAGE, Fault, Keep, MachineStopped, SimFileSystem
from support.rounds import one_in, seeds
from support.worlds.rewriting import (
    MINUTE_NS,
    ROLL_ON_DEMAND,
    add,
    check_entries,
    compact_fully,
    compact_once,
    file_names,
    keyed,
    rebatch_file,
    row,
    rows_of,
    stored,
)

from compaction import CompactionPolicy
from liftlog.errors import CorruptRange, SegmentsChanged
from liftlog.log import Log
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.rewrite import PatchDamaged, SourceDamaged, apply_mending, mend
from liftlog.records import iter_batches


def no_files_left(log: Log, fs: SimFileSystem) -> None:
    names = fs.list_directory(DIRECTORY)
    assert {one for one in names if one.endswith(".log")} == set(file_names(log))
    assert not [one for one in names if "patch" in one]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "batches", [[0], [5], [BATCHES - 1], [0, 1, 2, 6, 11], list(range(BATCHES))]
)
def test_what_is_damaged_comes_from_the_other_replica(number: int, batches: list[int]) -> None:
    fs, log, _, other = pair()
    rows = stored(log)
    spoil(log, fs, number, batches)
    with pytest.raises(CorruptRange):
        examine(log, fs, number)
        stored(log)
    known = len(log.view.manifest.quarantined)
    assert known >= 1
    assert mend_from(log, fs, other, number) == known
    assert log.view.manifest.quarantined == ()
    assert stored(log) == rows
    assert file_names(log)[number].endswith(".1.log")
    check_entries(log, fs)
    no_files_left(log, fs)
    log, _ = reopen(fs.power_cut("none"), config=ROLL_ON_DEMAND, boot="boot-2")
    assert stored(log) == rows


def test_good_batches_stay_byte_for_byte() -> None:
    fs, log, _, other = pair()
    before = fs.read(log.segments[0].path)
    places = batch_places(log, fs, 0)
    spoil(log, fs, 0, [4, 5])
    mend_from(log, fs, other, 0)
    after = fs.read(log.segments[0].path)
    assert after[: places[4][0]] == before[: places[4][0]]
    assert after[places[6][0] :] == before[places[6][0] : log.segments[0].size_bytes]


@pytest.mark.parametrize("seed", seeds(12))
def test_any_damage_is_mended_from_a_replica_with_other_batches(seed: int) -> None:
    """Wrong bytes, pages that cannot be read, a file cut short, and a file that is gone."""
    rng = random.Random(seed)
    fs, log, other_fs, other = pair(size=rng.choice((30, 900, 3000)))
    rows = stored(log)
    for number in range(3):
        if rng.random() < 0.7:
            rebatch_file(
                other, other_fs, number, target=rng.choice((2048, 8192)),
                compression=rng.choice(("none", "lz4")),
            )  # fmt: skip
    for number in range(3):
        path, size = log.segments[number].path, log.segments[number].size_bytes
        for _ in range(rng.randrange(4)):
            kind = rng.randrange(8)
            if not fs.exists(path) or len(fs.read(path)) < size:
                continue
            if kind == 0:
                fs.remove(path)
            elif kind == 1:
                fs.replace(path, fs.read(path)[: rng.randrange(size)])
            elif kind < 5:
                fs.lose_page(path, rng.randrange(size))
            else:
                raw = bytearray(fs.read(path))
                at = rng.randrange(size)
                raw[at : at + rng.randrange(1, PAGE)] = bytes(1)
                fs.replace(path, bytes(raw[:size]))
        if examine(log, fs, number):
            assert mend_from(log, fs, other, number) >= 1
    assert log.view.manifest.quarantined == ()
    assert stored(log) == rows
    no_files_left(log, fs)
    check_entries(log, fs)
    for segment in log.segments[:-1]:
        offsets = [o for b in iter_batches(fs.read(segment.path)) for o in rows_of(b)]
        assert offsets == list(range(segment.base_offset, segment.next_offset))


def test_what_lies_in_no_piece_and_cannot_be_read_is_new_damage() -> None:
    fs, log, _, other = pair()
    spoil(log, fs, 0, [3])
    pieces = write_patch(fs, other, examine(log, fs, 0))
    spoil(log, fs, 0, [7])
    before = fs.list_directory(DIRECTORY), fs.open_files
    with pytest.raises(SourceDamaged) as found:
        mend(job_of(log, 0, pieces), fs)
    assert found.value.file_name == file_names(log)[0]
    assert (fs.list_directory(DIRECTORY), fs.open_files) == before
    assert mend_from(log, fs, other, 0) == 2


def test_a_patch_that_is_not_what_it_should_be_is_refused() -> None:
    fs, log, _, other = pair()
    spoil(log, fs, 1, [3])
    pieces = write_patch(fs, other, examine(log, fs, 1))
    good = fs.read(DIRECTORY / PATCH)
    listed = fs.list_directory(DIRECTORY)
    for position in (0, 30, 70, len(good) - 1):
        raw = bytearray(good)
        raw[position] ^= 1
        fs.replace(DIRECTORY / PATCH, bytes(raw))
        with pytest.raises(PatchDamaged):
            mend(job_of(log, 1, pieces), fs)
    fs.replace(DIRECTORY / PATCH, good[:-8])
    with pytest.raises(PatchDamaged):
        mend(job_of(log, 1, pieces), fs)
    assert fs.list_directory(DIRECTORY) == listed


def test_records_of_another_epoch_are_not_taken_in() -> None:
    fs, log, _, _ = pair()
    stranger = keyed(SimFileSystem())
    for i in range(3 * BATCHES):
        add(stranger, [[row(b"k", b"other %d" % i)] * 3])  # all in epoch 1
    spoil(log, fs, 1, [3])
    pieces = write_patch(fs, stranger, examine(log, fs, 1))
    with pytest.raises(PatchDamaged, match="epoch 1"):
        mend(job_of(log, 1, pieces), fs)


def test_a_segment_that_has_changed_meanwhile_is_left_alone() -> None:
    fs, log, _, other = pair()
    spoil(log, fs, 0, [3])
    result = mend(job_of(log, 0, write_patch(fs, other, examine(log, fs, 0))), fs)
    known = log.view.manifest.quarantined
    with pytest.raises(SegmentsChanged):
        apply_mending(log, result, "another lineage")
    assert log.view.manifest.quarantined == known
    log.structure.remove_before(log.segments[1].base_offset, 1)
    with pytest.raises(SegmentsChanged):
        apply_mending(log, result, log.view.manifest.lineage)
    log.structure.discard_files(result.new_files)
    assert {one for one in fs.list_directory(DIRECTORY) if one.endswith(".log")} == set(
        file_names(log)
    )


def test_what_is_not_committed_is_not_mended() -> None:
    """They may still be truncated, at the beginning of a batch of the old file."""
    fs, log, _, other = pair()
    spoil(log, fs, 2, [3])
    result = mend(job_of(log, 2, write_patch(fs, other, examine(log, fs, 2))), fs)
    set_view(log, committed=log.view.committed._replace(offset=50))
    with pytest.raises(SegmentsChanged, match="not committed"):
        apply_mending(log, result, log.view.manifest.lineage)


# --- compacted logs ---


def test_a_replica_that_has_compacted_more_mends_and_leaves_holes() -> None:
    fs, log, other_fs, other = pair()
    before = stored(log)
    compact_fully(other, other_fs)
    spoil(log, fs, 1, [2, 3, 9])
    assert mend_from(log, fs, other, 1) == 3
    rows = stored(log)
    assert {o: r for o, r in before.items() if o in rows} == rows
    assert stored(other).items() <= rows.items(), "all that is alive there is alive here"
    check_entries(log, fs)
    assert log.view.manifest.epochs[-1] == (3, 1 + 3 * BATCHES)


def test_compaction_looks_again_at_what_came_from_a_replica() -> None:
    """The replica had not compacted them, so superseded values have returned."""
    fs, log, _, other = pair()
    compact_fully(log, fs, max_bytes=4000)
    compacted = stored(log)
    assert log.view.manifest.cleaned_below > 1
    rotten = next(
        i for i, one in enumerate(log.segments) if one.sealed and one.next_offset > 3 * BATCHES
    )
    spoil(log, fs, rotten, [0])
    first = examine(log, fs, rotten)[0].first_offset
    mend_from(log, fs, other, rotten)
    assert log.view.manifest.cleaned_below <= first
    assert len(stored(log)) > len(compacted)
    compact_fully(log, fs, max_bytes=4000)
    assert stored(log) == compacted


def test_a_deleted_key_stays_deleted() -> None:
    """The mended range restores an old value, and the tombstone after it stays until a pass has
    read both."""
    policy = CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=8 * MINUTE_NS)
    later = policy.horizon_ns(BASE_NS)
    fs, other_fs = SimFileSystem(), SimFileSystem()
    logs = [keyed(fs), keyed(other_fs)]
    for log in logs:
        add(log, [[row(b"x", b"1")], [row(b"gone", b"old")], [row(b"y", b"1")]])
        log.writer.roll()
        add(log, [[row(b"gone", None)], [row(b"z", b"1")]])
        log.writer.roll()
    log, other = logs
    compact_fully(log, fs, policy=policy, max_bytes=200)
    assert sorted(stored(log)) == [1, 3, 4, 5]
    spoil(log, fs, 0, range(len(batch_places(log, fs, 0))))
    mend_from(log, fs, other, 0)
    assert sorted(stored(log)) == [1, 2, 3, 4, 5]
    compact_once(log, fs, policy=policy, now_ns=later, max_bytes=200)
    assert b"gone" not in {one.key for one in stored(log).values() if one.value is not None}
    compact_fully(log, fs, policy=policy, now_ns=later + policy.horizon_ns(later), max_bytes=200)
    assert b"gone" not in {one.key for one in stored(log).values() if one.value is not None}


# --- stops and failures ---


@pytest.mark.parametrize(("keep", "seed"), [("none", 0), ("some", 1), ("last", 0), ("all", 0)])
def test_the_machine_stops_before_any_step(keep: Keep, seed: int) -> None:
    def prepared() -> tuple[SimFileSystem, Log, Log]:
        fs, log, _, other = pair()
        spoil(log, fs, 1, [2, 3, 8])
        examine(log, fs, 1)
        return fs, log, other

    fs, log, other = prepared()
    rows = stored(other)
    known = [(bad.first_offset, bad.next_offset) for bad in log.view.manifest.quarantined]
    start = fs.operations
    mend_from(log, fs, other, 1)
    end = fs.operations
    assert end - start > 8
    outcomes = set()
    for stop in one_in(2, range(start, end + 1), f"mend {keep}"):
        fs, log, other = prepared()
        assert fs.operations == start
        fs.stop_at = stop
        try:
            mend_from(log, fs, other, 1)
        except MachineStopped:
            pass
        for image, boot in ((fs.power_cut(keep, seed), "boot-2"), (fs.kill(), "boot-1")):
            log, _ = reopen(image, config=ROLL_ON_DEMAND, boot=boot)
            no_files_left(log, image)
            left = [(bad.first_offset, bad.next_offset) for bad in log.view.manifest.quarantined]
            assert left in (known, [])
            outcomes.add(bool(left))
            if left:
                mend_from(log, image, other, 1)
            assert stored(log) == rows
            check_entries(log, image)
    assert outcomes == {True, False}


@pytest.mark.parametrize("operation", ["write", "fsync", "rename", "fsync-directory"])
def test_a_failing_disk_leaves_the_damage_as_it_was_known(operation: str) -> None:
    countdown, failures = 0, 0
    while True:
        countdown += 1
        fs, log, _, other = pair()
        spoil(log, fs, 0, [2])
        pieces = write_patch(fs, other, examine(log, fs, 0))
        known = log.view.manifest.quarantined
        fs.faults = [Fault(operation, countdown=countdown)]
        try:
            result = mend(job_of(log, 0, pieces), fs)
            apply_mending(log, result, log.view.manifest.lineage)
        except Exception:  # which one is the matter of other tests
            failures += 1
        if fs.faults[0].times:
            break
        if log.view.manifest.quarantined:
            assert log.view.manifest.quarantined == known
            assert mend_from(log, fs, other, 0) == 1
        assert stored(log) == stored(other)
    assert failures >= 1


def test_damage_behind_known_damage_does_not_hide_it() -> None:
    """A reader that reaches both gets the error for the known one first."""
    fs, log, _, _ = pair()
    places = batch_places(log, fs, 0)
    for one in (0, 1):
        flip(fs, log.segments[0].path, places[one][0] + 9)
    log.quarantine_damage(1, 2)
    log.structure.quarantine(
        log.segments[0].path.name,
        [QuarantinedRange(1, 4, log.segments[0].path.name, 0, places[1][0], "bad")],
    )
    with pytest.raises(CorruptRange) as found:
        log.read(1, 1 << 20)
    assert found.value.first_offset == 1
