"""The machine stops before any operation of rounds with several streams.

Each stream is then judged alone, as if it had committed alone: what was acked is there, and what is
there was published.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.disks.logs import read_all
from support.disks.simfs import Keep, MachineStopped
from support.rounds import one_in
from support.worlds.round_streams import RoundStreams

KEEPS: list[Keep] = ["none", "some", "all", "last"]
NAMES = ["s0", "s1", "s2"]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog")


async def _publish(world: RoundStreams) -> None:
    """Rounds of all and of some streams, one inside another, with rolls in between."""
    for number in range(8):
        world.publish(*NAMES, count=1 + number % 3, size=120)
        world.publish("s0", "s2")  # while the round is out
        await world.work()
    world.publish("s1", count=3)  # alone
    await world.work()


def _run(stop_at: int | None) -> RoundStreams:
    world = RoundStreams(3, segment={"max_bytes": 3000})
    for path in NAMES:
        world.sim.fsync_directory(world.directory / path)
    world.sim.operations = 0
    world.sim.stop_at = stop_at

    async def run() -> None:
        def ignore(_: Any, context: dict[str, Any]) -> None:
            assert isinstance(context["exception"], MachineStopped), context

        asyncio.get_running_loop().set_exception_handler(ignore)
        try:
            await _publish(world)
        except MachineStopped:
            pass

    asyncio.run(run())
    return world


def _check(world: RoundStreams, name: str, found: dict[int, bytes], end: int) -> None:
    acked = world.acked(name)
    assert acked.items() <= found.items(), "what was acked is there"
    assert max(acked, default=0) < end
    written = [payload for stream, payload in world.payloads if stream == name]
    assert [*found.values()] == written[: len(found)], "and no more than was published, in order"
    assert [*found] == [*range(1, len(found) + 1)], "without a gap"


def test_the_machine_stops_before_any_operation_of_a_round() -> None:
    whole = _run(None)
    operations = whole.sim.operations
    assert whole.intake.rounds.begun >= 8
    assert operations > 60
    assert len(whole.answers) == len(whole.payloads)
    outcomes: set[tuple[int, ...]] = set()
    assert whole.log("s0").segment_count > 1
    answered: set[int] = set()
    for stop_at in one_in(4, range(operations + 1), "rounds"):
        world = _run(stop_at)
        assert world.sim.stopped == (stop_at < operations)
        answered.add(len(world.answers))
        images = [(world.sim.power_cut(keep, stop_at), "boot-2") for keep in KEEPS]
        for image, boot in [*images, (world.sim.kill(), "boot-1")]:
            ends = []
            for name, log in world.recovered(image, boot).items():
                losses = [bad for bad in log.view.manifest.quarantined if bad.is_loss]
                assert not losses, "a stop alone is told as a loss"
                _check(world, name, read_all(log), log.log_end_offset)
                ends.append(len(read_all(log)))
            outcomes.add(tuple(ends))
    assert len(answered) > 3
    assert len(outcomes) > 5, "some streams were further than others"
