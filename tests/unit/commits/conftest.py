"""A stream that commits inside the event loop, and one that commits in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.worlds.stream_harness import Harness

from liftlog.log.writing import LogWriter


@pytest.fixture(params=["inline", "thread"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    made = Harness(tmp_path, 64 if request.param == "inline" else 0)
    yield made
    made.close()


@pytest.fixture
def fast_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sync counts as a fast one, however busy the disk of this machine is."""
    sync = LogWriter.sync

    def fast(writer: LogWriter) -> int:
        end = sync(writer)
        writer.last_sync_seconds = 0.0001
        return end

    monkeypatch.setattr(LogWriter, "sync", fast)
