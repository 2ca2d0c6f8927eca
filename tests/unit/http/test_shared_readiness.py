"""However many ask whether the daemon is ready, to find out takes a small part of its time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from liftlog.server.http.server import SharedReadiness


class Slow:
    """With so many streams that finding out takes a while."""

    is_serving = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.count = 0

    def liveness(self) -> dict[str, Any]:
        return {}

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        self.count += 1
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)
        return True, {"count": self.count}


async def test_many_who_ask_share_the_answer() -> None:
    health = Slow(0.004)
    readiness = SharedReadiness(health)
    answers = await asyncio.gather(*(readiness.get() for _ in range(100)))
    # Never more than a tenth of the time, whatever else delays this test.
    assert 1 <= health.count < 20
    assert all(ready for ready, _ in answers)


async def test_an_answer_is_never_old() -> None:
    health = Slow(0.05)
    readiness = SharedReadiness(health)
    await readiness.get()
    await asyncio.sleep(0.3)
    assert (await readiness.get())[1] == {"count": 2}
