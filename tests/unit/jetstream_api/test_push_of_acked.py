"""Heartbeats and flow control of push consumers with acks."""

from __future__ import annotations

import asyncio
import re

from support.worlds.acked_consumers import STREAM, World, until

from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer

BEAT_NS = 100_000_000
PUSH = {"deliver_subject": "out", "idle_heartbeat": BEAT_NS}


async def turns_of(consumer: AckedConsumer) -> int:
    """The number of turns in half a second."""
    turns, step = 0, consumer.step

    def counted(now_ns: int) -> None:
        nonlocal turns
        turns += 1
        step(now_ns)

    consumer.step = counted  # type: ignore[method-assign]
    await asyncio.sleep(0.5)
    return turns


async def test_a_push_consumer_without_a_subscriber_rests(world: World) -> None:
    world.leaf.has_interest = lambda subject: False  # type: ignore[method-assign]
    consumer = await world.create("c", **PUSH)
    assert await turns_of(consumer) < 20
    assert b"Idle Heartbeat" not in b"".join(world.leaf.sent)


async def test_a_push_consumer_with_a_rate_limit_rests_without_nats(world: World) -> None:
    await world.running.publish(STREAM, bytes(10_000), bytes(10_000))
    consumer = await world.create("c", deliver_subject="out", rate_limit_bps=80_000)
    await until(lambda: consumer.machine.state.sequence == 1)
    world.leaf.connected = False
    assert await turns_of(consumer) < 20
    world.leaf.connected = True
    consumer.subscriber_lost()  # as after a new connection
    await until(lambda: consumer.machine.state.sequence == 2)


async def test_the_heartbeat_of_a_stalled_consumer_names_the_question(world: World) -> None:
    """A client that has taken the place of another one has not seen the question."""
    consumer = await world.create("c", **PUSH, flow_control=True)
    for _ in range(30):
        await world.running.publish(STREAM, bytes(100_000))
    stalled = re.compile(rb"Idle Heartbeat\r\n.*\r\n.*\r\nNats-Consumer-Stalled: (\S+)\r\n\r\n")
    await until(lambda: stalled.search(b"".join(world.leaf.sent)))
    sequence = consumer.machine.state.sequence
    assert 0 < sequence < 30
    question = stalled.search(b"".join(world.leaf.sent))
    assert question is not None
    consumer.flow_answered(question[1])
    await until(lambda: consumer.machine.state.sequence > sequence)
