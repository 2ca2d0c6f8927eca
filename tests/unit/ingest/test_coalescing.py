"""Work for all who wait for one lock."""

from __future__ import annotations

import asyncio

import pytest

from liftlog.server.ingest.coalescing import Coalescing


class Work:
    """Notes what it is called with, and waits until it is allowed to end."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.may_end = asyncio.Event()
        self.fails = False
        self.lock = asyncio.Lock()
        self.together = Coalescing(self.lock, self.work)

    async def work(self, items: list[str]) -> int:
        self.calls.append(list(items))
        await self.may_end.wait()
        if self.fails:
            raise OSError("no")
        return len(self.calls)

    async def begin(self, *items: str) -> list[asyncio.Task[int]]:
        tasks = [asyncio.create_task(self.together.do(item)) for item in items]
        await asyncio.sleep(0)
        return tasks


async def test_one_call_is_made_for_all_who_come_during_another() -> None:
    work = Work()
    tasks = await work.begin("a")
    tasks += await work.begin("b", "c")
    work.may_end.set()
    assert await asyncio.gather(*tasks) == [1, 2, 2]
    assert work.calls == [["a"], ["b", "c"]]


async def test_a_failure_is_that_of_all_in_the_call_and_of_no_other() -> None:
    work = Work()
    tasks = await work.begin("a")
    tasks += await work.begin("b", "c")
    work.fails = True
    work.may_end.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in results] == [OSError] * 3
    assert work.calls == [["a"], ["b", "c"]]
    work.fails = False
    assert await work.together.do("d") == 3


async def test_it_is_done_even_for_who_is_cancelled_before_its_turn() -> None:
    work = Work()
    tasks = await work.begin("a")
    waiting = await work.begin("b", "c")
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert waiting[0].cancelled()
    work.may_end.set()
    assert await asyncio.gather(*tasks, waiting[1]) == [1, 2]
    assert work.calls == [["a"], ["b", "c"]]


async def test_who_is_cancelled_in_its_turn_costs_the_others_nothing() -> None:
    work = Work()
    async with work.lock:
        tasks = await work.begin("a", "b")
    while not work.calls:
        await asyncio.sleep(0)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    work.may_end.set()
    assert await tasks[1] == 1
    assert work.calls == [["a", "b"]]
    assert not work.lock.locked()


async def test_it_is_closed_when_the_work_is_done_that_nobody_waits_for() -> None:
    work = Work()
    work.fails = True
    (task,) = await work.begin("a")
    (other,) = await work.begin("b")
    for one in (task, other):
        one.cancel()
    closing = asyncio.create_task(work.together.close())
    await asyncio.sleep(0)
    assert work.calls == [["a"]]
    assert not closing.done()
    work.may_end.set()
    await closing
    assert work.calls == [["a"], ["b"]]
    assert not work.lock.locked()
    assert not work.together.waiting
