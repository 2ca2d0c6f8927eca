"""Housekeeping of many streams: one that stalls or fails does not delay the others."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from liftlog.errors import StorageError
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.housekeeping import SideBySide


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def hosts(count: int) -> list[StreamHost]:
    return [cast(StreamHost, Named(f"s{i}")) for i in range(count)]


async def test_a_few_at_once() -> None:
    running = most = 0
    seen = []

    async def work(host: StreamHost) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        seen.append(host.name)
        running -= 1

    await SideBySide("test", at_once=3, patience_seconds=60).run(hosts(10), work)
    assert sorted(seen) == [f"s{i}" for i in range(10)]
    assert most == 3


async def test_a_stalled_stream_loses_its_place_and_is_left_out_until_it_is_done() -> None:
    [stuck, *others] = hosts(4)
    gate = asyncio.Event()
    seen: list[str] = []

    async def work(host: StreamHost) -> None:
        if host is stuck:
            await gate.wait()
        seen.append(host.name)

    side = SideBySide("test", at_once=1, patience_seconds=0.01)
    await asyncio.wait_for(side.run([stuck, *others], work), 10)
    assert seen == ["s1", "s2", "s3"]
    assert side.stalled == 1
    seen.clear()
    await asyncio.wait_for(side.run([stuck, *others], work), 10)
    assert seen == ["s1", "s2", "s3"], "a second one was begun for the stuck stream"
    gate.set()
    while side.stalled:
        await asyncio.sleep(0)
    await asyncio.wait_for(side.run([stuck], work), 10)
    assert seen == ["s1", "s2", "s3", "s0", "s0"]


@pytest.mark.parametrize("error", [StorageError("EIO"), KeyError("bug")])
async def test_an_error_ends_no_other_stream(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    async def work(host: StreamHost) -> None:
        if host.name == "s0":
            raise error
        seen.append(host.name)

    with caplog.at_level(logging.WARNING):
        await SideBySide("retention", at_once=1).run(hosts(2), work)
    assert seen == ["s1"]
    [record] = caplog.records
    assert record.getMessage().startswith("retention-failed stream=s0")
    assert (record.exc_info is not None) == isinstance(error, KeyError)


async def test_close_gives_up_what_is_under_way() -> None:
    ended = []

    async def work(host: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(host.name)

    side = SideBySide("test", at_once=2, patience_seconds=0)
    await side.run(hosts(2), work)
    await side.close()
    assert sorted(ended) == ["s0", "s1"]
    assert side.stalled == 0
