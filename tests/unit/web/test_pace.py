"""A search rests while messages are stored, and goes as fast as it can while none are."""

from __future__ import annotations

import numpy as np
import pytest

from liftlog.records.columns.column_set import BinaryColumn
from liftlog.server.web import pace
from liftlog.server.web.conditions import parse_condition
from liftlog.server.web.pace import Pace, Paced


class World:
    """Its clock goes only by `work` and by rests."""

    def __init__(self) -> None:
        self.time = 100.0
        self.stored = 7
        self.rests: list[float] = []
        self.pace = Pace(lambda: self.stored, lambda: self.time, self.rest)
        self.pace.begin()

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.time += seconds

    def work(self, seconds: float) -> None:
        self.time += seconds
        self.pace()


@pytest.fixture
def world() -> World:
    return World()


def test_nobody_is_waited_for_while_nothing_is_stored(world: World) -> None:
    for _ in range(100):
        world.work(0.005)
    assert world.rests == []


def test_rests_take_as_long_as_the_work(world: World) -> None:
    for _ in range(50):
        world.stored += 1
        for _ in range(10):
            world.work(0.001)
    assert sum(world.rests) == pytest.approx(50 * 0.010, rel=0.1)
    assert max(world.rests) < 0.006
    worked = 50 * 0.010
    assert world.time - 100.0 == pytest.approx(worked + sum(world.rests))


def test_a_short_quiet_is_none(world: World) -> None:
    """A publisher that waits for each ack sends nothing for some milliseconds."""
    world.stored += 1
    world.work(0.005)
    while world.time < 100.2:
        world.work(0.005)
    assert len(world.rests) == pytest.approx(20, abs=1)
    world.time += 1
    world.pace.begin()
    before = len(world.rests)
    world.work(0.005)
    assert len(world.rests) == before


def test_a_long_piece_is_not_paid_for_in_full(world: World) -> None:
    world.stored += 1
    world.work(1.0)
    assert world.rests == [pace.LONGEST_REST_SECONDS]


def test_what_was_no_work_counts_for_none(world: World) -> None:
    world.stored += 1
    world.time += 10
    world.pace.begin()
    world.work(0.001)
    assert world.rests == []


def test_a_condition_in_parts_finds_the_same(world: World) -> None:
    values = [b"x" * 500 + (b"needle" if n % 7 == 0 else b"") for n in range(1000)]
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    column = BinaryColumn(ends, np.frombuffer(b"".join(values), np.uint8), None)
    asked: list[int] = []
    condition = parse_condition("text", "needle")

    def counted(part: BinaryColumn) -> np.ndarray:
        asked.append(part.ends[-1] - part.ends[0])
        return condition(part)

    found = Paced(counted, world.pace)(column)
    assert np.flatnonzero(found).tolist() == list(range(0, 1000, 7))
    assert max(asked) <= pace.PART_BYTES
