"""Requests that wait: bounded, and in turns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import liftlog.server.jetstream_api.service  # noqa: F401 - registers its methods
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.jetstream import MARK, _Look
from liftlog.server.jetstream_api.inboxes import Inboxes
from liftlog.server.jetstream_api.methods import METHODS
from liftlog.server.jetstream_api.waiting import Message, Waiting


def of(party: str, number: int, size: int = 0) -> Message:
    return b"$JS.API.INFO", f"_INBOX.{party}.{number}".encode(), b"x" * size, 0.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def made() -> Waiting:
    return Waiting(Inboxes(), lambda _, payload: payload == b"costly")


async def taken(waiting: Waiting, count: int, *, done: bool = True) -> list[bytes]:
    found = []
    for _ in range(count):
        message = await asyncio.wait_for(waiting.take(), 10)
        found.append(message[1])
        if done:
            waiting.done(message)
    return found


async def test_parties_take_turns() -> None:
    waiting = made()
    for number in range(10):
        assert waiting.add(of("flood", number))
    assert waiting.add(of("calm", 0))
    assert (await taken(waiting, 3)) == [
        b"_INBOX.flood.0",
        b"_INBOX.calm.0",
        b"_INBOX.flood.1",
    ]


async def test_one_party_has_only_so_many_places() -> None:
    waiting = made()
    took = [waiting.add(of("flood", number)) for number in range(100)]
    assert took == [True] * 64 + [False] * 36
    assert waiting.refused == 36
    assert waiting.add(of("calm", 0))


async def test_all_together_have_only_so_many_places_and_bytes() -> None:
    waiting = made()
    assert sum(waiting.add(of(str(number), 0)) for number in range(2000)) == 1024
    waiting = made()
    took = sum(waiting.add(of(str(number), 0, 2**18)) for number in range(100))
    assert took == 32
    assert len(await taken(waiting, 32)) == 32
    assert waiting.add(of("again", 0, 2**18))


async def test_few_of_one_party_are_answered_at_a_time() -> None:
    inboxes = Inboxes(clock := Clock())
    known(inboxes, clock, "slow", "quick")
    waiting = Waiting(inboxes)
    messages = [of("slow", number) for number in range(6)]
    for message in messages:
        waiting.add(message)
    assert len(await taken(waiting, 3, done=False)) == 3
    await waiting.take()
    fifth = asyncio.ensure_future(waiting.take())
    await asyncio.sleep(0)
    assert not fifth.done()
    waiting.done(messages[0])
    assert (await asyncio.wait_for(fifth, 10))[1] == b"_INBOX.slow.4"


def known(inboxes: Inboxes, clock: Clock, *parties: str) -> None:
    for party in parties:
        inboxes.note(f"_INBOX.{party}".encode())
    clock.now += 1
    for party in parties:
        assert inboxes.note(f"_INBOX.{party}".encode())


def test_an_inbox_is_known_when_it_is_used_again_later() -> None:
    inboxes = Inboxes(clock := Clock())
    assert [inboxes.note(b"_INBOX.a") for _ in range(3)] == [False] * 3
    assert inboxes.member(b"_INBOX.a") == inboxes.member(b"_INBOX.b")
    clock.now += 1
    assert inboxes.note(b"_INBOX.a")
    for number in range(50_000):
        inboxes.note(b"_INBOX.%d" % number)
    assert inboxes.note(b"_INBOX.a"), "any number of others do not make it forgotten"
    assert inboxes.member(b"_INBOX.a") == b"_INBOX.a"
    assert len(inboxes._new) == 16_384


async def test_a_flood_from_random_inboxes_leaves_turns_to_those_that_are_known() -> None:
    inboxes = Inboxes(clock := Clock())
    known(inboxes, clock, "calm")
    waiting = Waiting(inboxes)
    assert sum(waiting.add(of(str(number), 0)) for number in range(2000)) == 1024
    assert waiting.add(of("calm", 0)), "it has room where there is none for others"
    assert b"_INBOX.calm.0" in await taken(waiting, 2)


async def test_what_takes_long_does_not_keep_what_is_answered_at_once() -> None:
    waiting = made()
    for number in range(20):
        waiting.add((b"s", f"_INBOX.{number}.0".encode(), b"costly", 0.0))
    assert len(await taken(waiting, 2, done=False)) == 2
    third = asyncio.ensure_future(waiting.take())
    await asyncio.sleep(0)
    assert not third.done(), "so many at the same time"
    waiting.add(of("cheap", 0))
    assert (await asyncio.wait_for(third, 10))[1] == b"_INBOX.cheap.0"


@pytest.mark.parametrize(
    ("method", "arguments", "payload", "cheap"),
    [
        ("STREAM.INFO", ["s"], b"", True),
        ("STREAM.INFO", ["s"], b'{"subjects_filter": ">"}', False),
        ("STREAM.INFO", ["s"], b'{"subjects\\u005ffilter": ">"}', False),
        ("STREAM.MSG.GET", ["s"], b'{"seq": 1}', True),
        ("STREAM.MSG.GET", ["s"], b'{"next_by_subj": "a.*", "seq": 1}', False),
        ("DIRECT.GET", ["s"], b'{"seq": 1}', True),
        ("DIRECT.GET", ["s", "a"], b"", False),
        ("DIRECT.GET", ["s"], b'{"multi_last": [">"]}', False),
        ("CONSUMER.CREATE", ["s"], b"{}", False),
    ],
)
def test_which_requests_may_take_long(
    method: str, arguments: list[str], payload: bytes, cheap: bool
) -> None:
    assert METHODS[method].is_cheap(arguments, payload) == cheap


async def test_liftlog_is_not_taken_for_jetstream() -> None:
    look = _Look(None, asyncio.Lock())  # type: ignore[arg-type]
    ours = b'{"streams": ["a"], "%b": "cluster x"}' % MARK.encode()
    theirs = b'{"streams": ["b"]}'
    look._receive(MessageRun([b"_INBOX.x.0", b"_INBOX.x.1"], [b"", b""], [ours, theirs]))
    assert look._answers == {0: [], 1: ["b"]}


async def test_a_request_wakes_one_of_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve of them wait in each daemon; to wake all costs more than most requests."""
    waiting, loop, scheduled = made(), asyncio.get_running_loop(), 0
    original = loop.call_soon

    def counted(*arguments: Any, **options: Any) -> asyncio.Handle:
        nonlocal scheduled
        scheduled += 1
        return original(*arguments, **options)

    takers = [asyncio.ensure_future(waiting.take()) for _ in range(12)]
    await asyncio.sleep(0)
    monkeypatch.setattr(loop, "call_soon", counted)
    assert waiting.add(of("one", 0))
    done, rest = await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
    waiting.done(done.pop().result())
    await asyncio.sleep(0)
    monkeypatch.undo()
    assert scheduled < 8
    for taker in rest:
        taker.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def test_a_cancelled_taker_wakes_another() -> None:
    waiting = made()
    first, second = [asyncio.ensure_future(waiting.take()) for _ in range(2)]
    await asyncio.sleep(0)
    assert waiting.add(of("one", 0))
    first.cancel()  # after it was woken, and before its step
    assert (await asyncio.wait_for(second, 10))[1] == b"_INBOX.one.0"
    assert first.cancelled() or isinstance(first.exception(), asyncio.CancelledError)


async def test_a_place_that_becomes_free_lets_all_go_on_that_have_waited_for_it() -> None:
    waiting = made()
    for number in range(5):
        assert waiting.add(of("one", number))
    takers = [asyncio.ensure_future(waiting.take()) for _ in range(6)]
    await asyncio.wait(takers, timeout=0.05)
    served = [one.result() for one in takers if one.done()]
    assert len(served) == 2, "from a new inbox at the same time"
    waiting.done(served[0])
    await asyncio.wait(takers, timeout=0.05)
    assert sum(one.done() for one in takers) == 3
    for taker in takers:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)


async def test_a_request_is_taken_without_a_wait() -> None:
    waiting = made()
    assert waiting.take_now() is None
    taker = asyncio.create_task(waiting.take())
    await asyncio.sleep(0)
    for number in range(3):
        assert waiting.add(of("calm", number))
    first = waiting.take_now()
    assert first is not None
    second = await asyncio.wait_for(taker, 10)
    assert waiting.take_now() is None, "so many at the same time"
    waiting.done(first)
    third = waiting.take_now()
    assert third is not None
    assert {one[1] for one in (first, second, third)} == {b"_INBOX.calm.%d" % i for i in range(3)}
    waiting.done(second)
    waiting.done(third)
    assert waiting.take_now() is None
