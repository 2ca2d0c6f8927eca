"""Fetches over a real socket, frame by frame."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.clients.raw_pull import RawPull
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.records.decode import iter_batches
from liftlog.records.encode import encode_batch


def fetch(request_id: int, start: int | str = 1, **more: Any) -> dict[str, Any]:
    return {"k": "fetch", "i": request_id, "s": "orders", "o": start, **more}


def offsets(answer: dict[str, Any]) -> list[int]:
    return [offset for batch in iter_batches(answer["body"]) for offset in batch.offsets()]


async def until(condition: Any) -> None:
    """Yield to the loop until `condition()` holds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_a_fetch_answers_the_bytes_of_the_log(broker: LogBroker) -> None:
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as peer:
        peer.send(fetch(7, 25, m=1 << 20))
        answer = await peer.receive()
        log = broker.streams["orders"].real_log
        body = answer.pop("body")
        assert answer == {
            "k": "data",
            "i": 7,
            "o": 25,
            "f": 21,
            "n": 101,
            "c": 80,
            "b": len(body),
            "h": 101,
            "l": 1,
            "g": 101,
            "e": 1,
            "x": log.incarnation,
        }
        with log.read(25, 1 << 20) or pytest.fail("nothing") as piece:
            assert body == piece.pread()
        assert server.services.counters.fetches_total == 1
        assert server.services.counters.body_bytes_total == len(body)
        observed = broker.streams["orders"].observed
        assert (observed.read_records, observed.read_bytes) == (80, len(body))


async def test_at_least_one_batch_and_no_more_than_asked(broker: LogBroker) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 1, m=1))
        assert offsets(await peer.receive()) == list(range(1, 11))
        peer.send(fetch(2, 11, c=20))
        assert offsets(await peer.receive()) == list(range(11, 31))


async def test_retention_that_passes_an_answer_takes_nothing_from_it(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader drops what lies below the log start of the header."""
    log = broker.streams["orders"].real_log
    read = log.read

    def read_late(*question: Any, **options: Any) -> Any:
        found = read(*question, **options)
        log.structure.remove_before(41, 1)
        return found

    monkeypatch.setattr(log, "read", read_late)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 11, c=50))
        answer = await peer.receive()
        assert offsets(answer) == list(range(11, 61))
        assert (answer["o"], answer["l"]) == (11, 11)
        peer.send(fetch(2, 61))
        assert (await peer.receive())["l"] == log.log_start_offset == 41


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", (1, 101)), ("latest", (101, 101)), (101, (101, 101))]
)
async def test_named_positions(
    broker: LogBroker, start: int | str, expected: tuple[int, int]
) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, start))
        answer = await peer.receive()
        assert (answer["o"], answer["n"]) == expected


async def test_a_start_by_time(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    later = time.time_ns() + 3_600_000_000_000
    stream.append([b"late"], timestamp_ns=later)
    stream.append([b"later"], timestamp_ns=later + 5_000_000_000)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        for stamp, expected in ((0, 1), (later, 101), (later + 1, 102), (later + 10**12, 103)):
            peer.send({"k": "fetch", "i": 1, "s": "orders", "t": stamp})
            assert (await peer.receive())["o"] == expected


@pytest.mark.parametrize("start", [0, 102, 10**15])
async def test_an_offset_outside_the_log_is_told_both_bounds(broker: LogBroker, start: int) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, start))
        answer = await peer.receive()
        assert (answer["k"], answer["n"]) == ("error", "OFFSET_OUT_OF_RANGE")
        assert answer["d"] == {"log_start_offset": 1, "log_end_offset": 101}


async def test_a_stream_created_anew_is_not_taken_for_the_old_one(broker: LogBroker) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 1, x="another"))
        assert (await peer.receive())["n"] == "STALE_INCARNATION"
        peer.send(fetch(2, 1, x=broker.streams["orders"].real_log.incarnation))
        assert (await peer.receive())["k"] == "data"
        peer.send(fetch(3, 1, e=2))
        assert (await peer.receive())["n"] == "DIVERGED"


async def test_a_reader_from_an_older_epoch_must_not_be_past_its_end(broker: LogBroker) -> None:
    log = broker.streams["orders"].real_log
    log.truncate_prefix(log.log_end_offset)
    for epoch, first, end in ((1, 1, 50), (3, 50, 70), (4, 70, 101)):
        values = [b"value %d" % offset for offset in range(first, end)]
        log.writer.append_raw(
            encode_batch(
                base_offset=first + 100,
                leader_epoch=epoch,
                commit_group=epoch,
                stamps=[(1, len(values))],
                subjects=[b"orders.new"] * len(values),
                values=values,
            )
        )
    log.commit_up_to(log.sync())
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        asked = [(1, 50, None), (1, 51, 50), (2, 51, 50), (3, 70, None), (3, 71, 70), (4, 99, None)]
        for epoch, start, end in asked:
            peer.send(fetch(1, start + 100, e=epoch))
            answer = await peer.receive()
            assert answer["k"] == ("data" if end is None else "error"), (epoch, start)
            if end is not None:
                assert answer["d"] == {"leader_epoch": 4, "epoch_end_offset": end + 100}


async def test_a_long_poll_is_woken_by_a_commit(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 101, w=60_000))
        await until(lambda: stream.waiters)
        stream.append([b"new"])
        answer = await peer.receive()
        assert offsets(answer) == [101]


async def test_a_long_poll_ends_empty_when_its_time_is_up(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        began = time.monotonic()
        peer.send(fetch(1, 101, w=80))
        answer = await peer.receive()
        assert 0.07 < time.monotonic() - began < 5
        assert (answer["n"], answer["c"], answer["b"]) == (101, 0, 0)
        assert all(future.cancelled() for _, future in stream.waiters)


async def test_min_bytes_waits_for_more_until_it_is_there(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 91, n=3000, w=60_000))
        await until(lambda: stream.waiters)
        stream.append([b"x" * 100])
        await until(lambda: stream.waiters)
        stream.append([b"y" * 5000])
        assert offsets(await peer.receive()) == [*range(91, 101), 101, 102]


async def test_a_parked_fetch_delays_only_its_own_stream(broker: LogBroker) -> None:
    other = broker.add("other")
    other.append([b"a"])
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 101, w=60_000))
        peer.send(fetch(2, 1))  # the same stream: behind the first
        peer.send({"k": "fetch", "i": 3, "s": "other", "o": 1})
        peer.send({"k": "ping", "i": 4})
        peer.send({"k": "list", "i": 5})
        assert [(await peer.receive())["i"] for _ in range(3)] == [3, 4, 5]
        broker.streams["orders"].append([b"new"])
        assert [(await peer.receive())["i"] for _ in range(2)] == [1, 2]


async def test_pipelined_fetches_of_a_stream_keep_their_order(broker: LogBroker) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        for request_id in range(1, 11):
            peer.send(fetch(request_id, request_id * 10 - 9, m=1))
        answers = [await peer.receive() for _ in range(10)]
        assert [answer["i"] for answer in answers] == list(range(1, 11))
        assert [offset for answer in answers for offset in offsets(answer)] == list(range(1, 101))


async def test_a_cancelled_fetch_makes_way_for_the_next(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 101, w=60_000))
        peer.send(fetch(2, 101, w=60_000))
        peer.send(fetch(3, 1))
        await until(lambda: stream.waiters)
        peer.send({"k": "cancel", "i": 2})
        answer = await peer.receive()
        assert (answer["i"], answer["n"]) == (2, "CANCELLED")
        peer.send({"k": "cancel", "i": 1})
        answer = await peer.receive()
        assert (answer["i"], answer["n"]) == (1, "CANCELLED")
        assert (await peer.receive())["i"] == 3
        peer.send({"k": "cancel", "i": 99})  # nothing of that id: ignored
        peer.send({"k": "ping", "i": 4})
        assert (await peer.receive())["k"] == "pong"


async def test_a_stream_deleted_under_a_waiting_fetch(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 101, w=60_000))
        await until(lambda: stream.waiters)
        await broker.delete_stream("orders")
        assert (await peer.receive())["n"] == "STREAM_NOT_FOUND"


async def test_a_defect_in_the_daemon_is_one_failed_request(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(*_: object) -> None:
        raise RuntimeError("secret path /var/lib")

    monkeypatch.setattr(broker.streams["orders"].log, "read", read)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1))
        answer = await peer.receive()
        assert answer["n"] == "INTERNAL"
        assert "secret" not in answer["m"]
        assert "secret path" in caplog.text
        peer.send({"k": "ping", "i": 2})
        assert (await peer.receive())["k"] == "pong"


async def test_a_hole_that_ends_at_the_high_watermark_is_passed(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.streams["orders"].log, "read", lambda *_: None)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 50, w=60_000))
        answer = await peer.receive()
        assert (answer["o"], answer["n"], answer["c"]) == (50, 101, 0)


@pytest.mark.parametrize("more", [{}, {"p": ["offset"]}])
async def test_whoever_wants_no_bytes_does_not_wait_for_any(
    broker: LogBroker, more: dict[str, Any]
) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 101, n=0, w=60_000) | more)
        async with asyncio.timeout(5):
            assert (await peer.receive())["n"] == 101
