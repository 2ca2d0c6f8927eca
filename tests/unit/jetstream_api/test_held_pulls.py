"""Pulls that wait for a leader: for a limited time, in limited number."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from liftlog.errors import NotLeader
from liftlog.server.jetstream_api.held_pulls import HeldPulls
from liftlog.server.jetstream_api.waiting import Message


class Site:
    def __init__(self) -> None:
        self.led = {"led"}
        self.again: list[Message] = []
        self.pulls = HeldPulls(self._check_led, self.again.append)

    def _check_led(self, stream: str) -> None:
        if stream not in self.led:
            raise NotLeader("no node leads it")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.pulls.close()


def pull(reply: bytes, age: float = 0.0, size: int = 0) -> Message:
    return b"$JS.API.CONSUMER.MSG.NEXT.s.c", reply, b"x" * size, time.monotonic() - age


async def test_pulls_wait_for_the_leader_of_their_stream(site: Site) -> None:
    held = [pull(b"a"), pull(b"b"), pull(b"c")]
    assert site.pulls.hold("s", held[0])
    assert site.pulls.hold("other", held[1])
    assert site.pulls.hold("s", held[2])
    await asyncio.sleep(0.15)
    assert not site.again
    site.led.add("s")
    async with asyncio.timeout(20):
        while len(site.again) < 2:
            await asyncio.sleep(0.01)
    assert site.again == [held[0], held[2]]
    site.led.add("other")
    async with asyncio.timeout(20):
        while len(site.again) < 3:
            await asyncio.sleep(0.01)
    assert site.pulls.hold("third", pull(b"d")), "it can wait again"


async def test_old_pulls_and_those_of_a_led_stream_are_not_held(site: Site) -> None:
    assert not site.pulls.hold("led", pull(b"a"))
    assert not site.pulls.hold("s", pull(b"a", age=9.0))
    assert site.pulls.hold("s", pull(b"a", age=7.9))
    await asyncio.sleep(0.3)
    site.led.add("s")
    await asyncio.sleep(0.2)
    assert not site.again, "its client waits no longer"


async def test_there_is_room_for_so_many(site: Site) -> None:
    assert all(site.pulls.hold("s", pull(b"%d" % number)) for number in range(1000))
    assert not site.pulls.hold("s", pull(b"a"))


async def test_there_is_room_for_so_many_bytes(site: Site) -> None:
    assert site.pulls.hold("s", pull(b"a", size=1_000_000))
    assert not site.pulls.hold("s", pull(b"a", size=100_000))
