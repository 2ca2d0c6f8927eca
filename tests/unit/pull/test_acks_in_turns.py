"""Acks of workers on the pull socket take turns at the event loop, and keep their order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from time import thread_time
from typing import Any, cast

import pytest
from support.rounds import fewer
from support.worlds.acked_consumers import STREAM, World, acked_world

from liftlog.deliveries.acks import MAX_ACKS, AckKind
from liftlog.errors import ConsumerNotFound, LiftlogError, ShuttingDown
from liftlog.protocol.workers import ACK, MAX_BATCH, NAK, PROGRESS, TERM, AckWork, Run, encode_runs
from liftlog.server.consumers.door import AcksOf, Asked, Delivery
from liftlog.server.jetstream_api.workers.socket_door import SocketDoor
from liftlog.server.pull.working import WorkRequests
from liftlog.server.requests.rights import Caller

NAME = "c"


class Answers:
    """Collects the answers to one client, in order."""

    is_open = True

    def __init__(self) -> None:
        self.all: dict[int, Exception | None] = {}

    def done(self, request_id: int) -> None:
        self.all[request_id] = None

    def refuse(self, request_id: int, error: Exception) -> None:
        self.all[request_id] = error

    def settle(self) -> None: ...

    def flush(self) -> None: ...


class Client:
    """One connection."""

    def __init__(self, world: World) -> None:
        self.answers = Answers()
        caller = Caller(None, world.services.gate, world.broker, "test")
        self.requests = WorkRequests(world.services, caller, cast(Any, self.answers))
        self._last = 0

    def ack(self, kind: str, runs: Iterable[tuple[int, int, int]], **more: Any) -> int:
        self._last += 1
        message = AckWork(STREAM, NAME, more.pop("identity"), kind, encode_runs(runs), **more)
        self.requests.begin(self._last, message)
        return self._last

    async def answered(self, *numbers: int) -> None:
        await until(lambda: all(number in self.answers.all for number in numbers))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with acked_world(tmp_path) as world:
        world.broker.consumers = SocketDoor(world.broker, world.table)
        yield world


async def delivered(world: World, count: int) -> str:
    """Let the consumer deliver this many messages. Returns its identity."""
    door = cast(SocketDoor, world.broker.consumers)
    await world.running.publish(STREAM, *[b"%d" % number for number in range(count)])
    await door.create(STREAM, NAME, {"max_ack_pending": -1, "ack_wait": 3600 * 10**9}, "me", None)
    found: list[Delivery] = []
    while sum(run[1] for one in found for run in one.runs) < count:
        before = len(found)
        door.work(STREAM, NAME, Asked("w", MAX_BATCH, 2**24, found.append, pytest.fail), None)
        await until(lambda before=before: len(found) > before)
    return found[0].identity


def pending(world: World) -> Any:
    consumer = world.table.find(STREAM, NAME)
    assert consumer is not None
    return consumer.machine.state.pending


async def longest_step(leave: asyncio.Event) -> float:
    """The processor time of the longest turn of the loop until `leave` is set. The garbage
    collector does not run meanwhile: its time depends on the objects of all other tests."""
    gc.disable()
    try:
        longest, before = 0.0, thread_time()
        while not leave.is_set():
            await asyncio.sleep(0)
            now = thread_time()
            longest, before = max(longest, now - before), now
        return longest
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [PROGRESS, NAK, TERM])
async def test_acks_of_many_messages_hold_the_loop_for_short(world: World, kind: str) -> None:
    count = fewer(100_000)
    identity = await delivered(world, count)
    if kind == NAK:
        more: dict[str, Any] = {"delay_ns": 10**12}
    else:
        more = {"reason": "for no reason"} if kind == TERM else {}
    leave = asyncio.Event()
    watching = asyncio.create_task(longest_step(leave))
    await asyncio.sleep(0)
    client = Client(world)
    runs = [[(1, count, 1)], [(number, 1, 1) for number in range(1, 2 * MAX_BATCH, 2)]]
    asked = [client.ack(kind, runs[at % 2], identity=identity, **more) for at in range(16)]
    assert not client.answers.all, "nothing is synced yet"
    await client.answered(*asked)
    leave.set()
    assert [client.answers.all[one] for one in asked] == [None] * 16
    assert pending(world).total == (0 if kind == TERM else count)
    assert await watching < 0.15


async def test_acks_of_one_connection_take_effect_in_their_order(world: World) -> None:
    count = 10 * MAX_ACKS
    identity = await delivered(world, count)
    client = Client(world)
    returned = client.ack(NAK, [(1, count, 1)], identity=identity)
    # A sign of progress takes a message out of the queue of those that were returned.
    kept = client.ack(PROGRESS, [(count, 1, 1)], identity=identity)
    await client.answered(returned, kept)
    found = pending(world)
    assert (found.total, found.queued) == (count, count - 1)
    assert list(client.answers.all) == [returned, kept]


async def test_an_ack_of_few_messages_takes_effect_at_once(world: World) -> None:
    identity = await delivered(world, 10)
    client = Client(world)
    await asyncio.sleep(0)
    asked = client.ack(ACK, [(1, 5, 1)], identity=identity)
    assert pending(world).total == 5
    await client.answered(asked)


async def test_acks_that_wait_for_a_turn_outlive_their_connection(world: World) -> None:
    """A worker often acks its last messages and leaves."""
    count = 10 * MAX_ACKS
    identity = await delivered(world, count)
    client = Client(world)
    client.ack(PROGRESS, [(1, count, 1)], identity=identity)
    await asyncio.sleep(0)
    for number in range(1, 60):
        client.ack(ACK, [(number, 1, 1)], identity=identity)
    client.ack(ACK, [(60, MAX_ACKS, 1)], identity=identity)
    client.requests.close()
    await until(lambda: pending(world).total == count - 59 - MAX_ACKS)


async def test_acks_that_wait_for_a_turn_are_refused_when_the_daemon_stops(world: World) -> None:
    """The messages are delivered again, as after every ack that is refused."""
    count = 10 * MAX_ACKS
    identity = await delivered(world, count)
    client = Client(world)
    began = client.ack(PROGRESS, [(1, count, 1)], identity=identity)
    await asyncio.sleep(0)
    waiting = [client.ack(ACK, [(number, 1, 1)], identity=identity) for number in range(1, 60)]
    client.requests.close(ShuttingDown("the daemon is shutting down"))
    await client.answered(began, *waiting)
    assert client.answers.all[began] is None
    assert {type(client.answers.all[one]) for one in waiting} == {ShuttingDown}
    assert pending(world).total == count


@pytest.mark.parametrize("then", ["deleted", "made again"])
async def test_a_consumer_that_is_deleted_between_two_turns_of_an_ack(
    world: World, then: str
) -> None:
    count = 10 * MAX_ACKS
    identity = await delivered(world, count)
    door = cast(SocketDoor, world.broker.consumers)
    client = Client(world)
    asked = client.ack(NAK, [(1, count, 1)], identity=identity)
    behind = client.ack(ACK, [(1, 1, 1)], identity=identity)
    await door.delete(STREAM, NAME)
    if then == "made again":
        await delivered(world, 1)
    await client.answered(asked, behind)
    errors = [client.answers.all[one] for one in (asked, behind)]
    assert all(error is None or isinstance(error, LiftlogError) for error in errors)
    assert isinstance(errors[1], ConsumerNotFound)


async def test_acks_of_one_turn_that_are_too_many_for_one_delta(world: World) -> None:
    """A delta has at most 4,000,000 numbers. Before its consumer has a turn, more may arrive."""
    count = fewer(100_000)
    identity = await delivered(world, count)
    door = cast(SocketDoor, world.broker.consumers)
    told: list[LiftlogError | None] = []
    for number in range(25):
        for first in range(1, count, MAX_ACKS):
            size = min(MAX_ACKS, count + 1 - first)
            delay_ns = 10**12 + number
            acks = AcksOf(identity, AckKind.NAK, [Run(first, size, 1)], delay_ns, "")
            door.acknowledge(STREAM, NAME, acks, told.append)
    await until(lambda: told)
    assert await world.stored_offset(NAME) == count + 1
