"""What answers take of the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from liftlog.server.jetstream_api import pace as pace_module
from liftlog.server.jetstream_api.pace import TURN_SECONDS, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace_module, "perf_counter", clock)
    return clock


async def test_what_waits_costs_nothing_and_what_runs_ends_the_turn(clock: Clock) -> None:
    pace = Pace(lambda: 0)

    async def waits() -> str:
        asyncio.get_running_loop().call_soon(clock.pass_, 5 * TURN_SECONDS)
        await asyncio.sleep(0)
        return "answer"

    assert await pace.run(waits()) == "answer"
    await asyncio.wait_for(pace.turn(), 10)

    async def runs() -> None:
        clock.pass_(2 * TURN_SECONDS)

    await pace.run(runs())
    turn = asyncio.create_task(pace.turn())
    loop_turns = 0
    while not turn.done():
        loop_turns += 1
        await asyncio.sleep(0)
    assert loop_turns > 1, "it has waited"


async def test_while_messages_come_the_loop_is_left_to_them(clock: Clock) -> None:
    received = 0
    pace = Pace(lambda: received)

    async def runs() -> None:
        clock.pass_(20 * TURN_SECONDS)

    received = 1
    await pace.run(runs())
    ended = time.perf_counter()
    await pace.turn()
    assert time.perf_counter() - ended >= 19 * TURN_SECONDS


async def test_time_that_answers_leave_to_others_is_no_debt(clock: Clock) -> None:
    """A pause lasts at least a timer of the loop, so a little work now and then takes none."""
    received = 0
    pace = Pace(lambda: received)
    for _ in range(10):
        received += 1
        pace.run_now(clock.pass_, 0.6 * TURN_SECONDS)
        assert pace.has_time
        await asyncio.sleep(0)
        clock.pass_(0.6 * TURN_SECONDS)
    pace.run_now(clock.pass_, 0.6 * TURN_SECONDS)
    pace.run_now(clock.pass_, 0.6 * TURN_SECONDS)
    assert not pace.has_time


async def test_short_steps_end_a_turn_also_while_the_thread_waits_for_a_processor(
    clock: Clock,
) -> None:
    """The time between two steps of one turn of the loop does not count as time for other work."""
    processor = Clock()
    pace = Pace(lambda: 0, processor)

    def works() -> None:
        processor.pass_(0.1 * TURN_SECONDS)
        clock.pass_(0.3 * TURN_SECONDS)

    steps = 0
    while pace.has_time and steps < 100:
        pace.run_now(works)
        steps += 1
    assert steps <= 11


async def test_errors_and_cancellation_pass_through() -> None:
    pace = Pace(lambda: 0)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        await pace.run(fails())

    ends: list[str] = []

    async def is_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    task = asyncio.ensure_future(pace.run(is_cancelled()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled"]


async def test_turns_are_in_the_order_of_the_calls(clock: Clock) -> None:
    """Who asks at the moment at which there is time again is not served before those who wait."""
    pace = Pace(lambda: 0)
    served: list[str] = []

    async def asks(name: str) -> None:
        await pace.turn()
        served.append(name)

    async def computes() -> None:
        clock.pass_(2 * TURN_SECONDS)

    await pace.run(computes())
    waiting = asyncio.create_task(asks("waits"))
    late = asks("late")
    # After the call with which the pace looks again, and in the same turn of the loop.
    asyncio.get_running_loop().call_later(0, lambda: late.send(None))
    async with asyncio.timeout(10):
        await waiting
    assert served == ["waits"]
    late.close()


async def test_a_turn_that_is_cancelled_goes_to_the_next(clock: Clock) -> None:
    pace = Pace(lambda: 0)

    async def computes() -> None:
        clock.pass_(2 * TURN_SECONDS)

    await pace.run(computes())
    turns = [asyncio.create_task(pace.turn()) for _ in range(4)]
    await asyncio.sleep(0)
    turns[0].cancel()
    await asyncio.sleep(0)
    turns[1].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*turns[2:])
        await pace.turn()


async def test_work_without_a_wait_is_counted(clock: Clock) -> None:
    pace = Pace(lambda: 0)
    assert pace.run_now(lambda text: text, "answer") == "answer"
    assert pace.has_time

    def fails() -> None:
        clock.pass_(2 * TURN_SECONDS)
        raise ValueError

    with pytest.raises(ValueError):
        pace.run_now(fails)
    assert not pace.has_time
    await asyncio.wait_for(pace.turn(), 10)
    assert pace.has_time
