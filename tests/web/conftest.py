from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser
from support.clients.browser import NewWindow, Window, Windows, chromium, find_chromium
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    find_chromium()
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def windows(browser: Browser) -> Windows:
    return Windows(browser)


@pytest.fixture
def window(windows: Windows) -> Iterator[NewWindow]:
    def open_window(daemon: Daemon, **options: Any) -> Window:
        return windows.take(f"http://{daemon.http_address}", **options)

    yield open_window
    windows.give_back_all()
