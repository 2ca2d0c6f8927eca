"""What most of these tests stand on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.daemons.nats_server import NatsServer


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """For a module that needs nothing special of it; others make their own."""
    with NatsServer() as server:
        yield server
