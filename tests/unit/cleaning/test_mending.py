"""What is damaged is fetched from other replicas, one segment after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_cleaning import Cleaning, LocalWorker

from liftlog.errors import CorruptRange
from liftlog.log import Log
from liftlog.records import iter_batches
from liftlog.server.cleaning import mending
from liftlog.server.cleaning.mending import Mender
from liftlog.server.cleaning.process import WorkerDied
from liftlog.server.commits.host import StreamHost

PATIENCE_SECONDS = 30.0


class Copies:
    """Another node, with copies as they were when it was asked to keep them."""

    def __init__(self) -> None:
        self.kept: dict[str, list[tuple[int, int, bytes]]] = {}
        self.answers = True
        self.spoils = 0
        """So many of the next bodies get a wrong byte on the way."""
        self.asked: list[tuple[int, int]] = []
        self.before: Callable[[], Any] | None = None
        self.again: list[str] = []

    def copy_again(self, name: str) -> None:
        self.again.append(name)

    def keep(self, log: Log) -> None:
        found, offset = [], log.log_start_offset
        while (piece := log.read(offset, 2000)) is not None:
            with piece:
                found.append((piece.first_offset, piece.next_offset, piece.pread()))
                offset = piece.next_offset
        self.kept[log.name] = found

    def count(self, name: str) -> int:
        return int(name in self.kept)

    def all_answer(self, name: str) -> bool:
        return self.answers

    async def fetch(
        self,
        name: str,
        incarnation: str,
        first: int,
        end: int,
        take: Callable[[memoryview], object],
        *,
        turn: int,
    ) -> str:
        self.asked.append((first, end))
        if self.before is not None:
            await self.before()
        if not self.answers:
            return "no answer"
        for base, following, raw in self.kept[name]:
            if base < end and first < following:
                body = bytearray(raw)
                if self.spoils:
                    self.spoils -= 1
                    body[len(body) // 2] ^= 1
                take(memoryview(body))
        return ""


class Node:
    def __init__(self, directory: Path) -> None:
        self.cleaning = Cleaning(directory)
        self.copies = Copies()
        self.worker = LocalWorker()
        self.mender = Mender(
            self.cleaning.running.broker.hosts, self.copies, self.cleaning.settings, self.worker
        )
        self.task: asyncio.Task[None] | None = None

    async def stream(self, name: str, records: int = 120) -> StreamHost:
        await self.cleaning.stream(name, records, records, compaction=None)
        host = self.cleaning.running.broker.hosts[name]
        self.copies.keep(host.log)
        return host

    def run(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.mender.run())

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})
        await self.cleaning.close()
        self.cleaning.running.data_dir.close(None)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(mending, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(mending, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(mending, "_LOOK_AGAIN_SECONDS", 0.01)
    node = Node(tmp_path)
    yield node
    await node.close()


def records(log: Log) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while (piece := log.read(offset, 1 << 20)) is not None:
        with piece:
            for batch in iter_batches(piece.pread()):
                found.update({one.offset: one.value or b"" for one in batch.trim(offset)})
            offset = piece.next_offset
    return found


def spoil(log: Log, number: int, position: int = 70) -> tuple[int, int]:
    """A wrong byte in a segment, and the range that its quarantine tells."""
    path = log.segments[number].path
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(bytes(raw))
    base = log.segments[number].base_offset
    log.quarantine_damage(base, base + 1)
    bad = log.view.manifest.quarantined[-1]
    return bad.first_offset, bad.next_offset


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def test_all_damage_is_repaired_also_in_the_active_segment(node: Node) -> None:
    host, other = await node.stream("s"), await node.stream("other")
    before = records(host.log), records(other.log)
    for number in (0, 2, len(host.log.segments) - 1):
        spoil(host.log, number)
    spoil(other.log, 1)
    assert not host.log.segments[-1].sealed
    node.run()
    await until(lambda: (host.observed.repaired_ranges, other.observed.repaired_ranges) == (3, 1))
    assert not host.log.view.manifest.quarantined
    assert not other.log.view.manifest.quarantined
    assert (records(host.log), records(other.log)) == before
    assert [one for one in host.log.directory.iterdir() if "patch" in one.name] == []
    await node.cleaning.running.put("s", [("more", b"1")])
    assert len(records(host.log)) == len(before[0]) + 1


async def test_a_stream_without_other_replicas_stays_as_it_is(node: Node) -> None:
    host = await node.stream("s")
    node.copies.kept.clear()
    first, end = spoil(host.log, 0)
    assert not node.mender.is_expected(host, first, end)
    node.run()
    await asyncio.sleep(0.05)
    assert host.log.view.manifest.quarantined
    assert node.copies.asked == []


async def test_who_waits_is_told_when_it_is_repaired(node: Node) -> None:
    host = await node.stream("s")
    first, end = spoil(host.log, 1)
    assert node.mender.is_expected(host, first, end)
    assert not node.mender.is_expected(host, end, end + 1)
    told, given_up = asyncio.Event(), asyncio.Event()
    node.mender.wait(host, told.set)
    node.mender.wait(host, given_up.set)()
    node.run()
    await asyncio.wait_for(told.wait(), PATIENCE_SECONDS)
    assert not host.log.view.manifest.quarantined
    assert not given_up.is_set()
    assert not node.mender.is_expected(host, first, end)


async def test_what_no_replica_has_is_lost_until_one_has_it(node: Node) -> None:
    host = await node.stream("s")
    first, end = spoil(host.log, 1)
    kept = node.copies.kept["s"]
    node.copies.kept["s"] = []  # it answers, and has nothing
    node.run()
    # Its answer without records would fit a compacted log; so it must say that it lacks them.
    node.copies.answers = False
    await until(lambda: len(node.copies.asked) > 2)
    assert node.mender.is_expected(host, first, end), "a node that is away may have it"
    node.copies.all_answer = lambda name: True  # type: ignore[method-assign]
    await until(lambda: not node.mender.is_expected(host, first, end))
    with pytest.raises(CorruptRange):
        records(host.log)
    node.copies.kept["s"] = kept
    node.copies.answers = True
    await until(lambda: not host.log.view.manifest.quarantined)


async def test_a_worker_that_dies_and_a_damaged_transfer_are_tried_again(node: Node) -> None:
    host = await node.stream("s")
    before = records(host.log)
    spoil(host.log, 1)
    node.worker.failures = [WorkerDied("killed")]
    node.copies.spoils = 2
    node.run()
    await until(lambda: not host.log.view.manifest.quarantined)
    assert records(host.log) == before
    assert [kind for kind, _ in node.worker.jobs] == ["mend"] * 3
    await until(lambda: host.observed.repaired_ranges)  # the replaced file is removed by then
    assert {one.name for one in host.log.directory.glob("*.log")} == {
        segment.path.name for segment in host.log.segments
    }


async def test_more_damage_in_the_segment_is_found_and_repaired(node: Node) -> None:
    host = await node.stream("s")
    before = records(host.log)
    spoil(host.log, 1)
    path = host.log.segments[1].path
    raw = bytearray(path.read_bytes())
    raw[host.log.segments[1].size_bytes - 20] ^= 1  # nothing knows of it
    path.write_bytes(bytes(raw))
    node.run()
    await until(lambda: host.observed.repaired_ranges == 2)
    assert not host.log.view.manifest.quarantined
    assert records(host.log) == before


async def test_below_the_log_start_nothing_is_asked_for(node: Node) -> None:
    host = await node.stream("s")
    segment = host.log.segments[1]
    host.log.truncate_prefix(segment.base_offset)
    spoil(host.log, 0)
    bad = host.log.view.manifest.quarantined[0]
    host.log.truncate_prefix(bad.next_offset - 1)
    node.run()
    await until(lambda: not host.log.view.manifest.quarantined)
    assert node.copies.asked == [(bad.next_offset - 1, bad.next_offset)]


async def test_a_log_without_some_tombstones_takes_nothing_from_before_them(node: Node) -> None:
    """Another replica may have an old value of a key that was deleted."""
    host = await node.stream("s")
    first, end = spoil(host.log, 1)
    host.log.structure.replace_segments((), (), tombstones_removed_below=first + 1)
    node.run()
    await until(lambda: not node.mender.is_expected(host, first, end))
    assert node.copies.asked == []
    assert host.log.view.manifest.quarantined
    assert set(node.copies.again) == {"s"}


@pytest.mark.parametrize("while_fetching", [True, False])
async def test_a_stream_that_ends_meanwhile_is_let_go(node: Node, while_fetching: bool) -> None:
    host, other = await node.stream("s"), await node.stream("other")
    spoil(host.log, 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def stop(*_: object) -> None:
        begun.set()
        await go_on.wait()

    if while_fetching:
        node.copies.before = stop
    else:
        node.worker.before = stop
    told = asyncio.Event()
    node.run()
    await asyncio.wait_for(begun.wait(), PATIENCE_SECONDS)
    node.mender.wait(host, told.set)
    del node.cleaning.running.broker.hosts["s"]
    await asyncio.wait_for(node.mender.forget(host), PATIENCE_SECONDS)
    assert told.is_set()
    assert [one for one in host.log.directory.iterdir() if "patch" in one.name] == []
    go_on.set()
    spoil(other.log, 0)
    await until(lambda: not other.log.view.manifest.quarantined)
    host.close()
    host.log.close()
