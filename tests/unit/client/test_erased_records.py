"""Clients of a stream with erased records get the other records, with an unchanged protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.clients.opened_client import Opened
from support.daemons.pull_broker import LogBroker

from liftlog.client import Filter, connect
from liftlog.log.erased import ErasedSet


def erase(broker: LogBroker, *ranges: tuple[int, int]) -> None:
    broker.streams["orders"].real_log.structure.erase(ErasedSet.of_ranges(ranges))


def left(*ranges: tuple[int, int], end: int = 101) -> list[int]:
    return [o for o in range(1, end) if not any(first <= o < stop for first, stop in ranges)]


async def offsets(client: Opened, **options: Any) -> list[int]:
    batches = await client.take(client.client.read_batches("orders", **options))
    return [one for batch in batches for one in batch.offsets()]


RANGES = [
    [(5, 6)],
    [(1, 2), (100, 101)],
    [(11, 31)],
    [(8, 14), (15, 16), (17, 99)],
    [(1, 101)],
    [(n, n + 1) for n in range(3, 100, 4)],
]


@pytest.mark.parametrize("ranges", RANGES)
async def test_reads(client: Opened, broker: LogBroker, ranges: list[tuple[int, int]]) -> None:
    erase(broker, *ranges)
    assert await offsets(client, start=1, until=101) == left(*ranges)
    assert await offsets(client, start=7, until=96) == [o for o in left(*ranges) if 7 <= o < 96]


async def test_filters(client: Opened, broker: LogBroker) -> None:
    erase(broker, *RANGES[5])
    found = await offsets(client, start=1, until=101, filter=Filter(subject="orders.*"))
    assert found == left(*RANGES[5])


@pytest.mark.parametrize("ranges", [[(91, 101)], [(97, 101)], [(50, 51), (96, 100)], [(1, 101)]])
async def test_a_reader_waits_behind_an_erased_end(
    address: str, broker: LogBroker, ranges: list[tuple[int, int]]
) -> None:
    """It neither loops nor misses the next record, and other readers share its reads."""
    erase(broker, *ranges)
    stream = broker.streams["orders"]
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(_follow(address, 103)) for _ in range(3)]
        await asyncio.sleep(0.3)
        reads = stream.log.reads
        await asyncio.sleep(0.3)
        assert stream.log.reads - reads < 20, "a waiting reader asks again and again"
        stream.append([b"a", b"b"])
    assert [reader.result() for reader in readers] == [left(*ranges, end=103)] * 3


async def _follow(address: str, stop: int) -> list[int]:
    found: list[int] = []
    async with await connect(address) as client:
        async for batch in client.read_batches("orders", start=1):
            found += batch.offsets()
            if batch.next_offset >= stop:
                break
    return found


async def test_what_is_erased_under_a_reader(address: str, broker: LogBroker) -> None:
    """After the answer, no read returns the record, even from shared memory."""
    stream = broker.streams["orders"]
    stream.append([b"last"])
    async with await connect(address) as client:
        for number in range(101, 95, -1):
            batches = [b async for b in client.read_batches("orders", start=90, until=102)]
            assert max(o for b in batches for o in b.offsets()) == number
            erase(broker, (number, number + 1))
