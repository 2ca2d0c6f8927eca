"""For how long the next record of a reader has been in its stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.disks.stored_logs import STAMP_NS, StoredLog

from liftlog.server.web import waiting
from liftlog.server.web.waiting import Place, Waiting, received_ns


@dataclass
class Stream:
    """As much of a log as is asked for its end."""

    high_watermark: int
    incarnation: str = "one"


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[list[int]] = []
        self.log: Any = Stream(101)
        self.waiting = Waiting(self.read, lambda: self.now)

    async def read(self, places: list[Place]) -> list[int | None]:
        self.asked.append([place.offset for place in places])
        return [None if place.offset == 13 else 400_000_000_000 for place in places]

    async def seconds(self, *offsets: int) -> list[float]:
        return await self.waiting.seconds([Place(self.log, offset) for offset in offsets])

    async def grow(self, end: int, at: float, *offsets: int) -> list[float]:
        self.now, self.log.high_watermark = at, end
        return await self.seconds(*offsets)


@pytest.fixture
def world() -> World:
    return World()


async def test_who_reads_at_the_end_waits_for_nothing(world: World) -> None:
    assert await world.seconds(101) == [0]
    assert await world.grow(201, 1005, 201) == [0]
    assert world.asked == []


async def test_recent_records_are_not_read(world: World) -> None:
    await world.seconds(101)
    await world.grow(201, 1005, 101)
    assert await world.grow(201, 1010, 101, 151, 200) == pytest.approx([10, 7.5, 5.05])
    assert await world.grow(201, 1100, 151) == [97.5]
    assert world.asked == []


async def test_older_ones_are_read_once(world: World) -> None:
    assert await world.seconds(7, 7, 9) == [600, 600, 600]
    assert await world.grow(500, 1005, 7, 9) == [605, 605]
    assert world.asked == [[7, 9]]
    assert await world.grow(500, 1010, 8, 9) == [610, 610]
    assert world.asked == [[7, 9], [8]]
    assert math.isnan((await world.seconds(13))[0])
    assert math.isnan((await world.seconds(13))[0])
    assert world.asked[2:] == [[13]]


async def test_one_look_reads_a_bounded_number(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_READS", 3)
    assert sum(map(math.isnan, await world.seconds(*range(20, 30)))) == 7
    assert sum(map(math.isnan, await world.seconds(*range(20, 30)))) == 4
    assert [len(one) for one in world.asked] == [3, 3], "the next look reads others"


async def test_a_log_that_was_cut_or_created_again_begins_anew(world: World) -> None:
    await world.seconds(101)
    await world.grow(201, 1005, 101)
    assert await world.grow(150, 1010, 101) == [610], "what was noted is about other records"
    await world.grow(300, 1015, 150)
    assert await world.grow(300, 1020, 150) == [10]
    world.log = Stream(300, "two")
    assert await world.seconds(150) == [620]


def test_when_a_record_was_received(tmp_path: Path) -> None:
    stored = StoredLog(tmp_path / "data")
    stored.append([b"a", b"b"])
    log = stored.log
    assert received_ns([Place(log, 1), Place(log, 2), Place(log, 3)]) == [STAMP_NS, STAMP_NS, None]
    assert received_ns([Place(log, 99)]) == [None], "beyond the end"
    stored.crash()
