"""Consumers with acks: refused requests change nothing, and nobody waits for others."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.worlds.acked_consumers import STREAM, Leaf, Link, World, acked_world, until

from liftlog.deliveries.pull import PullRequest
from liftlog.deliveries.settings import MAX_WAITING
from liftlog.errors import DiskFull
from liftlog.sequencing.run import MessageRun
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.budget import Budget
from liftlog.server.jetstream_api.consumers.config import parse_consumer
from liftlog.server.jetstream_api.consumers.cursor import PIECE_BYTES
from liftlog.server.jetstream_api.consumers.leaf import InterestChange
from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.workers import acked_table
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.acks import AckParser
from liftlog.server.jetstream_api.workers.admission import (
    MAX_CONSUMERS,
    MAX_EPHEMERAL_OF_CLIENT,
    MAX_OF_CLIENT,
    Admission,
)
from liftlog.server.jetstream_api.workers.arriving import ArrivingPulls
from liftlog.server.jetstream_api.workers.pressure import Pressure
from liftlog.server.jetstream_api.workers.stored import encode_settings
from liftlog.server.jetstream_api.workers.worker_link import Arrived
from liftlog.server.journal import Change

FULL = DiskFull("the disk is full")


async def test_a_refused_update_changes_nothing(world: World) -> None:
    consumer = await world.create("c", max_ack_pending=5)
    journal = await world.slow_journal()
    journal.gate.clear()
    update = asyncio.ensure_future(world.update("c", max_ack_pending=9, filter_subject="in"))
    await until(lambda: journal.waiting)
    assert consumer.spec.settings.max_ack_pending == 5, "not before it is stored"
    assert consumer.machine.state.settings.max_ack_pending == 5
    journal.error = FULL
    journal.gate.set()
    with pytest.raises(DiskFull):
        await update
    journal.error = None
    assert consumer.spec.config["max_ack_pending"] == 5
    assert consumer.machine.state.settings.max_ack_pending == 5
    stored = await world.stored("c")
    assert stored == consumer.spec.config
    await world.update("c", max_ack_pending=9, filter_subject="in")
    stored = await world.stored("c")
    assert stored == consumer.spec.config
    assert consumer.machine.state.settings.max_ack_pending == stored["max_ack_pending"] == 9


async def test_a_snapshot_does_not_take_an_update_back(world: World) -> None:
    """The journal asks for one while the update waits."""
    await world.create("c", max_ack_pending=5)
    journal = await world.slow_journal()
    journal.gate.clear()
    update = asyncio.ensure_future(world.update("c", max_ack_pending=9))
    await until(lambda: journal.waiting)
    real = await world.broker.journal.get()
    consumer = world.table.find(STREAM, "c")
    assert consumer is not None
    asked = cast(Any, world.table)._snapshot(consumer.key)
    assert asked is None
    journal.gate.set()
    await update
    change = cast(Any, world.table)._snapshot(consumer.key)
    await real.synced(real.write([change]))
    stored = await world.stored("c")
    assert stored is not None
    assert stored["max_ack_pending"] == 9


async def test_an_update_counts_as_soon_as_it_is_stored(tmp_path: Path) -> None:
    """The daemon stops before the update takes effect in memory."""
    async with acked_world(tmp_path) as world:
        consumer = await world.create("c", max_ack_pending=5)
        spec = parse_consumer({**consumer.spec.config, "max_ack_pending": 9}, "c")
        journal = await world.broker.journal.get()
        settings = encode_settings(spec, consumer.local.origin, 0)
        change = Change.updated(consumer.key, consumer.version, settings)
        await journal.synced(journal.write([change]))
    async with acked_world(tmp_path) as world:
        found = world.table.find(STREAM, "c")
        assert found is not None
        assert found.spec.settings.max_ack_pending == 9
        assert found.machine.state.settings.max_ack_pending == 9


async def test_a_refused_reset_changes_nothing(world: World) -> None:
    consumer = await world.create("c")
    journal = await world.slow_journal()
    journal.gate.clear()
    reset = asyncio.ensure_future(world.table.reset(consumer, 7))
    await until(lambda: journal.waiting)
    assert consumer.machine.state.next_offset == 1
    journal.error = FULL
    journal.gate.set()
    with pytest.raises(DiskFull):
        await reset
    journal.error = None
    assert consumer.machine.state.next_offset == 1
    assert await world.stored_offset("c") == 1
    assert await world.table.reset(consumer, 7) == 7
    assert consumer.machine.state.next_offset == 7
    assert await world.stored_offset("c") == 7


@pytest.mark.parametrize("how", ["cancelled", "failed", "stream deleted"])
async def test_a_creation_that_does_not_end_leaves_nothing(world: World, how: str) -> None:
    journal = await world.slow_journal()
    journal.gate.clear()
    creation = asyncio.ensure_future(world.create("c"))
    await until(lambda: journal.waiting)
    assert world.table.find(STREAM, "c") is None, "not before it is stored"
    host = world.host
    if how == "cancelled":
        creation.cancel()
    elif how == "failed":
        journal.error = FULL
    else:
        del world.broker.hosts[STREAM]
    journal.gate.set()
    with pytest.raises((asyncio.CancelledError, DiskFull, JetStreamError)):
        await creation
    world.broker.hosts[STREAM] = host
    journal.error = None
    assert world.table.count() == 0
    assert world.link.led == set()
    assert await world.stored("c") is None
    await world.create("c")
    assert world.link.led == {STREAM}


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_deletion_that_does_not_end_changes_nothing(world: World, how: str) -> None:
    consumer = await world.create("c")
    journal = await world.slow_journal()
    journal.gate.clear()
    deletion = asyncio.ensure_future(world.table.delete(STREAM, "c"))
    await until(lambda: journal.waiting)
    if how == "cancelled":
        deletion.cancel()
    else:
        journal.error = FULL
    journal.gate.set()
    with pytest.raises((asyncio.CancelledError, DiskFull)):
        await deletion
    journal.error = None
    assert world.table.find(STREAM, "c") is consumer
    assert not consumer.is_closed
    assert await world.stored("c") == consumer.spec.config
    assert await world.table.delete(STREAM, "c")
    assert await world.stored("c") is None


async def test_a_look_up_does_not_examine_all_consumers_of_the_stream(world: World) -> None:
    """Each request and each read with acks looks one up; a stream can have 10,000."""

    looks = 0

    class Counted(AckedConsumer):
        @property  # type: ignore[override]
        def host(self) -> StreamHost:
            nonlocal looks
            looks += 1
            found: StreamHost = vars(self)["host"]
            return found

    consumer = await world.create("c")
    consumer.__class__ = Counted
    for _ in range(10):
        assert world.table.find(STREAM, "c") is consumer
    assert looks <= 1
    host = world.broker.hosts.pop(STREAM)
    try:
        assert world.table.find(STREAM, "c") is None, "the stream was deleted"
        assert consumer.is_closed
    finally:
        world.broker.hosts[STREAM] = host
    again = await world.create("c")
    assert world.table.find(STREAM, "c") is again


@pytest.mark.parametrize("is_used_again", [False, True])
async def test_subscriptions_end_some_time_after_the_last_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_used_again: bool
) -> None:
    monkeypatch.setattr(acked_table, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(acked_table, "LINGER_SECONDS", 0.1)
    async with acked_world(tmp_path) as world:
        await world.create("c")
        assert await world.table.delete(STREAM, "c")
        assert world.link.led == {STREAM}
        if is_used_again:
            await world.create("d")
            await asyncio.sleep(0.3)
            assert world.link.led == {STREAM}
            assert await world.table.delete(STREAM, "d")
        await until(lambda: not world.link.led)


async def test_creations_of_different_names_do_not_wait_for_each_other(world: World) -> None:
    journal = await world.slow_journal()
    journal.gate.clear()
    names = [f"c{number}" for number in range(64)]
    creations = [asyncio.ensure_future(world.create(name)) for name in names]
    same = asyncio.ensure_future(world.create("c0"))
    other = asyncio.ensure_future(world.create("c0", max_deliver=7))
    await until(lambda: journal.waiting == 64)
    journal.gate.set()
    made = await asyncio.gather(*creations)
    assert await same is made[0], "the same configuration: the same consumer"
    with pytest.raises(JetStreamError, match="already exists"):
        await other
    assert [one.spec.name for one in world.table.of(STREAM)] == sorted(names)


async def test_one_that_is_inactive_goes_once_the_journal_can_be_written(world: World) -> None:
    journal = await world.slow_journal()
    consumer = await world.create("c", inactive_threshold=50_000_000)
    journal.error = FULL
    await asyncio.sleep(0.3)
    assert world.table.find(STREAM, "c") is consumer
    journal.error = None
    await until(lambda: world.table.find(STREAM, "c") is None)
    assert await world.stored("c") is None


@pytest.mark.parametrize("more", [{}, {"deliver_subject": "out"}])
async def test_nobody_is_inactive_while_nats_is_out_of_reach(
    world: World, more: dict[str, str]
) -> None:
    world.leaf.has_interest = lambda subject: False  # type: ignore[method-assign]
    world.leaf.connected = False
    consumer = await world.create("c", inactive_threshold=100_000_000, **more)
    await asyncio.sleep(0.3)
    assert world.table.find(STREAM, "c") is consumer
    world.leaf.connected = True
    world.leaf.on_interest(InterestChange(set(), set(), is_connection=True))
    began = time.monotonic()
    await until(lambda: world.table.find(STREAM, "c") is None)
    assert time.monotonic() - began > 0.09, "clients need time to come back"


async def test_pulls_while_a_count_runs_are_limited(world: World) -> None:
    consumer = await world.create("c")
    for number in range(2 * MAX_WAITING):
        consumer.pull(b"_INBOX.a.%d" % number, Pull(expires_ns=10**11))
    await until(lambda: len(consumer.machine.state.pulls) == MAX_WAITING)
    words = b"409 Exceeded MaxWaiting"
    await until(lambda: b"".join(world.leaf.sent).count(words) == MAX_WAITING)


async def test_a_count_that_fails_is_repeated_after_a_pause(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await world.create("c")
    count = 0

    async def fail() -> None:
        nonlocal count
        count += 1
        if count == 1:
            raise FULL

    monkeypatch.setattr(consumer.local.cursor, "count", fail)
    await world.running.publish(STREAM, b"x")
    consumer.pull(b"_INBOX.a", Pull(batch=1, no_wait=True))
    await asyncio.sleep(0.4)
    assert count == 1
    monkeypatch.undo()
    await until(lambda: consumer.machine.state.sequence == 1)


def test_pulls_of_all_consumers_are_limited() -> None:
    """One pull of each consumer is always accepted."""
    budget = Budget(10, 1)
    greedy, modest = ArrivingPulls(budget.part()), ArrivingPulls(budget.part())
    pulls = [PullRequest(b"%d" % number) for number in range(12)]
    assert [greedy.add(one, 4, 0) for one in pulls].count(True) == 6
    assert [modest.add(one, 0, 0) for one in pulls].count(True) == 1
    greedy.queue.clear()
    greedy.turn_ended(4)
    assert [modest.add(one, 0, 0) for one in pulls].count(True) == 5
    for one in (greedy, modest):
        one.close()
    assert budget.used == 0


def test_limits_on_the_number_of_consumers() -> None:
    def fill(admission: Admission, count: int, party: bytes, **more: Any) -> int:
        """Return how many get a place."""
        given = {"most": None, "is_durable": True, **more}
        for number in range(count):
            try:
                places.append(admission.enter("s", party, **given))
            except JetStreamError as error:
                refusals.add((error.code, error.err_code, error.description))
                return number
        return count

    places: list[Any] = []
    refusals: set[tuple[int, int, str]] = set()
    admission = Admission()
    assert fill(admission, 3, b"a", most=2) == 2
    assert fill(admission, 9999, b"a", is_durable=False) == MAX_EPHEMERAL_OF_CLIENT
    for place in places:
        place.leave()
        place.leave()
    assert (admission.total, admission.is_used("s")) == (0, False)
    assert fill(admission, 9999, b"a") == MAX_OF_CLIENT
    assert fill(admission, 9999, b"b") == MAX_CONSUMERS - MAX_OF_CLIENT
    assert fill(admission, 1, b"c") == 0
    admission.enter_again("s", is_durable=True)
    places[0].leave()
    assert fill(admission, 1, b"c") == 0
    assert refusals == {(400, 10026, "maximum consumers limit reached")}


async def test_acks_that_no_consumer_takes_get_503(world: World) -> None:
    """NATS answers so where nobody subscribes, and clients then wait no longer."""
    await world.create("c")
    await world.create("none", ack_policy="none")
    parser = AckParser(STREAM)
    names = ("none", "gone", "none")
    subjects = [f"$JS.ACK.{STREAM}.{name}.1.1.1.1.0".encode() for name in names]
    replies = [b"_INBOX.a.1", b"_INBOX.a.2", b""]
    run = MessageRun(subjects, replies, [b"+ACK"] * 3, has_cookie=False)
    parsed = parser.parse(run)
    world.table.take(Arrived(STREAM, parsed.acks, [], [b"_INBOX.a.3"]))
    block = b"NATS/1.0 503\r\n\r\n"
    assert world.link.sent == [
        b"PUB _INBOX.a.3 0\r\n\r\n"
        + b"".join([b"HPUB _INBOX.a.%d 16 16\r\n%b\r\n" % (one, block) for one in (1, 2)])
    ]


async def test_acks_that_arrived_before_a_stop_count(tmp_path: Path) -> None:
    async with acked_world(tmp_path) as world:
        consumer = await world.create("c")
        await world.running.publish(STREAM, b"1", b"2")
        consumer.pull(b"inbox", Pull(batch=2))
        await until(lambda: consumer.machine.state.pending.total == 2)
        stamp = int(consumer.machine.state.pending.stamps_of(np.array([1], np.int64))[0])
        subject = f"$JS.ACK.{STREAM}.c.1.1.1.{stamp}.0".encode()
        run = MessageRun([subject], [b"_INBOX.a"], [b"+ACK"], has_cookie=False)
        parsed = AckParser(STREAM).parse(run)
        world.link.on_finish = lambda: world.table.take(Arrived(STREAM, parsed.acks, [], []))
    assert b"_INBOX.a" in b"".join(world.link.sent)
    async with acked_world(tmp_path) as world:
        found = world.table.find(STREAM, "c")
        assert found is not None
        assert found.machine.state.pending.total == 1
        assert found.machine.state.floor_offset == 2


class HeldLink:
    def __init__(self) -> None:
        self.is_held = False

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False


async def test_reading_stops_while_buffers_are_full() -> None:
    link, load = HeldLink(), 0.9
    pressure = Pressure(link, lambda: load, lambda: 0)
    pressure.read_ended(1.0)
    assert not link.is_held
    load = 1.0
    pressure.read_ended(0.0)
    pressure.read_ended(0.0)
    assert (link.is_held, pressure.holds) == (True, 1)
    load = 0.6
    await asyncio.sleep(0.02)
    assert link.is_held
    load = 0.5
    await until(lambda: not link.is_held)
    load = 1.0
    pressure.read_ended(0.0)
    assert link.is_held
    await pressure.close()
    assert not link.is_held


async def test_reading_rests_while_publishers_are_active() -> None:
    link, ingested, now = HeldLink(), 0, 100.0
    pressure = Pressure(link, lambda: 0.0, lambda: ingested, lambda: now)
    pressure.read_ended(0.03)
    assert not link.is_held, "nobody publishes"
    ingested = 1
    pressure.read_ended(0.001)
    assert not link.is_held, "that was short"
    pressure.read_ended(0.03)
    assert link.is_held
    await until(lambda: not link.is_held)
    now += 0.5
    pressure.read_ended(0.03)
    assert link.is_held
    await until(lambda: not link.is_held)
    now += 2
    pressure.read_ended(0.03)
    assert not link.is_held, "nobody publishes any more"
    assert pressure.holds == 0


async def test_the_first_consumers_of_a_daemon_are_created_at_once(world: World) -> None:
    """All of them share one outbox, or the deliveries of some would never leave."""
    await world.running.publish(STREAM, b"1", b"2")
    holder = cast(Any, world.broker.journal)
    opened = holder.get

    async def get() -> Any:
        await asyncio.sleep(0.01)
        return await opened()

    holder.get = get
    for consumer in await asyncio.gather(world.create("a"), world.create("b")):
        reply = f"_INBOX.{consumer.spec.name}".encode()
        consumer.pull(reply, Pull(batch=1, no_wait=True))
        await until(lambda reply=reply: any(reply in one for one in world.leaf.sent))


async def test_the_inactive_time_begins_when_the_subscriber_is_lost(world: World) -> None:
    consumer = await world.create("c", inactive_threshold=60_000_000_000)
    before = consumer.active_ns()
    assert consumer.active_ns() == before, "it has no pull"
    consumer.subscriber_lost()
    assert consumer.active_ns() > before


async def test_the_first_delivery_starts_no_thread(world: World) -> None:
    names = [one.name for one in threading.enumerate()]
    assert any(one.startswith("liftlog-scan") for one in names)
    consumer = await world.create("c")
    count = threading.active_count()
    await world.running.publish(STREAM, b"x")
    consumer.pull(b"_INBOX.a", Pull(batch=1))
    await until(lambda: consumer.machine.state.sequence == 1)
    assert threading.active_count() == count


async def test_the_next_records_are_read_while_a_client_processes_others(world: World) -> None:
    for _ in range(3):
        await world.running.publish(STREAM, bytes(PIECE_BYTES + 1))
    consumer = await world.create("c")
    consumer.pull(b"_INBOX.a.1", Pull(batch=1))
    await until(lambda: consumer.machine.state.sequence == 1)
    await consumer.info()  # returns when no read is in progress
    consumer.pull(b"_INBOX.a.2", Pull(batch=1))
    consumer.step(time.time_ns())
    assert consumer.machine.state.sequence == 2, "no thread was awaited"


async def test_a_pull_that_arrives_during_a_deletion_gets_its_status(world: World) -> None:
    consumer = await world.create("c")
    journal = await world.slow_journal()
    journal.gate.clear()
    deletion = asyncio.ensure_future(world.table.delete(STREAM, "c"))
    await until(lambda: journal.waiting)
    consumer.pull(b"_INBOX.a", Pull(batch=1, expires_ns=3600 * 10**9))
    await asyncio.sleep(0.01)  # the consumer takes no turn meanwhile
    journal.gate.set()
    assert await deletion
    await until(lambda: b"_INBOX.a" in b"".join(world.leaf.sent))
    assert b"409 Consumer Deleted" in b"".join(world.leaf.sent)


async def test_a_pull_that_arrives_before_the_end_gets_its_status(tmp_path: Path) -> None:
    async with acked_world(tmp_path) as world:
        consumer = await world.create("c")
        pull = Pull(batch=1, expires_ns=3600 * 10**9)
        world.link.on_finish = lambda: consumer.pull(b"_INBOX.a", pull)
    assert b"_INBOX.a" in b"".join(world.leaf.sent)
    assert b"409 Server Shutdown" in b"".join(world.leaf.sent)


async def test_a_deleted_consumer_without_a_subscriber_leaves_the_memory(world: World) -> None:
    world.leaf.has_interest = lambda subject: False  # type: ignore[method-assign]
    consumer = await world.create("c", deliver_subject="out")
    await asyncio.sleep(0.01)  # its first turn waits for the subscriber
    gone = weakref.ref(consumer)
    assert await world.table.delete(STREAM, "c")
    del consumer
    await until(lambda: gc.collect() >= 0 and gone() is None)


async def test_a_purge_makes_room_for_more_messages(world: World) -> None:
    consumer = await world.create("c", max_ack_pending=2)
    await world.running.publish(STREAM, *[b"x"] * 4)
    consumer.pull(b"_INBOX.a", Pull(batch=10, expires_ns=3600 * 10**9))
    await until(lambda: consumer.machine.state.sequence == 2)
    await world.broker.administration.truncate_prefix(STREAM, 3)
    await until(lambda: consumer.machine.state.sequence == 4)
    assert consumer.machine.state.pending.total == 2


async def test_messages_that_are_too_old_make_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are still in the log. A sweep that fails is repeated."""
    consumer = await world.create("c", max_ack_pending=2)
    await world.running.publish(STREAM, *[b"x"] * 4)
    consumer.pull(b"_INBOX.a", Pull(batch=10, expires_ns=3600 * 10**9))
    await until(lambda: consumer.machine.state.sequence == 2)
    has_failed = False

    def first_offset(self: Ages, host: StreamHost) -> int:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise ValueError("a defect")
        return 3

    monkeypatch.setattr(Ages, "first_offset", first_offset)
    await until(lambda: consumer.machine.state.sequence == 4)
    assert consumer.machine.state.pending.total == 2


async def test_a_purge_removes_a_record_that_waits_for_the_socket(world: World) -> None:
    world.leaf.max_payload_bytes = 10
    spec = parse_consumer({"durable_name": "c", "ack_policy": "explicit"}, "c")
    consumer = await world.table.create(spec, world.host, b"", is_local=True)
    await world.running.publish(STREAM, b"x" * 11, b"x")
    consumer.pull(b"_INBOX.a", Pull(batch=10, expires_ns=3600 * 10**9))
    await until(lambda: consumer.machine.waiting)
    await world.broker.administration.truncate_prefix(STREAM, 2)
    await until(lambda: consumer.machine.state.sequence == 1)


async def test_pulls_end_once_the_next_ones_arrive(tmp_path: Path) -> None:
    """A client that gets the end of its pull after a restart sends the next pull at once, which
    must find the subscription."""
    async with acked_world(tmp_path) as world:
        consumer = await world.create("c")
        consumer.pull(b"inbox", Pull(batch=2))
        await until(lambda: consumer.machine.state.pulls)
        consumer.abandon()  # as if the daemon was killed
    leaf, link = Leaf(), Link()
    sent: list[bytes] = []

    async def confirmed() -> None:
        await asyncio.sleep(0.05)
        sent.append(b"".join(leaf.sent))

    link.on_wait = confirmed
    async with acked_world(tmp_path, leaf, link):
        await until(lambda: b"NATS/1.0 408 Request Timeout" in b"".join(leaf.sent))
    assert sent == [b""]
