"""Consumers get their turns when they are ready or due, and cost nothing while they are idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from liftlog.server.jetstream_api.workers.rounds import Clock, Rounds

MS = 1_000_000


class Someone:
    """A consumer that notes its turns. `due` are the times that it wants next, in ms from now."""

    def __init__(self, *due: int, fails: bool = False) -> None:
        self.is_ready = False
        self.timer_ns: int | None = None
        self.turns: list[int] = []
        self.failures: list[Exception] = []
        self.due = list(due)
        self.fails = fails

    def step(self, now_ns: int) -> None:
        self.turns.append(now_ns)
        if self.fails:
            raise LookupError("a defect")

    def due_ns(self) -> int | None:
        return self.turns[-1] + self.due.pop(0) * MS if self.due else None

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


@asynccontextmanager
async def running() -> AsyncIterator[Rounds]:
    rounds = Rounds(Clock())
    rounds.start()
    try:
        yield rounds
    finally:
        rounds.close()


async def until(there: list[int], count: int) -> None:
    async with asyncio.timeout(10):
        while len(there) < count:
            await asyncio.sleep(0.001)


async def test_who_is_ready_twice_has_one_turn() -> None:
    async with running() as rounds:
        someone = Someone()
        rounds.ready(someone)
        rounds.ready(someone)
        await until(someone.turns, 1)
        await asyncio.sleep(0.02)
        assert len(someone.turns) == 1
        rounds.ready(someone)
        await until(someone.turns, 2)


async def test_who_is_due_has_a_turn_not_before() -> None:
    async with running() as rounds:
        early, late = Someone(20), Someone(60, 10)
        rounds.ready(late)
        rounds.ready(early)
        await until(late.turns, 3)
        await until(early.turns, 2)
        assert early.turns[1] - early.turns[0] >= 20 * MS
        assert late.turns[1] - late.turns[0] >= 60 * MS
        assert early.turns[1] < late.turns[1]


async def test_a_turn_that_is_not_urgent_comes_within_some_ms() -> None:
    async with running() as rounds:
        someone, other = Someone(), Someone()
        rounds.ready_later(someone)
        rounds.ready_later(other)
        rounds.ready(other)
        rounds.run()
        assert (len(someone.turns), len(other.turns)) == (0, 1)
        await until(someone.turns, 1)
        await asyncio.sleep(0.02)
        assert (len(someone.turns), len(other.turns)) == (1, 1), "one turn for both"
        rounds.ready_later(someone)
        await until(someone.turns, 2)


async def test_an_earlier_time_replaces_a_later_one() -> None:
    async with running() as rounds:
        someone = Someone(5000, 10)
        rounds.ready(someone)
        await until(someone.turns, 1)
        rounds.ready(someone)
        await until(someone.turns, 3)
        assert someone.turns[2] - someone.turns[1] < 4000 * MS


async def test_a_defect_of_one_stops_no_other() -> None:
    async with running() as rounds:
        bad, good = Someone(fails=True), Someone()
        rounds.ready(bad)
        rounds.ready(good)
        await until(good.turns, 1)
        assert [type(one) for one in bad.failures] == [LookupError]
        rounds.ready(good)
        await until(good.turns, 2)


async def test_a_far_timer_is_not_kept_once_for_each_near_one() -> None:
    """A message is delayed for an hour, and a pull ends each millisecond."""
    async with running() as rounds:
        hour = 3_600_000
        someone = Someone(*[hour, 1] * 300)
        for turn in range(1, 301):
            rounds.ready(someone)
            await until(someone.turns, 2 * turn - 1)
            rounds.ready(someone)
            await until(someone.turns, 2 * turn)
        assert rounds.timer_count < 100
