# Made from tests/unit/client/aio/test_background.py by `make blocking`: edit that one.
"""Requests, connections and heartbeats of a member of a group, in the background."""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from liftlog.client.blocking import background_requests
from liftlog.client.blocking import heartbeats as heartbeats_module
from liftlog.client.blocking.background_requests import SyncBackgroundRequests, SyncConnectionOpener
from liftlog.client.blocking.heartbeats import SyncHeartbeats
from liftlog.errors import ConnectionLost, Unauthenticated
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.groups import AssignmentAnswer, BeatGroup
from liftlog.protocol.messages import ListStreams


class NoRoom:
    """There is no memory for another connection."""

    targets: tuple[()] = ()

    def another(self) -> NoReturn:
        raise MemoryError("no room for a connection")

    def opened(self) -> NoReturn:
        raise MemoryError("no room for a connection")


class Answering:
    """A connection that returns these errors first, and then answers."""

    target = SimpleNamespace(request_timeout=5.0)

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors
        self.closed = 0

    def opened(self) -> Answering:
        return self

    def ask(self, message: BeatGroup, timeout: float) -> Exchange:
        if self._errors:
            raise self._errors.pop()
        exchange = Exchange()
        exchange.finish(AssignmentAnswer(7, 7, 1, [0], [7], [101]), None)
        return exchange

    def close(self) -> None:
        self.closed += 1


def taken(opener: SyncConnectionOpener) -> object:
    """Return the connection or the error when the attempt has ended."""
    for _ in range(10_000):
        connection = opener.take()
        if connection is not None:
            return connection
        time.sleep(0.001)
    raise AssertionError("the attempt does not end")


def test_a_connection_that_cannot_be_opened_is_an_error_of_any_kind() -> None:
    session: Any = NoRoom()
    opener = SyncConnectionOpener(session)
    for _ in range(2):  # after an error it is tried again
        with pytest.raises(MemoryError, match="no room"):
            taken(opener)


def test_a_request_that_ends_with_a_defect_raises_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = NoRoom()
    monkeypatch.setattr(background_requests, "BackgroundRouter", lambda session: session)
    requests = SyncBackgroundRequests(session)
    requests.begin([ListStreams()])
    for _ in range(2):
        with pytest.raises(MemoryError, match="no room"):
            requests.answered()


def test_heartbeats_go_on_after_any_error_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router: Any = Answering([Unauthenticated("an old token"), ConnectionLost("it is lost")])
    news: deque[Any] = deque()
    monkeypatch.setattr(heartbeats_module, "BackgroundRouter", lambda session: session)
    heartbeats = SyncHeartbeats(router, news)
    heartbeats.beat = BeatGroup("orders", "billing", "w1", 7, 7, [0])
    heartbeats.start()
    for _ in range(10_000):
        if news:
            break
        time.sleep(0.001)
    heartbeats.stop()
    answer, joined, _ = news[0]
    assert (answer.generation, joined) == (7, 7)
    assert router.closed == 3, "after each error, and at the end"
