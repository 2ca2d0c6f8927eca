from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser
from support.clients.browser import NewWindow, Window, chromium, find_chromium
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


@pytest.fixture
def window(browser: Browser) -> Iterator[NewWindow]:
    opened: list[Window] = []

    def open_window(daemon: Daemon, **options: Any) -> Window:
        opened.append(Window(browser, f"http://{daemon.http_address}", **options))
        return opened[-1]

    yield open_window
    for one in opened:
        one.close()
