"""Changes of one stream take turns; those of others do not wait."""

from __future__ import annotations

import asyncio

import pytest

from liftlog.server.jetstream_api.methods import Turns


async def test_one_at_a_time_for_each_stream() -> None:
    turns, inside = Turns(), list[str]()
    go = asyncio.Event()

    async def change(stream: str, name: str) -> None:
        async with turns.turn(stream):
            inside.append(name)
            await go.wait()
            inside.remove(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(change("a", "first"))
        group.create_task(change("a", "second"))
        group.create_task(change("b", "other"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert inside == ["first", "other"]
        assert len(turns) == 2
        go.set()
    assert len(turns) == 0, "a name that a client made up would stay forever"


async def test_a_cancelled_change_gives_its_turn_away() -> None:
    turns, reached = Turns(), asyncio.Event()

    async def change(stays: bool) -> None:
        async with turns.turn("a"):
            reached.set()
            if stays:
                await asyncio.Event().wait()

    first = asyncio.create_task(change(True))
    await reached.wait()
    waiting, last = asyncio.create_task(change(False)), asyncio.create_task(change(False))
    await asyncio.sleep(0)
    waiting.cancel()
    first.cancel()
    await asyncio.wait_for(last, 10)
    for cancelled in (first, waiting):
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    del first, waiting, last, cancelled
    assert len(turns) == 0
