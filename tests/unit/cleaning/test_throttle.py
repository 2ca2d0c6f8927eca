"""The rate and the room that a job is held to."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from liftlog.server.cleaning.worker import FreeRoom, RateLimit


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
