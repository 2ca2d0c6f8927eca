"""What counts as a step of the wall clock, and what time ages are judged by meanwhile."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.disks.file_errors import LOOKS, OTHER_ERRORS, SECTOR_ERRORS, Failure, failures
from support.disks.logs import environment
from support.disks.simfs import SimFileSystem

from liftlog.log import OsFileSystem
from liftlog.log.data_dir import make_durable_directory
from liftlog.server.streams.clock_keeping import ClockKeeper
from liftlog.server.vitals.clock_guard import (
    CLOCK_NAME,
    ClockGuard,
    ClockState,
    read_clock_state,
    write_clock_state,
)

SECOND = 10**9
DATA_DIR = Path("/data")


class HandSetClock:
    def __init__(self) -> None:
        self.wall = 1_700_000_000 * SECOND
        self.monotonic = 5 * SECOND

    def now_ns(self) -> int:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.monotonic

    def pass_seconds(self, seconds: int) -> None:
        self.wall += seconds * SECOND
        self.monotonic += seconds * SECOND


@pytest.fixture
def clock() -> HandSetClock:
    return HandSetClock()


def test_time_that_passes_is_no_step(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    clock.pass_seconds(86_400)
    assert guard.wall_clock_is_trusted()
    assert guard.now_ns() == clock.wall


def test_a_step_ahead_makes_nothing_older_for_an_hour(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    before = clock.wall
    clock.wall += 86_400 * SECOND
    assert guard.now_ns() == before
    assert not guard.wall_clock_is_trusted()
    clock.pass_seconds(3600)
    assert guard.now_ns() == before + 3600 * SECOND
    clock.pass_seconds(1)
    assert guard.wall_clock_is_trusted()
    assert guard.now_ns() == before + 3601 * SECOND, "an hour alone confirms nothing"
    assert guard.doubt_seconds == 86_400
    guard.believe("a test says so")
    assert guard.now_ns() == clock.wall
    assert guard.doubt_seconds == 0


def test_a_step_back_is_followed_at_once(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    clock.wall -= 86_400 * SECOND
    assert guard.now_ns() == clock.wall
    assert not guard.wall_clock_is_trusted()


def test_a_step_that_is_taken_back_leaves_no_trace(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    clock.wall += 86_400 * SECOND
    assert not guard.wall_clock_is_trusted()
    clock.wall -= 86_400 * SECOND
    assert guard.now_ns() == clock.wall


def test_small_corrections_are_believed(clock: HandSetClock) -> None:
    guard = ClockGuard(clock)
    clock.wall += 600 * SECOND
    assert guard.wall_clock_is_trusted()
    assert guard.now_ns() == clock.wall


def next_start(guard: ClockGuard, clock: HandSetClock, *, boot: str = "one") -> ClockGuard:
    return ClockGuard(clock, guard.state(), boot)


def test_a_restart_confirms_nothing(clock: HandSetClock) -> None:
    guard = ClockGuard(clock, boot_id="one")
    before = clock.wall
    clock.wall += 86_400 * SECOND
    assert guard.now_ns() == before
    guard = next_start(guard, clock)
    assert guard.now_ns() == before
    assert not guard.wall_clock_is_trusted()
    clock.pass_seconds(7200)
    assert guard.now_ns() == before + 7200 * SECOND
    clock.wall -= 86_400 * SECOND
    assert guard.now_ns() == clock.wall
    assert guard.doubt_seconds == 0


def test_a_daemon_that_was_down_while_its_machine_ran_knows_how_long(clock: HandSetClock) -> None:
    guard = ClockGuard(clock, boot_id="one")
    state = guard.state()
    clock.pass_seconds(8 * 86_400)
    assert ClockGuard(clock, state, "one").doubt_seconds == 0
    clock.wall += 5 * 3600 * SECOND
    assert ClockGuard(clock, state, "one").doubt_seconds == 5 * 3600


@pytest.mark.parametrize(("hours", "doubt"), [(0.9, 0.0), (48, 48 * 3600.0)])
def test_a_machine_that_was_off_does_not_know_how_long(
    clock: HandSetClock, hours: float, doubt: float
) -> None:
    state = ClockGuard(clock, boot_id="one").state()
    clock.monotonic = 20 * SECOND
    clock.wall += int(hours * 3600) * SECOND
    assert ClockGuard(clock, state, "two").doubt_seconds == doubt


@pytest.mark.parametrize("raw", [b"", b"liftlog clock 9 crc32c=00000000\n{}", b"liftlog clock 1"])
def test_a_file_that_cannot_be_used_says_nothing(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / CLOCK_NAME).write_bytes(raw)
    assert read_clock_state(OsFileSystem(), tmp_path) is None


def test_what_is_stored_is_read_again(tmp_path: Path, clock: HandSetClock) -> None:
    guard = ClockGuard(clock, boot_id="one")
    guard.dispute = "most of the nodes have another time"
    state = guard.state()
    write_clock_state(OsFileSystem(), tmp_path, state)
    assert read_clock_state(OsFileSystem(), tmp_path) == state


@pytest.mark.parametrize(
    "failure", failures(LOOKS, (CLOCK_NAME,), (*OTHER_ERRORS, *SECTOR_ERRORS)), ids=str
)
async def test_an_error_of_the_read_ends_no_doubt(failure: Failure, clock: HandSetClock) -> None:
    """Nothing is deleted for its age, nor stored in the place of the file, until it can be read."""
    fs = SimFileSystem()
    make_durable_directory(fs, DATA_DIR)
    before = clock.wall
    guard = ClockGuard(clock, boot_id="one")
    clock.wall += 86_400 * SECOND
    write_clock_state(fs, DATA_DIR, guard.state())
    stored = fs.read(DATA_DIR / CLOCK_NAME)

    fs.faults = [failure.fault(times=-1)]
    guard = ClockGuard(clock, boot_id="one")
    keeper = ClockKeeper(guard, {}, cast(Any, place(fs, clock)))
    keeper.recall()
    clock.pass_seconds(7200)
    await keeper.look()
    keeper.store()
    assert not guard.wall_clock_is_trusted()
    [condition] = keeper.conditions()
    assert "because it cannot read whether the clock stepped" in condition.text
    assert fs.read(DATA_DIR / CLOCK_NAME) == stored
    clock.wall += 3600 * SECOND  # and another step meanwhile
    fs.faults = []
    await keeper.look()
    assert guard.doubt_seconds == 86_400 + 3600
    assert guard.now_ns() == before + 7200 * SECOND
    assert not guard.wall_clock_is_trusted()
    keeper.store()
    assert fs.read(DATA_DIR / CLOCK_NAME) != stored


def test_an_operator_who_confirms_the_clock_does_not_wait_for_the_file(clock: HandSetClock) -> None:
    fs = SimFileSystem()
    make_durable_directory(fs, DATA_DIR)
    write_clock_state(fs, DATA_DIR, ClockGuard(clock, boot_id="one").state())
    [failure] = failures(("open",), (CLOCK_NAME,), (errno.EACCES,))
    fs.faults = [failure.fault(times=-1)]
    guard = ClockGuard(clock, boot_id="one")
    keeper = ClockKeeper(guard, {}, cast(Any, place(fs, clock)))
    keeper.recall()
    guard.confirm()
    assert guard.wall_clock_is_trusted()
    assert list(keeper.conditions()) == []


async def test_the_other_nodes_end_the_doubt_about_a_clock_that_was_set_back(
    clock: HandSetClock,
) -> None:
    fs = SimFileSystem()
    make_durable_directory(fs, DATA_DIR)
    guard = ClockGuard(clock, boot_id="one")
    keeper = ClockKeeper(guard, {}, cast(Any, place(fs, clock)))
    clock.wall -= 3600 * SECOND
    await keeper.look()
    assert not guard.wall_clock_is_trusted()
    keeper.is_confirmed = lambda: True
    await keeper.look()
    assert guard.wall_clock_is_trusted()
    assert list(keeper.conditions()) == []


def place(fs: SimFileSystem, clock: HandSetClock) -> SimpleNamespace:
    return SimpleNamespace(environment=environment(fs, cast(Any, clock)), path=DATA_DIR)


async def test_a_step_after_the_measurement_is_not_trusted_with_it(clock: HandSetClock) -> None:
    fs = SimFileSystem()
    make_durable_directory(fs, DATA_DIR)
    guard = ClockGuard(clock, boot_id="one")
    keeper = ClockKeeper(guard, {}, cast(Any, place(fs, clock)))
    clock.wall -= 3600 * SECOND

    def is_confirmed() -> bool:
        clock.wall += 40 * 86_400 * SECOND
        return True

    keeper.is_confirmed = is_confirmed
    await keeper.look()
    assert guard.doubt_seconds > 30 * 86_400


def test_when_a_jump_was_trusted_is_known_after_restarts(clock: HandSetClock) -> None:
    guard = ClockGuard(clock, boot_id="one")
    assert guard.believed_ns == 0
    clock.wall += 86_400 * SECOND
    guard.now_ns()
    guard.believe("a test says so")
    believed_ns = clock.wall
    assert guard.believed_ns == believed_ns
    clock.pass_seconds(7200)
    guard.believe("there is no doubt any more")
    guard = next_start(guard, clock, boot="two")
    assert guard.believed_ns == believed_ns
    clock.wall -= 2 * 86_400 * SECOND  # the jump was wrong after all
    assert guard.believed_ns == 0
    assert next_start(guard, clock).believed_ns == 0


def test_when_a_jump_was_trusted_is_in_the_file() -> None:
    fs = SimFileSystem()
    make_durable_directory(fs, DATA_DIR)
    state = ClockState(3, 2, "boot-1", believed_ns=7)
    write_clock_state(fs, DATA_DIR, state)
    assert read_clock_state(fs, DATA_DIR) == state
