"""Filters and columns in both clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.pull_broker import LogBroker

from liftlog.client import Filter, connect
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.errors import InvalidArgument, UnsupportedVersion
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import Fetch, FetchHeader

if TYPE_CHECKING:
    from tests.unit.client.conftest import Both
else:
    Both = Any

BLOCK = b"NATS/1.0\r\nKind: %b\r\n\r\n"


@pytest.fixture
def keyed(broker: LogBroker) -> LogBroker:
    """Yield a broker with the offsets 101 to 1100, the keys 0 to 9 in turn, and the header Kind on
    every tenth record."""
    stream = broker.streams["orders"]
    for first in range(101, 1101, 50):
        numbers = range(first, first + 50)
        stream.append(
            [b"value %d" % n for n in numbers],
            subject=b"orders.eu.%d" % (first // 50 % 2),
            keys=[b"%d" % (n % 10) for n in numbers],
            headers=[BLOCK % b"tenth" if n % 10 == 0 else b"" for n in numbers],
        )
    return broker


@pytest.mark.parametrize("until", ["end", 1001])
async def test_a_read_with_a_filter(keyed: LogBroker, both: Both, until: Any) -> None:
    stop = 1101 if until == "end" else 1001
    found = await both.records("orders", 150, until, filter=Filter(key=b"3"))
    assert [record.offset for record in found] == [n for n in range(150, stop) if n % 10 == 3]
    assert {record.value for record in found} == {b"value %d" % record.offset for record in found}
    found = await both.records(
        "orders", filter=Filter(subject="*.eu.1", key=[b"0", b"5"], header="kind=tenth"),
        until=until,
    )  # fmt: skip
    assert [record.offset for record in found] == [
        n for n in range(101, stop) if n % 10 == 0 and (n - 101) // 50 % 2 == 1
    ]
    assert found
    assert await both.records("orders", until=until, filter=Filter(key=b"none")) == []


async def test_columns(keyed: LogBroker, both: Both) -> None:
    found = await both.records("orders", 101, "end", columns=["key"], filter=Filter(key=b"7"))
    assert [record.offset for record in found] == list(range(107, 1101, 10))
    assert {record.key for record in found} == {b"7"}
    assert {(record.value, record.subject, record.timestamp_ns) for record in found} == {
        (b"", "", 0)
    }
    answer = await both.call("fetch", "orders", 101, columns=["offset"])
    assert answer.next_offset == 1101
    assert len(answer) < 5 * 1000  # an end of an empty value per record, and little else
    assert [offset for batch in answer.batches() for offset in batch.offsets()] == list(
        range(101, 1101)
    )


async def test_a_filtered_read_tails(keyed: LogBroker, address: str) -> None:
    stream = keyed.streams["orders"]
    async with connect(address) as client:
        reading = client.read("orders", "latest", filter=Filter(key=b"k"))
        first = asyncio.ensure_future(anext(reading))
        async with asyncio.timeout(10):
            while not stream.waiters:
                await asyncio.sleep(0)
            stream.append([b"no"], keys=[b"j"])
            stream.append([b"yes"], keys=[b"k"])
            assert (await first).value == b"yes"


@pytest.mark.parametrize(
    "options",
    [
        {"filter": Filter(key=[])},
        {"filter": Filter(key="text")},
        {"filter": Filter(subject=b"bytes")},  # type: ignore[arg-type]  # as said
        {"filter": Filter(header=[])},
        {"columns": ["valeu"]},
        {"columns": "value"},
        {"filter": Filter(subject="a..b")},
    ],
)
async def test_what_cannot_be_meant_is_refused(both: Both, options: Any) -> None:
    with pytest.raises(InvalidArgument):
        await both.records("orders", until="end", **options)
    with pytest.raises(InvalidArgument):
        await both.call("fetch", "orders", **options)


def test_an_old_daemon_that_ignores_the_filter_is_noticed() -> None:
    """The old daemon does not support filters, and answers with whole batches."""
    asked: list[Exchange] = []

    class Daemon:
        def request(self, message: Fetch, exchange: Exchange) -> None:
            assert message.filter_keys == [b"k"]
            asked.append(exchange)

        def give_up(self, exchange: Exchange) -> None: ...

    ahead = ReadAhead(Daemon(), "orders", 1, "end", filter=Filter(key=b"k"))
    assert ahead.next_batch() is None
    header = FetchHeader(1, 1, 101, 100, 101, 1, 101, 1, "abc", 0)
    asked[0].on_header(header)  # type: ignore[misc]  # it is there
    asked[0].finish(header, None)
    with pytest.raises(UnsupportedVersion):
        ahead.next_batch()
