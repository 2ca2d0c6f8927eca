"""Erasures by filter and time, over a socket and from inside the daemon."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_broker import Running
from support.daemons.pull_broker import pull_server

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.client import Client, Filter, connect
from liftlog.errors import Forbidden, InvalidArgument, LimitExceeded
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erasures import read_erasures
from liftlog.protocol.administration import EraseRecords
from liftlog.records.columns.selection import parse_selection
from liftlog.sequencing import MessageRun
from liftlog.server.commits.host import StreamHost
from liftlog.server.reading import selecting
from liftlog.server.reading.fairness import FairThreads
from liftlog.server.streams.erasing import Eraser, Wanted
from liftlog.server.streams.places import MOST_OF_PARTY, MOST_WAITING

SUBJECTS = [b"s.a", b"s.b", b"s.b.c", b"s.d"]
COUNT = 240
ME = Eraser("", "me")
STEP_NS = 2_000_000_000
"""The time between two batches of eight records."""


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """Stream s: record n (offset n + 1) is on SUBJECTS[n % 4], has the key k<n % 5> and the header
    N: <n % 3>."""
    running = Running(tmp_path)
    await running.start()
    await running.broker.create_stream("s", {"subject": "s.>", "dedupe_window": "0s"})
    host = running.broker.hosts["s"]
    for start in range(0, COUNT, 8):
        numbers = range(start, start + 8)
        headers = [
            b"NATS/1.0\r\nLiftlog-Key: k%d\r\nN: %d\r\n\r\n" % (one % 5, one % 3) for one in numbers
        ]
        subjects = [SUBJECTS[one % 4] for one in numbers]
        host.receive(MessageRun(subjects, [b""] * 8, [b"v%d" % one for one in numbers], headers))
        host.kick()
        await host.drained()
        running.clock.ahead_ns += STEP_NS
    yield running
    await running.broker.close()


@pytest.fixture
async def client(running: Running) -> AsyncIterator[Client]:
    async with (
        pull_server(running.broker) as (_, address),  # type: ignore[arg-type]
        connect(address) as client,
    ):
        yield client


def host_of(running: Running) -> StreamHost:
    return running.broker.hosts["s"]


def offsets_where(matches: Callable[[int], bool]) -> list[int]:
    return [number + 1 for number in range(COUNT) if matches(number)]


def hidden(running: Running) -> list[int]:
    erased = host_of(running).log.view.erased
    return [] if erased is None else [int(one) for one in erased.offsets_in(0, 2**60)]


CASES: list[tuple[Filter, Callable[[int], bool]]] = [
    (Filter(subject="s.b"), lambda n: n % 4 == 1),
    (Filter(subject="s.*"), lambda n: n % 4 != 2),
    (Filter(subject=["s.a", "s.b.>"]), lambda n: n % 4 in (0, 2)),
    (Filter(key=b"k3"), lambda n: n % 5 == 3),
    (Filter(key=[b"k1", b"none"]), lambda n: n % 5 == 1),
    (Filter(header="N=2"), lambda n: n % 3 == 2),
    (Filter("s.b", b"k3", "n=2"), lambda n: n % 4 == 1 and n % 5 == 3 and n % 3 == 2),
    (Filter(subject="t.>"), lambda n: False),
]


@pytest.mark.parametrize(("wanted", "matches"), CASES)
async def test_what_matches_all_filters_is_erased(
    client: Client, running: Running, wanted: Filter, matches: Callable[[int], bool]
) -> None:
    expected = offsets_where(matches)
    tried = await client.erase("s", filter=wanted, dry_run=True)
    assert (tried.count, tried.dry_run, tried.end_offset) == (len(expected), True, COUNT + 1)
    assert hidden(running) == []
    if expected:
        found = (tried.first_offset, tried.last_offset, tried.range_count)
        assert found == (
            expected[0],
            expected[-1],
            len(ErasedSet.of_ranges(_single(expected)).ranges()),
        )
        names = {SUBJECTS[one % 4].decode() for one in (at - 1 for at in expected)}
        assert set(tried.subjects) <= names
        assert tried.subjects
    done = await client.erase("s", filter=wanted, reason="why")
    assert done.count == len(expected)
    assert hidden(running) == expected
    assert (await client.erase("s", filter=wanted)).count == 0
    log = host_of(running).log
    listed = read_erasures(log.environment.fs, log.directory)
    assert len(listed) == bool(expected)
    for one in listed:
        assert (one.count, one.ranges, len(one.selector)) == (len(expected), ((1, COUNT + 1),), 16)
        kept = ErasedSet.from_plain(one.offsets).offsets_in(0, 2**60)
        assert [int(at) for at in kept] == expected
    raw = (log.directory / "erasures").read_bytes() if listed else b""
    assert b"k3" not in raw
    assert b"s.b" not in raw


async def test_as_many_ranges_and_filters_as_a_request_takes(
    client: Client, running: Running
) -> None:
    single = [(2 * one, 2 * one + 1) for one in range(1000)]
    assert (await client.erase("s", single, dry_run=True)).count == COUNT // 2
    keys = Filter(key=[b"k%d" % one for one in range(240)])
    assert (await client.erase("s", single, filter=keys, dry_run=True)).count == COUNT // 2
    with pytest.raises(InvalidArgument, match="1001 ranges are more than the 1000 of one request"):
        await client.erase("s", [*single, (5000, 5001)])
    with pytest.raises(InvalidArgument, match="of one request"):
        await client.erase("s", single, filter=Filter(key=[b"%d" % one for one in range(241)]))
    assert hidden(running) == []


def _single(offsets: list[int]) -> list[tuple[int, int]]:
    return [(one, one + 1) for one in offsets]


async def test_ranges_times_and_filters_are_combined(client: Client, running: Running) -> None:
    log = host_of(running).log
    stamps = {record.offset: record.timestamp_ns async for record in client.read("s", until="end")}
    for seed in range(12):
        random_one = random.Random(seed)
        low, high = sorted(random_one.sample(sorted(stamps), 2))
        first, last = sorted(random_one.sample(sorted(stamps.values()), 2))
        ranges = random_one.choice(([], [(low, high)], [(low, low + 3), (high, high + 3)]))
        since_ns = random_one.choice((None, first // 1000 * 1000))
        until_ns = random_one.choice((None, last // 1000 * 1000))
        wanted = random_one.choice((None, Filter(subject="s.d")))
        if not (ranges or since_ns or until_ns or wanted):
            continue
        expected = [
            at
            for at, stamp in stamps.items()
            if not log.view.hides(at)
            and (not ranges or any(one <= at < end for one, end in ranges))
            and (since_ns is None or stamp >= since_ns)
            and (until_ns is None or stamp < until_ns)
            and (wanted is None or (at - 1) % 4 == 3)
        ]
        before = hidden(running)
        done = await client.erase(
            "s", ranges, filter=wanted, since=_time(since_ns), until=_time(until_ns)
        )
        assert done.count == len(expected), seed
        assert hidden(running) == sorted(before + expected)


def _time(ns: int | None) -> datetime | None:
    return (
        None
        if ns is None
        else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)
    )


async def test_records_that_arrive_after_a_preview_stay(client: Client, running: Running) -> None:
    """The preview returns the end of its search, so the erasure can be limited to the records of
    the preview."""
    tried = await client.erase("s", filter=Filter(subject="s.a"), dry_run=True)
    host = host_of(running)
    host.receive(MessageRun([b"s.a"], [b""], [b"new"]))
    host.kick()
    await host.drained()
    done = await client.erase("s", [(0, tried.end_offset)], filter=Filter(subject="s.a"))
    assert done.count == tried.count
    assert not host.log.view.hides(COUNT + 1)


async def test_wrong_requests(client: Client) -> None:
    now = datetime.now(UTC)
    for arguments in (
        {"filter": Filter(subject="a..b")},
        {"filter": Filter(header="a b")},
        {"filter": Filter(subject=[])},
        {"since": now, "until": now},
        {"since": 17},
        {},
    ):
        with pytest.raises(InvalidArgument):
            await client.erase("s", **arguments)  # type: ignore[arg-type]


async def test_what_is_damaged_is_named(client: Client, running: Running) -> None:
    log = host_of(running).log
    position = log.read(17, 1)
    assert position is not None
    with position:
        raw = position.pread()
    path = log.segments[0].path
    content = path.read_bytes()
    at = content.index(bytes(raw)) + len(raw) - 20
    path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
    done = await client.erase("s", filter=Filter(subject="s.a"))
    assert done.unreadable_ranges == [(17, 25)]
    assert done.count == COUNT // 4 - 2
    assert not {17, 21} & set(hidden(running))


async def test_the_last_matches_can_be_kept(running: Running) -> None:
    """A purge with `keep` needs this."""
    erasing, log = running.broker.erasing, host_of(running).log
    running.broker.finder = selecting.MatchFinder(FairThreads(1, "test"))
    wanted = Wanted(((1, log.high_watermark),), parse_selection(subjects=["s.b"]))
    expected = offsets_where(lambda n: n % 4 == 1)
    found = await erasing.erase_matching("s", wanted, ME, keep=len(expected))
    assert not found.offsets
    found = await erasing.erase_matching("s", wanted, ME, keep=7)
    assert len(found.offsets) == len(expected) - 7
    assert hidden(running) == expected[:-7]
    found = await erasing.erase_matching("s", wanted, ME)
    assert len(found.offsets) == 7


async def test_few_requests_wait(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()
    scan = selecting.scan_log

    def slowly(*arguments: Any) -> Any:
        begun.set()
        assert may_end.wait(10)
        return scan(*arguments)

    monkeypatch.setattr(selecting, "scan_log", slowly)
    erasing = running.broker.erasing
    running.broker.finder = selecting.MatchFinder(FairThreads(1, "test"))

    def ask(party: int) -> asyncio.Task[Any]:
        message = EraseRecords("s", [], "", True, filter_subjects=["s.a"])
        return asyncio.create_task(erasing.erase(message, Eraser("", party)))

    tasks = [ask(0)]
    assert await asyncio.to_thread(begun.wait, 10)
    tasks += [ask(1) for _ in range(MOST_OF_PARTY)]
    await asyncio.sleep(0)
    with pytest.raises(LimitExceeded, match="wait already"):
        await ask(1)
    others = MOST_WAITING - MOST_OF_PARTY
    tasks += [ask(party) for party in range(2, 2 + others)]
    await asyncio.sleep(0)
    with pytest.raises(LimitExceeded, match="wait already"):
        await ask(100)
    tasks[1].cancel()  # a client that has gone gives its place back
    await asyncio.sleep(0)
    tasks.append(ask(100))
    await asyncio.sleep(0)
    may_end.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[1], asyncio.CancelledError)
    assert [one.count for one in done[:1] + done[2:]] == [COUNT // 4] * (MOST_WAITING + 1)
    assert (await ask(1)).count == COUNT // 4


SECRET = "a-secret-that-is-long-enough"
ACL_FILE = f"""
principals:
  some: {{token_hash: "{hash_token(SECRET)}"}}
  blind: {{token_hash: "{hash_token(SECRET + "b")}"}}
  reader: {{token_hash: "{hash_token(SECRET + "r")}"}}
roles:
  some: [{{allow: [read, erase], streams: ["s"], subjects: ["s.b", "s.b.>"]}}]
  blind: [{{allow: [read], streams: ["s"], subjects: ["s.x"]}}, {{allow: [erase], streams: ["s"]}}]
  look: [{{allow: [read], streams: ["s"]}}]
bindings:
  some: [some]
  blind: [blind]
  reader: [look]
"""


async def test_a_rule_may_limit_erasures_to_some_subjects(running: Running) -> None:
    policy = Policy.load(ACL_FILE)
    async with (
        pull_server(running.broker, policy=policy) as (server, address),  # type: ignore[arg-type]
        connect(address, token=f"some.{SECRET}") as some,
        connect(address, token=f"blind.{SECRET}b") as blind,
        connect(address, token=f"reader.{SECRET}r") as reader,
    ):
        with pytest.raises(Forbidden):
            await reader.erase("s", filter=Filter(subject="s.b"), dry_run=True)
        tried = await blind.erase("s", filter=Filter(subject="s.>"), dry_run=True)
        assert (tried.count, tried.subjects) == (COUNT, [])  # it may not read the subjects
        tried = await some.erase("s", filter=Filter(subject="s.>"), dry_run=True)
        assert (tried.count, tried.subjects) == (COUNT // 2, ["s.b", "s.b.c"])
        assert (await some.erase("s", [(1, 9)])).count == 4
        assert hidden(running) == [2, 3, 6, 7]
        assert (await some.erase("s", filter=Filter(key=b"k0", subject="s.a"))).count == 0

        assert (await blind.erase("s", [(1, 2)], reason="about s.a")).count == 1
        assert [one.reason for one in await blind.list_erasures("s")] == ["about s.a", ""]
        assert [one.principal for one in await some.list_erasures("s")] == ["some"]
        assert (await some.prove_erasure("s")).records == 4
        (other,) = [one for one in await blind.list_erasures("s") if one.principal == "blind"]
        with pytest.raises(InvalidArgument, match="no erasure"):
            await some.list_erasures("s", other.erasure_id)

        search = selecting.MatchFinder.find

        async def find_and_reload(*arguments: Any) -> Any:
            found = await search(*arguments)
            server.services.gate.set_policy(Policy.load(ACL_FILE.replace(', "s.b.>"', "")))
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selecting.MatchFinder, "find", find_and_reload)
            with pytest.raises(Forbidden, match="changed"):
                await some.erase("s", filter=Filter(subject="s.>"))
        assert hidden(running) == [1, 2, 3, 6, 7]
