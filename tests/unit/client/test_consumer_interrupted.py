"""Consumers that are cancelled or interrupted anywhere return the next record after that."""

from __future__ import annotations

import asyncio

import pytest
from support.clients.local_consumers import stored
from support.clients.opened_client import Opened
from support.daemons.local_checkpoints import LocalOffsets, serve_checkpoints
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.client import connect
from liftlog.records.decode import Record, RecordBatch

pytestmark = pytest.mark.filterwarnings("error")


class Interrupted(Exception):
    """An exception that a signal handler raises, at any place in the program."""


def interrupt_each_decoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the first attempt to make the records of each batch fail. Returns the places."""
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
    """After any cancellation, the next record is the one that follows."""
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
