"""Consumers whose checkpoint, stream or connection has changed: delivery at least once in all
cases."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.clients.local_consumers import make, offsets, stored
from support.clients.opened_client import Opened, until
from support.daemons.cutting_proxy import cutting_proxy
from support.daemons.local_checkpoints import LocalOffsets
from support.daemons.pull_broker import LogBroker

from liftlog import errors
from liftlog.client.connecting import reconnecting
from liftlog.server.checkpoints.table import CheckpointTable

pytestmark = pytest.mark.filterwarnings("error")


async def test_at_least_once_whatever_interrupts(client: Opened, broker: LogBroker) -> None:
    """Consumers end at any place, as in a crash. No record is skipped, and only records after the
    last checkpoint are read again."""
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
    """Records processed before the error are stored, the failed one is not, and the same error is
    raised."""
    consumer = make(client)
    with pytest.raises(KeyError):
        await client.step("fail_at", consumer, 17)
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
    await client.call("commit_checkpoint", "billing", "orders", 50)  # an operator seeks
    with pytest.raises(errors.CheckpointMoved) as raised:
        await offsets(client, third, 2)
    assert raised.value.details["offset"] == 50

    shared = [make(client, exclusive=False) for _ in range(2)]
    for consumer in shared:
        assert await offsets(client, consumer, 10) == list(range(50, 60))
    for consumer in shared:
        assert await client.of(consumer, "checkpoint") == 60


@pytest.mark.parametrize("kind", [errors.DiskFull, errors.StreamUnavailable])
async def test_a_checkpoint_that_fails_for_now(
    client: Opened,
    broker: LogBroker,
    offsets_stream: LocalOffsets,
    kind: type[errors.LiftlogError],
) -> None:
    consumer = make(client, checkpoint_every=10)
    offsets_stream.error = kind("not now")
    assert await offsets(client, consumer, 35) == list(range(1, 36))
    assert offsets_stream.stores == 3
    with pytest.raises(kind):
        await client.of(consumer, "checkpoint")
    offsets_stream.error = None
    assert await offsets(client, consumer, 11) == list(range(36, 47))
    assert stored(broker) == 46
    offsets_stream.error = kind("not now")
    await offsets(client, consumer, 1)
    with pytest.raises(kind):
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
    """With an older checkpoint, records are read again. Without a checkpoint, no record may be
    skipped."""
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
    consumer continues, and does not mistake its own for that of another consumer."""
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
