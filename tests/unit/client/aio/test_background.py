"""Requests, connections and heartbeats of a member of a group, in the background."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from liftlog.client.aio import background_requests
from liftlog.client.aio import heartbeats as heartbeats_module
from liftlog.client.aio.background_requests import BackgroundRequests, ConnectionOpener
from liftlog.client.aio.heartbeats import Heartbeats
from liftlog.errors import ConnectionLost, Unauthenticated
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.groups import AssignmentAnswer, BeatGroup
from liftlog.protocol.messages import ListStreams


class NoRoom:
    """There is no memory for another connection."""

    targets: tuple[()] = ()

    async def another(self) -> NoReturn:
        raise MemoryError("no room for a connection")

    async def opened(self) -> NoReturn:
        raise MemoryError("no room for a connection")


class Answering:
    """A connection that returns these errors first, and then answers."""

    target = SimpleNamespace(request_timeout=5.0)

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors
        self.closed = 0

    async def opened(self) -> Answering:
        return self

    async def ask(self, message: BeatGroup, timeout: float) -> Exchange:
        if self._errors:
            raise self._errors.pop()
        exchange = Exchange()
        exchange.finish(AssignmentAnswer(7, 7, 1, [0], [7], [101]), None)
        return exchange

    def close(self) -> None:
        self.closed += 1


async def taken(opener: ConnectionOpener) -> object:
    """Return the connection or the error when the attempt has ended."""
    for _ in range(10_000):
        connection = await opener.take()
        if connection is not None:
            return connection
        await asyncio.sleep(0.001)
    raise AssertionError("the attempt does not end")


async def test_a_connection_that_cannot_be_opened_is_an_error_of_any_kind() -> None:
    session: Any = NoRoom()
    opener = ConnectionOpener(session)
    for _ in range(2):  # after an error it is tried again
        with pytest.raises(MemoryError, match="no room"):
            await taken(opener)


async def test_a_request_that_ends_with_a_defect_raises_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = NoRoom()
    monkeypatch.setattr(background_requests, "BackgroundRouter", lambda session: session)
    requests = BackgroundRequests(session)
    requests.begin([ListStreams()])
    for _ in range(2):
        with pytest.raises(MemoryError, match="no room"):
            await requests.answered()


async def test_heartbeats_go_on_after_any_error_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router: Any = Answering([Unauthenticated("an old token"), ConnectionLost("it is lost")])
    news: deque[Any] = deque()
    monkeypatch.setattr(heartbeats_module, "BackgroundRouter", lambda session: session)
    heartbeats = Heartbeats(router, news)
    heartbeats.beat = BeatGroup("orders", "billing", "w1", 7, 7, [0])
    heartbeats.start()
    for _ in range(10_000):
        if news:
            break
        await asyncio.sleep(0.001)
    await heartbeats.stop()
    answer, joined, _ = news[0]
    assert (answer.generation, joined) == (7, 7)
    assert router.closed == 3, "after each error, and at the end"
