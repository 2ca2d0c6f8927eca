"""Consumers with acks: requests, failures and new rights that come at the same moment."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.worlds.acked_consumers import STREAM, World, acked_world, until

from liftlog.deliveries.acks import AckKind, Acks
from liftlog.deliveries.instructions import Ending
from liftlog.errors import ConsumerNotFound, DiskFull, Forbidden, LiftlogError, NotReady
from liftlog.log import Log
from liftlog.protocol.workers import Run
from liftlog.server.consumers.door import AcksOf, Asked, Delivery
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.config import parse_consumer
from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.workers import acked_table, pieces
from liftlog.server.jetstream_api.workers.acked_table import AckedConsumers
from liftlog.server.jetstream_api.workers.acks import WorkerAcks
from liftlog.server.jetstream_api.workers.admission import Admission
from liftlog.server.jetstream_api.workers.building import Builder
from liftlog.server.jetstream_api.workers.loading import Loader
from liftlog.server.jetstream_api.workers.pulls import WorkerPull
from liftlog.server.jetstream_api.workers.renewing import Renewing
from liftlog.server.jetstream_api.workers.socket_door import SocketDoor
from liftlog.server.jetstream_api.workers.worker_link import Arrived
from liftlog.server.journal import Change, Journal, StateVersion
from liftlog.server.journal.storing import JournalStore, Prepared

FULL = DiskFull("the disk is full")


@pytest.fixture
def door(world: World) -> SocketDoor:
    return SocketDoor(world.broker, world.table)


class Client:
    """A worker on the pull socket that has one request, and its outcomes."""

    def __init__(self, most: int = 10) -> None:
        self.deliveries: list[Delivery] = []
        self.errors: list[Exception] = []
        self.asked = Asked("w", most, 2**20, self.deliveries.append, self.errors.append)

    @property
    def is_answered(self) -> bool:
        return bool(self.deliveries or self.errors)


async def test_updates_of_different_settings_at_once_all_count(
    world: World, door: SocketDoor
) -> None:
    await door.create(STREAM, "c", {}, "me", None)
    await asyncio.gather(
        door.update(STREAM, "c", {"max_ack_pending": 7}, None),
        door.update(STREAM, "c", {"max_deliver": 3}, None),
        door.update(STREAM, "c", {"ack_wait": 9_000_000_000}, None),
    )
    stored = await world.stored("c")
    assert stored is not None
    assert (stored["max_ack_pending"], stored["max_deliver"]) == (7, 3)
    assert stored["ack_wait"] == 9_000_000_000


async def test_resets_at_once_are_served_in_turn(world: World, door: SocketDoor) -> None:
    await door.create(STREAM, "c", {}, "me", None)
    starts = [{"deliver_policy": "by_start_sequence", "opt_start_seq": n} for n in range(1, 9)]
    made = await asyncio.gather(*[door.reset(STREAM, "c", one, None) for one in starts])
    assert [one.config["opt_start_seq"] for one in made] == [*range(1, 9)]
    stored = await world.stored("c")
    assert stored is not None
    assert stored["opt_start_seq"] == 8
    assert len(world.table.of(STREAM)) == 1


async def test_a_reset_on_the_socket_that_is_refused_changes_nothing(
    world: World, door: SocketDoor
) -> None:
    before = await door.create(STREAM, "c", {}, "me", None)
    consumer = world.table.find(STREAM, "c")
    worker = Client()
    door.work(STREAM, "c", worker.asked, None)
    journal = await world.slow_journal()
    journal.error = FULL
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": 5}
    with pytest.raises(DiskFull):
        await door.reset(STREAM, "c", start, None)
    journal.error = None
    assert world.table.find(STREAM, "c") is consumer
    assert (await door.describe(STREAM, "c")).config == before[0].config
    assert await world.stored("c") == before[0].config
    assert not worker.is_answered


async def test_a_worker_that_waits_does_not_get_what_it_may_not_read(
    world: World, door: SocketDoor
) -> None:
    """An update gives the consumer more subjects, while a worker with few rights waits."""
    await door.create(STREAM, "c", {"filter_subject": "in.eu"}, "me", None)
    worker = Client()
    door.work(STREAM, "c", worker.asked, ("in.eu",))
    await door.update(STREAM, "c", {"filter_subject": "in"}, None)
    await until(lambda: worker.is_answered)
    assert [one.runs for one in worker.deliveries] == [()], "it asks again, and is refused"


async def test_a_worker_of_a_consumer_that_failed_is_refused(
    world: World, door: SocketDoor
) -> None:
    await door.create(STREAM, "c", {}, "me", None)
    consumer = world.table.find(STREAM, "c")
    assert consumer is not None
    consumer.fail(LookupError("a defect"))
    worker = Client()
    with pytest.raises(NotReady):
        door.work(STREAM, "c", worker.asked, None)
    told: list[LiftlogError | None] = []
    acks = AcksOf(consumer.local.identity, AckKind.ACK, [Run(1, 1, 1)], 0, "")
    with pytest.raises(NotReady):
        door.acknowledge(STREAM, "c", acks, told.append)
    await until(lambda: world.table.find(STREAM, "c") is not consumer)
    door.work(STREAM, "c", worker.asked, None)
    assert not worker.is_answered


async def test_a_consumer_that_is_deleted_while_it_is_loaded_again_stays_deleted(
    world: World,
) -> None:
    consumer = await world.create("c")
    journal = await world.broker.journal.get()
    may_load, real = asyncio.Event(), journal.load
    is_loading = False

    async def slow(key: Any) -> Any:
        nonlocal is_loading
        found, is_loading = await real(key), True
        await may_load.wait()
        return found

    cast(Any, journal).load = slow
    consumer.fail(LookupError("a defect"))
    await until(lambda: is_loading)
    deletion = asyncio.ensure_future(world.table.delete(STREAM, "c"))
    await asyncio.sleep(0.05)
    may_load.set()
    assert await deletion
    await asyncio.sleep(0.05)
    cast(Any, journal).load = real
    assert world.table.find(STREAM, "c") is None
    assert await world.stored("c") is None


async def test_new_rights_do_not_bring_old_filters_back(world: World) -> None:
    """An update ends while the cursor for the new rights is made."""
    consumer = await world.create("c", filter_subject="in")
    begin = type(consumer.local.cursor).begin
    may_begin, waiting = asyncio.Event(), 0

    async def slow(self: Any, *arguments: Any) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 1:
            await may_begin.wait()
        await begin(self, *arguments)

    patch = pytest.MonkeyPatch()
    patch.setattr(type(consumer.local.cursor), "begin", slow)
    try:
        Renewing(world.builder, world.services).begin(consumer)
        await until(lambda: waiting == 1)
        await world.update("c", filter_subject="in.eu")
        assert consumer.local.cursor.wanted_subjects == (("in.eu",), None)
        may_begin.set()
        await asyncio.sleep(0.05)
        assert consumer.local.cursor.wanted_subjects == (("in.eu",), None)
    finally:
        patch.undo()


async def test_a_stop_during_a_reset_leaves_a_state_that_can_be_read(tmp_path: Path) -> None:
    """An ack arrives between the new state in the journal and the end of the daemon."""
    async with acked_world(tmp_path) as world:
        consumer = await world.create("c")
        journal = await world.slow_journal()
        journal.gate.clear()
        reset = asyncio.ensure_future(world.table.reset(consumer, 1))
        await until(lambda: journal.waiting)
        real = await world.broker.journal.get()
        before = real.accepted_position
        consumer.machine.log_started(5)  # an event whose delta belongs to the old state
        consumer.end(Ending.SERVER_SHUTDOWN)
        assert real.accepted_position == before, "a delta of the old state follows the new one"
        journal.gate.set()
        with pytest.raises(JetStreamError):
            await reset


async def test_a_stream_made_again_does_not_inherit_a_consumer_that_could_not_be_loaded(
    world: World,
) -> None:
    consumer = await world.create("c")
    loader = Loader(world.builder, Admission(), cast(Any, None), lambda consumer: None)
    loader.broken[STREAM, "c"] = consumer.key, "rot"
    assert loader.problem_of(world.host, "c") == (consumer.key, "rot")
    loader.broken[STREAM, "c"] = consumer.key._replace(incarnation="gone"), "rot"
    assert loader.problem_of(world.host, "c") is None
    assert not loader.broken


async def test_a_stop_during_a_reset_on_the_socket_keeps_the_consumer(tmp_path: Path) -> None:
    async with acked_world(tmp_path) as world:
        door = SocketDoor(world.broker, world.table)
        await door.create(STREAM, "c", {}, "me", None)
        journal = await world.slow_journal()
        journal.gate.clear()
        reset = asyncio.ensure_future(door.reset(STREAM, "c", {}, None))
        await until(lambda: journal.waiting)
        consumer = world.table.find(STREAM, "c")
        assert consumer is not None
        consumer.end(Ending.SERVER_SHUTDOWN)
        journal.gate.set()
        with pytest.raises(LiftlogError):
            await reset
        assert await world.stored("c") is not None


class FailingJournal:
    """While `is_failing`, the journal cannot append."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_failing = False
        real = JournalStore.write

        def write(store: JournalStore, prepared: Prepared) -> None:
            if self.is_failing:
                raise FULL
            real(store, prepared)

        monkeypatch.setattr(JournalStore, "write", write)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingJournal:
    return FailingJournal(monkeypatch)


async def fail(world: World, disk: FailingJournal) -> Journal:
    """Return when a write of the journal has failed."""
    journal = await world.broker.journal.get()
    disk.is_failing = True
    key = world.table.of(STREAM)[0].key
    journal.write([Change.delta(key, StateVersion(1, 0), b"")])
    await until(lambda: journal.problem is not None)
    return journal


async def test_nothing_is_delivered_while_the_journal_fails(
    world: World, door: SocketDoor, disk: FailingJournal
) -> None:
    """The deliveries could not be written: they would use up `max_deliver`, and fill memory."""
    await door.create(STREAM, "c", {"max_deliver": 2, "ack_wait": 50_000_000}, "me", None)
    pushed = await world.create("p", deliver_subject="to.me", ack_wait=50_000_000, max_deliver=2)
    journal = await fail(world, disk)
    await world.running.publish(STREAM, b"1", b"2", b"3")
    workers = [Client() for _ in range(5)]
    for worker in workers:
        door.work(STREAM, "c", worker.asked, None)
        await asyncio.sleep(0.05)
    for consumer in (world.table.find(STREAM, "c"), pushed):
        assert consumer is not None
        assert consumer.machine.state.sequence == 0, "no message was delivered"
        assert not consumer.machine.state.exhausted
    assert not any(one.is_answered for one in workers)
    assert journal.unsynced < 20
    disk.is_failing = False
    await until(lambda: workers[0].is_answered)
    assert [one.runs for one in workers[0].deliveries] == [[(1, 3, 1)]]
    await until(lambda: pushed.machine.state.sequence >= 3)


async def test_requests_do_not_wait_for_a_load_while_the_journal_fails(
    world: World, door: SocketDoor, disk: FailingJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acked_table, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(acked_table, "PATIENCE_SECONDS", 0.1)
    consumer = await world.create("c")
    await fail(world, disk)
    consumer.fail(LookupError("a defect"))  # it is loaded again
    await asyncio.sleep(0.05)
    pull = WorkerPull("c", b"_INBOX.a", Pull(batch=1))
    world.table.take(Arrived(STREAM, [], [pull], []))
    assert world.link.sent == [b"HPUB _INBOX.a 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"]
    async with asyncio.timeout(5):
        for request in (world.update("c", max_ack_pending=7), world.table.delete(STREAM, "c")):
            with pytest.raises(JetStreamError) as refused:
                await request
            assert refused.value.code == 503
        for asked in (door.update(STREAM, "c", {}, None), door.delete(STREAM, "c")):
            with pytest.raises(NotReady):
                await asked
    disk.is_failing = False
    await until(lambda: world.table.find(STREAM, "c") is not consumer)
    await world.update("c", max_ack_pending=7)


async def test_requests_do_not_wait_until_all_consumers_are_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acked_table, "PATIENCE_SECONDS", 0.1)
    await world.create("c")
    await world.table.close()
    journal = await world.broker.journal.get()
    real, may_load = journal.load, asyncio.Event()

    async def slow(key: Any) -> Any:
        await may_load.wait()
        return await real(key)

    monkeypatch.setattr(journal, "load", slow)
    ages = Ages(world.broker, world.services.cold_readers)
    leaf, link = cast(Any, world.leaf), cast(Any, world.link)
    table = AckedConsumers(world.broker, world.services, ages, leaf, link)
    table.start()
    door = SocketDoor(world.broker, table)
    try:
        for problem in (None, FULL):
            monkeypatch.setattr(journal, "problem", problem)
            async with asyncio.timeout(5):
                with pytest.raises(JetStreamError) as refused:
                    await table.opened(STREAM)
                assert refused.value.code == 503
                with pytest.raises(NotReady):
                    await door.describe(STREAM, "c")
        assert table.refuse_pull(STREAM, "c", b"_INBOX.a")
        monkeypatch.setattr(journal, "problem", None)
        may_load.set()
        await until(lambda: table.is_open(STREAM))
        await table.opened(STREAM)
        assert (await door.describe(STREAM, "c")).name == "c"
        assert not table.refuse_pull(STREAM, "c", b"_INBOX.a")
    finally:
        await table.close()


async def test_one_that_a_client_uses_while_its_deletion_waits_stays(world: World) -> None:
    consumer = await world.create("c", inactive_threshold=50_000_000)
    journal = await world.slow_journal()
    journal.gate.clear()
    update = asyncio.ensure_future(world.update("c", max_ack_pending=9))
    await until(lambda: journal.waiting)
    await asyncio.sleep(0.3)  # its deletion waits for the update
    consumer.pull(b"_INBOX.a", Pull(batch=1, expires_ns=3600 * 10**9))
    journal.gate.set()
    await update
    await asyncio.sleep(0.1)
    assert world.table.find(STREAM, "c") is consumer
    assert not consumer.is_closed


async def test_what_is_read_for_workers_counts_against_their_limit(
    world: World, door: SocketDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of many answers are read at the same time, from a slow disk."""
    await door.create(STREAM, "c", {"filter_subject": "in"}, "me", None)
    await world.running.publish(STREAM, *[b"%d" % number for number in range(60)])
    may_read, real = threading.Event(), pieces.gather

    def slow(log: Log, offsets: Sequence[int]) -> Any:
        assert may_read.wait(20)
        return (yield from real(log, offsets))

    monkeypatch.setattr(pieces, "gather", slow)
    workers = [Client(most=1) for _ in range(60)]
    try:
        for worker in workers:
            door.work(STREAM, "c", worker.asked, None)
        consumer = world.table.find(STREAM, "c")
        assert consumer is not None
        await until(lambda: consumer.machine.state.sequence >= 16)
        await asyncio.sleep(0.1)
        assert 16 <= consumer.machine.state.sequence <= 18, "of 1 MiB each"
    finally:
        may_read.set()
    await until(lambda: all(one.is_answered for one in workers))
    assert {one.deliveries[0].runs[0][0] for one in workers} == {*range(1, 61)}


async def test_the_payload_limit_of_nats_does_not_concern_the_socket(
    world: World, door: SocketDoor
) -> None:
    world.leaf.max_payload_bytes = 10
    await door.create(STREAM, "c", {"filter_subject": "in"}, "me", None)
    over_nats = await world.create("n", filter_subject="in")
    await world.running.publish(STREAM, b"1", b"2" * 11, b"3")
    worker = Client()
    door.work(STREAM, "c", worker.asked, None)
    await until(lambda: worker.is_answered)
    assert worker.deliveries[0].runs == [(1, 3, 1)]
    consumer = world.table.find(STREAM, "c")
    assert consumer is not None
    acks = AcksOf(consumer.local.identity, AckKind.NAK, [Run(1, 3, 1)], 0, "")
    door.acknowledge(STREAM, "c", acks, lambda error: None)
    again = Client()
    door.work(STREAM, "c", again.asked, None)
    await until(lambda: again.is_answered)
    assert again.deliveries[0].runs == [(1, 3, 2)]
    over_nats.pull(b"_INBOX.a", Pull(batch=3, expires_ns=3600 * 10**9))
    await until(lambda: over_nats.machine.state.sequence == 2)
    sent = b"".join(world.leaf.sent)
    assert re.findall(rb"ACK.jobs.n.1.(\d+)", sent) == [b"1", b"3"]


async def test_what_is_too_large_for_nats_waits_for_the_socket(
    world: World, door: SocketDoor
) -> None:
    """The consumer has clients at both doors."""
    world.leaf.max_payload_bytes = 10
    await door.create(STREAM, "c", {}, "me", None)
    consumer = world.table.find(STREAM, "c")
    assert consumer is not None
    state = consumer.machine.state
    consumer.pull(b"_INBOX.a", Pull(batch=10, expires_ns=3600 * 10**9))
    await until(lambda: consumer.machine.waiting)
    await world.running.publish(STREAM, b"1", b"2" * 11, b"3")
    await until(lambda: state.sequence == 1)
    consumer.pull(b"_INBOX.b", Pull(batch=1, no_wait=True))
    await until(lambda: b"_INBOX.b" in b"".join(world.leaf.sent))
    assert state.next_offset == 2, "the second record waits"
    worker = Client(1)
    door.work(STREAM, "c", worker.asked, None)
    await until(lambda: worker.is_answered and state.sequence == 3)
    assert worker.deliveries[0].runs == [(2, 1, 1)]

    acks = AcksOf(consumer.local.identity, AckKind.NAK, [Run(1, 3, 1)], 0, "")
    door.acknowledge(STREAM, "c", acks, lambda error: None)
    await until(lambda: state.pending.queued == 2)
    await asyncio.sleep(0.05)
    assert state.pending.queued == 2, "the second record waits again"
    assert state.pending.total == 3
    again = Client(1)
    door.work(STREAM, "c", again.asked, None)
    await until(lambda: again.is_answered and not state.pending.queued)
    assert again.deliveries[0].runs == [(2, 1, 2)]
    sent = b"".join(world.leaf.sent)
    assert re.findall(rb"ACK.jobs.c.(\d.\d)", sent) == [b"1.1", b"1.3", b"2.1", b"2.3"]


async def test_what_is_too_large_for_nats_does_not_wait_for_ever(
    world: World, door: SocketDoor
) -> None:
    """No worker on the pull socket comes for an ack wait."""
    world.leaf.max_payload_bytes = 10
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 300_000_000}
    consumer = await world.table.create(
        parse_consumer({**config, "max_deliver": 4}, "c"), world.host, b"", is_local=True
    )
    state = consumer.machine.state
    consumer.pull(b"_INBOX.a", Pull(batch=10, expires_ns=3600 * 10**9))
    await world.running.publish(STREAM, b"1", b"2" * 11, b"3" * 12, b"4")
    await until(lambda: state.sequence >= 1)
    assert state.next_offset == 2, "a worker on the pull socket may come"
    await until(lambda: state.next_offset == 5)
    assert state.pending.total == 4
    acks = AcksOf(consumer.local.identity, AckKind.ACK, [Run(1, 1, 1), Run(4, 1, 1)], 0, "")
    door.acknowledge(STREAM, "c", acks, lambda error: None)
    await until(lambda: state.pending.total == 2)
    await until(lambda: state.pending.queued)
    worker = Client(10)
    door.work(STREAM, "c", worker.asked, None)
    await until(lambda: worker.is_answered)
    ((first, _, deliveries),) = worker.deliveries[0].runs
    assert first == 2
    assert deliveries >= 2, "those that reached no worker count"
    sent = b"".join(world.leaf.sent)
    assert set(re.findall(rb"ACK.jobs.c.\d.(\d)", sent)) == {b"1", b"4"}
    await until(lambda: sorted(state.exhausted) == [2, 3])
    assert (await consumer.info())["num_ack_pending"] == 0


async def test_large_messages_are_read_again_a_few_at_a_time(world: World) -> None:
    consumer = await world.create("c")
    for number in range(6):
        await world.running.publish(STREAM, b"%d" % number * 500_000)
    rows, end = await consumer.local.cursor.rows_at([1, 2, 3, 4, 6], 900_000)
    assert ([row.offset for row in rows], end) == ([1, 2], 3)
    rows, end = await consumer.local.cursor.rows_at([5, 6], 900_000)
    assert ([row.offset for row in rows], end) == ([5, 6], 7)
    consumer.pull(b"_INBOX.a", Pull(batch=6, expires_ns=3600 * 10**9))
    await until(lambda: consumer.machine.state.sequence == 6)
    order = [6, 1, 2, 3, 4, 5]
    stamps = consumer.machine.state.pending.stamps_of(np.arange(1, 7))
    for offset in order:
        naks = Acks(
            np.array([offset]), np.array([1]), stamps[offset - 1 : offset],
            np.array([AckKind.NAK], np.uint8), np.zeros(1, np.int64), {},
        )  # fmt: skip
        consumer.acknowledge(WorkerAcks("c", naks, np.zeros(1, np.int64), ()))
    world.leaf.sent.clear()
    consumer.pull(b"_INBOX.a", Pull(batch=6, expires_ns=3600 * 10**9))
    await until(lambda: consumer.machine.state.sequence == 12)
    sent = re.findall(rb"ACK.jobs.c.2.(\d+)", b"".join(world.leaf.sent))
    assert [int(one) for one in sent] == order


async def test_a_reset_on_the_socket_refuses_acks_of_earlier_deliveries(
    world: World, door: SocketDoor
) -> None:
    await door.create(STREAM, "c", {}, "me", None)
    await world.running.publish(STREAM, b"1", b"2")
    worker = Client()
    door.work(STREAM, "c", worker.asked, None)
    await until(lambda: worker.is_answered)
    before = world.table.find(STREAM, "c")
    info = await door.reset(STREAM, "c", {}, None)
    assert world.table.find(STREAM, "c") is before
    assert (info.next_offset, info.num_ack_pending, info.deliveries) == (1, 0, 0)
    told: list[LiftlogError | None] = []
    acks = AcksOf(worker.deliveries[0].identity, AckKind.ACK, [Run(1, 2, 1)], 0, "")
    with pytest.raises(ConsumerNotFound):
        door.acknowledge(STREAM, "c", acks, told.append)
    again = Client()
    door.work(STREAM, "c", again.asked, None)
    await until(lambda: again.is_answered)
    assert again.deliveries[0].runs == [(1, 2, 1)]
    assert (await world.stored("c") or {})["durable_name"] == "c"
    assert await world.stored_offset("c") == 3


@pytest.mark.parametrize("way", ["nats", "socket"])
async def test_a_reset_of_a_stream_that_is_deleted_leaves_nothing(
    world: World, door: SocketDoor, way: str
) -> None:
    consumer = await world.create("c")
    journal = await world.slow_journal()
    journal.gate.clear()
    work = world.table.reset(consumer, 1) if way == "nats" else door.reset(STREAM, "c", {}, None)
    reset = asyncio.ensure_future(work)
    await until(lambda: journal.waiting)
    host = world.broker.hosts.pop(STREAM)
    journal.gate.set()
    with pytest.raises((JetStreamError, LiftlogError)):
        await reset
    world.broker.hosts[STREAM] = host
    assert await world.stored("c") is None


async def test_nothing_is_stored_for_consumers_that_are_gone(world: World) -> None:
    """The waiting pulls of each consumer end, which changes it."""
    await world.broker.create_stream("made", {"subject": "made"})
    host = world.broker.hosts["made"]
    specs = [parse_consumer({"durable_name": f"c{n}"}, f"c{n}") for n in range(5)]
    consumers = [await world.table.create(one, host, b"") for one in specs]
    pull = Pull(batch=1, expires_ns=3_000_000_000)
    for consumer in consumers:
        consumer.pull(b"inbox", pull)
    await until(lambda: all(one.machine.waiting for one in consumers))
    journal = await world.broker.journal.get()
    slow = await world.slow_journal()
    slow.gate.clear()
    deletion = asyncio.ensure_future(world.table.delete("made", "c0"))
    await until(lambda: slow.waiting)
    consumers[0].pull(b"other", pull)  # it gets only its status
    await asyncio.sleep(0.01)
    slow.gate.set()
    await deletion
    before = journal.counters.changes
    await world.broker.delete_stream("made")
    assert all(one.is_closed for one in consumers)
    await journal.synced(journal.write([]))
    assert journal.counters.changes == before + 1, "the deletion of the stream"
    assert journal.counters.unknown == 0
    assert b"".join(world.leaf.sent).count(b"409 Consumer Deleted") == 6


async def test_workers_on_the_socket_and_priority_groups(world: World, door: SocketDoor) -> None:
    """Such a worker names no group. JetStream refuses a pull without one."""
    groups = {"priority_policy": "overflow", "priority_groups": ["g"]}
    consumer = await world.create("c", **groups)
    await world.running.publish(STREAM, b"1", b"2")
    worker = Client()
    door.work(STREAM, "c", worker.asked, None)
    await until(lambda: worker.is_answered)
    assert not worker.deliveries
    assert "Priority Group" in str(worker.errors[0])
    consumer.pull(b"_INBOX.a", Pull(batch=2, expires_ns=3600 * 10**9, group="g"))
    await until(lambda: consumer.machine.state.sequence == 2)
    assert consumer.machine.state.pending.total == 2


async def test_a_consumer_that_may_not_read_at_the_start_is_loaded_once_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ACL with a mistake must not cost its position."""
    async with acked_world(tmp_path) as world:
        await world.running.publish(STREAM, *[b"x"] * 9)
        await world.create("c", deliver_policy="by_start_sequence", opt_start_seq=7)
    real, denies = Builder.cursor, True

    def cursor(builder: Builder, *arguments: Any, **named: Any) -> Any:
        if denies:
            raise Forbidden("clients of NATS may not read")
        return real(builder, *arguments, **named)

    monkeypatch.setattr(Builder, "cursor", cursor)
    async with acked_world(tmp_path) as world:
        with pytest.raises(JetStreamError, match="until the ACL permits it") as caught:
            world.table.find(STREAM, "c")
        assert "delete it" not in caught.value.description
        await asyncio.sleep(1.2)
        denies = False
        await until(lambda: world.table.count() == 1)
        found = world.table.find(STREAM, "c")
        assert found is not None
        assert found.machine.state.next_offset == 7


async def test_clients_at_both_doors_take_turns(world: World, door: SocketDoor) -> None:
    """A delivery on the pull socket moves the position at which records are read for NATS."""
    await door.create(STREAM, "c", {}, "me", None)
    for _ in range(3):
        await world.running.publish(STREAM, *[bytes(20_000)] * 10)
    consumer = world.table.find(STREAM, "c")
    assert consumer is not None
    machine, sequence = consumer.machine, 0

    async def pull_over_nats(count: int) -> None:
        nonlocal sequence
        sequence += count
        consumer.pull(b"_INBOX.a.%d" % sequence, Pull(batch=count))
        await until(lambda: machine.state.sequence == sequence)
        await consumer.info()  # returns when no read is in progress

    for count in (3, 1):
        await pull_over_nats(2)
        worker = Client(count)
        door.work(STREAM, "c", worker.asked, None)
        await until(lambda worker=worker: worker.is_answered)
        sequence += count
        await pull_over_nats(5)
        await pull_over_nats(5)
    assert machine.state.next_offset == machine.state.floor_offset + sequence
