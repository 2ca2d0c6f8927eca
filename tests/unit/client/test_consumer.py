"""Consumers: where they begin, what counts as processed, and when that is stored."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.cutting_proxy import cutting_proxy
from support.local_checkpoints import LocalOffsets, serve_checkpoints
from support.opened_client import Opened, until
from support.pull_broker import LogBroker, pull_server

from liftlog import errors
from liftlog.client import Client, Consumer, Filter, SyncClient, SyncConsumer, connect, reconnecting
from liftlog.records.decode import Record, RecordBatch
from liftlog.server.checkpoints.table import CheckpointTable

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def offsets_stream(broker: LogBroker) -> LocalOffsets:
    return serve_checkpoints(broker)


@pytest.fixture(params=["async", "sync"])
async def client(
    request: pytest.FixtureRequest, address: str, offsets_stream: LocalOffsets
) -> AsyncIterator[Opened]:
    opened = await Opened.to(request.param, address)
    yield opened
    await opened.close()


def stored(broker: Any, consumer: str = "billing") -> int:
    found = broker.checkpoints.table.get((consumer, "orders"))
    return 0 if found is None else int(found.offset)


def make(client: Opened, **options: Any) -> Any:
    """It stops at the end: reads of one stream that wait would delay the others."""
    options = {"checkpoint_every": None, "checkpoint_interval": None, "until": "end", **options}
    return client.client.consumer("billing", "orders", **options)


async def offsets(client: Opened, consumer: Any, count: int) -> list[int]:
    return [record.offset for record in await client.take(consumer, count)]


async def test_it_goes_on_behind_what_was_processed(client: Opened, broker: LogBroker) -> None:
    first = make(client)
    assert await offsets(client, first, 25) == list(range(1, 26))
    assert (first.position, first.committed, stored(broker)) == (25, 0, 0)
    await client.of(first, "close")
    assert (first.committed, stored(broker)) == (25, 25), "what was in hand does not count"
    assert await offsets(client, first, 1) == [], "it is closed"

    second = make(client)
    assert await offsets(client, second, 6) == list(range(25, 31))
    assert await client.of(second, "checkpoint") == 31, "now it does, at the end of a batch"
    assert await offsets(client, second, 5) == list(range(31, 36))
    assert await client.of(second, "checkpoint") == 36, "and in its midst"
    assert second.lag == 101 - 36
    await client.of(second, "close")
    assert stored(broker) == 36
    assert await offsets(client, make(client), 1) == [36]


async def test_without_a_checkpoint_it_begins_where_it_is_told(
    client: Opened, broker: LogBroker
) -> None:
    consumer = make(client, start=91)
    assert await offsets(client, consumer, 100) == list(range(91, 101))
    assert stored(broker) == 101, "the end of the read is stored"
    consumer = make(client, start=1)
    assert await offsets(client, consumer, 100) == [], "the checkpoint comes before the start"


async def test_checkpoints_by_number(
    client: Opened, broker: LogBroker, offsets_stream: LocalOffsets
) -> None:
    consumer = make(client, checkpoint_every=10)
    seen = []
    for _ in range(35):
        await offsets(client, consumer, 1)
        seen.append(stored(broker))
    assert seen == [0] * 10 + [11] * 10 + [21] * 10 + [31] * 5
    assert offsets_stream.stores == 3
    assert await offsets(client, consumer, 65) == list(range(36, 101))
    assert stored(broker) == 91


async def test_checkpoints_by_time_while_records_come(client: Opened, broker: LogBroker) -> None:
    consumer = make(client, checkpoint_interval=0.02)
    seen = [0]
    async with asyncio.timeout(10):
        while stored(broker) == 0:
            [offset] = await offsets(client, consumer, 1)
            await asyncio.sleep(0.005)
            seen.append(offset)
    assert stored(broker) in seen[-3:]


async def test_checkpoints_by_time_while_none_comes(client: Opened, broker: LogBroker) -> None:
    consumer = make(client, checkpoint_interval=0.05, until=None)
    await offsets(client, consumer, 100)
    waiting = asyncio.ensure_future(offsets(client, consumer, 1))
    await until(lambda: stored(broker) == 101)
    broker.streams["orders"].append([b"new"])
    assert await waiting == [101]
    await client.of(consumer, "close")
    assert stored(broker) == 101


async def test_batches(client: Opened, broker: LogBroker) -> None:
    consumer = make(client, checkpoint_every=25)
    batches = consumer.batches()
    seen = []
    for _ in range(6):
        [batch] = await client.take(batches, 1)
        seen.append((batch.base_offset, stored(broker)))
    assert seen == [(1, 0), (11, 0), (21, 0), (31, 31), (41, 31), (51, 31)]
    assert await client.of(consumer, "checkpoint") == 61
    [_] = await client.take(batches, 1)
    await client.of(consumer, "close")
    assert stored(broker) == 61


async def test_batches_begin_with_the_rest_of_a_begun_batch(
    client: Opened, broker: LogBroker
) -> None:
    """Whatever is asked for in which order, a checkpoint never passes what was not handed out."""
    consumer = make(client)
    batches = consumer.batches()
    assert await offsets(client, consumer, 3) == [1, 2, 3]
    [rest] = await client.take(batches, 1)
    assert list(rest.offsets()) == list(range(4, 11))
    assert consumer.position == 4, "the record in hand counts, the rest does not yet"
    assert await offsets(client, consumer, 2) == [11, 12]
    assert consumer.position == 12
    assert await client.of(consumer, "checkpoint") == 13
    [rest] = await client.take(batches, 1)
    assert list(rest.offsets()) == list(range(13, 21))
    await client.of(consumer, "close")
    assert stored(broker) == 13

    consumer = make(client)
    batches = consumer.batches()
    chance = random.Random(3)
    seen: list[int] = []
    while True:
        if chance.random() < 0.5:
            taken = await offsets(client, consumer, chance.randint(1, 12))
            in_hand = taken[-1:]
        else:
            taken = [o for b in await client.take(batches, 1) for o in b.offsets()]
            in_hand = taken
        if not taken or taken[-1] < 100:  # else the end of the read may have been seen as well
            assert consumer.position == (in_hand[0] if taken else 101)
        seen += taken
        if not taken:
            break
        if chance.random() < 0.3:
            assert await client.of(consumer, "checkpoint") == seen[-1] + 1
    assert seen == list(range(13, 101))
    assert stored(broker) == 101


async def test_closed_amid_a_batch(
    client: Opened, broker: LogBroker, offsets_stream: LocalOffsets
) -> None:
    """The rest of the batch was never handed out; what could not be stored is tried again."""
    consumer = make(client)
    await offsets(client, consumer, 3)
    offsets_stream.error = errors.DiskFull("no room")
    with pytest.raises(errors.DiskFull):
        await client.of(consumer, "close")
    offsets_stream.error = None
    await client.of(consumer, "close")
    assert stored(broker) == 3
    assert await client.of(consumer, "checkpoint") == 3
    assert offsets_stream.stores == 2


async def test_what_a_filter_passes_over_is_processed_too(
    client: Opened, broker: LogBroker
) -> None:
    """Else the checkpoint of a consumer that few records match would never move."""
    consumer = make(
        client, checkpoint_interval=0.05, until=None, filter=Filter(subject="invoices.>")
    )
    waiting = asyncio.ensure_future(offsets(client, consumer, 1))
    await until(lambda: stored(broker) == 101)
    broker.streams["orders"].append([b"1"], subject=b"invoices.new")
    assert await waiting == [101]
    await client.of(consumer, "close")


async def test_at_least_once_whatever_interrupts(client: Opened, broker: LogBroker) -> None:
    """Consumers are given up at any place, as a crash would: nothing is skipped, and no more is
    read again than was processed since the last checkpoint."""
    chance = random.Random(7)
    processed: list[int] = []
    rounds = 0
    while not processed or processed[-1] < 100:
        rounds += 1
        consumer = make(client, checkpoint_every=5, exclusive=rounds % 2 == 0)
        before = stored(broker)
        some = await offsets(client, consumer, chance.randint(7, 20))
        assert some[0] == max(before, 1)
        processed += some
        assert stored(broker) >= some[-1] - 5
        if chance.random() < 0.5:
            await client.of(consumer, "close")
            assert stored(broker) == (some[-1] if some[-1] < 100 else 101)
    assert sorted(set(processed)) == list(range(1, 101))
    assert rounds > 5


async def test_leaving_by_an_error(client: Opened, broker: LogBroker) -> None:
    """What was processed before is stored, what failed is not, and the error is what is raised."""
    consumer = make(client)

    async def handle() -> None:
        async with consumer:
            async for record in consumer:
                if record.offset == 17:
                    raise KeyError("cannot handle it")

    def handle_blocking() -> None:
        with consumer:
            for record in consumer:
                if record.offset == 17:
                    raise KeyError("cannot handle it")

    with pytest.raises(KeyError):
        await (asyncio.to_thread(handle_blocking) if client.blocking else handle())
    assert stored(broker) == 17


async def test_two_of_one_name_are_noticed(client: Opened, broker: LogBroker) -> None:
    one, other = make(client), make(client)
    await offsets(client, one, 10)
    await offsets(client, other, 10)
    assert await client.of(one, "checkpoint") == 11
    with pytest.raises(errors.CheckpointMoved):
        await client.of(other, "checkpoint")
    await offsets(client, other, 10)
    await client.of(other, "close")
    assert stored(broker) == 11, "it has lost the checkpoint, and stores nothing any more"

    third = make(client, checkpoint_every=1)
    assert await offsets(client, third, 1) == [11]
    await client.call("commit_checkpoint", "billing", "orders", 50)  # somebody seeks
    with pytest.raises(errors.CheckpointMoved) as raised:
        await offsets(client, third, 2)
    assert raised.value.details["offset"] == 50

    shared = [make(client, exclusive=False) for _ in range(2)]
    for consumer in shared:
        assert await offsets(client, consumer, 10) == list(range(50, 60))
    for consumer in shared:
        assert await client.of(consumer, "checkpoint") == 60


async def test_a_checkpoint_that_fails_for_now(
    client: Opened, broker: LogBroker, offsets_stream: LocalOffsets
) -> None:
    consumer = make(client, checkpoint_every=10)
    offsets_stream.error = errors.DiskFull("no room")
    assert await offsets(client, consumer, 35) == list(range(1, 36))
    assert offsets_stream.stores == 3
    with pytest.raises(errors.DiskFull):
        await client.of(consumer, "checkpoint")
    offsets_stream.error = None
    assert await offsets(client, consumer, 11) == list(range(36, 47))
    assert stored(broker) == 46
    offsets_stream.error = errors.DiskFull("no room")
    await offsets(client, consumer, 1)
    with pytest.raises(errors.DiskFull):
        await client.of(consumer, "close")


async def test_a_stream_made_anew(client: Opened, broker: LogBroker) -> None:
    consumer = make(client)
    await offsets(client, consumer, 30)
    await client.of(consumer, "close")
    broker.streams["orders"].real_log.close()
    broker.directory /= "again"
    broker.directory.mkdir()
    broker.add("orders").append([b"other data"] * 10)

    with pytest.raises(errors.StaleIncarnation):
        await offsets(client, make(client), 1)
    told: list[Any] = []
    consumer = make(client, on_reset="earliest", reset_callback=told.append)
    assert await offsets(client, consumer, 100) == list(range(1, 11))
    assert [(reset.from_offset, reset.to_offset) for reset in told] == [(30, 1)]
    assert stored(broker) == 11
    assert await offsets(client, make(client), 1) == []


async def test_a_daemon_that_has_lost_checkpoints(
    client: Opened, broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An older one means that records are read again. "None" is nothing to skip records by."""
    await client.call("commit_checkpoint", "billing", "orders", 30)
    table = broker.checkpoints.table
    broker.checkpoints.table = CheckpointTable(dict(table.items()), losses=1)
    consumer = make(client)
    assert await offsets(client, consumer, 2) == [30, 31]
    assert "checkpoint-uncertain consumer=billing" in caplog.text
    await client.of(consumer, "close")
    assert broker.checkpoints.table.uncertain_count == 0
    caplog.clear()
    assert await offsets(client, make(client), 1) == [31]
    assert "uncertain" not in caplog.text

    broker.checkpoints.table = CheckpointTable(losses=1)
    with pytest.raises(errors.CheckpointUncertain):
        await client.call("fetch_checkpoint", "billing", "orders")
    for start in (50, "latest"):
        with pytest.raises(errors.CheckpointUncertain):
            await offsets(client, make(client, start=start), 1)
        resetting = make(client, start=start, on_reset="earliest")
        assert await offsets(client, resetting, 1) == [1]
    consumer = make(client)
    assert (await offsets(client, consumer, 3), consumer.committed) == ([1, 2, 3], 0)
    await client.of(consumer, "close")
    assert stored(broker) == 3
    assert await offsets(client, make(client, start="latest"), 1) == [3]


async def test_a_checkpoint_below_the_log_start(client: Opened, broker: LogBroker) -> None:
    await client.call("commit_checkpoint", "billing", "orders", 5)
    broker.streams["orders"].real_log.truncate_prefix(41)
    with pytest.raises(errors.OffsetOutOfRange):
        await offsets(client, make(client), 1)
    consumer = make(client, on_reset="earliest", checkpoint_every=1)
    assert await offsets(client, consumer, 2) == [41, 42]
    assert stored(broker) == 42


@pytest.mark.parametrize("stored_before_the_loss", [True, False])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_undecided_checkpoint(
    kind: str,
    address: str,
    broker: LogBroker,
    offsets_stream: LocalOffsets,
    monkeypatch: pytest.MonkeyPatch,
    stored_before_the_loss: bool,
) -> None:
    """The connection is lost while the disk works. Whether the checkpoint was stored or not, the
    consumer goes on, and does not take its own for somebody else's."""
    monkeypatch.setattr(reconnecting, "FIRST_PAUSE_SECONDS", 0.001)
    async with cutting_proxy(address) as proxy:
        client = await Opened.to(kind, proxy.address)
        consumer = make(client, checkpoint_every=10)
        offsets_stream.held = []
        taking = asyncio.ensure_future(offsets(client, consumer, 15))
        await until(lambda: offsets_stream.held)
        target, proxy.target = proxy.target, None
        proxy.cut()
        if stored_before_the_loss:
            offsets_stream.release()
        else:
            held, offsets_stream.held = offsets_stream.held, None
            for done in held:
                done(errors.DiskFull("no room"))
        proxy.target = target
        async with asyncio.timeout(10):
            assert await taking == list(range(1, 16))
        assert (consumer.committed, stored(broker)) == (11, 11)
        await client.of(consumer, "close")
        assert stored(broker) == 15
        await client.close()


class Interrupted(Exception):
    """As a handler of a signal raises it, wherever the program is."""


def interrupt_each_decoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first time that the records of a batch are made is in vain; returns where it was."""
    real, begun = RecordBatch.records, list[int]()

    def records(self: RecordBatch) -> list[Record]:
        if self.header.base_offset not in begun:
            begun.append(self.header.base_offset)
            raise Interrupted
        return real(self)

    monkeypatch.setattr(RecordBatch, "records", records)
    return begun


@pytest.mark.parametrize("what", ["read", "consumer", "batches behind it"])
async def test_an_interrupted_decoding_loses_no_record(
    client: Opened, broker: LogBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    begun = interrupt_each_decoding(monkeypatch)
    if what == "read":
        iterator = client.client.read("orders", start=1, until=101)
    else:
        iterator = client.client.consumer("billing", "orders", until=101)
    seen: list[int] = []
    while True:
        try:
            taken = await client.take(iterator, 1)
        except Interrupted:
            if what == "batches behind it":
                assert (iterator.position or 1) <= (seen[-1] + 1 if seen else 1)
                (batch,) = await client.take(iterator.batches(), 1)
                seen += batch.offsets()
            continue
        if not taken:
            break
        seen += [one.offset for one in taken]
    assert seen == list(range(1, 101))
    assert len(begun) > 1


async def test_a_wait_that_is_cancelled_is_not_the_end_of_the_batches(
    address: str, broker: LogBroker, offsets_stream: LocalOffsets
) -> None:
    async with connect(address) as client, client.consumer("c", "orders", start=101) as consumer:
        batches = consumer.batches()
        for offset in (101, 102):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 0.01)
            broker.streams["orders"].append([b"new"])
            batch = await asyncio.wait_for(anext(batches), 10)
            assert list(batch.offsets()) == [offset]
    assert stored(broker, "c") == 102


async def test_cancelling_batches_at_every_turn(broker: LogBroker) -> None:
    serve_checkpoints(broker)
    async with pull_server(broker) as (_, address), connect(address) as client:
        cancelled = 0
        for turn in range(60):
            consumer = client.consumer(f"c{turn}", "orders", checkpoint_every=1, until=51)
            batches, seen = consumer.batches(), []
            for _ in range(2):
                task = asyncio.ensure_future(anext(batches))
                for _ in range(turn):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    seen += (await task).offsets()  # type: ignore[misc]
                except asyncio.CancelledError:
                    cancelled += 1
            async for batch in batches:
                seen += batch.offsets()
            assert seen == list(range(1, 51))
            assert stored(broker, f"c{turn}") == 51
        assert cancelled > 5


async def test_a_cancelled_close_is_made_up_for(broker: LogBroker) -> None:
    serve_checkpoints(broker)
    async with pull_server(broker) as (_, address), connect(address) as client:
        for turn in range(20):
            consumer = client.consumer(f"c{turn}", "orders", checkpoint_every=None)
            await anext(consumer)
            await anext(consumer)
            closing = asyncio.ensure_future(consumer.close())
            for _ in range(turn):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            await consumer.close()
            assert stored(broker, f"c{turn}") == 2


async def test_cancelling_at_every_turn(broker: LogBroker) -> None:
    """Whatever was cancelled, the next record is the one that follows."""
    serve_checkpoints(broker)
    async with pull_server(broker) as (_, address), connect(address) as client:
        for turn in range(60):
            consumer = client.consumer(f"c{turn}", "orders", checkpoint_every=1)
            seen: list[int] = []
            cancelled = False
            while len(seen) < 12:
                task = asyncio.ensure_future(anext(consumer))
                if len(seen) in (0, 5, 10) and not cancelled:
                    for _ in range(turn):
                        await asyncio.sleep(0)
                    task.cancel()
                    cancelled = True
                else:
                    cancelled = False
                try:
                    seen.append((await task).offset)  # type: ignore[misc]
                except asyncio.CancelledError:
                    pass
            assert seen == list(range(1, 13))
            await consumer.close()
            assert stored(broker, f"c{turn}") == 12


@pytest.mark.parametrize("options", [{"checkpoint_every": 0}, {"checkpoint_interval": 0}])
async def test_settings_that_mean_nothing(client: Opened, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        make(client, **options)


@pytest.mark.parametrize(("one", "other"), [(Client, SyncClient), (Consumer, SyncConsumer)])
def test_both_kinds_have_the_same_methods(one: type, other: type) -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: [
                str(p).replace("Sync", "") for p in inspect.signature(method).parameters.values()
            ]
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(one) == methods(other)


@pytest.mark.parametrize(("one", "other"), [(Client, SyncClient), (Consumer, SyncConsumer)])
def test_what_a_method_does_is_told_in_one_place(one: type, other: type) -> None:
    names = [name for name, _ in inspect.getmembers(one) if not name.startswith("_")]
    assert len(names) > 5
    for name in names:
        told = inspect.getdoc(getattr(one, name))
        assert told is not None, name
        assert not told.startswith("As `"), name
        assert inspect.getdoc(getattr(other, name)) == f"As `{one.__name__}.{name}`.", name
