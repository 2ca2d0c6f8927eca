"""Consumers with acks that existed before a purge: messages that the purge has deleted are not
delivered any more, and do not count."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.worlds.acked_consumers import STREAM, World, acked_world, until

from liftlog.errors import LiftlogError
from liftlog.sequencing.run import MessageRun
from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.messages import purges
from liftlog.server.jetstream_api.messages.newest import partial_key
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer

HOUR_NS = 3600 * 10**9
BUCKET = {"subject": "in.>", "jetstream": {"max_msgs_per_subject": 3}}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with acked_world(tmp_path, **BUCKET) as world:
        yield world


async def store(world: World, *subjects: str, key: bytes = b"", value: bytes | None = b"x") -> None:
    committed: asyncio.Future[LiftlogError | None] = asyncio.get_running_loop().create_future()
    raw = [one.encode() for one in subjects]
    keys = [key or one for one in raw]
    world.host.store(raw, keys, [value] * len(raw), committed.set_result)
    assert await committed is None


async def purge(world: World, subject: str, key: bytes = b"") -> None:
    await store(world, subject, key=key, value=None)


def pull(consumer: AckedConsumer, batch: int = 10, **more: Any) -> None:
    consumer.pull(b"_INBOX.a", Pull(batch=batch, **more))


def delivered(world: World) -> list[int]:
    """The offsets of the deliveries."""
    found = re.findall(rb"\$JS\.ACK\.jobs\.\w+\.\d+\.(\d+)\.", b"".join(world.leaf.sent))
    return [int(one) for one in found]


async def pending(consumer: AckedConsumer) -> tuple[int, int]:
    found = await consumer.info()
    return found["num_pending"], found["num_ack_pending"]


async def test_a_purged_message_is_not_delivered(world: World) -> None:
    await store(world, "in.a", "in.b", "in.a", "in.b")
    consumer = await world.create("c")
    pull(consumer, 1)
    await until(lambda: delivered(world) == [1])
    await purge(world, "in.b")
    assert await pending(consumer) == (1, 1)
    await store(world, "in.b")
    assert await pending(consumer) == (2, 1)
    pull(consumer, expires_ns=HOUR_NS)
    await until(lambda: len(delivered(world)) == 3)
    assert delivered(world) == [1, 3, 6]
    assert await pending(consumer) == (0, 3)


async def test_a_part_of_a_history_that_was_purged_is_not_delivered(world: World) -> None:
    await store(world, "in.a", "in.a", "in.a")
    consumer = await world.create("c")
    await purge(world, "in.a", partial_key(3))
    assert await pending(consumer) == (1, 0)
    pull(consumer, expires_ns=HOUR_NS)
    await until(lambda: delivered(world) == [3])


async def test_a_purge_leaves_out_messages_that_were_read_already(world: World) -> None:
    await store(world, *["in.a", "in.b"] * 3)
    consumer = await world.create("c")
    pull(consumer, 1)
    await until(lambda: delivered(world) == [1])
    await purge(world, "in.a")
    pull(consumer, 2)
    await until(lambda: len(delivered(world)) == 3)
    assert delivered(world) == [1, 2, 4]


async def test_a_purged_message_is_not_delivered_again(world: World) -> None:
    await store(world, "in.a", "in.b")
    consumer = await world.create("c", ack_wait=200_000_000, max_ack_pending=2)
    pull(consumer, 2)
    await until(lambda: delivered(world) == [1, 2])
    await purge(world, "in.a")
    await store(world, "in.c")
    pull(consumer, 2, expires_ns=HOUR_NS)
    await until(lambda: len(delivered(world)) == 4)
    assert sorted(delivered(world)[2:]) == [2, 4], "the purged one makes room"


async def test_a_purged_message_that_a_worker_has_is_no_longer_pending(world: World) -> None:
    """As in JetStream."""
    await store(world, "in.a", "in.b", "in.a")
    consumer = await world.create("c", max_ack_pending=3)
    pull(consumer, 3)
    await until(lambda: delivered(world) == [1, 2, 3])
    await purge(world, "in.a")
    assert await pending(consumer) == (0, 1)
    assert consumer.machine.state.pending.offsets().tolist() == [2]


async def test_a_purge_makes_room_for_the_next_pull(world: World) -> None:
    await store(world, "in.a", "in.a")
    consumer = await world.create("c", max_ack_pending=2, ack_wait=HOUR_NS)
    pull(consumer, 2)
    await until(lambda: delivered(world) == [1, 2])
    await store(world, "in.b")
    await purge(world, "in.a")
    pull(consumer, expires_ns=HOUR_NS)
    await until(lambda: delivered(world)[2:] == [3])


async def test_a_pull_that_does_not_wait_ends_when_only_purged_messages_are_left(
    world: World,
) -> None:
    await store(world, "in.a")
    consumer = await world.create("c")
    await purge(world, "in.a")
    pull(consumer, no_wait=True)
    await until(lambda: b"404 No Messages" in b"".join(world.leaf.sent))
    assert not delivered(world)


async def test_a_waiting_client_gets_a_message_that_is_purged_at_once(world: World) -> None:
    """JetStream would have delivered it before the purge."""
    consumer = await world.create("c")
    pull(consumer, expires_ns=HOUR_NS)
    await store(world, "in.a")
    await until(lambda: delivered(world) == [1])
    await asyncio.gather(store(world, "in.b", "in.c"), purge(world, "in.b"))
    await until(lambda: len(delivered(world)) == 3)
    assert delivered(world) == [1, 2, 3]


async def test_a_client_that_stops_to_wait_gets_no_message_that_is_purged_meanwhile(
    world: World,
) -> None:
    await store(world, "in.a")
    consumer = await world.create("c")
    pull(consumer, 2, expires_ns=200_000_000)
    await until(lambda: b"408 " in b"".join(world.leaf.sent))
    await store(world, "in.b")
    await purge(world, "in.b")
    await store(world, "in.c")
    pull(consumer, expires_ns=HOUR_NS)
    await until(lambda: len(delivered(world)) == 2)
    assert delivered(world) == [1, 4]


async def test_a_purge_counts_after_a_restart(tmp_path: Path) -> None:
    async with acked_world(tmp_path, **BUCKET) as world:
        await store(world, "in.a", "in.b")
        await world.create("c")
        await purge(world, "in.a")
    async with acked_world(tmp_path, **BUCKET) as world:
        consumer = world.table.find(STREAM, "c")
        assert consumer is not None
        assert await pending(consumer) == (1, 0)
        pull(consumer, expires_ns=HOUR_NS)
        await until(lambda: delivered(world) == [2])


async def test_a_roll_up_deletes_earlier_messages(world: World) -> None:
    block = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"
    await store(world, "in.a", "in.b", "in.a")
    consumer = await world.create("c")
    run = MessageRun([b"in.a"], [b""], [b"x"], [block], has_cookie=False)
    world.host.receive(run)
    world.host.kick()
    await until(lambda: world.host.log.high_watermark == 5)
    assert await pending(consumer) == (2, 0)
    pull(consumer, expires_ns=HOUR_NS)
    await until(lambda: delivered(world) == [2, 4])


async def test_only_the_newest_purges_are_kept(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(purges, "MOST_SUBJECTS", 4)
    consumer = await world.create("c")
    subjects = [f"in.{number}" for number in range(6)]
    await store(world, *subjects)
    for subject in subjects:
        await purge(world, subject)
    pull(consumer, expires_ns=HOUR_NS)
    await until(lambda: consumer.machine.state.next_offset == world.host.log.high_watermark)
    assert 0 < len(delivered(world)) < 6


async def test_a_purge_of_the_oldest_counts_at_once(tmp_path: Path) -> None:
    async with acked_world(tmp_path) as world:
        await world.running.publish(STREAM, *[b"x"] * 10)
        consumer = await world.create("c")
        assert await pending(consumer) == (10, 0)
        await world.broker.administration.truncate_prefix(STREAM, 8)
        assert await pending(consumer) == (3, 0)
        pull(consumer, 1)
        await until(lambda: delivered(world) == [8])
        assert await pending(consumer) == (2, 1)
