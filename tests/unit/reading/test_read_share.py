"""Consumers are held back while the processor is short and NATS has more, and only then."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.clients.raw_pull import RawPull
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.server.reading import read_share
from liftlog.server.reading.read_share import ReadShare, ThreadUsage, Usage
from liftlog.server.streams.intake import Ingested

TICK = 0.01


class Handle:
    def cancel(self) -> None: ...


class HandLoop:
    """A loop whose time passes by hand, and the processor time of its thread with it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.usage = Usage(3.0, 1.0)
        self.ingested = Ingested(7, 700)
        self.reading = 0.0  # what the thread has spent for consumers
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        self.due.append((self.now + delay, callback))
        return Handle()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append((self.now, callback))

    def ingest(self, *sizes: int) -> None:
        chunks, size_bytes = self.ingested
        self.ingested = Ingested(chunks + len(sizes), size_bytes + sum(sizes))

    def go(self, seconds: float, *, running: float, waiting: float = 0.0) -> None:
        """Time passes; these are parts of it."""
        end = self.now + seconds
        while self.due and self.due[0][0] <= end + 1e-9:
            at, callback = self.due.pop(0)
            self._pass(at - self.now, running, waiting)
            callback()
        self._pass(end - self.now, running, waiting)

    def _pass(self, seconds: float, running: float, waiting: float) -> None:
        self.now += seconds
        used = self.usage
        self.usage = Usage(used.running + running * seconds, used.waiting + waiting * seconds)


@pytest.fixture
def loop() -> HandLoop:
    return HandLoop()


@pytest.fixture
def share(loop: HandLoop, monkeypatch: pytest.MonkeyPatch) -> ReadShare:
    made: Any = loop
    monkeypatch.setattr(read_share, "perf_counter", lambda: loop.now + loop.reading)
    return ReadShare(lambda: loop.usage, lambda: loop.ingested, lambda: made)


def spend(loop: HandLoop, share: ReadShare, seconds: float) -> None:
    with share, share:
        loop.reading += seconds


class Reader:
    """Sends pieces of a millisecond whenever it may."""

    def __init__(self, loop: HandLoop, share: ReadShare) -> None:
        self.loop = loop
        self.share = share
        self.sent = 0.0
        self.held_up = False

    def send(self) -> None:
        if not self.share.is_open:
            if not self.held_up:
                self.held_up = True
                self.share.wait(self.resume)
            return
        spend(self.loop, self.share, 0.001)
        self.sent += 0.001

    def resume(self) -> None:
        self.held_up = False
        self.send()


def run(
    loop: HandLoop,
    reader: Reader,
    seconds: float,
    *,
    running: float,
    waiting: float,
    chunk_bytes: int = 100_000,
) -> float:
    """What part of the time the reader got, who sends at up to 80 % of it."""
    began, sent = loop.now, reader.sent
    while loop.now < began + seconds:
        for _ in range(8):
            reader.send()
        if chunk_bytes:
            loop.ingest(chunk_bytes)
        loop.go(TICK, running=running, waiting=waiting)
    return (reader.sent - sent) / (loop.now - began)


def test_nothing_is_held_back_while_there_is_enough(loop: HandLoop, share: ReadShare) -> None:
    assert run(loop, Reader(loop, share), 5, running=0.8, waiting=0.05) == pytest.approx(0.8)
    assert share.held_back_seconds == 0


@pytest.mark.parametrize("chunk_bytes", [0, 1000])
def test_nothing_is_held_back_while_nats_has_no_more_than_is_taken(
    loop: HandLoop, share: ReadShare, chunk_bytes: int
) -> None:
    """A single consumer that reads an old stream may have all of the loop."""
    reader = Reader(loop, share)
    got = run(loop, reader, 5, running=1.0, waiting=0.3, chunk_bytes=chunk_bytes)
    assert got == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("running", "waiting", "busy"), [(0.3, 0.1, False), (0.6, 0.0, True), (0.3, 0.3, True)]
)
def test_it_tells_whether_the_loop_has_much_to_do(
    loop: HandLoop, share: ReadShare, running: float, waiting: float, busy: bool
) -> None:
    assert not share.is_busy
    run(loop, Reader(loop, share), 2, running=running, waiting=waiting)
    assert share.is_busy == busy
    loop.go(1, running=0.0)
    assert not share.is_busy


@pytest.mark.parametrize(("running", "waiting"), [(1.0, 0.0), (0.7, 0.3)])
def test_consumers_get_as_much_as_all_the_rest(
    loop: HandLoop, share: ReadShare, running: float, waiting: float
) -> None:
    """Of the processor's time: the clock also goes on while the thread waits for a processor."""
    reader = Reader(loop, share)
    run(loop, reader, 2, running=running, waiting=waiting)
    got = run(loop, reader, 5, running=running, waiting=waiting)
    assert got == pytest.approx(0.5, rel=0.05)
    assert 5 < share.held_back_seconds <= 7


def test_reading_goes_on_however_little_the_rest_does(loop: HandLoop, share: ReadShare) -> None:
    reader = Reader(loop, share)
    run(loop, reader, 2, running=0.3, waiting=0.7)
    got = run(loop, reader, 5, running=0.3, waiting=0.7)
    assert got * 0.3 == pytest.approx(0.2, rel=0.1)


def test_once_there_is_enough_again_all_go_on(loop: HandLoop, share: ReadShare) -> None:
    reader = Reader(loop, share)
    run(loop, reader, 2, running=1.0, waiting=0.0)
    while not reader.held_up:
        reader.send()
    loop.go(0.5, running=0.1, waiting=0.0)
    assert share.is_open
    assert not reader.held_up


def test_a_debt_is_paid_before_anything_else_is_sent(loop: HandLoop, share: ReadShare) -> None:
    run(loop, Reader(loop, share), 2, running=0.5, waiting=0.5)
    spend(loop, share, 0.1)  # one long piece, of TLS for instance
    loop.go(0.1, running=0.5, waiting=0.5)
    assert not share.is_open
    loop.go(0.5, running=0.5, waiting=0.5)
    assert share.is_open


def test_who_has_left_is_not_resumed(loop: HandLoop, share: ReadShare) -> None:
    first, second = Reader(loop, share), Reader(loop, share)
    run(loop, first, 2, running=1.0, waiting=0.0)
    while not (first.held_up and second.held_up):
        first.send()
        second.send()
    share.leave(first.resume)
    sent = first.sent
    loop.go(0.5, running=0.1, waiting=0.0)
    assert (first.sent, second.held_up) == (sent, False)


def test_an_idle_loop_is_not_woken(loop: HandLoop, share: ReadShare) -> None:
    spend(loop, share, 0.001)
    loop.go(0.1, running=0.1, waiting=0.0)
    assert loop.due == []


def test_the_first_to_wait_is_the_first_to_go_on(loop: HandLoop, share: ReadShare) -> None:
    run(loop, Reader(loop, share), 2, running=1.0, waiting=0.0)
    while share.is_open:
        spend(loop, share, 0.001)
    order: list[int] = []
    for number in range(5):
        share.wait(lambda number=number: order.append(number))  # type: ignore[misc]
    loop.go(0.5, running=0.1, waiting=0.0)
    assert order == [0, 1, 2, 3, 4]


# --- over a socket ---


class Scarce:
    """Says that there is little of the processor, and much from NATS, for as long as told."""

    def __init__(self) -> None:
        self.is_so = True
        self._usage = Usage(0.0, 0.0)
        self._chunks = 0

    def usage(self) -> Usage:
        self._usage = Usage(self._usage.running + 0.001, self._usage.waiting + 0.02 * self.is_so)
        return self._usage

    def ingested(self) -> Ingested:
        self._chunks += 1
        return Ingested(self._chunks, self._chunks * 1_000_000)


def use_up(share: ReadShare) -> None:
    """As if others had read much in a moment."""
    share._left = -1e9


def has_waiting(share: ReadShare) -> bool:
    return bool(share._waiting)


async def test_fetches_that_are_held_back_are_all_answered_in_the_end(broker: LogBroker) -> None:
    orders = broker.streams["orders"]
    for _ in range(40):
        orders.append([b"x" * 1000] * 100)
    scarce = Scarce()
    async with pull_server(broker) as (server, address):
        server.services.read_share = share = ReadShare(scarce.usage, scarce.ingested)
        async with await RawPull.connect(address) as client:
            use_up(share)
            for number in range(1, 6):
                client.send({"k": "fetch", "i": number, "s": "orders", "o": 101, "m": 50_000})
            client.send({"k": "ping", "i": 6})
            assert (await client.receive())["i"] == 6, "who does not read is not held back"
            client.send({"k": "cancel", "i": 3})
            answer = await client.receive()
            assert (answer["i"], answer["k"]) == (3, "error")
            scarce.is_so = False
            answers = [await client.receive() for _ in range(4)]
            assert [one["i"] for one in answers] == [1, 2, 4, 5]
            assert share.held_back_seconds > 0


async def test_who_goes_while_held_back_is_forgotten(broker: LogBroker) -> None:
    broker.streams["orders"].append([b"x" * 1000] * 100)
    scarce = Scarce()
    async with pull_server(broker) as (server, address):
        server.services.read_share = share = ReadShare(scarce.usage, scarce.ingested)
        async with await RawPull.connect(address) as client:
            use_up(share)
            client.send({"k": "fetch", "i": 1, "s": "orders", "o": 101})
            async with asyncio.timeout(10):
                while not has_waiting(share):
                    await asyncio.sleep(0.001)
        async with asyncio.timeout(10):
            while server.connection_count:
                await asyncio.sleep(0.001)
        assert not has_waiting(share)


# --- the real thing ---


@pytest.mark.skipif(
    not os.path.exists("/proc/thread-self/schedstat"), reason="only Linux tells how long it waited"
)
def test_the_kernel_tells_how_long_the_thread_ran_and_waited() -> None:
    usage = ThreadUsage()
    before = usage()
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    after = usage()
    assert 0.04 < after.running - before.running < 1
    assert after.waiting >= before.waiting
    told: list[Usage] = []
    other = threading.Thread(target=lambda: told.append(usage()))
    other.start()
    other.join()
    assert told[0].running >= after.running, "of the thread that asked first, in every thread"
    usage.close()
    usage.close()
