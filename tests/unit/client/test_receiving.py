"""How the asyncio client receives: rarely while much is missing, and each reader for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.clients.opened_client import router_of
from support.daemons.cutting_proxy import cutting_proxy
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.client import connect
from liftlog.client.aio import link
from liftlog.client.aio.link import Link

PIECE_BYTES = 4 * 1024


@pytest.fixture
def large(broker: LogBroker) -> LogBroker:
    stream = broker.add("large", subject="large.>")
    for i in range(16):
        stream.append([bytes([i]) * 64 * 1024])
    return broker


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of missing bytes of a body at each receive in the middle of it."""
    missing_bytes: list[int] = []
    receive = Link.receive

    def counting(self: Link) -> None:
        missing = self.connection.missing_bytes
        receive(self)
        if missing:
            missing_bytes.append(missing)

    monkeypatch.setattr(Link, "receive", counting)
    return missing_bytes


async def test_a_body_that_trickles_in_wakes_its_reader_a_few_times(
    large: LogBroker, received: list[int]
) -> None:
    async with (
        pull_server(large) as (_, target),
        cutting_proxy(target) as proxy,
        connect(proxy.address) as client,
    ):
        proxy.piece_bytes = PIECE_BYTES
        async with asyncio.timeout(20):
            sizes = [len(one.raw) async for one in client.read_batches("large", until="end")]
            await client.ping()  # nothing is missing now: a short answer is taken at once
        assert len(sizes) == 16
        assert 2 <= len(received) < sum(sizes) // PIECE_BYTES // 12


async def test_a_slow_way_is_not_taken_for_a_silent_daemon(
    large: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that wait for further bytes show that the daemon is alive."""
    monkeypatch.setattr(link, "LOOK_SECONDS", 0.02)
    async with pull_server(large) as (_, target), cutting_proxy(target) as proxy:
        client = await connect(proxy.address, request_timeout=0.3)
        first = router_of(client).link
        object.__setattr__(first.connection.welcome, "max_wait_ms", 0)
        proxy.piece_bytes, proxy.pause_seconds = 2048, 0.005  # 128 KiB take longer than that
        async with asyncio.timeout(20):
            reader = client.read_batches("large", until=3)
            assert [len(one) async for one in reader] == [1, 1]
        assert router_of(client).link is first
        await client.close()


async def test_readers_that_wait_take_their_input_in_turn(
    large: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader examines its bytes before the next reader receives."""
    events: list[tuple[str, Any]] = []
    receive = Link.receive

    def noting(self: Link) -> None:
        events.append(("received", self))
        receive(self)

    async with pull_server(large) as (_, address):
        async with connect(address) as first, connect(address) as second:

            async def follow(client: Any) -> None:
                async for _ in client.read_batches("large", "latest"):
                    events.append(("looked", router_of(client).link))
                    return

            tasks = [asyncio.create_task(follow(client)) for client in (first, second)]
            async with asyncio.timeout(20):
                while any(
                    router_of(client).link.connection.in_flight == 0 for client in (first, second)
                ):
                    await asyncio.sleep(0.001)
                await first.ping()
                await second.ping()
                monkeypatch.setattr(Link, "receive", noting)
                large.streams["large"].append([b"new"])
                await asyncio.gather(*tasks)
    looked = [i for i, (what, _) in enumerate(events) if what == "looked"]
    assert len(looked) == 2
    for i in looked:
        assert events[i - 1] == ("received", events[i][1])
