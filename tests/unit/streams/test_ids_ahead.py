"""A follower learns message ids while the log grows, is cut, or is damaged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_broker import Running

from liftlog.errors import StorageError
from liftlog.sequencing import DedupeWindow, MessageRun
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams import dedupe_restoring, ids_ahead
from liftlog.server.streams.dedupe_restoring import LearnedIds, learn_more, restore_dedupe
from liftlog.server.streams.ids_ahead import IdsAhead

WINDOW_NS = 120 * 10**9


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    await made.broker.create_stream("s", {"subject": "in", "segment": {"max_bytes": "16KiB"}})
    yield made
    await made.broker.close()


@pytest.fixture
def host(running: Running) -> StreamHost:
    return running.broker.hosts["s"]


@pytest.fixture
async def ids(running: Running, host: StreamHost, monkeypatch: pytest.MonkeyPatch) -> IdsAhead:
    monkeypatch.setattr(ids_ahead, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(ids_ahead, "_MANY_RECORDS", 1)
    monkeypatch.setattr(dedupe_restoring, "_SCAN_BYTES", 4096)  # many pieces
    return IdsAhead(lambda names: [host], running.broker.steady_ns)


async def publish(host: StreamHost, names: range, size: int = 1000) -> None:
    for number in names:
        header = f"NATS/1.0\r\nNats-Msg-Id: {number}\r\n\r\n".encode()
        host.receive(MessageRun([b"in"], [b""], [b"x" * size], [header], has_cookie=False))
        host.kick()
        await host.drained()


def remembered(learned: LearnedIds | None) -> list[list[Any]]:
    assert learned is not None
    found: list[list[Any]] = learned.dedupe.snapshot()["remembered"]
    return found


def all_of(running: Running, host: StreamHost) -> list[list[Any]]:
    """What a leader finds that reads all of it."""
    dedupe = DedupeWindow(WINDOW_NS, 1000)
    restore_dedupe(host.log, dedupe, running.broker.steady_ns())
    found: list[list[Any]] = dedupe.snapshot()["remembered"]
    return found


def learned_of(ids: IdsAhead) -> LearnedIds | None:
    """What it has learned so far, and goes on to add to."""
    learning = ids._learning.get("s")
    return None if learning is None else learning.ids


async def until_learned(ids: IdsAhead, host: StreamHost) -> None:
    while (known := learned_of(ids)) is None or known.end < host.log.log_end_offset:
        await asyncio.sleep(0.001)


async def test_what_comes_is_learned_and_only_once(
    running: Running, host: StreamHost, ids: IdsAhead
) -> None:
    learning = asyncio.create_task(ids.run())
    await publish(host, range(1, 40))
    await until_learned(ids, host)
    await publish(host, range(40, 50))
    learned = await ids.take("s", host.log)
    learning.cancel()
    assert learned is not None
    learned = learn_more(host.log, learned, running.broker.steady_ns())
    found = remembered(learned)
    assert [offset for _, _, offset in found] == list(range(1, 50))
    assert found == all_of(running, host)


async def test_streams_to_which_nothing_comes_are_looked_at_seldom(
    running: Running, host: StreamHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str] | None] = []

    def followed(names: Collection[str] | None) -> list[StreamHost]:
        asked.append(None if names is None else set(names))
        return [host] if names is None or "s" in names else []

    monkeypatch.setattr(ids_ahead, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(ids_ahead, "_MANY_RECORDS", 1)
    monkeypatch.setattr(ids_ahead, "_ALL_TURNS", 1_000_000)
    ids = IdsAhead(followed, running.broker.steady_ns)
    await publish(host, range(1, 10))
    learning = asyncio.create_task(ids.run())
    while learned_of(ids) is None or asked[-1] != set():
        await asyncio.sleep(0.001)
    await publish(host, range(10, 20))
    count = len(asked)
    while len(asked) < count + 3:
        await asyncio.sleep(0.001)
    behind = learned_of(ids)
    assert behind is not None
    assert behind.end < host.log.log_end_offset
    ids.changed("s")
    await until_learned(ids, host)
    learning.cancel()
    assert len(remembered(await ids.take("s", host.log))) == 19
    assert asked.count(None) == 1


async def test_a_log_that_is_cut_is_learned_again(
    running: Running, host: StreamHost, ids: IdsAhead
) -> None:
    await publish(host, range(1, 30))
    await ids.catch_up(host)
    await host.exclusively(lambda: host.log.truncate_suffix(20))
    await ids.catch_up(host)
    learned = await ids.take("s", host.log)
    assert [offset for _, _, offset in remembered(learned)] == list(range(1, 20))


async def test_what_is_learned_of_a_log_that_is_cut_then_counts_for_nothing(
    running: Running, host: StreamHost, ids: IdsAhead
) -> None:
    await publish(host, range(1, 30))
    await ids.catch_up(host)
    learned = await ids.take("s", host.log)
    assert learned is not None
    await host.exclusively(lambda: host.log.truncate_suffix(20))
    assert learn_more(host.log, learned, running.broker.steady_ns()) is None


async def test_ages_that_become_known_are_those_that_count(
    running: Running, host: StreamHost, ids: IdsAhead
) -> None:
    """The clock of the leader is an hour behind: what a start has not heard yet."""
    running.clock.jumped_ns = -3600 * 10**9
    await publish(host, range(1, 10))
    running.clock.jumped_ns = 0
    await ids.catch_up(host)
    log = host.log
    log.arrivals.note(
        log.log_end_offset - 1, log.view.max_timestamp_ns, running.clock.monotonic_ns()
    )
    await ids.catch_up(host)
    learned = await ids.take("s", log)
    assert [offset for _, _, offset in remembered(learned)] == list(range(1, 10))


async def test_other_limits_begin_anew(running: Running, host: StreamHost, ids: IdsAhead) -> None:
    await publish(host, range(1, 30))
    host.adopt(host.settings.model_copy(update={"dedupe_window_seconds": 0.0}))
    await ids.catch_up(host)
    assert await ids.take("s", host.log) is None
    host.adopt(host.settings.model_copy(update={"dedupe_window_seconds": 60.0}))
    await ids.catch_up(host)
    known = learned_of(ids)
    assert known is not None
    assert known.dedupe.window_ns == 60 * 10**9
    host.adopt(host.settings.model_copy(update={"dedupe_window_seconds": 120.0}))
    await publish(host, range(30, 31))
    await ids.catch_up(host)
    learned = await ids.take("s", host.log)
    assert learned is not None
    assert learned.dedupe.window_ns == WINDOW_NS
    assert len(learned.dedupe) == 30


async def test_damage_is_left_to_who_leads(
    running: Running, host: StreamHost, ids: IdsAhead
) -> None:
    await publish(host, range(1, 40))
    ill = host.log.segments[1]
    with ill.path.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 200)
    await asyncio.wait_for(ids.catch_up(host), 10)
    assert ids.prepare(host), "it is tried again later"
    assert not host.log.view.manifest.quarantined
    known = await ids.take("s", host.log)
    assert known is not None
    assert known.end < host.log.log_end_offset
    learned = learn_more(host.log, known, running.broker.steady_ns())
    assert remembered(learned) == all_of(running, host)
    assert host.log.segments[-1].base_offset in {offset for _, _, offset in remembered(learned)}


async def test_who_takes_them_waits_for_the_thread_that_reads(
    host: StreamHost, ids: IdsAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when whoever asked for that was cancelled, and others wait for their turn."""
    await publish(host, range(1, 10))
    reads, may_end, read_piece = threading.Event(), threading.Event(), ids_ahead._read_piece

    def slowly(*arguments: Any) -> Any:
        reads.set()
        assert may_end.wait(20)
        return read_piece(*arguments)

    monkeypatch.setattr(ids_ahead, "_read_piece", slowly)
    asked = [asyncio.create_task(ids.catch_up(host)) for _ in range(2)]
    await asyncio.to_thread(reads.wait, 20)
    asked[0].cancel()
    await asyncio.wait(asked[:1])
    taking = asyncio.create_task(ids.take("s", host.log))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not taking.done()
    may_end.set()
    first = remembered(await taking)
    await asked[1]
    assert len(first) == len(remembered(await taking)) > 0
    assert learned_of(ids) is None


async def test_who_may_be_elected_learns_what_is_left_first(
    host: StreamHost, ids: IdsAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(host, range(1, 40))
    assert not ids.prepare(host)
    while not ids.prepare(host):
        await asyncio.sleep(0.001)
    assert len(remembered(await ids.take("s", host.log))) == 39
    monkeypatch.setattr(ids_ahead, "_MANY_RECORDS", 40)
    await ids.catch_up(host)
    await publish(host, range(40, 50))
    assert ids.prepare(host), "so few need no preparation"


async def test_what_cannot_be_read_keeps_no_one_from_leading(
    host: StreamHost, ids: IdsAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(host, range(1, 10))

    def fail(*_: Any) -> Any:
        raise StorageError("reading s: Input/output error")

    monkeypatch.setattr(ids_ahead, "_read_piece", fail)
    assert not ids.prepare(host)
    while not ids.prepare(host):
        await asyncio.sleep(0.001)
    assert await ids.take("s", host.log) is None
