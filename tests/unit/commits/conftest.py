"""A stream that commits inside the event loop, and one that commits in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.worlds.stream_harness import Harness


@pytest.fixture(params=["inline", "thread"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    made = Harness(tmp_path, 64 if request.param == "inline" else 0)
    yield made
    made.close()
