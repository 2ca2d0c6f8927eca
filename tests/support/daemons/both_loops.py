"""Fixtures of tests that run on both event loops: the server owns its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from support.daemons.pull_broker import LogBroker, orders_broker


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The server owns its sockets, so every test runs on both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogBroker]:
    with orders_broker(tmp_path) as broker:
        yield broker
