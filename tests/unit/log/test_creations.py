"""Sixteen logs are created at a time, and the machine stops before any operation."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from support.disks.logs import SMALL
from support.disks.simfs import Keep, MachineStopped, SimFileSystem
from support.rounds import one_in
from support.worlds.crash_scenarios import environment

from liftlog.errors import StorageError
from liftlog.log import DataDir
from liftlog.log.data_dir import SharedSync

DIRECTORY = Path("/data")
KEEPS: list[Keep] = ["none", "some", "all", "last"]
NAMES = [f"s{number:02d}" for number in range(16)]


def created(fs: SimFileSystem) -> list[str]:
    """Create all streams at the same time. Returns the streams whose creation was confirmed."""
    data_dir = DataDir(DIRECTORY, environment(fs))
    answered = []

    def create(name: str) -> None:
        try:
            data_dir.create_log(name, SMALL, initial_offset=1, metadata={"name": name})
        except (MachineStopped, StorageError):  # the latter of a sync that another one began
            return
        answered.append(name)

    with ThreadPoolExecutor(len(NAMES)) as threads:
        list(threads.map(create, NAMES))
    return answered


def new_disk() -> SimFileSystem:
    fs = SimFileSystem()
    fs.make_directory(DIRECTORY / "streams")
    for path in (DIRECTORY.parent, DIRECTORY):
        fs.fsync_directory(path)
    return fs


def opened(fs: SimFileSystem) -> set[str]:
    """Return the streams that a start serves. Checks that all existing streams can be opened."""
    fs.fsync_directory(DIRECTORY / "streams")  # as `DataDir.open` does
    data_dir = DataDir(DIRECTORY, environment(fs))
    found = set()
    for name in data_dir.stream_names():
        log, _ = data_dir.open_log(name, SMALL)
        assert log.view.manifest.metadata == {"name": name}
        assert log.log_end_offset == 1
        found.add(name)
    return found


def test_a_stop_before_any_operation_loses_no_stream_that_was_answered() -> None:
    whole = new_disk()
    before = whole.operations
    assert sorted(created(whole)) == NAMES
    assert opened(whole.kill()) == set(NAMES)
    for stop_at in one_in(4, list(range(before, whole.operations)), "stops"):
        fs = new_disk()
        fs.stop_at = stop_at
        answered = set(created(fs))
        assert answered < set(NAMES)
        images = [fs.power_cut(keep, stop_at) for keep in KEEPS]
        for image in [*images, fs.kill()]:
            found = opened(image)
            assert answered <= found
            # The start has made durable what it serves.
            assert found <= opened(image.power_cut("none"))


CALLERS, CALLS = 16, 20


def call_all(shared: SharedSync, note: Callable[[int, int], None]) -> int:
    """Call from many threads; `note` gets the clock before and after each call. Returns the number
    of calls that raised OSError."""

    def call(_: int) -> int:
        failed = 0
        for _ in range(CALLS):
            before = time.monotonic_ns()
            try:
                shared()
            except OSError as error:
                failed += error.errno == errno.EIO
            note(before, time.monotonic_ns())
        return failed

    with ThreadPoolExecutor(CALLERS) as threads:
        return sum(threads.map(call, range(CALLERS)))


def test_a_sync_serves_all_that_wait_for_it() -> None:
    syncs: list[tuple[int, int]] = []

    def sync() -> None:
        began = time.monotonic_ns()
        time.sleep(0.002)  # a slow disk
        syncs.append((began, time.monotonic_ns()))

    def note(before: int, after: int) -> None:
        assert any(before <= began and ended <= after for began, ended in syncs[-4:])

    assert call_all(SharedSync(sync), note) == 0
    assert len(syncs) < CALLERS * CALLS / 2
    ordered = sorted(syncs)
    assert all(one[1] <= other[0] for one, other in pairwise(ordered)), "two at a time"


def test_a_failed_sync_fails_for_all_that_share_it() -> None:
    count = 0

    def fail() -> None:
        nonlocal count
        count += 1
        time.sleep(0.001)
        raise OSError(errno.EIO, "Input/output error")

    assert call_all(SharedSync(fail), lambda before, after: None) == CALLERS * CALLS
    assert count < CALLERS * CALLS / 2
