"""The replicated streams of a node, which follow their records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.local_broker import Running

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamRecord
from liftlog.cluster.store import StoreUnavailable
from liftlog.server.replication.file_store import FileMetaStore
from liftlog.server.replication.membership import Member
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.streams.replicated import ReplicatedStreams

PATIENCE_SECONDS = 30.0


class Store(FileMetaStore):
    """Fails the next changes, as many as a test wants."""

    failing = 0
    failed = 0

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        if self.failing > self.failed:
            self.failed += 1
            raise StoreUnavailable("on purpose")
        return await super().cas(key, value, revision)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "records", shared=False)
    yield store
    store.close()


class Node:
    """Node a, alone: what it asks others is never answered."""

    def __init__(self, directory: Path, store: Store, start: int, lag_max: float = 10.0) -> None:
        self.running = Running(directory)
        self.streams = ReplicatedStreams(
            Member("c0ffee", "a", start, is_same=True),
            store,
            self.running.broker,
            self.running.data_dir,
            link_to=self.link_to,
            lag_max_seconds=lag_max,
            catch_up_bytes_per_second=1e9,
        )
        self.running.broker.replicated = self.streams

    def link_to(self, node: str) -> PeerLink:
        return PeerLink(node, lambda: None, no_introduction, lambda: None, self.streams.hearing)

    async def close(self) -> None:
        await self.streams.close()
        await self.running.broker.close()
        self.running.data_dir.close(None)


def no_introduction() -> Any:
    raise AssertionError("there is no connection")


def new_record(name: str, leader: str) -> StreamRecord:
    settings = {"subject": f"{name}.>", "replicas": 3, "min_isr": 1}
    others = [node for node in "abc" if node != leader]
    return transitions.create(
        name, f"{name}-1", settings, [leader, *others], starts=dict.fromkeys("abc", 1)
    )


async def wait(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_start_that_cannot_register_keeps_what_it_knows_of_its_log(
    tmp_path: Path, store: Store
) -> None:
    """The log is open by the time that the store does not answer, and it is as whole as before."""
    before = Node(tmp_path / "a", store, start=1)
    await before.streams.mirror.create(new_record("s", leader="b"))
    await wait(lambda: before.streams.followed)
    await before.close()
    store.failing = 2
    after = Node(tmp_path / "a", store, start=2)
    await after.streams.mirror.load()
    await wait(lambda: after.streams.followed)
    record = after.streams.mirror.records["s"]
    await after.close()
    assert store.failed == 2
    assert record.starts["a"] == 2
    assert "a" in record.isr, "it has all that it confirmed"


async def test_a_record_that_cannot_be_read_leaves_other_streams_in_sync(
    tmp_path: Path, store: Store
) -> None:
    """No follower of either stream ever asks. One of the records has become garbage."""
    node = Node(tmp_path / "a", store, start=1, lag_max=0.0)
    streams = node.streams
    for name in ("garbage", "sound"):
        await streams.mirror.create(new_record(name, leader="a"))
    await wait(lambda: len(streams.led) == 2)
    entry = await store.get("stream.garbage")
    assert entry is not None
    await store.cas("stream.garbage", b"{}", entry.revision)
    keeping = asyncio.create_task(streams.keep_in_sync())
    await wait(lambda: keeping.done() or streams.mirror.records["sound"].isr == ("a",))
    assert not keeping.done(), keeping
    assert set(streams.mirror.records["garbage"].isr) == {"a", "b", "c"}
    keeping.cancel()
    await node.close()
