"""Requests that wait: bounded, and in turns."""

from __future__ import annotations

import asyncio

from liftlog.server.ingest.jetstream import MARK, _Look
from liftlog.server.jetstream_api.service import Waiting
from liftlog.stream.run import MessageRun

Message = tuple[bytes, bytes, bytes]


def of(party: str, number: int, size: int = 0) -> Message:
    return b"$JS.API.INFO", f"_INBOX.{party}.{number}".encode(), b"x" * size


async def taken(waiting: Waiting, count: int, *, done: bool = True) -> list[bytes]:
    found = []
    for _ in range(count):
        message = await asyncio.wait_for(waiting.take(), 10)
        found.append(message[1])
        if done:
            waiting.done(message)
    return found


async def test_parties_take_turns() -> None:
    waiting = Waiting()
    for number in range(10):
        assert waiting.add(of("flood", number))
    assert waiting.add(of("calm", 0))
    assert (await taken(waiting, 3)) == [
        b"_INBOX.flood.0",
        b"_INBOX.calm.0",
        b"_INBOX.flood.1",
    ]


async def test_one_party_has_only_so_many_places() -> None:
    waiting = Waiting()
    took = [waiting.add(of("flood", number)) for number in range(100)]
    assert took == [True] * 64 + [False] * 36
    assert waiting.refused == 36
    assert waiting.add(of("calm", 0))


async def test_all_together_have_only_so_many_places_and_bytes() -> None:
    waiting = Waiting()
    assert sum(waiting.add(of(str(number), 0)) for number in range(2000)) == 1024
    waiting = Waiting()
    took = sum(waiting.add(of(str(number), 0, 2**18)) for number in range(100))
    assert took == 32
    assert len(await taken(waiting, 32)) == 32
    assert waiting.add(of("again", 0, 2**18))


async def test_few_of_one_party_are_answered_at_a_time() -> None:
    waiting = Waiting()
    for number in range(6):
        waiting.add(of("slow", number))
    assert len(await taken(waiting, 4, done=False)) == 4
    fifth = asyncio.ensure_future(waiting.take())
    await asyncio.sleep(0)
    assert not fifth.done()
    waiting.add(of("quick", 0))
    assert (await asyncio.wait_for(fifth, 10))[1] == b"_INBOX.quick.0"
    waiting.done(of("slow", 0))
    assert (await taken(waiting, 1)) == [b"_INBOX.slow.4"]


async def test_liftlog_is_not_taken_for_jetstream() -> None:
    look = _Look(None, asyncio.Lock())  # type: ignore[arg-type]
    ours = b'{"streams": ["a"], "%b": "cluster x"}' % MARK.encode()
    theirs = b'{"streams": ["b"]}'
    look._receive(MessageRun([b"_INBOX.x.0", b"_INBOX.x.1"], [b"", b""], [ours, theirs]))
    assert look._answers == {0: [], 1: ["b"]}
