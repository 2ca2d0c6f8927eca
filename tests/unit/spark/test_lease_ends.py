"""The lease of a batch read is released at its end, and delays retention only briefly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_cleaning import Cleaning

from liftlog.client import LeaseInfo, connect_sync
from liftlog.errors import DiskFull, LeaseGone, LimitExceeded, OffsetOutOfRange
from liftlog.server.pull import PullServer
from liftlog.server.streams.retention import decide_retention, remove_decided
from liftlog.spark import decoder
from liftlog.spark import leases as lease_module
from liftlog.spark.daemon_transport import DaemonTransport
from liftlog.spark.options import ScanOptions, parse_options
from liftlog.spark.scan import open_transport, plan, read
from liftlog.spark.transport import Losses, ScanRange

KEYS = 20
RECORDS = 400


@pytest.fixture
async def cleaning(tmp_path: Path) -> AsyncIterator[Cleaning]:
    cleaning = Cleaning(tmp_path)
    await cleaning.stream("in", RECORDS, KEYS)
    await cleaning.stream("plain", RECORDS, KEYS, compaction=None)
    yield cleaning
    await cleaning.close()


@pytest.fixture
async def address(cleaning: Cleaning) -> AsyncIterator[str]:
    server = PullServer(cleaning.running.broker)
    (address,) = await server.start(["tcp://127.0.0.1:0"])
    yield address
    await server.close(grace=0.5)


def options(address: str, stream: str, **more: str) -> ScanOptions:
    given = {"server": address, "stream": stream, "targetPartitionBytes": "4096"}
    return parse_options(given | more)


async def planned(chosen: ScanOptions) -> list[ScanRange]:
    return await asyncio.to_thread(plan, chosen)


async def rows(chosen: ScanOptions, wanted: ScanRange) -> list[dict[str, Any]]:
    def collect() -> list[dict[str, Any]]:
        return [row for made in read(chosen, wanted) for row in made.to_pylist()]

    return await asyncio.to_thread(collect)


def leases(cleaning: Cleaning, stream: str) -> list[LeaseInfo]:
    return cleaning.running.broker.administration.leases.live(stream)


def retain(cleaning: Cleaning, stream: str) -> int:
    """Run a round of retention like the daemon. Returns the log start after it."""
    host = cleaning.running.broker.hosts[stream]
    now_ns = cleaning.running.broker.now_ns()
    decision = decide_retention(host.log, host.settings, now_ns)
    if decision is not None:
        remove_decided(host.log, decision, now_ns)
    return host.log.log_start_offset


async def limit(cleaning: Cleaning, stream: str, max_messages: int) -> None:
    update = cleaning.running.broker.administration.update_stream
    await update(stream, {"retention": {"max_messages": max_messages}}, allow_deletion=True)


async def newer_values(cleaning: Cleaning, stream: str = "in") -> None:
    await cleaning.running.put(stream, [(f"key-{n}", b"newer") for n in range(KEYS)])


async def compact(cleaning: Cleaning) -> None:
    cleaning.cleaner.request(cleaning.running.broker.hosts["in"])
    await cleaning.round()


@pytest.mark.parametrize("stream", ["in", "plain"])
async def test_the_task_that_ends_last_gives_the_lease_back(
    cleaning: Cleaning, address: str, stream: str
) -> None:
    chosen = options(address, stream)
    ranges = await planned(chosen)
    assert len(ranges) > 3
    for wanted in [*ranges[1:], ranges[1]]:  # one of them for a second time
        await rows(chosen, wanted)
        assert len(leases(cleaning, stream)) == 1
    await rows(chosen, ranges[0])
    assert leases(cleaning, stream) == []


@pytest.mark.usefixtures("few_rows_at_once")
async def test_a_task_that_failed_has_not_ended(cleaning: Cleaning, address: str) -> None:
    chosen = options(address, "in", columns="offset")
    (wanted,) = await planned(replace(chosen, target_partition_bytes=2**30))

    def begin() -> None:
        found = read(replace(chosen, rows_per_batch=10), wanted)
        next(found)
        with pytest.raises(RuntimeError):
            found.throw(RuntimeError("the task fails, and Spark reads the part again"))  # type: ignore[attr-defined]

    await asyncio.to_thread(begin)
    assert len(leases(cleaning, "in")) == 1
    await rows(chosen, wanted)
    assert leases(cleaning, "in") == []


async def test_nothing_to_read_holds_nothing(cleaning: Cleaning, address: str) -> None:
    assert await planned(options(address, "in", startingOffset="latest")) == []
    assert leases(cleaning, "in") == []


async def test_a_plan_that_fails_holds_nothing(
    cleaning: Cleaning, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: DaemonTransport, timestamp_ns: int) -> int:
        raise OffsetOutOfRange("no")

    monkeypatch.setattr(DaemonTransport, "offset_at", broken)
    with pytest.raises(OffsetOutOfRange):
        await planned(options(address, "in", endTimestamp="2030-01-01T00:00:00Z"))
    assert leases(cleaning, "in") == []


@pytest.mark.parametrize("stream", ["in", "plain"])
async def test_reads_one_after_the_other_let_retention_go_on(
    cleaning: Cleaning, address: str, stream: str
) -> None:
    """Also if each read is abandoned, so that its lease lasts into the next read."""
    chosen = options(address, stream)
    await limit(cleaning, stream, 100)
    first = 0
    for turn in range(4):
        ranges = await planned(chosen)
        assert ranges[0].first_offset > first
        first = ranges[0].first_offset
        assert first == (RECORDS + KEYS * turn) - 100 + 1
        cleaning.running.clock.ahead_ns += 70 * 10**9  # a lease lasts two minutes
        await newer_values(cleaning, stream)
        retain(cleaning, stream)
    # Held by the read before the last one, which has not expired yet.
    assert retain(cleaning, stream) >= first - KEYS


async def test_a_lease_begins_where_retention_wants_the_log_to_start(
    cleaning: Cleaning, address: str
) -> None:
    acquire = cleaning.running.broker.administration.leases.acquire
    held = await acquire("in", 1, ttl_ms=60_000)
    await limit(cleaning, "in", 100)
    assert retain(cleaning, "in") == held.low == 1
    earliest = await acquire("in", "earliest", ttl_ms=60_000)
    assert earliest.low == RECORDS - 100 + 1
    # A read from an offset that exists gets it: an export must not lose what it has not seen.
    assert (await acquire("in", 5, ttl_ms=60_000)).low == 5


async def test_earliest_does_not_lose_a_race_with_retention(
    cleaning: Cleaning, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention moves the log start between the query of the stream and the lease."""
    loop = asyncio.get_running_loop()
    hold = DaemonTransport.hold
    turns = iter([100, 80])

    def late(self: DaemonTransport, *given: Any) -> Any:
        if (most := next(turns, None)) is not None:
            asyncio.run_coroutine_threadsafe(limit(cleaning, stream, most), loop).result(10)
            retain(cleaning, stream)
        return hold(self, *given)

    monkeypatch.setattr(DaemonTransport, "hold", late)
    for stream in ("plain", "in"):
        turns = iter([100, 80])
        ranges = await planned(options(address, stream))
        assert ranges[0].first_offset == RECORDS - 100 + 1
        cleaning.running.clock.ahead_ns += 200 * 10**9
        turns = iter([90, 80])
        ranges = await planned(options(address, stream, startTimestamp="2020-01-01T00:00:00Z"))
        assert ranges[0].first_offset == RECORDS - 80 + 1
        cleaning.running.clock.ahead_ns += 200 * 10**9
        turns = iter([70])
        with pytest.raises(OffsetOutOfRange, match="startingOffset=earliest"):
            await planned(options(address, stream, startingOffset=str(RECORDS - 75)))


async def test_a_plain_read_is_held_against_retention(cleaning: Cleaning, address: str) -> None:
    chosen = options(address, "plain")
    ranges = await planned(chosen)
    await limit(cleaning, "plain", 100)
    retain(cleaning, "plain")
    found = [row for wanted in ranges for row in await rows(chosen, wanted)]
    assert [row["offset"] for row in found] == list(range(1, RECORDS + 1))
    assert retain(cleaning, "plain") == RECORDS - 100 + 1


async def test_a_plain_read_does_without_where_there_is_no_lease_to_have(
    cleaning: Cleaning, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **named: Any) -> Any:
        raise DiskFull("no room")

    monkeypatch.setattr("liftlog.server.streams.leases.grant_lease", full)
    chosen = options(address, "plain")
    ranges = await planned(chosen)
    assert sum([len(await rows(chosen, wanted)) for wanted in ranges]) == RECORDS
    with pytest.raises(DiskFull):  # which would not be right without one
        await planned(options(address, "in"))


async def test_a_lease_of_a_plain_read_that_has_ended(cleaning: Cleaning, address: str) -> None:
    chosen = options(address, "plain")
    ranges = await planned(chosen)
    cleaning.running.clock.ahead_ns += 3600 * 10**9
    assert leases(cleaning, "plain") == []
    assert sum([len(await rows(chosen, wanted)) for wanted in ranges]) == RECORDS
    await limit(cleaning, "plain", 100)
    retain(cleaning, "plain")
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        await rows(chosen, ranges[0])


async def test_the_same_ranges_can_be_read_again_until_compaction_changes_something(
    cleaning: Cleaning, address: str
) -> None:
    """As for a second action on one DataFrame, or a stage that Spark repeats."""
    await compact(cleaning)
    chosen = options(address, "in")
    ranges = await planned(chosen)
    for _ in range(2):
        found = [row for wanted in ranges for row in await rows(chosen, wanted)]
        assert {row["key"] for row in found} == {b"key-%d" % n for n in range(KEYS)}
        assert leases(cleaning, "in") == []
    await newer_values(cleaning)
    await rows(chosen, ranges[0])
    await compact(cleaning)
    with pytest.raises(LeaseGone, match="read again"):
        await rows(chosen, ranges[0])


async def test_a_tombstone_that_is_removed_between_two_reads_of_a_range(
    cleaning: Cleaning, address: str
) -> None:
    """Compaction has processed nothing beyond the end, but the result would still change."""
    headers = b"NATS/1.0\r\nLiftlog-Key: key-1\r\nLiftlog-Tombstone: true\r\n\r\n"
    from liftlog.sequencing import MessageRun

    host = cleaning.running.broker.hosts["in"]
    host.receive(MessageRun([b"in"], [b""], [b""], [headers]))
    host.kick()
    await host.drained()
    await compact(cleaning)
    chosen = options(address, "in")
    ranges = await planned(chosen)
    for wanted in ranges:
        await rows(chosen, wanted)
    cleaning.running.clock.ahead_ns += 2 * 3600 * 10**9
    await compact(cleaning)
    assert host.log.view.manifest.tombstones_removed_below > 1
    assert host.log.view.manifest.cleaned_below <= ranges[-1].end_offset
    with pytest.raises(LeaseGone):
        await rows(chosen, ranges[0])


@pytest.mark.parametrize("part", [(3, 3), (0, 0), (0, 2**40)])
async def test_parts_that_make_no_sense(
    cleaning: Cleaning, address: str, part: tuple[int, int]
) -> None:
    from liftlog.errors import InvalidArgument

    def ask() -> None:
        with connect_sync(address) as client:
            lease = client.acquire_lease("in", ttl=10)
            client.renew_lease("in", lease.lease_id, ttl=10, finished=part)

    with pytest.raises(InvalidArgument):
        await asyncio.to_thread(ask)


# --- reads that stop before their end ---


@pytest.fixture
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode few rows at once. Otherwise everything is read before the first rows arrive."""
    monkeypatch.setattr(decoder, "_RUN_ROWS", 10)


class Ahead:
    """The clock by which the daemon ends leases of readers without reports."""

    def __init__(self, cleaning: Cleaning) -> None:
        self.seconds = 0.0
        cleaning.judge_readers_by(self)

    def __call__(self) -> float:
        return time.monotonic() + self.seconds


async def first_row(chosen: ScanOptions, wanted: ScanRange) -> None:
    def take() -> None:
        rows = read(chosen, wanted)
        next(rows)
        rows.close()  # type: ignore[attr-defined]

    await asyncio.to_thread(take)


async def exhaust(cleaning: Cleaning, address: str) -> None:
    """Take all leases that reads can get."""

    def take() -> None:
        with connect_sync(address) as client, pytest.raises(LimitExceeded, match="for exports"):
            while True:
                client.acquire_lease("in", ttl=100)

    await asyncio.to_thread(take)


@pytest.mark.usefixtures("few_rows_at_once")
async def test_a_read_in_one_part_that_stops_early_ends_its_lease(
    cleaning: Cleaning, address: str
) -> None:
    chosen = options(address, "in", rowsPerBatch="1", targetPartitionBytes="1GiB", columns="offset")
    for _ in range(120):
        [wanted] = await planned(chosen)
        await first_row(chosen, wanted)
        assert leases(cleaning, "in") == []


@pytest.mark.usefixtures("few_rows_at_once")
async def test_the_lease_of_a_read_that_stopped_early_makes_room(
    cleaning: Cleaning, address: str
) -> None:
    ahead = Ahead(cleaning)
    chosen = options(address, "in", rowsPerBatch="1", columns="offset")
    ranges = await planned(chosen)
    assert len(ranges) > 2
    await first_row(chosen, ranges[0])
    [lease] = leases(cleaning, "in")
    assert lease.remaining_ms > 50_000, "another part may still be read"
    await exhaust(cleaning, address)
    ahead.seconds = 6
    later = await planned(chosen)
    assert lease.lease_id not in [one.lease_id for one in leases(cleaning, "in")]
    await first_row(chosen, ranges[1])  # nothing has happened that the lease prevents
    await rows(chosen, later[0])


@pytest.mark.usefixtures("few_rows_at_once")
async def test_a_part_that_is_still_read_keeps_the_lease(cleaning: Cleaning, address: str) -> None:
    ahead = Ahead(cleaning)
    chosen = options(address, "in", rowsPerBatch="1", columns="offset")
    ranges = await planned(chosen)
    slow = await asyncio.to_thread(read, chosen, ranges[0])
    await asyncio.to_thread(next, slow)
    await first_row(chosen, ranges[1])
    [lease] = leases(cleaning, "in")
    await exhaust(cleaning, address)
    for seconds, stays in ((6, True), (8, True), (16, False)):
        ahead.seconds = seconds
        if stays:
            with pytest.raises(LimitExceeded):
                await planned(chosen)
        else:  # its process may have been killed
            await planned(chosen)
        assert (lease.lease_id in [one.lease_id for one in leases(cleaning, "in")]) == stays
    await asyncio.to_thread(slow.close)  # type: ignore[attr-defined]


async def test_a_lease_is_not_ended_before_its_first_reader_comes(
    cleaning: Cleaning, address: str
) -> None:
    ahead = Ahead(cleaning)
    chosen = options(address, "in")
    await planned(chosen)
    await exhaust(cleaning, address)
    ahead.seconds = 3600
    with pytest.raises(LimitExceeded, match="kept for exports"):
        await planned(chosen)


async def test_a_task_that_reads_renews_often(
    cleaning: Cleaning, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "REPORT_SECONDS", 0.02)
    chosen = options(address, "in", targetPartitionBytes="1GiB", columns="offset")
    [wanted] = await planned(chosen)

    def read_slowly() -> int:
        with open_transport(chosen) as transport:
            batches = transport.batches(wanted, Losses("in", fail=True))
            next(batches)
            first = leases(cleaning, "in")[0].expires_ns
            deadline = time.monotonic() + 30
            while leases(cleaning, "in")[0].expires_ns == first:
                assert time.monotonic() < deadline
                cleaning.running.clock.ahead_ns += 10**6
                time.sleep(0.01)
            return sum(1 for _ in batches)

    await asyncio.to_thread(read_slowly)
    assert leases(cleaning, "in") == []


async def test_reads_leave_leases_for_exports(cleaning: Cleaning, address: str) -> None:
    await exhaust(cleaning, address)

    def for_export() -> None:
        with connect_sync(address) as client:
            client.acquire_lease("in", ttl=10, for_export=True)

    await asyncio.to_thread(for_export)
