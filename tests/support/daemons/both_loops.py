"""Fixtures of tests that run on both event loops: the server owns its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from support.daemons.pull_broker import LogBroker, orders_broker

from liftlog.server.reading import filtering


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The server owns its sockets, so every test runs on both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def no_scan_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan ends early after 30 ms of processor time, which a slow machine needs for a short one.
    Tests of this time set it again."""
    monkeypatch.setattr(filtering, "SCAN_SECONDS", 60.0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogBroker]:
    with orders_broker(tmp_path) as broker:
        yield broker
