"""What is counted and committed on the way in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.daemons.local_broker import Running

from liftlog.sequencing import MessageRun
from liftlog.server.streams.intake import Ingested


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    await made.broker.create_stream("s", {"subject": "in"})
    yield made
    await made.broker.close()


async def test_only_what_nats_has_brought_is_counted(running: Running) -> None:
    """What consumers may take of the loop depends on how much each chunk holds."""
    intake, host = running.broker.intake, running.broker.hosts["s"]
    receive = intake.receiver(host)
    for payload in (b"12345", b"1234567"):
        receive(MessageRun([b"in"], [b""], [payload], has_cookie=False))
        intake.chunk_ended()
    assert intake.ingested() == Ingested(chunks=2, size_bytes=12)

    stored: list[Exception | None] = []
    for _ in range(3):
        host.store([b"in"], [b"key"], [b"value"], stored.append)
        async with asyncio.timeout(10):
            count = len(stored)
            while len(stored) == count:
                await asyncio.sleep(0.001)
    assert stored == [None] * 3
    assert intake.ingested() == Ingested(2, 12), "the daemon's own records do not come from there"
