"""A compacted stream that is read in parts, with compaction between the parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_cleaning import Cleaning

from liftlog.client import connect_sync
from liftlog.errors import LeaseGone, SegmentsChanged
from liftlog.server.pull import PullServer
from liftlog.spark import decoder
from liftlog.spark.options import ScanOptions, parse_options
from liftlog.spark.scan import plan, read
from liftlog.spark.transport import ScanRange

KEYS = 20
RECORDS = 400


@pytest.fixture
async def cleaning(tmp_path: Path) -> AsyncIterator[Cleaning]:
    cleaning = Cleaning(tmp_path)
    await cleaning.stream("in", RECORDS, KEYS)
    yield cleaning
    await cleaning.close()


@pytest.fixture
async def options(cleaning: Cleaning) -> AsyncIterator[ScanOptions]:
    server = PullServer(cleaning.running.broker)
    (address,) = await server.start(["tcp://127.0.0.1:0"])
    yield parse_options({"server": address, "stream": "in", "targetPartitionBytes": "4096"})
    await server.close(grace=0.5)


async def compact(cleaning: Cleaning) -> None:
    cleaning.cleaner.request(cleaning.running.broker.hosts["in"])
    await cleaning.round()


async def newer_values(cleaning: Cleaning) -> None:
    """Put newer values of every key, so that records after the end supersede all records of a
    planned read."""
    await cleaning.running.put("in", [(f"key-{n}", b"newer") for n in range(KEYS)])


async def planned(options: ScanOptions) -> list[ScanRange]:
    return await asyncio.to_thread(plan, options)


async def rows(options: ScanOptions, wanted: ScanRange) -> list[dict[str, Any]]:
    def collect() -> list[dict[str, Any]]:
        return [row for made in read(options, wanted) for row in made.to_pylist()]

    return await asyncio.to_thread(collect)


def keys_of(found: list[dict[str, Any]]) -> set[bytes]:
    return {row["key"] for row in found}


async def test_the_newest_of_each_key_stays_below_the_end(
    cleaning: Cleaning, options: ScanOptions
) -> None:
    ranges = await planned(options)
    assert len(ranges) > 3
    found = await rows(options, ranges[0])
    await newer_values(cleaning)
    await compact(cleaning)
    assert cleaning.running.broker.hosts["in"].log.view.manifest.cleaned_below > 1, (
        "nothing was compacted"
    )
    for wanted in ranges[1:]:
        found += await rows(options, wanted)
    assert keys_of(found) == {b"key-%d" % n for n in range(KEYS)}
    assert max(row["offset"] for row in found) == RECORDS  # and nothing that came later
    assert len({row["offset"] for row in found}) == len(found) < RECORDS


async def test_without_the_lease_keys_would_be_missed(
    cleaning: Cleaning, options: ScanOptions
) -> None:
    """This shows that the test above can fail. The reader gets an error."""
    ranges = await planned(options)
    lease_id = ranges[0].lease_id
    assert lease_id is not None

    def release() -> None:
        with connect_sync(options.server) as client:
            client.release_lease("in", lease_id)

    await asyncio.to_thread(release)
    await newer_values(cleaning)
    await compact(cleaning)
    log = cleaning.running.broker.hosts["in"].log
    assert all(offset > RECORDS for offset in cleaning.read("in").values())
    assert log.log_start_offset == 1
    with pytest.raises(LeaseGone, match=r"read again.*leaseSeconds"):
        await rows(options, ranges[0])


async def test_a_lease_that_ends_under_a_task_fails_it(
    cleaning: Cleaning, options: ScanOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "_RUN_ROWS", 10)  # else all is read before the first rows come
    given = {"server": options.server, "stream": "in", "rowsPerBatch": "10"}
    options = parse_options(given)
    [wanted] = await planned(options)

    loop = asyncio.get_running_loop()

    def read_and_lose() -> None:
        found = read(options, wanted)
        next(found)
        with connect_sync(options.server) as client:
            client.release_lease("in", str(wanted.lease_id))
        for step in (newer_values, compact):
            asyncio.run_coroutine_threadsafe(step(cleaning), loop).result(20)
        list(found)

    with pytest.raises(LeaseGone):
        await asyncio.to_thread(read_and_lose)


async def test_what_came_before_the_lease_is_read_too(
    cleaning: Cleaning, options: ScanOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records may arrive between the query of the stream and the lease, and count for
    compaction."""
    from liftlog.spark.daemon_transport import DaemonTransport

    loop = asyncio.get_running_loop()
    hold = DaemonTransport.hold

    def late(self: DaemonTransport, *given: Any) -> Any:
        asyncio.run_coroutine_threadsafe(newer_values(cleaning), loop).result(10)
        return hold(self, *given)

    monkeypatch.setattr(DaemonTransport, "hold", late)
    ranges = await planned(options)
    assert ranges[-1].end_offset == RECORDS + KEYS + 1
    await compact(cleaning)
    found = [row for wanted in ranges for row in await rows(options, wanted)]
    assert {row["key"] for row in found if row["value"] == b"newer"} == keys_of(found)


@pytest.mark.parametrize("transport", ["server", "path"])
@pytest.mark.parametrize("off_again", [False, True])
async def test_compaction_that_is_switched_on_meanwhile(
    cleaning: Cleaning, options: ScanOptions, tmp_path: Path, transport: str, off_again: bool
) -> None:
    """The read has no lease. So it gets an error, even if compaction is switched off again by
    then."""
    await cleaning.stream("plain", RECORDS, KEYS, compaction=None)
    host = cleaning.running.broker.hosts["plain"]
    where = {"server": options.server, "path": str(host.log.directory)}[transport]
    given = {transport: where, "stream": "plain", "targetPartitionBytes": "4096"}
    chosen = parse_options(given)
    ranges = await planned(chosen)
    assert len(ranges) > 3
    await rows(chosen, ranges[0])
    update = cleaning.running.broker.administration.update_stream
    await update("plain", {"compaction": {"tombstone_retention": "1h"}})
    await cleaning.running.put("plain", [(f"key-{n}", b"newer") for n in range(KEYS)])
    cleaning.cleaner.request(host)
    await cleaning.round()
    if off_again:
        await update("plain", {"compaction": None})
    with pytest.raises(SegmentsChanged, match="read again"):
        await rows(chosen, ranges[1])
    if off_again:  # and one that begins by now has nothing to fear
        found = [row for wanted in await planned(chosen) for row in await rows(chosen, wanted)]
        assert keys_of(found) == {b"key-%d" % n for n in range(KEYS)}
