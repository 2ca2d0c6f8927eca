"""Answers of one turn of the loop leave together, by rules that still hold."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from liftlog.errors import NotLeader
from liftlog.sequencing.destinations import Destinations
from liftlog.server.jetstream_api.immediate import MAX_UNSENT_BYTES, ImmediateAnswers
from liftlog.server.jetstream_api.methods import (
    TOO_MANY,
    ApiCounters,
    Method,
    NoDestination,
    never,
)
from liftlog.server.jetstream_api.waiting import Message


class Site:
    """The parts of a daemon that immediate answers use."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.link = SimpleNamespace(connected=True, unsent_bytes=0, send=self.sent.append)
        self.broker = SimpleNamespace(
            destinations=Destinations(),
            catalog=SimpleNamespace(answerer=lambda name: None, was_deleted=lambda name: False),
        )
        self.gate = SimpleNamespace(policy=None)
        self.counters = ApiCounters()
        self.put_back: list[Message] = []
        self.is_full = False
        self.answers = ImmediateAnswers(cast(Any, self), cast(Any, self.link), self._put_back)

    def _put_back(self, message: Message) -> bool:
        self.put_back.append(message)
        return not self.is_full

    def ask(self, number: int, **changes: Any) -> bool:
        return self.answers.answer(message(number), method(**changes), ("s",))


def message(number: int) -> Message:
    return b"$JS.API.X.s", b"_INBOX.a.%d" % number, b"%d" % number, 0.0


async def perform(request: object) -> None:
    raise AssertionError("not asked")


def method(**changes: Any) -> Method:
    whole = Method("X", "x", perform, (1, 1), True, never, lambda request: request.payload + b",")
    return whole._replace(**changes)


async def test_answers_of_one_turn_leave_with_one_write() -> None:
    site = Site()
    assert all(site.ask(number) for number in range(3))
    assert site.sent == []
    await asyncio.sleep(0)
    assert site.sent == [b"0,1,2,"]
    assert site.ask(3)
    await asyncio.sleep(0)
    assert site.sent == [b"0,1,2,", b"3,"]
    assert site.put_back == []
    assert site.counters.requests["X", "ok"] == 4


@pytest.mark.parametrize("rules", ["destinations", "one stream more", "policy"])
async def test_rules_that_change_before_the_write_count(rules: str) -> None:
    site = Site()
    assert site.ask(0)
    if rules == "destinations":
        site.broker.destinations = Destinations()
    elif rules == "policy":
        site.gate.policy = object()
    else:
        site.broker.destinations.add(["orders.>"])
    await asyncio.sleep(0)
    assert site.sent == []
    assert site.put_back == [message(0)]


async def test_a_request_that_finds_no_place_again_is_refused() -> None:
    site = Site()
    assert site.ask(0)
    site.is_full = True
    site.broker.destinations = SimpleNamespace(for_answer=lambda reply: reply, version=1)
    await asyncio.sleep(0)
    [refused] = site.sent
    assert refused.startswith(b"PUB _INBOX.a.0 ")
    assert b'"code":429' in refused.replace(b" ", b"")
    assert site.counters.requests["X", TOO_MANY] == 1


async def test_an_answer_by_new_rules_does_not_save_the_old_ones() -> None:
    site = Site()
    assert site.ask(0)
    site.broker.destinations = Destinations()
    assert site.ask(1)
    await asyncio.sleep(0)
    assert site.sent == [b"1,"]
    assert site.put_back == [message(0)]


def refuse(error: Exception) -> Any:
    def answer_now(request: object) -> bytes:
        raise error

    return answer_now


@pytest.mark.parametrize(
    "changes",
    [
        {"answer_now": None},
        {"answer_now": lambda request: None},
        {"answer_now": refuse(NotLeader("elsewhere"))},
        {"answer_now": refuse(NoDestination())},
    ],
)
async def test_what_needs_a_wait_or_is_an_error_is_left_to_others(changes: dict[str, Any]) -> None:
    site = Site()
    assert not site.ask(0, **changes)
    await asyncio.sleep(0)
    assert site.sent == []


async def test_a_stream_that_another_node_leads() -> None:
    site = Site()
    site.broker.catalog.answerer = lambda name: "b"
    assert not site.ask(0)
    site.broker.catalog.answerer = lambda name: None
    site.broker.catalog.was_deleted = lambda name: True
    assert not site.ask(0)
    assert site.ask(0, at_leader=False)


async def test_a_server_that_takes_nothing_is_waited_for() -> None:
    site = Site()
    site.link.unsent_bytes = MAX_UNSENT_BYTES
    assert not site.ask(0)
    site.link.unsent_bytes = 0
    assert site.ask(0, answer_now=lambda request: bytes(MAX_UNSENT_BYTES))
    assert not site.ask(1)
    await asyncio.sleep(0)
    assert site.ask(1)
    site.link.connected = False
    assert not site.ask(2)
