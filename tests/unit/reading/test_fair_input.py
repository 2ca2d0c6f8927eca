"""Work for many clients, a bounded time in each turn of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from liftlog.server.reading.fairness import FairInput


def spend(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


async def test_little_is_done_at_once() -> None:
    done: list[int] = []
    fair_input = FairInput()
    fair_input.run("a", lambda: done.append(1))
    fair_input.run("a", lambda: done.append(2))
    assert done == [1, 2]


async def test_much_is_spread_over_turns_of_the_loop() -> None:
    fair_input = FairInput(turn_seconds=0.002)
    done: list[int] = []

    def work(number: int) -> None:
        spend(0.001)
        done.append(number)

    for number in range(40):
        fair_input.run(number, lambda number=number: work(number))
    per_turn = []
    while len(done) < 40:
        before = len(done)
        await asyncio.sleep(0)
        per_turn.append(len(done) - before)
    assert done == list(range(40)), "in the order in which it was asked for"
    assert max(per_turn) <= 3


async def test_principals_take_turns() -> None:
    fair_input = FairInput(turn_seconds=0.001)
    done: list[str] = []

    def works(name: str) -> None:
        spend(0.001)
        done.append(name)

    for _ in range(50):
        fair_input.run("many", lambda: works("many"))
    fair_input.run("few", lambda: works("few"))
    while len(done) < 51:
        await asyncio.sleep(0)
    assert done.index("few") <= 3


async def test_what_waits_is_done_once() -> None:
    fair_input = FairInput(turn_seconds=0.001)
    done: Counter[str] = Counter()

    def work() -> None:
        done["work"] += 1

    fair_input.run("a", lambda: spend(0.002))
    for _ in range(5):
        fair_input.run("a", work)
    assert not done
    await asyncio.sleep(0)
    assert done == {"work": 1}
    fair_input.run("a", work)
    assert done == {"work": 2}


async def test_work_that_fails_stops_nobody() -> None:
    fair_input = FairInput(turn_seconds=0.001)
    done: list[str] = []
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: failures.append(found))

    def fail() -> None:
        raise ValueError("not this one")

    fair_input.run("a", lambda: spend(0.002))
    fair_input.run("b", fail)
    fair_input.run("c", lambda: done.append("c"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == ["c"]
    assert isinstance(failures[0]["exception"], ValueError)
    with pytest.raises(ValueError, match="not this one"):
        fair_input.run("d", fail)
