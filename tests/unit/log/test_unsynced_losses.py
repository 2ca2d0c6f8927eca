"""Lost records that were acked before their fsync: the loss is allowed, but it must be reported."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support.disks.logs import (
    DIRECTORY,
    Facts,
    FakeClock,
    Promises,
    Writer,
    create,
    encode,
    reopen,
    set_manifest,
)
from support.disks.simfs import Keep, SimFileSystem
from support.rounds import fewer

from liftlog.errors import CorruptRange
from liftlog.log import Log, LogConfig
from liftlog.log.data_dir import KnownStates
from liftlog.log.files.manifest import LEAST_RESERVED, NOT_SYNCED
from liftlog.log.offline.filesystems import KeepingFileSystem
from liftlog.log.offline.repair import Repair

BIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)
MODES = ["interval", "os"]


def _written(durability: str, commits: int = 12) -> tuple[SimFileSystem, Log, Promises]:
    """Return a log of which a part is flushed, and the other part only acked."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    writer = Writer(log, promises, durability)
    for number in range(commits):
        writer.commit(3, 2)
        if number == 4 and durability == "interval":
            writer.flush()
    return fs, log, promises


def _check(log: Log, promises: Promises) -> list[int]:
    """Return the lost acked offsets. Checks that each is reported, and that no offset is assigned
    again."""
    facts = Facts.of(log)
    facts.check(promises)
    gone = [offset for offset in promises.after_kill if offset not in facts.found]
    assert log.log_end_offset > max(promises.after_kill)
    return gone


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("keep", ["none", "some", "last"])
def test_a_power_cut_is_told_by_its_reason(durability: str, keep: Keep) -> None:
    for seed in range(fewer(40) if keep == "some" else 1):
        fs, _, promises = _written(durability)
        again, report = reopen(fs.power_cut(keep, seed), boot="boot-2", config=BIG)
        gone = _check(again, promises)
        if not gone:
            continue
        losses = [bad for bad in again.view.manifest.quarantined if bad.is_loss]
        assert all(bad.reason.startswith(NOT_SYNCED) for bad in losses)
        assert report.events
        with pytest.raises(CorruptRange, match="not yet fsynced"):
            again.read(gone[-1], 100)


@pytest.mark.parametrize("durability", MODES)
def test_a_torn_tail_is_told_however_it_is_torn(durability: str) -> None:
    """Every end of the last batches: unchanged, as zeros, and as random bytes."""
    for cut, filler in itertools.product(range(1, 700, 31), (b"", b"\0", b"\xa5")):
        fs, log, promises = _written(durability)
        image = fs.power_cut("all")
        path, size = log.segments[-1].path, log.segments[-1].size_bytes
        image.replace(path, image.read(path)[: size - cut] + filler * cut)
        image.remove(DIRECTORY / "acked")
        again, _ = reopen(image, boot="boot-2", config=BIG)
        gone = _check(again, promises)
        assert gone or filler == b"\0"
        # Once judged it stays judged, also if the machine stops at once.
        other, _ = reopen(image.power_cut("none"), boot="boot-3", config=BIG)
        assert set(_check(other, promises)) == set(gone)


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("keep", ["none", "last"])
def test_a_page_cache_that_is_lost_without_a_reboot(durability: str, keep: Keep) -> None:
    """A volume was detached by force: the boot id is the same, but the bytes are lost."""
    fs, _, promises = _written(durability)
    again, _ = reopen(fs.power_cut(keep), boot="boot-1", config=BIG)
    gone = _check(again, promises)
    assert gone
    with pytest.raises(CorruptRange, match="not yet fsynced"):
        again.read(gone[0], 100)


@pytest.mark.parametrize("durability", MODES)
@pytest.mark.parametrize("clean", [True, False])
def test_a_page_cache_that_is_lost_in_a_later_life(durability: str, clean: bool) -> None:
    """For records of an earlier process, the slot shows exactly which were acked; for records of
    this process it does not."""
    fs, log, promises = _written(durability)
    state = log.close()
    promises.acked |= promises.after_kill
    image = fs.power_cut("all")
    log, _ = reopen(image, clean=state if clean else None, config=BIG)
    writer = Writer(log, promises, durability)
    for _ in range(5):
        writer.commit(2)
    again, _ = reopen(image.power_cut("none"), recovery_point=state, config=BIG)
    assert _check(again, promises)


@pytest.mark.parametrize("durability", MODES)
def test_a_killed_process_loses_nothing_and_skips_nothing(durability: str) -> None:
    fs, log, promises = _written(durability)
    again, _ = reopen(fs.kill(), config=BIG)
    assert _check(again, promises) == []
    assert again.log_end_offset == log.log_end_offset
    assert again.view.manifest.quarantined == ()


@pytest.mark.parametrize("durability", MODES)
def test_a_kill_right_after_the_first_early_ack_was_admitted(durability: str) -> None:
    """At each operation of the first commits, nothing is lost, and no offset is skipped."""
    for stop_at in itertools.count():
        fs, promises = SimFileSystem(), Promises()
        log = create(fs, config=BIG)
        writer = Writer(log, promises, durability)
        fs.stop_at = fs.operations + stop_at
        try:
            for _ in range(3):
                writer.commit(1)
        except BaseException as stop:
            if type(stop).__name__ != "MachineStopped":
                raise
        else:
            return
        again, _ = reopen(fs.kill(), config=BIG)
        assert _check_killed(again, promises)
        assert again.log_end_offset <= 5, stop_at


def _check_killed(log: Log, promises: Promises) -> bool:
    Facts.of(log).check(promises, killed=True)
    return True


@pytest.mark.parametrize("durability", MODES)
def test_the_claim_of_a_power_cut_has_bounds(durability: str) -> None:
    """It is unknown how many records were acked after the last fsync, but at most the reserved
    ones."""
    fs, _, promises = _written(durability)
    acked = max(promises.after_kill)
    again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=BIG)
    assert acked < again.log_end_offset <= acked + 1 + LEAST_RESERVED
    writer = Writer(again, promises, durability)
    for _ in range(3):
        writer.commit(3)
    third, _ = reopen(again.environment.fs.power_cut("none"), boot="boot-3", config=BIG)  # type: ignore[attr-defined]
    lost = sum(
        bad.next_offset - bad.first_offset for bad in third.view.manifest.quarantined if bad.is_loss
    )
    assert lost <= 2 * (LEAST_RESERVED + acked), "each power cut costs a claim of its own"


def test_a_reservation_lasts_for_some_minutes() -> None:
    """A slow stream reserves few offsets, and a fast one does not write the manifest all the
    time."""
    fs, clock = SimFileSystem(), FakeClock()
    log = create(fs, config=BIG)
    log.environment.clock.now = clock.now  # type: ignore[attr-defined]
    log.writer.admit_early_acks()

    def reserved(seconds: int) -> int:
        """Return the size of a new reservation if the previous one has lasted for this time."""
        manifest = log.view.manifest
        set_manifest(log, reserved_offset=log.log_end_offset)
        log.environment.clock.now += seconds * 1_000_000_000  # type: ignore[attr-defined]
        log.append([encode(log, [b"x"])])
        assert log.view.manifest.sequence > manifest.sequence
        return log.view.manifest.reserved_offset - log.log_end_offset

    assert [reserved(1) for _ in range(6)] == [4000, 16_000, 64_000, 256_000, 1_000_000, 1_000_000]
    assert [reserved(70) for _ in range(2)] == [1_000_000, 1_000_000]
    assert [reserved(700) for _ in range(6)] == [250_000, 62_500, 15_625, 3906, 1000, 1000]


def test_acks_after_the_sync_need_a_manifest_once_in_a_million_records() -> None:
    """After a power cut, no offset that such a stream reserved counts as acked, so the reservation
    may be large."""
    fs = SimFileSystem()
    log, promises = create(fs, config=LogConfig(segment_max_bytes=1 << 30)), Promises()
    writer, writes = Writer(log, promises, "fsync"), []
    for at in (0, 990_000):
        if at:  # as if so many had been appended
            set_manifest(log, reserved_offset=log.view.manifest.reserved_offset - at)
        fs.log.clear()
        for _ in range(20):
            writer.commit(500)
        writes.append(fs.log.count("rename manifest"))
    assert writes == [0, 1]
    assert log.view.manifest.reserved_offset > 1_000_000
    again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=BIG)
    _check(again, promises)
    assert again.view.manifest.quarantined == ()
    assert again.log_end_offset == log.log_end_offset


@pytest.mark.parametrize("durability", MODES)
def test_the_claim_has_bounds_after_a_change_of_the_durability(durability: str) -> None:
    """The range does not include the offsets that were reserved while acks followed the sync."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    Writer(log, promises, "fsync").commit(3)
    assert log.view.manifest.reserved_offset > 1_000_000
    Writer(log, promises, durability).commit(3)
    again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=BIG)
    _check(again, promises)
    assert again.log_end_offset <= log.log_end_offset + LEAST_RESERVED


@pytest.mark.parametrize("durability", ["fsync", *MODES])
def test_repair_of_a_lost_manifest_invents_no_loss(durability: str) -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    fs.make_directory(Path("/data/repaired"))
    writer = Writer(log, promises, durability)
    for _ in range(4):
        writer.commit(3, 2)
    writer.flush()
    image = fs.power_cut("all")
    for name in ("manifest", "manifest.copy"):
        image.remove(DIRECTORY / name)
    metadata = {"settings": {"subject": "orders.>", "durability": durability}}
    repair = Repair(DIRECTORY, KnownStates(), metadata, boot_id="boot-2")
    repair.run(KeepingFileSystem(image, Path("/data/repaired/orders")))
    again, _ = reopen(image, boot="boot-3", config=BIG)
    _check(again, promises)
    if durability == "fsync":
        assert again.view.manifest.quarantined == ()
        assert again.log_end_offset == log.log_end_offset
