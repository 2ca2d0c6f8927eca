"""Consumers: their start, the records that count as processed, and the times of checkpoints."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.clients.local_consumers import make, offsets, stored
from support.clients.opened_client import Opened, until
from support.daemons.local_checkpoints import LocalOffsets
from support.daemons.pull_broker import LogBroker

from liftlog import errors
from liftlog.client import Filter

pytestmark = pytest.mark.filterwarnings("error")


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


async def test_a_closed_one_is_not_opened_again(client: Opened) -> None:
    consumer = make(client)
    await client.of(consumer, "close")
    with pytest.raises(errors.LiftlogError, match="the consumer is closed"):
        await client.step("take_in_block", consumer)


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
    """In any order of requests, a checkpoint never passes records that were not returned."""
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
    """The rest of the batch was never returned. A checkpoint that could not be stored is tried
    again."""
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
    """Otherwise the checkpoint of a consumer with few matching records would never move."""
    consumer = make(
        client, checkpoint_interval=0.05, until=None, filter=Filter(subject="invoices.>")
    )
    waiting = asyncio.ensure_future(offsets(client, consumer, 1))
    await until(lambda: stored(broker) == 101)
    broker.streams["orders"].append([b"1"], subject=b"invoices.new")
    assert await waiting == [101]
    await client.of(consumer, "close")


@pytest.mark.parametrize("options", [{"checkpoint_every": 0}, {"checkpoint_interval": 0}])
async def test_settings_that_mean_nothing(client: Opened, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        make(client, **options)
