"""What is under way for a stream whose settings change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_cleaning import Cleaning


@pytest.fixture
async def cleaning(tmp_path: Path) -> AsyncIterator[Cleaning]:
    made = Cleaning(tmp_path, interval="15s")
    await made.running.start()
    made.running.broker.hosted.compactor = made.cleaner
    yield made
    await made.close()


async def test_compaction_switched_off_takes_nothing_away_any_more(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the pass under way nor one that was asked for; who waits for it hears its end."""
    await cleaning.stream("s", 300, 10)
    broker = cleaning.running.broker
    host, reading = broker.hosts["s"], asyncio.Event()
    before = [segment.path.name for segment in host.log.segments]

    async def endless(*arguments: Any, **options: Any) -> dict[str, Any]:
        reading.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(cleaning.worker, "run", endless)
    cleaning.cleaner.request(host)
    round_ = asyncio.create_task(cleaning.round())
    async with asyncio.timeout(10):
        await reading.wait()
        await broker.administration.update_stream("s", {"compaction": None})
        assert (host.rewriting, cleaning.cleaner.is_working) == (False, False)
        await round_
    await cleaning.round()
    info = cleaning.cleaner.describe(host)
    assert (info["state"], info["requested"], info["finished"]) == ("off", 1, 1)
    assert info["passes"] == 0
    # On demand the active segment was rolled before the pass began; nothing else has changed.
    assert [segment.path.name for segment in host.log.segments][: len(before)] == before


async def test_a_pass_is_planned_again_by_the_new_settings(cleaning: Cleaning) -> None:
    await cleaning.stream("s", 300, 10)
    administration = cleaning.running.broker.administration
    await administration.update_stream("s", {"compaction": {"min_lag": "1h"}})
    await cleaning.round()
    assert cleaning.worker.jobs == []
    await administration.update_stream("s", {"compaction": {"min_lag": "0s"}})
    await cleaning.round()
    assert cleaning.worker.jobs == [("compact", "s")], "without waiting for the next look"
