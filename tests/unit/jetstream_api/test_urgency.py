"""Which acks can wait for a moment, and which pulls are answered before the acks of their read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.worlds.acked_consumers import STREAM, World, acked_world

from liftlog.server.jetstream_api.consumers.pull_body import BadPull, Pull
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.pulls import WorkerPull
from liftlog.server.jetstream_api.workers.rounds import Clock
from liftlog.server.jetstream_api.workers.urgency import ConsumerUrgency
from liftlog.server.jetstream_api.workers.worker_link import WAIT_SECONDS


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with acked_world(tmp_path) as world:
        yield world


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def urgency_of(consumer: AckedConsumer, room: int = 1000) -> ConsumerUrgency:
    some = {STREAM: {consumer.spec.name: consumer}}
    return ConsumerUrgency(lambda stream: some.get(stream, {}), Clock(), lambda: room)


async def delivered(world: World, count: int, name: str = "c", **config: object) -> AckedConsumer:
    """A consumer with so many pending messages."""
    consumer = await world.create(name, **config)
    await world.running.publish(STREAM, *[b"%d" % number for number in range(count)])
    consumer.pull(b"inbox", Pull(batch=count))
    await until(lambda: consumer.machine.state.pending.total == count)
    return consumer


def pull_of(batch: int, consumer: str = "c") -> WorkerPull:
    return WorkerPull(consumer, b"inbox", Pull(batch))


async def test_acks_wait_while_no_client_does(world: World) -> None:
    consumer = await delivered(world, 2)
    urgency = urgency_of(consumer)
    await until(lambda: not consumer.is_ready)
    assert urgency.can_wait(STREAM, b"c")
    assert not urgency.can_wait(STREAM, b"d")
    assert not urgency.can_wait(STREAM, b"\xff")
    assert not urgency.can_wait("other", b"c")
    consumer.pull(b"inbox", Pull(batch=1))
    assert not urgency.can_wait(STREAM, b"c"), "its turn comes"
    await until(lambda: not consumer.is_ready)
    assert not urgency.can_wait(STREAM, b"c"), "the pull waits"


async def test_acks_do_not_wait_when_a_message_is_nearly_due(world: World) -> None:
    """The ack can be for this message."""
    consumer = await delivered(world, 1, ack_wait=3_600_000_000_000)
    await until(lambda: not consumer.is_ready)
    clock = Clock()
    due = consumer.machine.due_ns()
    assert due is not None
    some = {STREAM: {"c": consumer}}
    urgency = ConsumerUrgency(lambda stream: some.get(stream, {}), clock, lambda: 1000)
    within = round(WAIT_SECONDS * 1e9)
    for before_ns, waits in ((within + 1, True), (within, False), (0, False)):
        clock.now_ns = lambda at=due - before_ns: at  # type: ignore[method-assign,misc]
        assert urgency.can_wait(STREAM, b"c") is waits


async def test_acks_of_a_push_consumer_do_not_wait(world: World) -> None:
    consumer = await world.create("c", deliver_subject="out")
    await until(lambda: not consumer.is_ready)
    assert not urgency_of(consumer).can_wait(STREAM, b"c")


async def test_a_pull_precedes_the_acks_of_all_that_is_pending(world: World) -> None:
    consumer = await delivered(world, 3, max_ack_pending=10)
    urgency = urgency_of(consumer)
    assert urgency.precedes(STREAM, pull_of(7), 3)
    assert not urgency.precedes(STREAM, pull_of(7), 2), "the client has more to do"
    assert not urgency.precedes(STREAM, pull_of(8), 3), "the acks make room for it"
    assert not urgency_of(consumer, room=6).precedes(STREAM, pull_of(7), 3)
    assert not urgency.precedes(STREAM, pull_of(7, "d"), 3)
    bad = WorkerPull("c", b"inbox", BadPull(b"400 Bad Request"))
    assert not urgency.precedes(STREAM, bad, 3)
    await world.table.delete(STREAM, "c")
    assert not urgency.precedes(STREAM, pull_of(7), 3)


async def test_redeliveries_come_after_the_acks(world: World) -> None:
    """The acks can be for the messages that the pull would get again."""
    consumer = await delivered(world, 3, ack_wait=50_000_000)
    urgency = urgency_of(consumer)
    await until(lambda: not urgency.precedes(STREAM, pull_of(1), 3))
    await until(lambda: consumer.machine.state.pending.queued == 3)
    assert not urgency.precedes(STREAM, pull_of(1), 3)


async def test_of_other_consumers_acks_come_first(world: World) -> None:
    everything = await delivered(world, 1, "all", ack_policy="all")
    grouped = await world.create("grouped", priority_policy="overflow", priority_groups=["g"])
    for one in (everything, grouped):
        assert not urgency_of(one).precedes(STREAM, pull_of(1, one.spec.name), 1)


async def test_a_request_sees_the_effect_of_acks_that_wait(world: World) -> None:
    await world.create("c")
    for ask in (lambda: world.table.find(STREAM, "c"), lambda: world.table.of(STREAM)):
        before = world.link.passed_on
        ask()
        assert world.link.passed_on > before
