"""Consumers with acks of one broker, without NATS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.worlds.acked_consumers import World, acked_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with acked_world(tmp_path) as world:
        yield world
