"""Reads that were stopped: their position, and no caller that waits forever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.clients.opened_client import Opened, until
from support.daemons.cutting_proxy import cutting_proxy
from support.daemons.local_checkpoints import serve_checkpoints
from support.daemons.pull_broker import LogBroker

from liftlog import errors
from liftlog.client import Filter, connect
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import Fetch, FetchHeader
from liftlog.records.format import HEADER_SIZE


@pytest.fixture(params=["async", "sync"])
async def client(request: pytest.FixtureRequest, address: str) -> AsyncIterator[Opened]:
    opened = await Opened.to(request.param, address, request_timeout=10)
    yield opened
    await opened.close()


def damage(broker: LogBroker, batch: int) -> None:
    """Flip a bit in the body of one of the ten batches on disk."""
    path = broker.streams["orders"].real_log.segments[-1].path
    raw = bytearray(path.read_bytes())
    position = 0
    for _ in range(batch):
        position += int.from_bytes(raw[position + 4 : position + 8], "little")
    raw[position + HEADER_SIZE + 40] ^= 4
    path.write_bytes(raw)


def stored(broker: Any) -> int:
    found = broker.checkpoints.table.get(("billing", "orders"))
    return 0 if found is None else int(found.offset)


async def test_the_position_stays_where_a_reader_was_closed(
    client: Opened, broker: LogBroker
) -> None:
    reader = client.client.read_batches("orders", until="end")
    await client.take(reader, 3)
    assert reader.position == 31
    await client.of(reader, "close" if client.blocking else "aclose")
    assert reader.position == 31, "what was received ahead was never handed out"


async def test_the_position_stays_before_what_ended_a_read(
    client: Opened, broker: LogBroker
) -> None:
    damage(broker, 4)
    reader = client.client.read_batches("orders", until="end")
    with pytest.raises(errors.CorruptRange):
        await client.take(reader, 10)
    assert reader.position == 41, "neither the damaged records nor those behind were handed out"


async def test_a_consumer_asked_again_after_damage_stores_nothing_behind_it(
    client: Opened, broker: LogBroker
) -> None:
    serve_checkpoints(broker)
    damage(broker, 4)
    consumer = client.client.consumer("billing", "orders", until="end")
    with pytest.raises(errors.CorruptRange):
        await client.take(consumer, 100)
    assert await client.take(consumer, 1) == []
    await client.of(consumer, "close")
    assert (consumer.position, stored(broker)) == (41, 41)


async def test_a_reset_that_the_callback_refuses_is_not_stored(
    client: Opened, broker: LogBroker
) -> None:
    class No(Exception):
        pass

    def refuse(_: object) -> None:
        raise No

    serve_checkpoints(broker)
    await client.call("commit_checkpoint", "billing", "orders", 5)
    broker.streams["orders"].real_log.truncate_prefix(41)
    consumer = client.client.consumer(
        "billing", "orders", until="end", on_reset="latest", reset_callback=refuse
    )
    with pytest.raises(No):
        await client.take(consumer, 1)
    assert await client.take(consumer, 1) == []
    await client.of(consumer, "close")
    assert stored(broker) == 5, "the next run is asked again"


async def test_whoever_waits_for_a_batch_hears_that_the_reader_was_closed(
    broker: LogBroker, address: str
) -> None:
    async with connect(address) as client:
        reader = client.read_batches("orders", "latest")
        waiting = asyncio.ensure_future(anext(reader, None))
        await until(lambda: broker.streams["orders"].waiters)
        await reader.aclose()
        async with asyncio.timeout(5):
            assert await waiting is None


async def test_a_request_that_is_too_long_ends_the_read(client: Opened, broker: LogBroker) -> None:
    keys = [b"%08d" % i for i in range(200_000)]
    reader = client.client.read_batches("orders", filter=Filter(key=keys))
    with pytest.raises(errors.LimitExceeded):
        await client.take(reader, 1)
    async with asyncio.timeout(5):
        assert await client.take(reader, 1) == [], "over, and no caller waits"
    await client.call("ping")


class DyingServer:
    """Answers with a header. A cancelled request shows that the connection is lost."""

    def __init__(self) -> None:
        self.open: list[Exchange] = []

    def request(self, message: Fetch, exchange: Exchange) -> None:
        self.open.append(exchange)

    def give_up(self, given_up: Exchange) -> None:
        others, self.open = [one for one in self.open if one is not given_up], []
        for exchange in others:
            exchange.finish(None, errors.ConnectionLost("broken pipe"))


def test_stopping_over_a_connection_that_is_lost_just_then() -> None:
    server = DyingServer()
    ahead = ReadAhead(server, "orders", 1, None)
    assert ahead.next_batch() is None
    header = FetchHeader(
        offset=1,
        first_offset=1,
        next_offset=11,
        record_count=10,
        high_watermark=101,
        log_start_offset=1,
        log_end_offset=101,
        leader_epoch=1,
        incarnation="0" * 32,
        body_length=500,
    )
    server.open[0].body = memoryview(bytearray(500))
    assert server.open[0].on_header is not None
    server.open[0].on_header(header)
    assert len(server.open) == 2, "one whose body arrives, and the next"
    ahead.stop()
    assert ahead.finished
    assert ahead.next_batch() is None


async def test_a_checkpoint_names_the_epoch_of_the_records_before_it(
    client: Opened, broker: LogBroker
) -> None:
    """The daemon was killed and started in a new epoch. Records that it wrote after that can be
    committed."""
    serve_checkpoints(broker)
    consumer = client.client.consumer("billing", "orders", checkpoint_every=5, start=96)
    await client.take(consumer, 5)
    log = broker.streams["orders"].real_log
    log.writer.begin_epoch(2)
    broker.streams["orders"].append([b"later"] * 10)
    assert [one.offset for one in await client.take(consumer, 10)] == list(range(101, 111))
    assert stored(broker) == 106
    await client.of(consumer, "close")
    assert stored(broker) == 110


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_attempts_keep_their_pauses_whoever_makes_them(
    kind: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Many calls in succession with short timeouts do not flood the daemon: the pauses continue to
    grow from call to call, and the loss is reported once."""
    async with cutting_proxy(address) as proxy:
        client = await Opened.to(kind, proxy.address, request_timeout=0.2)
        await client.call("ping")
        proxy.target = None
        proxy.cut()
        before = proxy.connection_count
        with caplog.at_level(logging.WARNING, "liftlog.client"):
            for _ in range(5):
                with pytest.raises(errors.ConnectionLost):
                    await client.call("ping")
        await client.close()
        assert proxy.connection_count - before <= 5
        assert len([one for one in caplog.records if "connection-lost" in one.message]) == 1
