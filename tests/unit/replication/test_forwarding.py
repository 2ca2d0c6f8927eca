"""What waits for another node's answer: bounded, given up in time, and never in doubt unsaid."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from liftlog.errors import (
    ConnectionLost,
    Forbidden,
    LiftlogError,
    LimitExceeded,
    NotLeader,
    RequestTimeout,
    ShuttingDown,
    UnknownRequest,
)
from liftlog.protocol.administration import PauseStream
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.frames import decode_map
from liftlog.protocol.messages import DeleteStream, DescribeStream, Done, Message
from liftlog.protocol.replication import Forward
from liftlog.server.replication.forwarding import Forwarding

HARMLESS, CHANGE = DescribeStream("s"), DeleteStream("s")


class Link:
    """The connection to node b, which answers when a test says so."""

    def __init__(self) -> None:
        self.is_up = True
        self.asked: list[tuple[Forward, Exchange]] = []
        self.given_up: list[Exchange] = []

    def request(self, message: Forward, exchange: Exchange) -> None:
        if not self.is_up:
            exchange.finish(None, ConnectionLost("there is none"))
            return
        exchange.sent = True
        self.asked.append((message, exchange))

    def give_up(self, exchange: Exchange) -> None:
        self.given_up.append(exchange)
        self.asked = [one for one in self.asked if one[1] is not exchange]

    def answer(self, answer: Message | None = None, error: LiftlogError | None = None) -> None:
        self.asked.pop(0)[1].finish(answer, error)


def not_leader(stream: str) -> LiftlogError:
    return NotLeader(f"b leads {stream}", leader="b")


def forwarding(link: Link, **bounds: Any) -> Forwarding:
    return Forwarding(lambda node: link, not_leader, **bounds)  # type: ignore[arg-type, return-value]


async def test_the_leader_gets_the_request_as_it_was_and_its_answer_comes_back() -> None:
    link = Link()
    sent = forwarding(link)
    asking = asyncio.create_task(sent.ask("b", "s", PauseStream("s"), "ops"))
    await asyncio.sleep(0)
    request, _ = link.asked[0]
    assert decode_map(request.request) == {"k": "pause", "i": 1, "s": "s"}
    assert request.principal == "ops"
    link.answer(Done())
    assert await asking == Done()
    assert sent.waiting == 0


@pytest.mark.parametrize(
    ("message", "error", "raised"),
    [
        (HARMLESS, ConnectionLost("reset"), NotLeader),
        (CHANGE, ConnectionLost("reset"), RequestTimeout),
        (CHANGE, ShuttingDown("it stops"), NotLeader),
        (CHANGE, UnknownRequest("it is older"), NotLeader),
        (CHANGE, Forbidden("system stream"), Forbidden),
    ],
)
async def test_what_the_client_is_told_when_it_fails(
    message: Message, error: LiftlogError, raised: type[LiftlogError]
) -> None:
    """A request that may have taken effect is not repeated by the client."""
    link = Link()
    asking = asyncio.create_task(forwarding(link).ask("b", "s", message, None))
    await asyncio.sleep(0)
    link.answer(error=error)
    with pytest.raises(raised):
        await asking


async def test_without_a_connection_the_client_is_sent_to_the_leader() -> None:
    link = Link()
    link.is_up = False
    sent = forwarding(link)
    with pytest.raises(NotLeader) as raised:
        await sent.ask("b", "s", CHANGE, None)
    assert raised.value.details["leader"] == "b"
    assert sent.waiting == 0


async def test_a_leader_that_hangs_is_not_waited_for() -> None:
    link = Link()
    sent = forwarding(link, seconds=0.01)
    with pytest.raises(RequestTimeout):
        await sent.ask("b", "s", HARMLESS, None)
    assert len(link.given_up) == 1
    assert sent.waiting == 0


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    link = Link()
    sent = forwarding(link)
    asking = asyncio.create_task(sent.ask("b", "s", HARMLESS, None))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert len(link.given_up) == 1
    assert sent.waiting == 0


async def test_bounds_hold_whatever_ends_a_request() -> None:
    """At random: sent, answered, lost, cancelled. What waits is counted right all the time."""
    chance = random.Random(7)
    link = Link()
    size = len(b"\x83\xa1k\xa8describe\xa1i\x01\xa1s\xa1s")
    sent = forwarding(link, max_waiting=6, max_of_principal=3, max_waiting_bytes=5 * size)
    open_: dict[asyncio.Task[Message], str] = {}
    ended: Counter[str] = Counter()
    for _ in range(2000):
        step = chance.choice(["send", "send", "answer", "lose", "cancel"])
        if step == "send":
            who = chance.choice("xyz")
            of_principal = Counter(open_.values())[who]
            task = asyncio.create_task(sent.ask("b", "s", HARMLESS, who))
            await asyncio.sleep(0)
            if len(open_) >= 5 or of_principal >= 3:
                with pytest.raises(LimitExceeded):
                    await task
            else:
                open_[task] = who
        elif step == "cancel" and open_:
            task = chance.choice(list(open_))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del open_[task]
        elif step != "cancel" and link.asked:
            if step == "answer":
                link.answer(Done())
            else:
                link.answer(error=ConnectionLost("reset"))
            done, _ = await asyncio.wait(open_, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                ended["lost" if task.exception() else "answered"] += 1
                del open_[task]
        assert sent.waiting == len(open_) == len(link.asked)
    assert min(ended["lost"], ended["answered"]) > 100
    for task in open_:
        task.cancel()
    await asyncio.gather(*open_, return_exceptions=True)
    assert sent.waiting == 0
