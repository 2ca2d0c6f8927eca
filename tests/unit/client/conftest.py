from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.clients.opened_client import Opened
from support.daemons.local_checkpoints import LocalOffsets, serve_checkpoints
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.client import RecordBatch


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The clients use sockets directly, so every test runs on both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogBroker]:
    """One stream `orders` with ten batches of ten records, offsets 1 to 100."""
    broker = LogBroker(tmp_path)
    stream = broker.add("orders", subject="orders.>")
    for first in range(1, 101, 10):
        stream.append([b"value %d" % offset for offset in range(first, first + 10)])
    yield broker
    assert broker.unreleased == 0, "slices of the log were not released"
    broker.close()


@pytest.fixture
async def address(broker: LogBroker) -> AsyncIterator[str]:
    async with pull_server(broker) as (_, address):
        yield address


@pytest.fixture
def offsets_stream(broker: LogBroker) -> LocalOffsets:
    """Let the broker store checkpoints in memory."""
    return serve_checkpoints(broker)


@pytest.fixture(params=["async", "sync"])
async def client(
    request: pytest.FixtureRequest, address: str, offsets_stream: LocalOffsets
) -> AsyncIterator[Opened]:
    """Yield a client of each kind, connected to a daemon that stores checkpoints."""
    opened = await Opened.to(request.param, address)
    yield opened
    await opened.close()


class Both(Opened):
    """Both clients with one interface, so that one test checks both."""

    async def batches(self, *args: Any, **options: Any) -> list[RecordBatch]:
        return await self.take(self.client.read_batches(*args, **options))

    async def records(self, *args: Any, **options: Any) -> list[Any]:
        return await self.take(self.client.read(*args, **options))


@pytest.fixture(params=["async", "sync"])
async def both(request: pytest.FixtureRequest, address: str) -> AsyncIterator[Both]:
    both = await Both.to(request.param, address)
    yield both
    await both.close()
