"""A lock that goes round among parties and their members."""

from __future__ import annotations

import asyncio

import pytest

from liftlog.server.reading.fairness import FairLock


async def test_parties_and_members_take_turns() -> None:
    lock, order, held = FairLock(), [], 0

    async def work(party: str, member: int) -> None:
        nonlocal held
        async with lock.of(party, member):
            held += 1
            assert held == 1
            await asyncio.sleep(0)
            order.append(f"{party}{member}")
            held -= 1

    wanted = [("g", 0), ("g", 0), ("g", 0), ("g", 1), ("m", 0)]
    await asyncio.gather(*[work(*one) for one in wanted])
    assert order == ["g0", "g0", "m0", "g1", "g0"]
    await work("m", 1)


@pytest.mark.parametrize("after", range(1, 4))
async def test_a_waiter_that_is_cancelled_does_not_keep_it(after: int) -> None:
    lock = FairLock()
    done: list[str] = []

    async def work(name: str) -> None:
        async with lock.of(name):
            await asyncio.sleep(0)
            done.append(name)

    tasks = {name: asyncio.create_task(work(name)) for name in "abc"}
    for _ in range(after):
        await asyncio.sleep(0)
    tasks["b"].cancel()
    await asyncio.wait_for(asyncio.gather(*tasks.values(), return_exceptions=True), 10)
    assert {"a", "c"} <= set(done)
    await asyncio.wait_for(work("d"), 10)
