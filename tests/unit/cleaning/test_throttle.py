"""The rate and the room that a job is held to."""

from __future__ import annotations

import errno
import math
import os
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from support.disks.logs import create
from support.worlds.rewriting import ROLL_ON_DEMAND, add, row

from liftlog.log import OsFileSystem
from liftlog.log.rewrite import SketchJob
from liftlog.log.segment.derived import sketch_path, subject_index_path
from liftlog.server.cleaning.worker import SKETCH, FreeRoom, IdleGrant, RateLimit, perform


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds


def test_the_rate_holds_on_average() -> None:
    time = Time()
    limit = RateLimit(1000, clock=time.clock, sleep=time.sleep)
    for _ in range(50):
        limit(100)
        time.now += 0.02  # the work itself takes time that counts
    assert time.now - 100.0 == pytest.approx(5.0, abs=0.15)


def test_what_was_not_used_is_not_saved_up() -> None:
    time = Time()
    limit = RateLimit(1000, clock=time.clock, sleep=time.sleep)
    time.now += 3600
    limit(1000)
    assert 0.85 <= time.slept <= 1.0


def test_slow_work_is_not_held_up() -> None:
    time = Time()
    limit = RateLimit(1000, clock=time.clock, sleep=time.sleep)
    for _ in range(10):
        time.now += 1
        limit(50)
    assert time.slept == 0.0


def test_a_grant_lifts_the_limit_and_ends_by_itself() -> None:
    """As when the daemon stalls, and neither renews it nor takes it back."""
    time = Time()
    grant = IdleGrant(time.clock)
    limit = RateLimit(1000, math.inf, grant=grant, clock=time.clock, sleep=time.sleep)
    grant.note(0.2)
    for _ in range(10):
        limit(1_000_000)
        time.now += 0.01
    assert time.slept == 0.0
    time.now += 0.2
    limit(1000)
    assert time.slept == pytest.approx(1.0)


def test_there_is_no_burst_when_a_grant_is_taken_back() -> None:
    time = Time()
    grant = IdleGrant(time.clock)
    limit = RateLimit(1000, 5000, grant=grant, clock=time.clock, sleep=time.sleep)
    grant.note(3600)
    limit(10_000)
    assert time.slept == pytest.approx(2.0)  # the first wait was for the rate of a busy daemon
    grant.note(0)
    limit(1000)
    assert time.slept == pytest.approx(3.0)


def test_a_job_that_sleeps_goes_on_as_soon_as_the_daemon_is_idle() -> None:
    grant = IdleGrant()
    limit = RateLimit(1, math.inf, grant=grant)
    job = threading.Thread(target=limit, args=(10**9,))
    job.start()
    assert job.is_alive()
    grant.note(3600)
    job.join(30)
    assert not job.is_alive()


def test_what_a_fixed_rate_is_told_changes_nothing() -> None:
    time = Time()
    grant = IdleGrant(time.clock)
    limit = RateLimit(1000, grant=grant, clock=time.clock, sleep=time.sleep)
    grant.note(3600)
    limit(5000)
    assert time.slept == pytest.approx(5.0)


class Room(NamedTuple):
    f_blocks: int
    f_bavail: int
    f_frsize: int = 4096


@pytest.mark.parametrize(
    ("blocks", "free", "fits"),
    [
        (10**9, 20_000, True),
        (10**9, 10_000, False),  # less than 64 MiB
        (256, 20, True),
        (256, 10, False),  # less than a twentieth of a small one
    ],
)
def test_room_is_left_for_messages(
    blocks: int, free: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: Room(blocks, free))
    room = FreeRoom(tmp_path)
    if fits:
        room(1)
        return
    with pytest.raises(OSError) as raised:
        room(1)
    assert raised.value.errno == errno.ENOSPC


def test_the_disk_is_not_asked_for_every_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    original = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: asked.append(path) or original(path))  # type: ignore[func-returns-value]
    room = FreeRoom(tmp_path)
    for _ in range(64):
        room(256 * 1024)
    assert 4 <= len(asked) <= 6


@pytest.mark.parametrize("free", [2 * 10**8, 10**7])
def test_no_subject_index_while_less_than_a_tenth_is_free(
    free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sketch is made: it is small."""
    log = create(OsFileSystem(), config=ROLL_ON_DEMAND, directory=tmp_path / "orders")
    for _ in range(20):
        add(log, [[row(b"k", b"v" * 500, subject=f"orders.{n % 2}") for n in range(20)]])
    log.writer.roll()
    segment = log.segments[0]
    job = SketchJob(
        str(log.directory), segment.entry(), log.view.manifest.lineage, log.view.manifest.epochs
    )
    order = {"kind": SKETCH, "job": job.to_dict(), "max_rate_bytes": 1e9, "idle_rate_bytes": None}
    monkeypatch.setattr(os, "statvfs", lambda path: Room(10**9, free))
    assert perform(order, lambda line: None)["result"]["size_bytes"] > 0
    assert sketch_path(segment.path).exists()
    assert subject_index_path(segment.path).exists() is (free > 10**8)
    log.close()
