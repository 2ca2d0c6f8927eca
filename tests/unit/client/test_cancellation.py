"""A call may be cancelled at any of its awaits; the connection stays usable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.clients.opened_client import router_of
from support.daemons.certificates import Authority
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.client import Client, connect
from liftlog.protocol.limits import WireLimits
from liftlog.server.pull import PullLimits
from liftlog.tls import server_context

Action = Callable[[Client], Awaitable[Any]]


async def read_all(client: Client) -> int:
    return sum([len(batch) async for batch in client.read_batches("large", until="end")])


ACTIONS: dict[str, Action] = {
    "ping": lambda client: client.ping(),
    "describe": lambda client: client.describe_stream("large"),
    "list": lambda client: client.list_streams(),
    "create": lambda client: client.create_stream("large", subject="large.>"),
    "fetch": lambda client: client.fetch("large", 1, max_bytes=400_000),
    "long poll": lambda client: client.fetch("large", "latest", max_wait_ms=20),
    "read": read_all,
}


@pytest.fixture
def large(broker: LogBroker) -> LogBroker:
    stream = broker.add("large", subject="large.>")
    for i in range(20):
        stream.append([bytes([i]) * 50_000] * 2)
    return broker


async def turns_until_done(action: Action, client: Client) -> int:
    task = asyncio.ensure_future(action(client))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


@pytest.mark.parametrize("name", ACTIONS)
async def test_cancelling_at_every_turn_of_the_loop(large: LogBroker, name: str) -> None:
    action = ACTIONS[name]
    async with pull_server(large) as (server, address), connect(address) as client:
        turns = min(await turns_until_done(action, client), 150)
        cancelled = 0
        for turn in range(turns + 1):
            task = asyncio.ensure_future(action(client))
            for _ in range(turn):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                cancelled += 1
            await client.ping()
        assert cancelled > turns // 4
        assert await read_all(client) == 40
        async with asyncio.timeout(10):
            while router_of(client).link.connection.in_flight:
                await client.ping()
        assert server.connection_count == 1


async def test_cancelling_connect_at_every_turn(broker: LogBroker) -> None:
    async with pull_server(broker) as (server, address):
        cancelled = 0
        for turn in range(40):
            task = asyncio.ensure_future(connect(address).__aenter__())
            for _ in range(turn):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await (await task).close()
            except asyncio.CancelledError:
                cancelled += 1
        assert cancelled > 2
        async with asyncio.timeout(10):
            while server.connection_count:
                await asyncio.sleep(0.001)


async def test_a_cancelled_wait_loses_no_batch(broker: LogBroker) -> None:
    """`anext` can be cancelled and called again. Data that arrive in between are kept."""
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address), connect(address) as client:
        reader = client.read_batches("orders", start=101, until=106)
        offsets: list[int] = []
        while len(offsets) < 5:
            waiting = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0.002)
            waiting.cancel()
            stream.append([b"new"])
            try:
                offsets.extend((await waiting).offsets())
            except asyncio.CancelledError:
                async with asyncio.timeout(10):
                    offsets.extend((await anext(reader)).offsets())
        assert offsets == [101, 102, 103, 104, 105]


async def test_a_cancelled_wait_loses_no_record(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address), connect(address) as client:
        records = client.read("orders", start=99, until=107)
        offsets = [(await anext(records)).offset for _ in range(2)]
        while len(offsets) < 8:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(records), 0.005)
            stream.append([b"new"] * 2)
            async with asyncio.timeout(10):
                offsets += [(await anext(records)).offset, (await anext(records)).offset]
        assert offsets == list(range(99, 107))
        with pytest.raises(StopAsyncIteration):
            await anext(records)


async def test_a_read_of_records_cancelled_at_every_turn(large: LogBroker) -> None:
    async with pull_server(large) as (_, address), connect(address) as client:
        for turn in range(40):
            records, offsets = client.read("large", until=21), []
            while True:
                task = asyncio.ensure_future(anext(records, None))
                for _ in range(turn):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    record = await task
                except asyncio.CancelledError:
                    record = await anext(records, None)
                if record is None:
                    break
                offsets.append(record.offset)
            assert offsets == list(range(1, 21))


async def test_over_tls_a_cancelled_wait_leaves_nothing_unread(
    broker: LogBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are already decrypted make no socket readable, so no callback would run for
    them."""
    monkeypatch.setattr("liftlog.client.aio.link.RECEIVE_BYTES", 1000)
    stream = broker.add("small", subject="small")
    for i in range(8):
        stream.append([bytes([i]) * 1500])
    authority = Authority(tmp_path)
    pair = authority.issue("daemon")
    listen = {"listen": "tls://127.0.0.1:0", "tls": server_context(pair.cert, pair.key)}
    async with pull_server(broker, **listen) as (_, at), connect(at, tls=authority.ca) as client:
        for turn in range(30):
            records, offsets = client.read("small", until=9), []
            while True:
                task = asyncio.ensure_future(anext(records, None))
                for _ in range(turn):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    record = await task
                except asyncio.CancelledError:
                    async with asyncio.timeout(5):
                        record = await anext(records, None)
                if record is None:
                    break
                offsets.append(record.offset)
            assert offsets == list(range(1, 9))


async def test_a_read_of_records_that_is_closed_is_over(broker: LogBroker) -> None:
    async with pull_server(broker) as (_, address), connect(address) as client:
        records = client.read("orders")
        assert (await anext(records)).offset == 1
        await records.aclose()
        assert [record async for record in records] == []


async def test_a_cancelled_long_poll_is_cancelled_at_the_daemon(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address), connect(address) as client:
        task = asyncio.ensure_future(client.fetch("orders", "latest", max_wait_ms=60_000))
        async with asyncio.timeout(10):
            while not stream.waiters:
                await asyncio.sleep(0.001)
            task.cancel()
            while not all(future.cancelled() for _, future in stream.waiters):
                await asyncio.sleep(0.001)
            while router_of(client).link.connection.in_flight:
                await asyncio.sleep(0.001)


async def test_reads_that_wait_leave_the_connection_to_others(broker: LogBroker) -> None:
    """With any number of streams that are tailed over one connection."""
    limits = PullLimits(wire=WireLimits(max_in_flight=4))
    names = [f"quiet{i}" for i in range(8)]
    for name in names:
        broker.add(name)
    async with pull_server(broker, limits=limits) as (_, address), connect(address) as client:
        readers = [client.read(name) for name in names]
        reads = [asyncio.ensure_future(anext(reader)) for reader in readers]
        async with asyncio.timeout(10):
            while router_of(client).link.connection.in_flight < 2:
                await asyncio.sleep(0.001)
            await client.ping()
            for reader in readers[:2]:
                await reader.aclose()
            for name, read in zip(names[2:4], reads[2:4], strict=True):
                broker.streams[name].append([b"1"])
                assert (await read).value == b"1"  # these had waited for the others
            await client.ping()
        for read in reads:
            read.cancel()
        await asyncio.wait(reads)
        assert [read.cancelled() for read in reads[4:]] == [True] * 4


async def test_a_forgotten_reader_stops_asking(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address), connect(address) as client:
        async for record in client.read("orders", start=100):
            assert record.offset == 100
            break
        async with asyncio.timeout(10):
            while router_of(client).link.connection.in_flight or any(
                not f.done() for _, f in stream.waiters
            ):
                await asyncio.sleep(0.001)
