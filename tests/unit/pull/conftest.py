from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from support.pull_broker import LogBroker


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The server owns its sockets, so every test runs on both loops."""
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
