"""The machine of a replica stops before every single operation, and again during the recovery.

All confirmed records exist, only written records exist, and no stop makes the replica incomplete.
`make test` uses a sample of the operations, `make torture` uses all of them.
"""

from __future__ import annotations

import logging

import pytest
from support.disks.simfs import Keep, MachineStopped, SimFileSystem
from support.rounds import one_in
from support.worlds.replica_scenarios import SCENARIOS, ReplicaScenario, ReplicaWorld, start

from liftlog.errors import CorruptMetadata
from liftlog.log import Log

KEEPS: list[Keep] = ["none", "some", "all", "last"]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog.log")


def _run(scenario: ReplicaScenario, stop_at: int | None) -> ReplicaWorld:
    world = ReplicaWorld()
    world.fs.stop_at = stop_at
    try:
        scenario(world)
    except MachineStopped:
        pass
    return world


def _open(image: SimFileSystem, world: ReplicaWorld, boot: str) -> Log | None:
    try:
        log, report = start(image, boot)
    except (CorruptMetadata, FileNotFoundError):
        assert world.model.confirmed == 1, "a replica that confirmed records cannot be opened"
        return None
    assert report.incomplete == ""
    world.check(log)
    return log


def _go_on(image: SimFileSystem, world: ReplicaWorld, log: Log) -> None:
    """Check that appended records stay, and that a truncated end does not return."""
    end = log.log_end_offset
    other = ReplicaWorld()
    other.fs, other.log, other.serial = image, log, 1000
    chosen = world.model
    if world.other is not None:
        try:
            world.other.check(log)
            chosen = world.other
        except AssertionError:
            pass  # it was not done
    other.model = chosen.cut(end)
    log.writer.begin_epoch(log.leader_epoch + 1)
    other.led(2)
    other.sync()
    other.commit(other.model.end)
    again, report = start(image.power_cut("none"), "boot-3")
    assert report.incomplete == ""
    other.model.check(again)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_replica_stops_before_any_operation(scenario: ReplicaScenario) -> None:
    whole = _run(scenario, None)
    whole.model.check(whole.log)
    operations = whole.fs.operations
    assert operations > 20
    seen = 0
    stops = one_in(4, range(operations + 1), f"replica {scenario.__name__}")
    for stop_at in stops:
        world = _run(scenario, stop_at)
        images = [(world.fs.power_cut(keep, stop_at), "boot-2") for keep in KEEPS]
        for image, boot in [*images, (world.fs.kill(), "boot-1")]:
            log = _open(image, world, boot)
            if log is not None:
                seen += 1
                _go_on(image, world, log)
    assert seen > 3 * len(stops)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_replica_stops_again_before_any_operation_of_the_recovery(
    scenario: ReplicaScenario,
) -> None:
    operations = _run(scenario, None).fs.operations
    for stop_at in one_in(15, range(operations + 1), f"replica again {scenario.__name__}"):
        world = _run(scenario, stop_at)
        image, again = world.fs.power_cut(KEEPS[stop_at % 4], stop_at), 0
        finished = False
        while not finished:
            trial = image.power_cut("none")
            trial.stop_at = again
            try:
                start(trial, "boot-2")
                finished = True
            except MachineStopped:
                again += 1
            except CorruptMetadata:
                finished = True
            for keep in ("none", "some", "all"):
                _open(trial.power_cut(keep, again), world, "boot-3")  # type: ignore[arg-type]
