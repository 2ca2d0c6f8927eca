from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.daemons.local_cleaning import Cleaning


@pytest.fixture
async def cleaning(tmp_path: Path) -> AsyncIterator[Cleaning]:
    made = Cleaning(tmp_path, interval="15s")
    await made.running.start()
    yield made
    await made.close()
