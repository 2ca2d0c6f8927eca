"""Consumers take no turn for which there is no work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from support.disks.page_cache import need_nowait
from support.worlds.acked_consumers import STREAM, World, acked_world, until

from liftlog.deliveries.acks import Acks
from liftlog.server.consumers.door import Asked, Delivery
from liftlog.server.jetstream_api.consumers.cursor import PIECE_BYTES
from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.workers import rounds
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.acks import WorkerAcks
from liftlog.server.jetstream_api.workers.socket_door import SocketDoor

LARGE = b"x" * (PIECE_BYTES * 3 // 4)
"""A payload of which one read returns only one."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    need_nowait(tmp_path)
    async with acked_world(tmp_path) as world:
        yield world


def turns_of(consumer: AckedConsumer) -> list[int]:
    """Return a list that gets the number of pending messages after each turn."""
    turns: list[int] = []
    step = consumer.step

    def counted(now_ns: int) -> None:
        step(now_ns)
        turns.append(consumer.machine.state.pending.total)

    consumer.step = counted  # type: ignore[method-assign]
    return turns


async def rest(consumer: AckedConsumer) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    await until(lambda: not consumer.is_ready)


async def test_a_pull_that_gets_all_its_messages_costs_one_turn(world: World) -> None:
    consumer = await world.create("c")
    for _ in range(4):
        await world.running.publish(STREAM, LARGE)
    await rest(consumer)
    turns = turns_of(consumer)
    for number in range(3):
        consumer.pull(b"inbox", Pull(batch=1))
        await until(lambda: consumer.machine.state.pending.total == number + 1)  # noqa: B023
        await rest(consumer)
    assert turns == [1, 2, 3]


async def test_a_pull_that_needs_another_read_gets_another_turn(world: World) -> None:
    consumer = await world.create("c")
    for _ in range(4):
        await world.running.publish(STREAM, LARGE)
    consumer.pull(b"inbox", Pull(batch=3))
    await until(lambda: consumer.machine.state.pending.total == 3)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_batch_for_a_worker_costs_one_turn(world: World, workers: int) -> None:
    consumer = await world.create("c")
    await world.running.publish(STREAM, *[b"%d" % number for number in range(10)])
    await rest(consumer)
    turns = turns_of(consumer)
    door = SocketDoor(world.broker, world.table)
    found: list[Delivery] = []
    for number in range(workers):
        door.work(STREAM, "c", Asked(str(number), 3, 2**20, found.append, pytest.fail), None)
    await until(lambda: len(found) == workers)
    await rest(consumer)
    assert [one.runs for one in found] == [[(1, 3, 1)], [(4, 3, 1)]][:workers]
    assert turns == [3, 6][:workers]


def acked(consumer: AckedConsumer, *offsets: int, reply: bytes = b"") -> None:
    """Ack messages that were delivered."""
    columns = np.array(offsets, np.int64)
    stamps = consumer.machine.state.pending.stamps_of(columns)
    acks = Acks.plain(columns, np.ones(len(columns), np.int64), stamps)
    consumer.acknowledge(WorkerAcks("c", acks, columns, [reply] * len(columns) if reply else ()))


async def test_acks_that_no_client_waits_for_share_the_turn_of_the_next_pull(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LATER_SECONDS", 3600.0)
    consumer = await world.create("c")
    await world.running.publish(STREAM, *[b"%d" % number for number in range(10)])
    consumer.pull(b"inbox", Pull(batch=5))
    await until(lambda: consumer.machine.state.pending.total == 5)
    await rest(consumer)
    turns, number = turns_of(consumer), consumer.version.number
    acked(consumer, 1)
    acked(consumer, 2, 3)
    await rest(consumer)
    assert consumer.machine.state.pending.total == 2
    assert turns == []
    consumer.pull(b"inbox", Pull(batch=2))
    await rest(consumer)
    assert (turns, consumer.version.number) == ([4], number + 1)


async def test_acks_that_no_client_waits_for_are_written_soon(world: World) -> None:
    consumer = await world.create("c")
    await world.running.publish(STREAM, b"x", b"y")
    consumer.pull(b"inbox", Pull(batch=2))
    await until(lambda: consumer.machine.state.pending.total == 2)
    await rest(consumer)
    number = consumer.version.number
    acked(consumer, 1)
    assert consumer.version.number == number
    await until(lambda: consumer.version.number == number + 1)
    acked(consumer, 2, reply=b"_INBOX.answer")
    await rest(consumer)
    assert consumer.version.number == number + 2, "an ack with an answer has a turn at once"


async def test_acks_that_make_room_for_a_waiting_pull_have_a_turn_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LATER_SECONDS", 3600.0)
    consumer = await world.create("c", max_ack_pending=2)
    await world.running.publish(STREAM, b"x", b"y", b"z")
    consumer.pull(b"inbox", Pull(batch=3))
    await until(lambda: consumer.machine.state.pending.total == 2)
    await rest(consumer)
    acked(consumer, 1)
    await until(lambda: consumer.machine.state.sequence == 3)
