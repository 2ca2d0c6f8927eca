"""Pulls that reach the next leader although the former leader may have read them, and pulls that
reach neither."""

from __future__ import annotations

import time
from pathlib import Path

from support.worlds.acked_consumers import STREAM, Leaf, World, acked_world, until

from liftlog.server.jetstream_api.consumers.leaf import InterestChange
from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer

HOUR_NS = 3600 * 10**9
INBOX = b"_INBOX.a"


def loaded(world: World) -> AckedConsumer:
    consumer = world.table.find(STREAM, "c")
    assert consumer is not None
    return consumer


async def killed(world: World) -> None:
    """The daemon ends without a word to its clients."""
    journal = await world.broker.journal.get()
    await journal.synced(journal.write([]))
    loaded(world).abandon()


async def test_a_pull_that_waited_at_the_former_leader_is_not_taken_twice(tmp_path: Path) -> None:
    async with acked_world(tmp_path) as world:
        consumer = await world.create("c")
        began_ns = time.time_ns()
        for _ in range(2):
            consumer.pull(INBOX, Pull(batch=1, expires_ns=HOUR_NS))
        await until(lambda: len(consumer.machine.state.pulls) == 2)
        await killed(world)
    async with acked_world(tmp_path) as world:
        consumer = loaded(world)
        assert not consumer.pulls.was_read(b"_INBOX.b", HOUR_NS, began_ns), "another client"
        assert not consumer.pulls.was_read(INBOX, HOUR_NS // 2, began_ns), "another pull"
        assert [consumer.pulls.was_read(INBOX, HOUR_NS, began_ns) for _ in range(3)] == [
            True,
            True,
            False,
        ]


async def test_a_pull_that_the_former_leader_has_served_is_not_served_again(
    tmp_path: Path,
) -> None:
    async with acked_world(tmp_path) as world:
        consumer = await world.create("c")
        await world.running.publish(STREAM, b"x")
        began_ns = time.time_ns()
        consumer.pull(INBOX, Pull(batch=1, expires_ns=HOUR_NS))
        await until(lambda: consumer.machine.state.sequence == 1)
        await killed(world)
    later_ns = time.time_ns()
    async with acked_world(tmp_path) as world:
        consumer = loaded(world)
        assert consumer.pulls.was_read(INBOX, HOUR_NS, began_ns)
        assert not consumer.pulls.was_read(INBOX, HOUR_NS, later_ns), "nobody has read it"


WAITING = Pull(batch=7, expires_ns=HOUR_NS, heartbeat_ns=HOUR_NS // 2)
LOST = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\n"


def statuses(leaf: Leaf) -> int:
    return b"".join(leaf.sent).count(LOST)


async def served(world: World) -> None:
    """A pull of a client with heartbeats gets all its messages, and no worker has a message."""
    consumer = await world.create("c", ack_policy="none")
    for _ in range(7):
        await world.running.publish(STREAM, b"x")
    consumer.pull(INBOX, WAITING)
    await until(lambda: consumer.machine.state.sequence == 7)
    await until(lambda: not consumer.machine.state.pulls)
    await killed(world)


async def test_a_client_whose_next_pull_was_lost_gets_its_end(tmp_path: Path) -> None:
    async with acked_world(tmp_path) as world:
        await served(world)
    leaf = Leaf()
    async with acked_world(tmp_path, leaf):
        await until(lambda: statuses(leaf) == 2)


async def test_a_client_whose_pull_waits_gets_no_end(tmp_path: Path) -> None:
    async with acked_world(tmp_path) as world:
        await served(world)
    leaf = Leaf()
    async with acked_world(tmp_path, leaf) as world:
        loaded(world).pull(INBOX, WAITING)
        await until(lambda: loaded(world).machine.waiting)
        assert loaded(world).pulls.due_ns() is None
    assert statuses(leaf) == 0


async def test_the_end_of_a_lost_pull_waits_for_nats(tmp_path: Path) -> None:
    async with acked_world(tmp_path) as world:
        await served(world)
    leaf = Leaf()
    leaf.connected = False
    async with acked_world(tmp_path, leaf) as world:
        await until(lambda: not loaded(world).is_ready)
        assert loaded(world).due_ns() is None, "no timer runs without NATS"
        leaf.connected = True
        leaf.on_interest(InterestChange(set(), set(), is_connection=True))
        await until(lambda: statuses(leaf) == 1)
