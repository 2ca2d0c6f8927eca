"""Rounds of waking: at once after a pause, then once per linger, and one read for all."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest
from support.clients.raw_pull import RawPull
from support.daemons.pull_broker import LogBroker, pull_server
from support.disks.page_cache import need_nowait

from liftlog.log.active_segment import LogEnd
from liftlog.log.state import ReadView
from liftlog.records.decode import iter_batches
from liftlog.server.pull import PullLimits
from liftlog.server.reading import tailing
from liftlog.server.reading.read_share import ReadShare, ThreadUsage
from liftlog.server.reading.tailing import Tail, TailGroup
from liftlog.server.streams.intake import Ingested

LINGER = 0.05


class Stream:
    """The part of a stream that a group needs; commits are made by hand."""

    name = "orders"
    log: Any = None

    def __init__(self) -> None:
        self.high_watermark = 1
        self.futures: list[tuple[int, asyncio.Future[None]]] = []
        self.asked = 0

    def wait_high_watermark(self, offset: int) -> asyncio.Future[None]:
        self.asked += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.high_watermark > offset:
            future.set_result(None)
        self.futures.append((offset, future))
        return future

    def commit(self) -> None:
        self.high_watermark += 1
        for offset, future in self.futures:
            if offset < self.high_watermark and not future.done():
                future.set_result(None)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def tail_group(linger_seconds: float) -> TailGroup:
    share = ReadShare(ThreadUsage(), lambda: Ingested(0, 0))
    return TailGroup(asyncio.get_running_loop(), linger_seconds, share)


@pytest.fixture
def stream() -> Stream:
    return Stream()


async def test_many_waiters_cost_one_future(stream: Stream) -> None:
    group = tail_group(LINGER)
    woken: list[int] = []
    for number in range(200):
        group.wait(stream, 1, lambda number=number: woken.append(number))  # type: ignore[misc]
    assert stream.asked == 1
    stream.commit()
    await turns(1)
    assert len(woken) < 200, "one turn of the loop for all of them"
    await turns()
    assert woken == list(range(200))


async def test_a_second_round_comes_after_the_linger(stream: Stream) -> None:
    loop = asyncio.get_running_loop()
    group = tail_group(LINGER)
    woken: list[int] = []
    group.wait(stream, 1, lambda: woken.append(1))
    began = loop.time()
    stream.commit()
    await turns()
    assert woken == [1], "the first one is woken at once"
    again = loop.create_future()
    group.wait(stream, 2, lambda: again.set_result(loop.time()))
    stream.commit()
    await turns()
    late = loop.create_future()
    group.wait(stream, 2, lambda: late.set_result(None))  # joins the round that is due
    # The clock of uvloop has whole milliseconds.
    assert await asyncio.wait_for(again, 10) - began >= LINGER - 0.002
    await turns(1)
    assert late.done()


async def test_the_lowest_offset_decides(stream: Stream) -> None:
    group = tail_group(LINGER)
    woken: list[str] = []
    group.wait(stream, 5, lambda: woken.append("far"))
    group.wait(stream, 1, lambda: woken.append("near"))
    stream.commit()
    await turns()
    assert "near" in woken


async def test_who_leaves_is_not_woken_and_the_last_one_lets_go(stream: Stream) -> None:
    group = tail_group(LINGER)
    woken: list[str] = []
    leaving = group.wait(stream, 1, lambda: woken.append("left"))
    other = group.wait(stream, 1, lambda: group.leave(third))
    third = group.wait(stream, 1, lambda: woken.append("left during the round"))
    group.leave(leaving)
    stream.commit()
    await turns()
    assert woken == []
    group.leave(other)  # was woken: nothing
    last = group.wait(stream, 2, lambda: woken.append("no"))
    group.leave(last)
    assert all(future.done() for _, future in stream.futures)


async def test_a_stream_that_ends_wakes_everybody(stream: Stream) -> None:
    group = tail_group(0)
    woken: list[int] = []
    group.wait(stream, 1, lambda: woken.append(1))
    stream.futures[0][1].set_exception(RuntimeError("failed"))
    await turns()
    assert woken == [1]


async def test_long_rounds_make_longer_pauses(stream: Stream) -> None:
    loop = asyncio.get_running_loop()
    group = tail_group(0.001)
    began = time.monotonic()
    group.wait(stream, 1, lambda: work(0.02))
    stream.commit()
    await turns()
    again = loop.create_future()
    group.wait(stream, 1, lambda: again.set_result(time.monotonic()))
    assert await asyncio.wait_for(again, 10) - began >= 0.02 * (1 + tailing.REST) * 0.99


def work(seconds: float) -> None:
    """Use the processor for this time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_rounds_that_other_processes_interrupt_make_no_longer_pauses(stream: Stream) -> None:
    loop = asyncio.get_running_loop()
    group = tail_group(0.001)
    group.wait(stream, 1, lambda: time.sleep(1.0))
    stream.commit()
    await turns()
    again, began = loop.create_future(), time.monotonic()
    group.wait(stream, 1, lambda: again.set_result(time.monotonic()))
    assert await asyncio.wait_for(again, 10) - began < tailing.REST * 0.5


async def test_consumers_share_one_read(broker: LogBroker, tmp_path: Path) -> None:
    need_nowait(tmp_path)
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address):
        peers = [await RawPull.connect(address) for _ in range(8)]
        for peer in peers:
            peer.send({"k": "fetch", "i": 1, "s": "orders", "o": 101, "w": 60_000})
        # A ping is answered after what came before it was handled.
        for peer in peers:
            peer.send({"k": "ping", "i": 2})
            assert (await peer.receive())["k"] == "pong"
        reads = stream.log.reads
        stream.append([b"new", b"newer"])
        for peer in peers:
            answer = await peer.receive()
            assert [batch.values() for batch in iter_batches(answer["body"])] == [
                [b"new", b"newer"]
            ]
            assert (answer["o"], answer["f"], answer["n"], answer["c"]) == (101, 101, 103, 2)
        assert stream.log.reads == reads + 1
        for peer in peers:
            await peer.close()


async def test_a_consumer_is_answered_once_per_linger(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    limits = PullLimits(linger_seconds=2)
    async with pull_server(broker, limits=limits) as (server, address):
        async with await RawPull.connect(address) as peer:
            peer.send({"k": "fetch", "i": 1, "s": "orders", "o": "latest", "w": 60_000})
            peer.send({"k": "ping", "i": 2})
            assert (await peer.receive())["k"] == "pong"
            began = time.monotonic()
            stream.append([b"0"])
            position = (await peer.receive())["n"]
            assert time.monotonic() - began < 1.5, "the first at once"
            for number in range(1, 30):
                stream.append([b"%d" % number])
            peer.send({"k": "fetch", "i": 3, "s": "orders", "o": position, "w": 60_000})
            answer = await peer.receive()
            assert time.monotonic() - began >= 1.95
            assert answer["n"] == position + 29
            # Who does not wait is not kept waiting, nor is who has only a moment.
            before = time.monotonic()
            stream.append([b"x"])
            peer.send({"k": "fetch", "i": 4, "s": "orders", "o": answer["n"]})
            assert (await peer.receive())["c"] == 1
            peer.send({"k": "fetch", "i": 5, "s": "orders", "o": answer["n"], "w": 5})
            assert (await peer.receive())["c"] == 1
            assert time.monotonic() - before < 1.5
        assert server.services.counters.fetches_total == 4


async def test_a_catching_up_consumer_is_not_slowed_down(broker: LogBroker) -> None:
    limits = PullLimits(linger_seconds=30)
    async with pull_server(broker, limits=limits) as (_, address):
        async with await RawPull.connect(address) as peer:
            position = 1
            while position < 101:
                peer.send({"k": "fetch", "i": 1, "s": "orders", "o": position, "m": 1, "w": 60_000})
                position = (await peer.receive())["n"]


class Piece:
    """A slice of a file."""

    first_offset, next_offset, record_count, position = 5, 9, 4, 2
    body = None

    def __init__(self, fd: int, length: int) -> None:
        self.fd = fd
        self.length = length
        self.released = False

    def release(self) -> None:
        self.released = True


def view_of(end: int) -> ReadView:
    """A log with that high watermark; no two are the same."""
    return ReadView(LogEnd(end, 0, 0, 0), (), cast(Any, None), cast(Any, None))


async def test_only_what_is_whole_short_and_at_the_end_is_kept(tmp_path: Any) -> None:
    need_nowait(tmp_path)
    group = tail_group(0)
    path = tmp_path / "file"
    path.write_bytes(b"..abcdef")
    fd = os.open(path, os.O_RDONLY)
    try:
        view = view_of(9)
        whole = group.take(Piece(fd, 6), view, 5, 100, None)
        assert whole == Tail(5, 9, 4, b"abcdef")
        assert group.recall(view, 5, 100, None) is whole
        assert group.recall(view_of(10), 5, 100, None) is None, "the stream has gone on"
        assert group.recall(view_of(9), 5, 100, None) is None, "it was compacted, for example"
        assert group.recall(view, 6, 100, None) is None
        for piece in (Piece(fd, 7), Piece(fd, tailing.MAX_TAIL_BYTES + 1)):
            assert group.take(piece, view, 1, 100, None) is piece, (
                "the file is shorter, or it is long"
            )
            assert not piece.released
        inside = Piece(fd, 6)
        assert group.take(inside, view_of(10), 1, 100, None) is inside
    finally:
        os.close(fd)


async def test_a_flood_makes_longer_pauses(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadShare, "is_flooded", True)
    loop = asyncio.get_running_loop()
    group = tail_group(LINGER / 5)
    began = time.monotonic()
    group.wait(stream, 1, lambda: None)
    stream.commit()
    await turns()
    again = loop.create_future()
    group.wait(stream, 1, lambda: again.set_result(time.monotonic()))
    assert await asyncio.wait_for(again, 10) - began >= 2 * LINGER * 0.99
    assert group.pause_seconds == pytest.approx(2 * LINGER)
