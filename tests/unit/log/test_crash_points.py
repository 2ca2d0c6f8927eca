"""The machine stops before every single operation, and then again during the recovery.

`make test` uses a sample of the operations, `make torture` and `make fuzz` use all of them.
"""

from __future__ import annotations

import logging
import os

import pytest
from support.disks.logs import (
    BASE_NS,
    DIRECTORY,
    DURABILITIES,
    Facts,
    Promises,
    append,
    check,
    commit,
    create,
    reopen,
)
from support.disks.simfs import Keep, MachineStopped, SimFileSystem
from support.rounds import one_in, stride
from support.worlds.crash_scenarios import SCENARIOS, Scenario, World, start

from liftlog.errors import CorruptMetadata
from liftlog.log import ActiveState, Log

KEEPS: list[Keep] = ["none", "some", "all", "last"]
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog.log")


def _run(scenario: Scenario, durability: str, stop_at: int | None) -> World:
    world = World()
    world.fs.stop_at = stop_at
    try:
        scenario(world, durability)
    except MachineStopped:
        pass
    return world


def _recover(
    image: SimFileSystem, world: World, boot: str, *, killed: bool = False
) -> tuple[Log, Facts] | None:
    try:
        log, _ = start(image, boot)
    except (CorruptMetadata, FileNotFoundError):
        assert not world.promises.acked, "a stream with acked records cannot be opened"
        return None
    facts = Facts.of(log)
    facts.check(world.promises, killed=killed)
    if any(segment.generation and segment.sealed for segment in log.segments):
        assert log.view.manifest.tombstones_removed_below >= world.tombstones_removed_below
    return log, facts


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_machine_stops_before_any_operation(scenario: Scenario, durability: str) -> None:
    operations = _run(scenario, durability, None).fs.operations
    assert operations > 20
    stops = one_in(5, range(operations + 1), f"{scenario.__name__} {durability}")
    known: dict[tuple[bytes, bool], Facts] = {}  # what was recovered from equal disks
    gone_on: set[object] = set()
    for stop_at in stops:
        world = _run(scenario, durability, stop_at)
        images = [(world.fs.power_cut(keep, stop_at), False) for keep in KEEPS]
        for image, killed in [*images, (world.fs.kill(), True)]:
            key = image.digest(), killed
            # Of a killed process the page cache lives on, and does not show what of it was synced.
            if key in known and not killed:
                known[key].check(world.promises, killed=killed)
                continue
            recovered = _recover(image, world, "boot-1" if killed else "boot-2", killed=killed)
            if recovered is not None:
                log, facts = recovered
                known[key] = facts
                if durability == "fsync":
                    assert not facts.lost_ends, "a power cut alone is told as a loss"
                if THOROUGH or killed or facts.key() not in gone_on:
                    gone_on.add(facts.key())
                    _go_on(image.power_cut("none"), log, facts, world)
    assert len(known) > len(stops) // 2


def _go_on(image: SimFileSystem, before: Log, facts: Facts, world: World) -> None:
    """Check that another recovery changes only the epoch, and that appended records stay."""
    log, _ = start(image, "boot-3")
    assert log.leader_epoch > before.leader_epoch
    assert log.log_end_offset >= before.log_end_offset
    promises = Promises()
    promises.written, promises.acked = world.promises.copy().written, dict(facts.found)
    promises.start = max(log.log_start_offset, world.promises.start)
    commit(log, promises, 2, 1)
    commit(log, promises, 5)
    again, _ = start(image.power_cut("none"), "boot-4")
    check(again, promises)


@pytest.mark.parametrize("durability", DURABILITIES if THOROUGH else DURABILITIES[:2])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_machine_stops_again_before_any_operation_of_the_recovery(
    scenario: Scenario, durability: str
) -> None:
    operations = _run(scenario, durability, None).fs.operations
    # Not one in four: there are four ways in which a disk is left.
    stops = one_in(9, range(operations + 1), f"{scenario.__name__} {durability}")
    outcomes: dict[bytes, list[Facts]] = {}  # of recovering from equal disks: once is enough
    for stop_at in stops:
        world = _run(scenario, durability, stop_at)
        for keep in KEEPS if THOROUGH else [KEEPS[stop_at % 4]]:
            image = world.fs.power_cut(keep, stop_at)
            key = image.digest()
            if key not in outcomes:
                outcomes[key] = _recoveries_of_recoveries(image)
            for facts in outcomes[key]:
                facts.check(world.promises)
                if durability == "fsync":
                    assert not facts.lost_ends, "a power cut alone is told as a loss"
    assert len(outcomes) > len(stops) // 4


def _recoveries_of_recoveries(image: SimFileSystem) -> list[Facts]:
    """Stop the recovery of `image` before each of its operations, and recover from each result."""
    try:
        start(image.power_cut("none"), "boot-2")
    except CorruptMetadata:  # it was never created as far as anyone was told
        return []
    seen: set[bytes] = set()
    found: dict[object, Facts] = {}
    finished = False
    stop_at = 0
    while not finished:
        trial = image.power_cut("none")
        trial.stop_at = stop_at
        try:
            start(trial, "boot-2")
            finished = True
        except MachineStopped:
            pass
        for keep in KEEPS if THOROUGH else ("none", "some" if stop_at % 2 else "all"):
            second = trial.power_cut(keep, stop_at)
            key = second.digest()
            if key not in seen:
                seen.add(key)
                facts = Facts.of(start(second, "boot-3")[0])
                found[facts.key()] = facts
        stop_at += 1
    assert stop_at > 1
    return list(found.values())


def test_every_byte_of_the_last_group_may_be_missing() -> None:
    for killed in (False, True):
        fs, promises = SimFileSystem(), Promises()
        log = create(fs)
        commit(log, promises, 2, 2)
        start = log.active_state().position
        append(log, promises, 2, 1)
        path = log.segments[-1].path
        end = log.segments[-1].size_bytes
        whole = fs.read(path)[:end]
        for length in range(start, end + 1, stride()):
            for filler in (b"", b"\0" * 100, b"\xff" * 20):
                trial = fs.power_cut("all")
                trial.replace(path, whole[:length] + filler)
                if not killed:
                    trial.remove(DIRECTORY / "acked")
                again, report = reopen(trial, boot="boot-1")
                found = check(again, promises)
                assert set(found) >= {1, 2, 3, 4}
                torn = length > start and (length < end or filler == b"\xff" * 20)
                kept = [name for name in trial.list_directory(DIRECTORY) if "broken" in name]
                if torn and whole[:length].rstrip(b"\0") != b"" and report.cut_bytes:
                    assert len(kept) == 1
                    assert len(trial.read(DIRECTORY / kept[0])) == report.cut_bytes
                if killed:
                    # No reboot lies between, so the slot tells exactly what was acked.
                    assert again.log_end_offset <= 8
                    assert not again.view.manifest.quarantined
                commit(again, promises.copy(), 1)


def test_clean_stop_and_start_change_nothing() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    commit(log, promises, 3)
    group = log.writer.commit_group
    state = log.close()
    assert state is not None
    again, report = reopen(fs.power_cut("none"), boot="boot-2", clean=state)
    assert report.clean
    assert (report.scanned_bytes, report.events) == (0, [])
    assert again.leader_epoch == log.leader_epoch
    assert again.writer.commit_group != group - 1
    check(again, promises)
    assert again.view.max_timestamp_ns == BASE_NS


def test_an_unclean_start_raises_the_epoch_before_it_returns() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    commit(log, promises, 3)
    image = fs.power_cut("none")
    again, _ = reopen(image, boot="boot-2")
    assert again.leader_epoch == 2
    assert again.view.manifest.epochs == ((1, 1), (2, 4))
    third, _ = reopen(image.power_cut("none"), boot="boot-3")
    assert third.leader_epoch == 3


def test_the_recovery_point_saves_the_scan() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    commit(log, promises, 4)
    state = log.checkpoint()
    commit(log, promises, 1)
    image = fs.power_cut("none")
    again, report = reopen(image, boot="boot-2", recovery_point=state)
    check(again, promises)
    assert 0 < report.scanned_bytes < state.position
    assert again.segments[-1].record_count == 5


@pytest.mark.parametrize("field", ["incarnation", "base_offset"])
def test_a_recovery_point_of_something_else_is_ignored(field: str) -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    commit(log, promises, 4)
    values = {name: getattr(log.checkpoint(), name) for name in ActiveState.__slots__}
    values |= {"incarnation": "other"} if field == "incarnation" else {"base_offset": 7}
    wrong = ActiveState(**(values | {"next_offset": 900}))
    again, report = reopen(fs.power_cut("none"), recovery_point=wrong, clean=wrong)
    assert not report.clean
    assert again.log_end_offset == 5
    check(again, promises)
