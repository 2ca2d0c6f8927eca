"""Fixtures for tests that run on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from support.daemons.pull_broker import LogBroker, orders_broker

from liftlog.server.reading import filtering


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return both event loops. The server uses sockets directly, so every test runs on both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def no_scan_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the time limit of scans. A scan ends early after 30 ms of processor time, which even
    a short scan may need on a slow machine. Tests of this limit set it again."""
    monkeypatch.setattr(filtering, "SCAN_SECONDS", 60.0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogBroker]:
    with orders_broker(tmp_path) as broker:
        yield broker
