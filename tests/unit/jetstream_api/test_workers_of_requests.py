"""Workers that answer one request after the other within a turn of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from liftlog.server.jetstream_api.inboxes import Inboxes
from liftlog.server.jetstream_api.pace import Pace
from liftlog.server.jetstream_api.request_workers import RequestWorkers
from liftlog.server.jetstream_api.waiting import Message, Waiting


class Site:
    """One worker, without NATS and without streams."""

    def __init__(self) -> None:
        self.answered: list[bytes] = []
        self.dropped: list[Message] = []
        self.repeated: set[Message] = set()
        self.slow = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.waiting = Waiting(Inboxes())
        workers = RequestWorkers(
            self.waiting,
            Pace(lambda: 0),
            self.may_answer,
            self._answer,
            self.dropped.append,
            self._was_repeated,
        )
        self.worker = asyncio.create_task(workers.work())

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
        assert self.waiting.add(message)
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
    site.may_answer.clear()
    site.ask(1)
    site.ask(2)
    site.slow.set()
    await site.until_answered(0)
    await asyncio.sleep(0.01)
    site.may_answer.set()
    await site.until_answered(0, 1, 2)


async def test_a_pull_that_is_passed_on_again_is_not_remembered_after_its_turn(site: Site) -> None:
    for age in (0.0, 20.0):
        site.repeated.add(site.ask(len(site.answered), age=age))
        await site.until_answered(*range(len(site.answered) + 1))
        assert site.repeated == set()


async def test_a_request_that_has_waited_for_too_long_is_dropped(site: Site) -> None:
    old = site.ask(0, age=20.0)
    site.ask(1)
    await site.until_answered(1)
    assert site.dropped == [old]
