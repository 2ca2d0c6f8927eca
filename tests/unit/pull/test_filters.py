"""Fetches with filters and columns, frame by frame."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from typing import Any

import pytest
from support.clients.raw_pull import RawPull
from support.daemons.pull_broker import LogBroker, LoggedStream, pull_server
from support.daemons.pull_inside import connections_of, unsent_bytes_of

from liftlog.errors import CorruptRange, UnsupportedFormat
from liftlog.log import Log
from liftlog.log.files.filesystem import OsFile
from liftlog.records.columns.selection import parse_selection
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.records.encode import EncodedBatch, encode_batch
from liftlog.records.header import parse_header
from liftlog.server.pull import limits
from liftlog.server.reading import filtering, pieces
from liftlog.server.reading.fairness import FairThreads
from liftlog.server.reading.scan import Scan

STAMP = 1_900_000_000_000_000_000
BLOCK = b"NATS/1.0\r\nKind: %b\r\n\r\n"


def fetch(request_id: int, start: int | str = 1, **more: Any) -> dict[str, Any]:
    return {"k": "fetch", "i": request_id, "s": "orders", "o": start, **more}


def batches(answer: dict[str, Any]) -> list[RecordBatch]:
    assert answer["k"] == "data", answer
    assert answer["q"] is True
    found = list(iter_batches(answer.get("body", b"")))
    # Whole batches that tile from `f` to `n`, as every answer has them.
    reached = answer["f"]
    for batch in found:
        assert batch.header.base_offset == reached
        reached = batch.next_offset
    assert reached == answer["n"] or not found
    assert answer["c"] == sum(len(batch) for batch in found)
    return found


def offsets(answer: dict[str, Any]) -> list[int]:
    return [offset for batch in batches(answer) for offset in batch.offsets()]


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def add_keyed(stream: LoggedStream, first: int, stop: int, *, step: int = 10) -> None:
    """Record n has the key n % 7, the subject orders.eu or orders.us, and a header Kind."""
    for start in range(first, stop, step):
        numbers = range(start, min(start + step, stop))
        stream.append(
            [b"value %d" % n for n in numbers],
            subject=b"orders.eu" if start // step % 2 else b"orders.us",
            keys=[b"%d" % (n % 7) for n in numbers],
            headers=[BLOCK % (b"odd" if n % 2 else b"even") for n in numbers],
        )


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"fk": [b"3"]}, lambda n: n % 7 == 3),
        ({"fk": [b"3", b"6", b"none"]}, lambda n: n % 7 in (3, 6)),
        ({"fs": ["*.eu"]}, lambda n: n // 10 % 2 == 1),
        ({"fs": ["orders.us", "none.>"]}, lambda n: n // 10 % 2 == 0),
        ({"fh": ["kind=odd"]}, lambda n: n % 2 == 1),
        ({"fh": ["KIND"], "fk": [b"0"]}, lambda n: n % 7 == 0),
        ({"fs": ["*.eu"], "fk": [b"1"], "fh": ["kind=even"]},
         lambda n: n // 10 % 2 == 1 and n % 7 == 1 and n % 2 == 0),
        ({"p": ["offset"]}, lambda n: True),
    ],
)  # fmt: skip
async def test_only_what_matches_is_sent(
    broker: LogBroker, asked: dict[str, Any], wanted: Any
) -> None:
    stream = broker.streams["orders"]
    add_keyed(stream, 110, 510)  # at offsets 101 to 500
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 101, m=1 << 20, **asked))
        answer = await peer.receive()
        assert (answer["o"], answer["n"], answer["h"]) == (101, 501, 501)
        assert offsets(answer) == [n - 9 for n in range(110, 510) if wanted(n)]
        # From inside a batch, and up to inside one: exactly those.
        peer.send(fetch(2, 255, c=100, **asked))
        answer = await peer.receive()
        assert answer["n"] == 355
        assert offsets(answer) == [n - 9 for n in range(264, 364) if wanted(n)]


async def test_columns_left_out_are_not_sent(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    stream.append([b"x" * 10_000, None], keys=[b"a", b"b"], headers=[BLOCK % b"one"] * 2)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 101, p=["offset", "key"]))
        answer = await peer.receive()
        (batch,) = batches(answer)
        assert answer["b"] < 300
        assert batch.keys() == [b"a", b"b"]
        assert batch.values() == [b"", None]
        assert (batch.subjects(), batch.headers()) == (["", ""], [b"", b""])
        assert batch.timestamps_ns() == [0, 0]


@pytest.mark.parametrize(
    "asked",
    [
        {"fs": []},
        {"fk": []},
        {"fh": []},
        {"p": []},
        {"fs": ["a..b"]},
        {"fh": ["a b"]},
        {"p": ["x"]},
    ],
)
async def test_what_is_no_filter_is_refused(broker: LogBroker, asked: dict[str, Any]) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 1, **asked))
        answer = await peer.receive()
        assert (answer["k"], answer["n"]) == ("error", "INVALID_ARGUMENT")
        peer.send({"k": "ping", "i": 2})
        assert (await peer.receive())["k"] == "pong"


async def test_an_answer_is_bounded_and_says_where_to_go_on(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    for _ in range(20):
        stream.append([b"x" * 1000] * 50, keys=[b"k"] * 50)  # 101 to 1100
    stream.append([b"y" * 50_000], keys=[b"k"])
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        position, seen = 101, []
        while position < 1102:
            peer.send(fetch(1, position, m=30_000, fk=[b"k"]))
            answer = await peer.receive()
            found = offsets(answer)
            assert found
            assert answer["b"] <= 30_000 or len(found) == 1
            assert answer["n"] > position
            position = answer["n"]
            seen += found
        assert seen == list(range(101, 1102))


async def test_a_bounded_amount_is_looked_at_for_one_answer(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = broker.streams["orders"]
    for _ in range(40):
        stream.append([b"x" * 1000] * 10)
    stream.append([b"wanted"], keys=[b"k"])  # offset 501
    monkeypatch.setattr(filtering, "SCAN_BYTES", 100_000)
    monkeypatch.setattr(filtering, "_READ_BYTES", 20_000)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        position, answers = 1, 0
        while True:
            peer.send(fetch(1, position, fk=[b"k"], w=60_000))
            answer = await peer.receive()
            answers += 1
            assert answer["n"] > position, "no progress"
            position = answer["n"]
            if answer["c"]:
                break
            assert answer["b"] == 0
        assert offsets(answer) == [501]
        assert 4 <= answers <= 8


async def test_a_slow_scan_ends_after_its_time_but_not_without_progress(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "SCAN_SECONDS", 0)
    monkeypatch.setattr(filtering, "_READ_BYTES", 500)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        position, seen, answers = 1, [], 0
        while position < 101:
            peer.send(fetch(1, position, p=["offset"]))
            answer = await peer.receive()
            seen += offsets(answer)
            position = answer["n"]
            answers += 1
        assert seen == list(range(1, 101))
        assert answers >= 5


async def test_a_slow_scan_ends_inside_what_it_read_at_once(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a MiB of compressed batches may be half a GiB to look at."""
    monkeypatch.setattr(filtering, "SCAN_SECONDS", 0)
    stream = broker.streams["orders"]
    for number in range(20):
        stream.append([b"x" * 6000], keys=[b"%d" % (number % 2)])
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        position, seen, answers = 101, [], 0
        while position < 121:
            peer.send(fetch(1, position, m=1 << 20, fk=[b"1"]))
            answer = await peer.receive()
            seen += offsets(answer)
            position = answer["n"]
            answers += 1
        assert seen == list(range(102, 121, 2))
        assert answers == 20


async def test_a_scan_is_short_while_another_principal_waits_for_the_thread(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "SCAN_SECONDS", 60)
    monkeypatch.setattr(filtering, "SHARED_SECONDS", 0)
    monkeypatch.setattr(filtering, "_READ_BYTES", 500)
    log = broker.streams["orders"].log
    scan = Scan(1, None, 1 << 20, parse_selection(columns=["offset"]))
    threads, gate = FairThreads(1, "test"), threading.Event()
    threads.of("gate").submit(gate.wait, 60)
    contested = threads.of("reader").submit(filtering.scan_log, log, scan)
    threads.of("other").submit(int)
    gate.set()
    found = contested.result(60)
    assert 1 < found.next_offset < 101
    assert not found.caught_up
    alone = threads.of("reader").submit(filtering.scan_log, log, scan)
    assert alone.result(60).next_offset == 101
    threads.shutdown()


async def test_a_slow_scan_ends_among_many_tiny_batches(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of messages of synchronous publishers are read at once."""
    monkeypatch.setattr(filtering, "SCAN_SECONDS", 0)
    stream = broker.streams["orders"]
    start = stream.log.high_watermark
    for _ in range(1200):
        stream.append([b"x"])
    selection = parse_selection(columns=["offset"])
    found = filtering.scan_log(stream.log, Scan(start, None, 1 << 20, selection))
    assert start < found.next_offset <= start + 512


async def test_a_filtered_long_poll_sleeps_through_what_does_not_match(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 101, fk=[b"k"], w=60_000))
        for number in range(5):
            await until(lambda: stream.waiters)
            reads = stream.log.reads
            stream.append([b"no"], keys=[b"other %d" % number])
            await until(lambda reads=reads: stream.log.reads > reads)
        await until(lambda: stream.waiters)
        assert server.services.counters.fetches_total == 0
        stream.append([b"no", b"yes"], keys=[b"other", b"k"])
        answer = await peer.receive()
        assert (answer["o"], answer["n"]) == (101, 108)
        assert offsets(answer) == [107]


async def test_a_filtered_long_poll_ends_with_what_it_has_passed(broker: LogBroker) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        began = time.monotonic()
        peer.send(fetch(1, 1, fk=[b"k"], w=80))
        answer = await peer.receive()
        assert 0.07 < time.monotonic() - began < 5
        assert (answer["o"], answer["f"], answer["n"], answer["c"]) == (1, 1, 101, 0)


async def test_cancel_and_close_while_a_thread_looks(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    began, go_on = asyncio.Event(), asyncio.Event()
    real = filtering.scan_log

    calls = 0

    def slow(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
        if calls == 1:
            raise CorruptRange("for the cancelled one", first_offset=1, next_offset=2)
        return real(*arguments)

    monkeypatch.setattr("liftlog.server.pull.fetches.scan_log", slow)
    async with pull_server(broker) as (_, address):
        async with await RawPull.connect(address) as peer:
            peer.send(fetch(1, 1, fk=[b"k"], w=60_000))
            await began.wait()
            peer.send({"k": "cancel", "i": 1})
            assert (await peer.receive())["n"] == "CANCELLED"
            peer.send(fetch(2, 1, p=["offset"]))
            peer.send({"k": "ping", "i": 3})
            assert (await peer.receive())["k"] == "pong", "the loop waits for the thread"
            go_on.set()
            assert offsets(await peer.receive()) == list(range(1, 101))
            began.clear()
            go_on.clear()
            peer.send(fetch(4, 1, fk=[b"k"]))
            await began.wait()
        go_on.set()  # the client is gone


async def test_fetches_that_are_cancelled_leave_no_work_behind(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a client that asks and cancels, again and again, occupies the thread for hours."""
    loop = asyncio.get_running_loop()
    go_on, begun = threading.Event(), []
    real = filtering.scan_log

    def slow(*arguments: Any) -> Any:
        begun.append(arguments)
        assert go_on.wait(10)
        return real(*arguments)

    monkeypatch.setattr("liftlog.server.pull.fetches.scan_log", slow)
    broker.add("other").append([b"value"])
    async with pull_server(broker) as (_, address):
        async with await RawPull.connect(address) as peer:
            for request_id in range(1, 101):
                stream = "orders" if request_id % 2 else "other"
                peer.send(fetch(request_id, 1, s=stream, fk=[b"k"]))
                peer.send({"k": "cancel", "i": request_id})
                assert (await peer.receive())["n"] == "CANCELLED"
            peer.send(fetch(101, 1, p=["offset"]))
            await until(lambda: begun)
            async with await RawPull.connect(address) as gone:
                gone.send(fetch(1, 1, fk=[b"k"]))
                gone.send({"k": "ping", "i": 2})
                assert (await gone.receive())["k"] == "pong"
            peer.send({"k": "ping", "i": 102})
            assert (await peer.receive())["k"] == "pong", "the other connection is closed by now"
            loop.call_soon(go_on.set)
            assert offsets(await peer.receive()) == list(range(1, 101))
    assert len(begun) <= 2, "the first, which had begun, and the one that was not cancelled"


async def test_what_was_found_in_a_stream_that_is_gone_says_nothing_of_a_new_one(
    broker: LogBroker,
) -> None:
    old = broker.streams["orders"]
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 1, fk=[b"k"], w=60_000))
        await until(lambda: old.waiters)
        new = broker.add("recreated")
        broker.streams["orders"] = broker.streams.pop("recreated")
        new.append([b"value %d" % n for n in range(150)], keys=[b"k", *[None] * 149])
        old.wake(everyone=True)
        assert offsets(await peer.receive()) == [1]
    old.real_log.close()


def flip(stream: LoggedStream, offset: int, *, at: int) -> None:
    """Damage the batch of `offset`: the byte `at` of its header, or of its body from 64 on."""
    log = stream.real_log
    with log.read(offset, 1) or pytest.fail("nothing") as piece:
        position = piece.position
        assert parse_header(piece.pread()).base_offset == offset
    (path,) = log.directory.glob("*.log")
    with path.open("r+b") as file:
        file.seek(position + at)
        byte = file.read(1)[0]
        file.seek(position + at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("at", [70, 20, 60, 0])
async def test_damage_ends_an_answer_and_begins_the_next(broker: LogBroker, at: int) -> None:
    stream = broker.streams["orders"]
    flip(stream, 31, at=at)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        for asked in ({"p": ["offset"]}, {"fs": ["nothing"]}):
            peer.send(fetch(1, 1, **asked))
            answer = await peer.receive()
            assert answer["n"] == 31
            assert offsets(answer) == (list(range(1, 31)) if "p" in asked else [])
            for start in (31, 35):
                peer.send(fetch(2, start, **asked))
                error = await peer.receive()
                assert (error["k"], error["n"]) == ("error", "CORRUPT_RANGE")
                bounds = error["d"]
                assert (bounds["first_offset"], bounds["next_offset"]) == (start, 41)
            peer.send(fetch(3, 41, **asked))
            assert (await peer.receive())["n"] == 101


async def test_a_file_that_ends_early_is_damage(broker: LogBroker) -> None:
    log = broker.streams["orders"].real_log
    os.truncate(log.segments[-1].path, 100)  # inside of the first batch
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 1, p=["offset"]))
        error = await peer.receive()
        assert (error["n"], error["d"]["first_offset"]) == ("CORRUPT_RANGE", 1)
        assert log.is_quarantined(1, error["d"]["next_offset"])


@pytest.mark.parametrize("error", [errno.EIO, errno.EBADMSG])
async def test_a_disk_that_cannot_read_is_damage(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    log = broker.streams["orders"].real_log

    def fails(file: OsFile, length: int, position: int) -> bytes:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(OsFile, "pread", fails)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 1, p=["offset"]))
        told = await peer.receive()
        assert (told["n"], told["d"]["first_offset"]) == ("CORRUPT_RANGE", 1)
        assert log.is_quarantined(1, told["d"]["next_offset"])


async def test_epochs_are_not_mixed(broker: LogBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = broker.streams["orders"]
    monkeypatch.setattr(Log, "leader_epoch", 2)
    stream.append([b"a", b"b"], timestamp_ns=STAMP)
    stream.append([b"c"], timestamp_ns=STAMP)
    monkeypatch.setattr(Log, "leader_epoch", 3)
    stream.append([b"d", b"e"], timestamp_ns=STAMP)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 95, fs=[">"]))
        found = batches(await peer.receive())
        assert [batch.header.leader_epoch for batch in found] == [1, 2, 3]
        assert [list(batch.offsets()) for batch in found] == [
            list(range(95, 101)), [101, 102, 103], [104, 105],
        ]  # fmt: skip


async def test_what_lies_in_memory_unsent_is_bounded(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = broker.streams["orders"]
    unsent: list[int] = []
    real = filtering.scan_log

    def watched(*arguments: Any) -> Any:
        unsent.extend(map(unsent_bytes_of, connections_of(server)))
        return real(*arguments)

    monkeypatch.setattr("liftlog.server.pull.fetches.scan_log", watched)
    for _ in range(30):
        stream.append([b"x" * 10_000] * 50)
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as peer:
        for request_id in range(1, 41):
            peer.send(fetch(request_id, 101, m=8 << 20, fs=[">"]))
        await until(lambda: server.connection_count)
        (connection,) = connections_of(server)
        await until(lambda: unsent_bytes_of(connection) >= limits.ENCODED_UNSENT_BYTES)
        for request_id in range(1, 41):  # and all are answered once the client reads
            answer = await peer.receive()
            assert answer["i"] == request_id
            assert 900_000 < answer["b"] <= filtering.MAX_ANSWER_BYTES
        assert len(unsent) == 40
        assert max(unsent) < limits.ENCODED_UNSENT_BYTES, "made while enough waits to be sent"


async def test_records_that_cannot_be_decompressed_here(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> RecordBatch:
        raise UnsupportedFormat("zstd needs zstandard")

    monkeypatch.setattr(pieces, "decode_batch", cannot)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, fk=[b"k"]))
        answer = await peer.receive()
        assert (answer["n"], "zstandard" in answer["m"]) == ("STREAM_UNAVAILABLE", True)
        peer.send(fetch(2))
        assert (await peer.receive())["k"] == "data", "whole batches are the client's business"


async def test_columns_of_batches_of_all_sizes(broker: LogBroker) -> None:
    """Large batches are taken whole, small ones put together, and part of a batch is cut out."""
    stream = broker.streams["orders"]
    sizes = [300, 1, 2, 3, 300, 300, 1, 300] * 3
    for size in sizes:
        numbers = range(size)
        stream.append(
            [b"x" * 100 if n % 5 else None for n in numbers], keys=[b"%d" % n for n in numbers]
        )
    end = 101 + sum(sizes)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        for first, stop, most in ((101, end, 1 << 20), (150, end - 50, 1 << 20), (102, end, 4000)):
            position, seen, values = first, [], []
            while position < stop:
                peer.send(fetch(1, position, p=["offset"], m=most, c=stop - position))
                answer = await peer.receive()
                assert answer["b"] <= most
                assert answer["n"] > position
                seen += offsets(answer)
                values += [value for batch in batches(answer) for value in batch.values()]
                position = answer["n"]
            assert seen == list(range(first, stop))
            expected = [b"" if n % 5 else None for size in sizes for n in range(size)]
            assert values == expected[first - 101 : stop - 101]


async def test_columns_of_what_compaction_left(broker: LogBroker) -> None:
    """Batches without records, and with offsets that nothing has, beside whole ones."""
    log, at = broker.streams["orders"].real_log, 101
    expected = []
    for count, size in [
        (0, 7),
        (200, 200),
        (0, 5),
        (0, 3),
        (200, 350),
        (3, 40),
        (200, 200),
        (0, 9),
    ]:
        last = at + size - 1
        offsets_of_batch = [last - 2 * i for i in range(count)][::-1] if size > 2 * count else None
        data = encode_batch(
            base_offset=at,
            leader_epoch=log.leader_epoch,
            commit_group=log.writer.commit_group,
            stamps=[(STAMP, count)] if count else [],
            subjects=[b"orders.eu"] * count,
            values=[b"x" * 100] * count,
            offsets=offsets_of_batch,
            last_offset=last,
        )
        expected += offsets_of_batch or range(at, at + count)
        log.append([EncodedBatch(data, at, last + 1, count, STAMP, STAMP)])
        at = last + 1
    log.sync()
    broker.streams["orders"].commit()
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        for most in (1 << 20, 2000):
            position, seen = 101, []
            while position < at:
                peer.send(fetch(1, position, p=["offset", "timestamp"], m=most))
                answer = await peer.receive()
                assert answer["n"] > position
                assert answer["f"] >= position
                seen += offsets(answer)
                position = answer["n"]
            assert seen == expected


async def test_columns_end_before_damage(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    for _ in range(3):
        stream.append([b"x" * 100] * 200)  # 101 to 700
    path = stream.real_log.directory / "00000000000000000001.log"
    raw = bytearray(path.read_bytes())
    raw[-30_000] ^= 1  # of a value in the middle one, which is not sent
    path.write_bytes(raw)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 101, p=["offset"]))
        assert offsets(await peer.receive()) == list(range(101, 301))
        peer.send(fetch(2, 301, p=["offset"]))
        answer = await peer.receive()
        assert (answer["n"], answer["d"]) == (
            "CORRUPT_RANGE",
            {"first_offset": 301, "next_offset": 501},
        )
        peer.send(fetch(3, 501, p=["offset"]))
        assert offsets(await peer.receive()) == list(range(501, 701))
