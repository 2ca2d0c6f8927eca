"""A node of a cluster keeps doing its part."""

from __future__ import annotations

import asyncio

import pytest

from liftlog.server.node import clustered
from liftlog.server.node.clustered import kept_up


async def test_a_task_with_a_defect_is_logged_and_begun_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clustered, "_AGAIN_SECONDS", 0.0)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise KeyError("on purpose")

    await kept_up(work)
    assert begun == 3
    assert caplog.text.count("task-failed") == 2
    assert "on purpose" in caplog.text


async def test_it_ends_when_it_is_cancelled() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(kept_up(work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
