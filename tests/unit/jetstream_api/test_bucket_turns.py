"""Reading a bucket, of any size and history, delays neither other buckets nor scans."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import add, keyed, row

from liftlog.log import Log
from liftlog.server.commits.configs import NewestBytes
from liftlog.server.jetstream_api.messages import buckets as module
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.messages.buckets import BucketIndex, Buckets
from liftlog.server.reading.fairness import FairThreads
from liftlog.settings import parse_stream_settings

BUCKET = {
    "subject": "k.>",
    "subject_sequences": {},
    "compaction": {},
    "retention": {"max_bytes": 1 << 30, "discard": "new"},
    "jetstream": {"max_msgs_per_subject": 1},
}


class Counted(NewestBytes):
    """Notes what was counted, of all streams in one list."""

    def __init__(self, name: str, log: Log, counts: list[tuple[str, int | None]]) -> None:
        super().__init__(log)
        self._name, self._counts, self.news = name, counts, asyncio.Event()

    def count(self, size_bytes: int | None, grown_bytes: int = 0) -> None:
        super().count(size_bytes, grown_bytes)
        self._counts.append((self._name, size_bytes))
        self.news.set()


class Host:
    is_leading = True
    settings = parse_stream_settings(BUCKET)

    def __init__(self, name: str, log: Log, counts: list[tuple[str, int | None]]) -> None:
        self.name, self.log, self.newest = name, log, Counted(name, log, counts)


class World:
    """Buckets of so many batches with two subjects each, and the thread that reads them."""

    def __init__(self, **batches: int) -> None:
        self.counts: list[tuple[str, int | None]] = []
        self.hosts: dict[str, Any] = {}
        for name, count in batches.items():
            log = keyed(SimFileSystem())
            rows = (
                [row(None, b"x", subject=f"k.{2 * i}"), row(None, b"x", subject=f"k.{2 * i + 1}")]
                for i in range(count)
            )
            add(log, rows)
            self.hosts[name] = Host(name, log, self.counts)
        self.threads = FairThreads(1, "test")
        ages = Ages(self, self.threads.of("ages"))  # type: ignore[arg-type]
        self.buckets = Buckets(self, self.threads.of("buckets"), ages)  # type: ignore[arg-type]

    async def close(self) -> None:
        await self.buckets.close()
        self.threads.shutdown()
        for host in self.hosts.values():
            host.log.close()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch in each turn."""
    monkeypatch.setattr(module, "_PIECE_BYTES", 1)
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.0)


@pytest.fixture
def advances(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each turn ended."""
    ends: list[int] = []
    advance = BucketIndex.advance

    def noted(self: BucketIndex, *args: Any) -> bool:
        fits = advance(self, *args)
        ends.append(self.next_offset)
        return fits

    monkeypatch.setattr(BucketIndex, "advance", noted)
    return ends


def test_others_use_the_thread_between_the_pieces_of_a_bucket(advances: list[int]) -> None:
    async def run() -> None:
        world = World(big=200)
        read = asyncio.create_task(world.buckets.index(world.hosts["big"]))
        while not advances:
            await asyncio.sleep(0)
        await asyncio.wrap_future(world.threads.of("other").submit(lambda: None))
        assert not read.done()
        index = await read
        assert index is not None
        assert (index.count, index.subject_count) == (400, 400)
        assert len(advances) > 100
        await world.close()

    asyncio.run(run())


def test_a_small_bucket_is_counted_while_a_large_one_is_read() -> None:
    async def run() -> None:
        world = World(big=200, small=1)
        task = asyncio.create_task(world.buckets.keep())
        async with asyncio.timeout(20):
            await world.hosts["big"].newest.news.wait()
        task.cancel()
        names = [name for name, _ in world.counts]
        assert names[0] == "small"  # and again, if reading the other one takes long
        assert "big" in names
        assert all(size for _, size in world.counts)
        await world.close()

    asyncio.run(run())


def test_what_is_too_large_is_not_read_again_until_it_has_shrunk(
    advances: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_RECORDS", 100)

    async def run() -> None:
        world = World(big=200)
        big = world.hosts["big"]
        assert await world.buckets.index(big) is None
        turns = len(advances)
        assert turns > 10
        add(big.log, [[row(None, b"x", subject="k.new")]])
        for _ in range(3):
            assert await world.buckets.index(big) is None
            await world.buckets._look(big)
        assert world.counts[-1] == ("big", None)
        assert len(advances) == turns
        big.log.writer.roll()
        add(big.log, [[row(None, b"x", subject="k.newer")]])
        big.log.truncate_prefix(big.log.high_watermark - 1)
        index = await world.buckets.index(big)
        assert index is not None
        assert index.count == 1
        await world.close()

    asyncio.run(run())


def test_a_record_costs_about_the_same_with_any_history() -> None:
    log = keyed(SimFileSystem())
    for _ in range(10):
        add(log, [[row(None, b"x", subject="k.a") for _ in range(1000)]])

    def seconds(history: int) -> float:
        began = time.thread_time()
        assert BucketIndex(history).advance(log, 1, 1_000_000)
        return time.thread_time() - began

    assert min(seconds(2000) for _ in range(3)) < 8 * min(seconds(1) for _ in range(3))
    log.close()


def test_notes_of_many_subjects_are_no_work_for_garbage_collection() -> None:
    log = keyed(SimFileSystem())
    add(log, [[row(None, b"x", subject=f"k.{i % 1000}") for i in range(3000)]])
    index = BucketIndex(3)
    index.advance(log, 1, 1_000_000)
    gc.collect()
    assert not any(map(gc.is_tracked, index._shown.values()))
    log.close()


def test_a_long_history_is_noted_in_its_order() -> None:
    log = keyed(SimFileSystem())
    add(log, [[row(None, b"x", subject="k.a") for _ in range(300)]])
    index = BucketIndex(200)
    assert index.advance(log, 1, 1000)
    assert [offset for offset in range(302) if index.shows(b"k.a", offset)] == [*range(101, 301)]
    assert index.advance(log, 250, 1000)
    assert index.count == 51
    assert index.size_bytes == 51 * (1 + len("k.a") + module._OVERHEAD_BYTES)
    log.close()
