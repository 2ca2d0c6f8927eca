"""Rounds that serve the consumers at the end of a stream: all of them, in turns, nobody twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from liftlog.server.jetstream_api.consumers.live import LiveRounds, live_rounds
from liftlog.server.jetstream_api.pace import TURN_SECONDS, Pace
from liftlog.server.reading.read_share import ReadShare, ThreadUsage
from liftlog.server.reading.tailing import TailGroup
from liftlog.server.streams.intake import Ingested


class Host:
    """The part of a stream that the rounds need; commits are made by hand."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(high_watermark=0)
        self._waits: list[tuple[int, asyncio.Future[None]]] = []

    def wait_high_watermark(self, offset: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.append((offset, future))
        self._tell()
        return future

    def commit(self, count: int = 1) -> None:
        self.log.high_watermark += count
        self._tell()

    def _tell(self) -> None:
        for offset, future in self._waits:
            if offset < self.log.high_watermark and not future.done():
                future.set_result(None)


class World:
    def __init__(self) -> None:
        self.host = Host()
        self.ingested = 0
        self.pace = Pace(lambda: self.ingested, time.thread_time)
        share = ReadShare(ThreadUsage(), lambda: Ingested(0, 0))
        self.group = TailGroup(asyncio.get_running_loop(), 0.0, share)
        self.tasks: set[asyncio.Task[None]] = set()
        services = SimpleNamespace(
            live_group=lambda host: self.group, read_share=share, spawn=self._spawn
        )
        self.rounds: LiveRounds = live_rounds(cast(Any, self.host), cast(Any, services), self.pace)
        self.served: Counter[str] = Counter()

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def consumer(self, name: str, seconds: float = 0.0) -> Callable[[], None]:
        """A consumer that takes so long for a delivery, and then waits again."""

        def deliver() -> None:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
            self.served[name] += 1
            self.rounds.wait(self.host.log.high_watermark, deliver)

        self.rounds.wait(self.host.log.high_watermark, deliver)
        return deliver

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.001)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    assert not world.tasks


async def test_all_that_wait_are_served_once_for_a_commit(world: World) -> None:
    for number in range(100):
        world.consumer(f"{number}")
    for commit in range(1, 4):
        world.host.commit()
        await world.until(lambda: world.served.total() >= 100 * commit)  # noqa: B023
        for _ in range(10):
            await asyncio.sleep(0)
        assert set(world.served.values()) == {commit}


async def test_a_round_pauses_when_its_time_is_used_up(world: World) -> None:
    """Other work of the event loop goes on between the deliveries; every consumer gets its turn."""
    count, turns = 20, 0
    for number in range(count):
        world.consumer(f"{number}", TURN_SECONDS)
    world.host.commit()
    while world.served.total() < count:
        turns += 1
        world.ingested += 1
        await asyncio.sleep(0)
    assert turns > count
    assert set(world.served.values()) == {1}
    await world.until(lambda: not world.tasks)


async def test_a_commit_during_a_round_begins_another_one(world: World) -> None:
    """Those that have seen it already are not called again."""
    for number in range(20):
        world.consumer(f"{number}", TURN_SECONDS)
    world.host.commit()
    await world.until(lambda: world.served.total() > 5)
    early = world.served.total()
    world.host.commit()
    await world.until(lambda: world.served.total() == 20 + early)
    await world.until(lambda: not world.tasks)
    for _ in range(10):
        await asyncio.sleep(0)
    assert world.served.total() == 20 + early
    assert len(world.served) == 20


async def test_who_leaves_is_not_served(world: World) -> None:
    """Neither before the round nor while it goes on."""
    first = world.consumer("first")
    for number in range(10):
        world.consumer(f"{number}", TURN_SECONDS)
    last = world.consumer("last")
    world.rounds.leave(first)
    world.host.commit()
    await world.until(lambda: world.served.total())
    world.rounds.leave(last)
    await world.until(lambda: not world.tasks)
    for _ in range(10):
        await asyncio.sleep(0)
    assert world.served == {f"{number}": 1 for number in range(10)}
