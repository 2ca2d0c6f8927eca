"""Reads and calls whose connection is lost."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.clients.opened_client import Opened, router_of, until
from support.daemons.cutting_proxy import CuttingProxy, cutting_proxy
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from acl.tokens import hash_token, new_secret
from liftlog import errors
from liftlog.client import connect, connect_sync
from liftlog.client.aio import link
from liftlog.client.connecting import reconnecting
from liftlog.client.connecting.reconnecting import Backoff

Connect = Callable[..., Any]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(reconnecting, "LONGEST_PAUSE_SECONDS", 0.02)


@pytest.fixture
async def proxy(address: str) -> AsyncIterator[CuttingProxy]:
    async with cutting_proxy(address) as proxy:
        yield proxy


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def closed() -> Policy:
    """A policy that refuses every client without the token."""
    token_hash = hash_token(new_secret())
    return Policy.load(f"principals: {{somebody: {{token_hash: '{token_hash}'}}}}")


async def opening_bytes(address: str) -> int:
    """Return the number of bytes of answers until a client is connected."""
    async with cutting_proxy(address) as probe:
        for budget in itertools.count(20):
            probe.budgets.append(budget)
            try:
                await (await connect(probe.address)).close()
            except errors.LiftlogError:
                continue
            return budget
    raise AssertionError


@pytest.mark.parametrize("step", [1, 63, 1009])
async def test_a_read_cut_anywhere_gives_every_record_once(
    kind: str, proxy: CuttingProxy, broker: LogBroker, step: int
) -> None:
    """Each connection ends after `step` more bytes than the previous one: within the hello, within
    headers of answers, within bodies, and between batches of one body."""
    stream = broker.add("mixed", subject="mixed.>")
    for size in range(40):
        stream.append([bytes([size]) * (size * 37 % 2000)] * (1 + size % 5))
    expected = list(range(1, stream.real_log.high_watermark))
    client = await Opened.to(kind, proxy.address)
    proxy.cut()
    proxy.budgets.extend(range(90, 90 + 40 * step, step))
    async with asyncio.timeout(30):
        assert await client.offsets("mixed", "earliest", len(expected) + 1) == expected
    assert proxy.connection_count > 2
    await client.close()


async def test_a_reader_goes_on_after_a_restart(kind: str, broker: LogBroker) -> None:
    """The daemon reports that it is stopping, stops for a while, and starts again."""
    stream = broker.streams["orders"]
    seen: list[int] = []
    async with cutting_proxy(None) as proxy:
        async with pull_server(broker) as (_, address):
            proxy.target = address
            client = await Opened.to(kind, proxy.address)
            reading = asyncio.create_task(client.offsets("orders", 95, 111, into=seen))
            await until(lambda: stream.waiters)
        proxy.target = None
        stream.append([b"while away"] * 5)
        count = proxy.connection_count
        await until(lambda: proxy.connection_count > count + 2)
        async with pull_server(broker) as (_, address):
            proxy.target = address
            await until(lambda: seen[-1] == 105)
            stream.append([b"afterwards"] * 5)
            async with asyncio.timeout(10):
                assert await reading == list(range(95, 111))
            await client.call("ping")
            await client.close()


@pytest.mark.parametrize("restart", ["stops", "dies"])
async def test_latest_means_latest_at_the_call(
    kind: str, broker: LogBroker, proxy: CuttingProxy, restart: str
) -> None:
    """Records that were committed during the interruption are not skipped."""
    stream = broker.streams["orders"]
    client = await Opened.to(kind, proxy.address)
    reading = asyncio.create_task(client.offsets("orders", "latest", 104))
    await until(lambda: stream.waiters)
    target, proxy.target = proxy.target, None
    proxy.cut()
    await until(lambda: all(future.done() for _, future in stream.waiters))
    stream.append([b"missed"] * 3)
    proxy.target = target
    async with asyncio.timeout(10):
        assert await reading == [101, 102, 103]
    await client.close()


async def test_a_stream_created_anew_meanwhile_is_told(
    kind: str, broker: LogBroker, proxy: CuttingProxy
) -> None:
    stream = broker.streams["orders"]
    client = await Opened.to(kind, proxy.address)
    reading = asyncio.create_task(client.offsets("orders", 95))
    await until(lambda: stream.waiters)
    target, proxy.target = proxy.target, None
    proxy.cut()
    await until(lambda: all(future.done() for _, future in stream.waiters))
    stream.real_log.close()
    broker.directory /= "again"
    broker.directory.mkdir()
    broker.add("orders").append([b"other data"] * 200)
    proxy.target = target
    with pytest.raises(errors.StaleIncarnation):
        await reading
    await client.close()


async def test_another_history_is_told(kind: str, broker: LogBroker, proxy: CuttingProxy) -> None:
    """The daemon restarts without the last records that were read, and has written others."""
    stream = broker.streams["orders"]
    client = await Opened.to(kind, proxy.address)
    reading = asyncio.create_task(client.offsets("orders", 95))
    await until(lambda: stream.waiters)
    target, proxy.target = proxy.target, None
    proxy.cut()
    await until(lambda: all(future.done() for _, future in stream.waiters))
    log = stream.real_log
    log.truncate_suffix(91)
    log.writer.begin_epoch(2)
    stream.append([b"other data"] * 20)
    proxy.target = target
    with pytest.raises(errors.Diverged) as raised:
        await reading
    assert raised.value.details["epoch_end_offset"] == 91
    await client.close()


async def test_harmless_calls_are_repeated(kind: str, proxy: CuttingProxy) -> None:
    client = await Opened.to(kind, proxy.address)
    for name, arguments in (
        ("ping", ()),
        ("describe_stream", ("orders",)),
        ("list_streams", ()),
        ("create_stream", ("new", "new.>")),
        ("compact_stream", ("orders",)),
        ("fetch", ("orders", 1)),
    ):
        before = proxy.connection_count
        proxy.cut()
        await client.call(name, *arguments)
        assert proxy.connection_count == before + 1, name
    await client.close()


async def answer_is_lost(proxy: CuttingProxy, kind: str, address: str) -> Opened:
    """Return a client whose first answer is cut off. Its next connection stays open."""
    proxy.budgets.append(await opening_bytes(address) + 2)
    return await Opened.to(kind, proxy.address)


async def test_a_call_whose_answer_was_lost_is_undecided(
    kind: str, proxy: CuttingProxy, broker: LogBroker, address: str
) -> None:
    client = await answer_is_lost(proxy, kind, address)
    with pytest.raises(errors.ConnectionLost, match=r"'delete' .* is undecided") as raised:
        await client.call("delete_stream", "orders")
    assert raised.value.undecided
    assert "orders" not in broker.streams
    assert [one.name for one in await client.call("list_streams")] == []
    broker.add("orders")
    await client.close()


async def test_a_call_that_was_never_sent_is_sent(
    kind: str, proxy: CuttingProxy, broker: LogBroker
) -> None:
    client = await Opened.to(kind, proxy.address)
    proxy.cut()
    if kind == "async":
        await until(lambda: not router_of(client.client).usable)
    else:
        router_of(client.client).link.lose("as if it had been noticed")
    await client.call("delete_stream", "orders")
    assert "orders" not in broker.streams
    broker.add("orders")
    await client.close()


async def test_nobody_waits_longer_than_asked(kind: str, proxy: CuttingProxy) -> None:
    client = await Opened.to(kind, proxy.address, reconnect_for=0.2)
    proxy.target = None
    proxy.cut()
    for attempt in (
        lambda: client.call("ping"),
        lambda: client.offsets("orders", 1),
        lambda: client.call("delete_stream", "orders"),
    ):
        started = time.monotonic()
        with pytest.raises(errors.ConnectionLost) as raised:
            await attempt()
        assert 0.1 < time.monotonic() - started < 2
        assert not raised.value.undecided
    assert proxy.connection_count > 10
    await client.close()


async def test_a_call_waits_no_longer_than_its_own_time(kind: str, proxy: CuttingProxy) -> None:
    client = await Opened.to(kind, proxy.address, request_timeout=0.2, reconnect_for=None)
    proxy.target = None
    proxy.cut()
    started = time.monotonic()
    with pytest.raises(errors.ConnectionLost):
        await client.call("ping")
    assert 0.1 < time.monotonic() - started < 2
    await client.close()


async def test_a_refusal_that_no_attempt_mends_is_raised(
    kind: str, proxy: CuttingProxy, broker: LogBroker
) -> None:
    client = await Opened.to(kind, proxy.address)
    async with pull_server(broker, policy=closed()) as (_, other):
        proxy.target = other
        proxy.cut()
        async with asyncio.timeout(10):
            with pytest.raises(errors.Unauthenticated):
                await client.call("ping")
            with pytest.raises(errors.Unauthenticated):
                await client.offsets("orders", 1)
        await client.close()


async def test_closing_ends_those_who_wait(proxy: CuttingProxy) -> None:
    client = await connect(proxy.address)
    proxy.target = None
    proxy.cut()
    reader = client.read_batches("orders", "latest")
    waiting = [asyncio.ensure_future(client.ping()) for _ in range(3)]
    waiting.append(asyncio.ensure_future(anext(reader)))  # type: ignore[arg-type]
    count = proxy.connection_count
    await until(lambda: proxy.connection_count > count + 3)
    await client.close()
    async with asyncio.timeout(1):
        for one in waiting:
            with pytest.raises(errors.ConnectionLost, match="closed by this client"):
                await one
    with pytest.raises(errors.ConnectionLost, match="closed by this client"):
        await client.ping()


async def test_cancelling_at_every_turn_of_a_reconnect(proxy: CuttingProxy) -> None:
    """A caller that connects may be cancelled at any await. The other callers continue, and no
    connection leaks."""
    async with connect(proxy.address) as client:
        cancelled = 0
        for turn in range(60):
            proxy.cut()
            await until(lambda: not router_of(client).usable)
            first = asyncio.ensure_future(client.ping())
            second = asyncio.ensure_future(client.describe_stream("orders"))
            for _ in range(turn):
                await asyncio.sleep(0)
            first.cancel()
            try:
                await first
            except asyncio.CancelledError:
                cancelled += 1
            async with asyncio.timeout(10):
                assert (await second).high_watermark == 101
            assert not router_of(client)._newest._turns._timeouts
        assert cancelled > 10


async def test_many_readers_share_one_new_connection(proxy: CuttingProxy) -> None:
    async with connect(proxy.address) as client:

        async def read(first: int) -> list[int]:
            reader = client.read_batches("orders", first, "end", fetch_bytes=4096)
            return [offset async for batch in reader for offset in batch.offsets()]

        reading = [asyncio.ensure_future(read(first)) for first in range(1, 51)]
        proxy.cut()
        assert [len(await one) for one in reading] == list(range(100, 50, -1))
        assert proxy.connection_count == 2


async def test_a_silent_daemon_is_taken_for_gone(
    kind: str, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open, but no data arrive, as from a machine without power or a stopped
    process."""
    monkeypatch.setattr(link, "LOOK_SECONDS", 0.02)
    client = await Opened.to(kind, proxy.address, request_timeout=0.3)
    welcome = router_of(client.client).link.connection.welcome
    object.__setattr__(welcome, "max_wait_ms", 0)
    proxy.freeze()
    async with asyncio.timeout(10):
        assert await client.offsets("orders", 51, 101) == list(range(51, 101))
    assert proxy.connection_count == 2
    await client.close()


async def test_a_read_whose_fetch_a_signal_kept_from_leaving_goes_on(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller waits for an answer in this case. The silence of the connection shows the
    problem."""
    client = await asyncio.to_thread(connect_sync, address, request_timeout=0.1)
    object.__setattr__(router_of(client).link.connection.welcome, "max_wait_ms", 0)
    session = router_of(client)._newest
    request, interrupted = session.request, []

    def interrupt_once(*asked: Any) -> None:
        if not interrupted:
            interrupted.append(asked)
            raise KeyboardInterrupt
        request(*asked)

    monkeypatch.setattr(session, "request", interrupt_once)

    def read() -> list[int]:
        reader = client.read_batches("orders", 51, 101)
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        seen: list[int] = []
        give_up_at = time.monotonic() + 5
        while len(seen) < 50 and time.monotonic() < give_up_at:
            batch = reader.next_within(0.2)
            seen += [] if batch is None else batch.offsets()
        return seen

    assert await asyncio.to_thread(read) == list(range(51, 101))
    client.close()


async def test_an_idle_connection_is_not_taken_for_gone(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "LOOK_SECONDS", 0.005)
    async with connect(address, request_timeout=0.05) as client:
        before = router_of(client).link
        object.__setattr__(before.connection.welcome, "max_wait_ms", 0)
        await asyncio.sleep(0.2)
        await client.ping()
        assert router_of(client).link is before


def test_pauses_grow_to_a_bound_and_differ() -> None:
    least, most = (Backoff(lambda part=part: part) for part in (0.0, 1.0))  # type: ignore[misc]
    pauses = [(least.next_pause(), most.next_pause()) for _ in range(12)]
    assert pauses[0] == (0.0005, 0.001)
    assert pauses[1] == (0.001, 0.002)
    assert pauses[-1] == (0.01, 0.02)
    most.reset()
    assert most.next_pause() == 0.001
    spread = {Backoff().next_pause() for _ in range(20)}
    assert len(spread) > 10
