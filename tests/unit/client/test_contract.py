"""The promises of the clients, over a real socket. Every test runs for both clients."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.pull_broker import LogBroker

from liftlog import errors
from liftlog.client import connect

if TYPE_CHECKING:
    from tests.unit.client.conftest import Both
else:
    Both = Any


def values(first: int, stop: int) -> list[bytes]:
    return [b"value %d" % offset for offset in range(first, stop)]


async def test_streams_are_created_described_listed_and_deleted(both: Both) -> None:
    created = await both.call(
        "create_stream", "new", subject="new.>", retention={"max_messages": 1000}
    )
    assert (created.name, created.subject, created.state) == ("new", "new.>", "attached")
    assert created.settings == {"subject": "new.>", "retention": {"max_messages": 1000}}
    again = await both.call("create_stream", "new", "new.>", retention={"max_messages": 1000})
    assert again.incarnation == created.incarnation
    with pytest.raises(errors.Conflict) as raised:
        await both.call("create_stream", "new", subject="other")
    assert raised.value.details == {"differences": ["subject"]}
    assert [one.name for one in await both.call("list_streams")] == ["new", "orders"]
    await both.call("delete_stream", "new")
    with pytest.raises(errors.StreamNotFound):
        await both.call("describe_stream", "new")


async def test_describe_tells_where_the_log_stands(both: Both) -> None:
    info = await both.call("describe_stream", "orders")
    assert (info.log_start_offset, info.high_watermark, info.log_end_offset) == (1, 101, 101)
    assert info.size_bytes > 0
    assert info.segment_count == 1
    assert len(info.incarnation) == 32


async def test_ping(both: Both) -> None:
    await both.call("ping")


async def test_records_come_with_all_that_was_stored(both: Both, broker: LogBroker) -> None:
    broker.streams["orders"].append(
        [b"paid", None],
        timestamp_ns=time.time_ns() // 1000 * 1000 + 5_000_000,
        subject=b"orders.eu",
        keys=[b"k1", b"k2"],
        headers=[b"NATS/1.0\r\nA: b\r\n\r\n", b""],
    )
    paid, deleted = await both.records("orders", start=101, until="end")
    assert (paid.offset, paid.subject, paid.key, paid.value) == (101, "orders.eu", b"k1", b"paid")
    assert dict(paid.headers) == {"A": "b"}
    assert abs(paid.timestamp_ns - time.time_ns()) < 60_000_000_000
    assert (deleted.offset, deleted.key, deleted.value) == (102, b"k2", None)


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        ("earliest", "end", (1, 101)),
        (1, "end", (1, 101)),
        (37, "end", (37, 101)),
        (37, 44, (37, 44)),
        (40, 41, (40, 41)),
        (31, 41, (31, 41)),
        ("earliest", 101, (1, 101)),
        ("earliest", 1, (1, 1)),
        (50, 50, (50, 50)),
        (50, 20, (50, 50)),
        (101, "end", (101, 101)),
        (101, 101, (101, 101)),
        ("latest", "end", (101, 101)),
        ("latest", 50, (101, 101)),
    ],
)
@pytest.mark.parametrize("fetch_bytes", [4096, 1 << 20])
async def test_exactly_the_asked_range_is_read(
    both: Both, start: Any, until: Any, expected: tuple[int, int], fetch_bytes: int
) -> None:
    records = await both.records("orders", start=start, until=until, fetch_bytes=fetch_bytes)
    assert [record.offset for record in records] == list(range(*expected))
    assert [record.value for record in records] == values(*expected)
    batches = await both.batches("orders", start=start, until=until, fetch_bytes=fetch_bytes)
    assert [value for batch in batches for value in batch.values()] == values(*expected)
    assert all(len(batch) for batch in batches)
    assert sum(map(len, batches)) == expected[1] - expected[0]
    if batches:
        assert batches[0].base_offset == expected[0]


async def test_a_start_by_time(both: Both, broker: LogBroker) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    stamp = int(moment.timestamp()) * 1_000_000_000
    moment = moment.replace(microsecond=0)
    broker.streams["orders"].append([b"late"], timestamp_ns=stamp)
    broker.streams["orders"].append([b"later"], timestamp_ns=stamp + 1_000_000_000)
    for start, expected in (
        (moment, [b"late", b"later"]),
        (moment.astimezone().replace(tzinfo=None), [b"late", b"later"]),
        (moment + timedelta(microseconds=1), [b"later"]),
        (moment + timedelta(days=1), []),
    ):
        records = await both.records("orders", start=start, until="end")
        assert [record.value for record in records] == expected
    assert len(await both.records("orders", start=datetime(1960, 1, 1), until="end")) == 102


async def test_end_is_the_high_watermark_at_the_call(address: str, broker: LogBroker) -> None:
    """Batches appended during the read are not part of it, however slow the reader is."""
    seen = 0
    async with connect(address) as client:
        async for batch in client.read_batches("orders", until="end", fetch_bytes=4096):
            seen += len(batch)
            broker.streams["orders"].append([b"new"] * 10)
    assert seen == 100


async def test_reading_across_segments(both: Both, broker: LogBroker) -> None:
    object.__setattr__(broker.config, "segment_max_bytes", 20_000)
    stream = broker.add("rolled")
    for i in range(50):
        stream.append([b"%d" % i * 1000])
    assert stream.real_log.segment_count > 3
    for fetch_bytes in (4096, 1 << 20):
        records = await both.records("rolled", until="end", fetch_bytes=fetch_bytes)
        assert [record.offset for record in records] == list(range(1, 51))


async def test_reading_tails_the_stream(both: Both, broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    reading = asyncio.create_task(both.records("orders", start=99, until=105))
    async with asyncio.timeout(10):
        for offset in range(101, 105):
            while all(future.done() for _, future in stream.waiters):
                await asyncio.sleep(0.001)
            stream.append([b"value %d" % offset])
        assert [record.value for record in await reading] == values(99, 105)


async def test_the_low_level_fetch(both: Both) -> None:
    answer = await both.call("fetch", "orders", 15, max_bytes=1)
    assert (answer.header.first_offset, answer.next_offset, answer.high_watermark) == (11, 21, 101)
    (batch,) = answer.batches()
    assert list(batch.offsets()) == [15, 16, 17, 18, 19, 20]
    assert len(answer) == answer.header.body_length
    empty = await both.call("fetch", "orders", "latest", max_wait_ms=10)
    assert (len(empty), list(empty.batches())) == (0, [])


async def test_fetch_states_what_the_caller_knows(both: Both) -> None:
    with pytest.raises(errors.StaleIncarnation):
        await both.call("fetch", "orders", 1, incarnation="old")
    with pytest.raises(errors.Diverged):
        await both.call("fetch", "orders", 1, epoch=9)


@pytest.mark.parametrize("start", [0, 102])
async def test_an_offset_outside_the_log(both: Both, start: int) -> None:
    with pytest.raises(errors.OffsetOutOfRange) as raised:
        await both.records("orders", start=start, until="end")
    assert raised.value.details == {"log_start_offset": 1, "log_end_offset": 101}


async def test_unknown_streams_and_bad_names(both: Both) -> None:
    for name, expected in (("nothing", errors.StreamNotFound), ("../x", errors.InvalidArgument)):
        with pytest.raises(expected):
            await both.records(name, until="end")
        with pytest.raises(expected):
            await both.call("fetch", name)
    await both.call("ping")


@pytest.mark.parametrize("start", [-1, "first", 1.5, None, True, b"earliest"])
async def test_a_start_that_is_no_position(both: Both, start: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="is not a position"):
        await both.records("orders", start=start)


@pytest.mark.parametrize("until", [-1, "latest", 1.5, True])
async def test_an_end_that_is_no_position(both: Both, until: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="is not a position"):
        await both.records("orders", until=until)


async def test_a_stream_created_anew_under_a_reader(both: Both, broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    reading = asyncio.create_task(both.records("orders", start=95))
    async with asyncio.timeout(10):
        while not stream.waiters:
            await asyncio.sleep(0.001)
        stream.real_log.close()
        broker.directory /= "again"
        broker.directory.mkdir()
        broker.add("orders").append([b"other data"] * 200)
        stream.wake(everyone=True)
        with pytest.raises(errors.StaleIncarnation):
            await reading


def damage(broker: LogBroker, batch_number: int, position_in_batch: int) -> None:
    """Flip a bit of the given batch of `orders` on disk."""
    stream = broker.streams["orders"]
    with stream.real_log.read(1, 1 << 20) or pytest.fail("nothing to damage") as piece:
        data = bytearray(piece.pread())
    position = 0
    for _ in range(batch_number):
        position += int.from_bytes(data[position + 4 : position + 8], "little")
    path = stream.real_log.segments[-1].path
    with path.open("r+b") as file:
        file.seek(position + position_in_batch)
        file.write(bytes([data[position + position_in_batch] ^ 4]))


async def read_until_corrupt(both: Both) -> tuple[list[int], errors.CorruptRange]:
    seen: list[int] = []
    with pytest.raises(errors.CorruptRange) as raised:
        await both.offsets("orders", until="end", into=seen)
    return seen, raised.value


async def test_a_damaged_batch_costs_itself_only(both: Both, broker: LogBroker) -> None:
    damage(broker, 3, 100)
    seen, error = await read_until_corrupt(both)
    assert seen == list(range(1, 31))
    assert (error.first_offset, error.next_offset) == (31, 41)
    assert "start=41" in str(error)
    rest = await both.records("orders", start=error.next_offset, until="end")
    assert [record.offset for record in rest] == list(range(41, 101))


async def test_leaving_a_read_early_leaves_the_connection_usable(both: Both) -> None:
    for _ in range(100):
        assert (await both.step("first", both.client.read_batches("orders"))).base_offset == 1
        record = await both.step("first", both.client.read("orders", fetch_bytes=4096))
        assert record.offset == 1
    assert len(await both.records("orders", until="end")) == 100


async def test_several_reads_share_a_connection(both: Both, broker: LogBroker) -> None:
    if both.blocking:
        first = both.client.read("orders", until="end")
        second = both.client.read("orders", start=50, until="end")

        def zipped() -> list[tuple[int, int]]:
            both.client.ping()
            return [(a.offset, b.offset) for a, b in zip(first, second, strict=False)]

        assert await asyncio.to_thread(zipped) == [(n, n + 49) for n in range(1, 52)]
        return
    all_records = await asyncio.gather(
        *(both.records("orders", start=n, until="end") for n in range(1, 101))
    )
    assert [len(records) for records in all_records] == list(range(100, 0, -1))


async def test_values_handed_out_stay_as_they_were(both: Both, broker: LogBroker) -> None:
    """Buffers are reused, but not while a view into them exists."""
    stream = broker.add("large")
    for i in range(24):
        stream.append([bytes([i]) * 100_000] * 3)
    views = [
        view
        for batch in await both.batches("large", until="end", fetch_bytes=300_000)
        for view in batch.value_views()
    ]
    assert [bytes(view[:1]) * 100_000 == view for view in views] == [True] * 72
    assert [view[0] for view in views] == [i // 3 for i in range(72)]


async def test_read_ahead_is_bounded(both: Both, broker: LogBroker) -> None:
    stream = broker.add("large")
    for _ in range(40):
        stream.append([b"x" * 100_000])
    reads = await both.step(
        "ping_amid_a_read", both.client, stream.log, 20, "large",
        fetch_bytes=100_000, read_ahead_bytes=500_000, until="end",
    )  # fmt: skip
    assert 5 <= reads <= 8


async def test_a_long_request_while_many_answers_are_on_their_way(
    both: Both, broker: LogBroker
) -> None:
    """Neither side may wait for the other to read first."""
    stream = broker.add("large")
    for _ in range(60):
        stream.append([b"x" * 1_000_000])
    settings = {"subject": "n", "note": "x" * 1_000_000}

    async with asyncio.timeout(20):
        rest = await both.step("create_amid_reads", both.client, "large", settings)
    assert rest == 4 * 59
