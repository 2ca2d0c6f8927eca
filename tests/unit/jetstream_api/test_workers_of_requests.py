"""Workers that answer one request after the other within a turn of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.server.jetstream_api.inboxes import Inboxes
from liftlog.server.jetstream_api.methods import ApiCounters
from liftlog.server.jetstream_api.pace import Pace
from liftlog.server.jetstream_api.service import JetStreamApi
from liftlog.server.jetstream_api.waiting import Message, Waiting


class Site:
    """One worker of the API, without NATS and without streams."""

    def __init__(self) -> None:
        self.answered: list[bytes] = []
        self.repeated: set[Message] = set()
        self.slow = asyncio.Event()
        api: Any = object.__new__(JetStreamApi)
        self.api = api
        api.counters = ApiCounters()
        api.problem = ""
        api.link = SimpleNamespace(generation=1)
        api._checked = 1
        api._looked = asyncio.Event()
        api._looked.set()
        api._waiting = Waiting(Inboxes())
        api._pace = Pace(lambda: 0)
        api._passed = SimpleNamespace(own=b"", was_repeated=self._was_repeated)
        api._immediate = SimpleNamespace(answer=lambda *_: False)
        api._answer = self._answer
        self.worker = asyncio.create_task(api._work())

    def _was_repeated(self, message: Message) -> bool:
        found = message in self.repeated
        self.repeated.discard(message)
        return found

    async def _answer(self, message: Message) -> None:
        if message[2] == b"slow":
            await self.slow.wait()
        self.answered.append(message[1])

    def ask(self, number: int, payload: bytes = b"", age: float = 0.0) -> Message:
        message = b"$JS.API.INFO", b"_INBOX.a.%d" % number, payload, time.monotonic() - age
        assert self.api._waiting.add(message)
        return message

    async def until_answered(self, *numbers: int) -> None:
        async with asyncio.timeout(20):
            while self.answered != [b"_INBOX.a.%d" % number for number in numbers]:
                await asyncio.sleep(0.001)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    site.worker.cancel()
    await asyncio.gather(site.worker, return_exceptions=True)


async def test_requests_wait_while_a_new_connection_is_checked(site: Site) -> None:
    """Although a worker ends a request of the former connection meanwhile."""
    site.ask(0, b"slow")
    await asyncio.sleep(0)
    site.api.link.generation = 2
    site.api._looked.clear()
    site.ask(1)
    site.ask(2)
    site.slow.set()
    await site.until_answered(0)
    await asyncio.sleep(0.01)
    site.api._checked = 2
    site.api._looked.set()
    await site.until_answered(0, 1, 2)


async def test_a_pull_that_is_passed_on_again_is_not_remembered_after_its_turn(site: Site) -> None:
    for age in (0.0, 20.0):
        site.repeated.add(site.ask(len(site.answered), age=age))
        await site.until_answered(*range(len(site.answered) + 1))
        assert site.repeated == set()
