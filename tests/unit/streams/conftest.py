"""A broker that runs, and what changes its streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.daemons.local_broker import Running

from liftlog.server.streams.administration import Administration


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    yield made
    await made.broker.close()


@pytest.fixture
def admin(running: Running) -> Administration:
    return running.broker.administration
