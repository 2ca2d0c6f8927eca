"""The changes of consumers in a cluster: what a former leader has not sent yet is dropped."""

from __future__ import annotations

import asyncio
import errno
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.outbox_site import KEY, Site

from liftlog.cluster import transitions
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import NotLeader
from liftlog.protocol.consumer_states import ConsumerChanges, FetchConsumers
from liftlog.server.commits.writing import WriterPool
from liftlog.server.jetstream_api.workers import changes as changes_module
from liftlog.server.jetstream_api.workers.changes import ReplicatedChanges
from liftlog.server.journal import Change, StateVersion
from liftlog.server.replication import serving_consumers as served_module
from liftlog.server.replication import unconfirmed as unconfirmed_module
from liftlog.server.replication.serving_consumers import ServedConsumers


@pytest.fixture
def fs() -> SimFileSystem:
    return SimFileSystem()


@pytest.fixture
def pool() -> Iterator[WriterPool]:
    pool = WriterPool(2)
    yield pool
    pool.close()


@pytest.fixture
async def site(fs: SimFileSystem, pool: WriterPool) -> AsyncIterator[Site]:
    site = Site(fs, pool)
    await site.journal.synced(site.position)
    yield site
    fs.faults.clear()
    fs.free_bytes = None
    await site.outbox.close()
    await site.journal.close()


@pytest.fixture
async def led(site: Site) -> tuple[ServedConsumers, ReplicatedChanges]:
    """A stream whose only replica in sync is this node, so that all is confirmed at once."""
    return served_by(site, transitions.create("s", KEY.incarnation, {}, ["a"], starts={"a": 1}))


@pytest.fixture
async def lonely(site: Site) -> tuple[ServedConsumers, ReplicatedChanges]:
    """A stream that has lost `min_isr`: nothing is confirmed."""
    record = transitions.create("s", KEY.incarnation, {}, ["a", "b"], starts={"a": 1, "b": 1})
    return served_by(site, replace(record, isr=("a",), settings={"min_isr": 2}))


def served_by(site: Site, record: StreamMetadata) -> tuple[ServedConsumers, ReplicatedChanges]:
    leader = leader_of(record)
    holder = cast(Any, SimpleNamespace(opened=site.journal, problem=None))
    served = ServedConsumers(leader, KEY.incarnation, holder, on_first=lambda: None)
    return served, ReplicatedChanges("tests", served, site.journal, site.outbox)


def leader_of(record: StreamMetadata) -> Leader:
    return Leader(
        record, "a", (), log_end=1, durable_end=1, high_watermark=1, now=0.0, consumers=["one"]
    )


def delta() -> Change:
    return Change.delta(KEY, StateVersion(1, 1), b"d")


async def failing(site: Site, fs: SimFileSystem) -> None:
    """Return when a write of the journal has failed."""
    fs.faults.append(Fault("write", errno.ENOSPC, times=1000))
    async with asyncio.timeout(20):
        while site.journal.problem is None:
            site.change()
            await asyncio.sleep(0.001)


async def recovered(site: Site, fs: SimFileSystem) -> None:
    fs.faults.clear()
    async with asyncio.timeout(20):
        await site.journal.writable()
        await site.journal.synced(site.journal.accepted_position)
    await asyncio.sleep(0.01)  # a turn of the loop in which commands would leave


async def test_the_description_names_the_time_since_a_follower_was_seen(
    lonely: tuple[ServedConsumers, ReplicatedChanges],
) -> None:
    """async-nats refuses a description of replicas without it."""
    served, changes = lonely
    found = changes.cluster()
    assert found is not None
    assert found["replicas"] == [{"name": "b", "current": False, "active": 0}]
    served.leader.states.fetched("b", 1, None, asyncio.get_running_loop().time() - 2.5)
    found = cast(Any, changes.cluster())
    assert 2.5e9 <= found["replicas"][0]["active"] < 60e9


async def test_a_former_leader_sends_nothing_when_its_journal_recovers(
    site: Site, fs: SimFileSystem, led: tuple[ServedConsumers, ReplicatedChanges]
) -> None:
    served, changes = led
    await failing(site, fs)
    position = changes.write(delta())
    await asyncio.sleep(0)  # the change is confirmed: no other node is in sync
    assert served.is_written(position)
    changes.after_written(position, b"delivery")
    changes.after_synced(position, b"answer")
    site.outbox.after_written(site.journal.accepted_position, b"of another stream")
    served.close()
    await recovered(site, fs)
    assert site.nats.sent == [b"of another stream"]
    assert site.nats.answers == []
    assert site.outbox.size_bytes == 0


async def test_a_former_leader_sends_nothing_when_nats_is_connected_again(
    site: Site, led: tuple[ServedConsumers, ReplicatedChanges]
) -> None:
    served, changes = led
    site.nats.is_open = False
    changes.after_written(0, b"delivery")
    site.outbox.after_written(0, b"of another stream")
    await asyncio.sleep(0.05)
    served.close()
    site.nats.is_open = True
    await site.until(site.nats.sent, b"of another stream")


async def test_workers_on_the_socket_get_nothing_from_a_former_leader(
    site: Site, led: tuple[ServedConsumers, ReplicatedChanges]
) -> None:
    """The followers have the change, and the write here still waits for its turn."""
    served, changes = led
    position = changes.write(delta())
    served.confirm()
    assert served.is_written(position)
    written = changes.written(position)
    assert not written.done()
    served.close()
    with pytest.raises(NotLeader):
        await written


async def test_a_leader_sends_in_order(
    site: Site, led: tuple[ServedConsumers, ReplicatedChanges]
) -> None:
    _, changes = led
    written = changes.written(changes.write(delta()))
    for number in range(3):
        changes.after_written(changes.write(delta()), b"%d" % number)
    await site.until(site.nats.sent, b"012")
    await written


async def test_nothing_grows_without_limit_while_too_few_replicas_are_in_sync(
    site: Site, lonely: tuple[ServedConsumers, ReplicatedChanges]
) -> None:
    """Pulls that expire change their consumer. Their statuses and the answers to acks cannot be
    sent."""
    served, changes = lonely

    async def some(count: int) -> int:
        position = 0
        for _ in range(count):
            position = changes.write(delta())
            changes.after_written(position, b"s" * 500)
            changes.after_synced(position, b"a" * 500)
        await site.journal.synced(position)
        return position

    first = await some(10_000)
    assert changes.is_full
    kept = [
        tracemalloc.Filter(True, str(one.__file__))
        for one in (changes_module, served_module, unconfirmed_module)
    ]
    tracemalloc.start()
    try:
        await some(10_000)
        grown = tracemalloc.take_snapshot().filter_traces(kept).statistics("filename")
    finally:
        tracemalloc.stop()
    assert sum(one.size for one in grown) < 500_000
    assert not served.is_written(first)
    assert not served.is_synced(first)


async def test_a_turn_that_began_below_the_limit_loses_no_delivery(
    site: Site, lonely: tuple[ServedConsumers, ReplicatedChanges]
) -> None:
    """The heartbeat of a push consumer leaves before the deliveries of the same turn."""
    served, changes = lonely
    position = changes.write(delta())
    changes.after_written(position, b"s" * (4 * 1024 * 1024 - 200))
    assert not changes.is_full
    changes.after_written(position, b"heartbeat" * 10)
    assert changes.is_full
    changes.after_written(position, b"delivery")
    record = replace(served.leader.record, settings={})
    served.lead_on(leader_of(record))
    await asyncio.sleep(0)
    served.confirm()
    async with asyncio.timeout(20):
        while not b"".join(site.nats.sent).endswith(b"heartbeatdelivery"):
            await asyncio.sleep(0.001)


async def test_a_confirmation_that_was_awaited_in_vain_leaves_nothing_behind(
    lonely: tuple[ServedConsumers, ReplicatedChanges],
) -> None:
    served, changes = lonely
    position = changes.write(delta())
    await asyncio.sleep(0)

    async def fail() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await served.synced(position)

    def futures() -> int:
        gc.collect()
        return len([one for one in gc.get_objects() if isinstance(one, asyncio.Future)])

    before = futures()
    for _ in range(50):
        await fail()
    assert futures() < before + 25


class Reply:
    """The answers to one request of a follower."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def changes(self, header: ConsumerChanges, body: bytes) -> None:
        self.answers.append(header)

    def refuse(self, error: Exception) -> None:
        self.answers.append(error)


async def test_each_request_of_a_follower_gets_one_answer(
    lonely: tuple[ServedConsumers, ReplicatedChanges],
) -> None:
    served, _ = lonely
    replies = [Reply() for _ in range(3)]
    for reply in replies:  # each one cancels the answer to the one before
        served.fetch("b", 1, FetchConsumers("s", KEY.incarnation, served.leader.epoch, None), reply)
    served.close()
    await asyncio.sleep(0.01)
    assert [len(one.answers) for one in replies] == [1, 1, 1]
    assert not any(isinstance(one.answers[0], ConsumerChanges) for one in replies)
