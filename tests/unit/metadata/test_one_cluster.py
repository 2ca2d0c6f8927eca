"""A store that becomes another cluster's is out of reach until it is the own one again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.disks.simfs import SimFileSystem

from liftlog.cluster.store import CLUSTER_KEY, Entry, StoreUnavailable
from liftlog.errors import ConfigError
from liftlog.log.data_dir import make_durable_directory
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.membership import (
    create_cluster,
    join,
    take_back,
    to_bytes,
    value_of,
)
from liftlog.server.metadata.one_cluster import OneClusterStore

STORE, DATA = Path("/meta"), Path("/data")


@pytest.fixture
def fs() -> SimFileSystem:
    fs = SimFileSystem()
    for directory in (STORE, DATA, Path("/other")):
        make_durable_directory(fs, directory)
    return fs


@pytest.fixture
async def file(fs: SimFileSystem) -> AsyncIterator[FileMetaStore]:
    file = FileMetaStore(STORE / "records", shared=False, fs=fs)
    await create_cluster(file, "ours")
    yield file
    file.close()


async def become(file: FileMetaStore, cluster: str) -> None:
    entry = await file.get(CLUSTER_KEY)
    assert entry is not None
    await file.cas(CLUSTER_KEY, to_bytes({"cluster_id": cluster}), entry.revision)


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_nothing_passes_while_it_is_another_clusters(file: FileMetaStore) -> None:
    async def nothing() -> None:
        return

    store = OneClusterStore(file, nothing)
    store.expect("ours")
    seen: dict[str, Entry | None] = {}
    watching = asyncio.ensure_future(store.watch("", lambda key, entry: seen.update({key: entry})))
    first = await store.cas("stream.one", b"{}", 0)
    await store.cas("stream.two", b"{}", 0)
    await until(lambda: {"stream.one", "stream.two"} <= seen.keys())
    assert store.problem == ""

    await become(file, "theirs")
    await until(lambda: store.problem)
    assert "cluster theirs" in store.problem
    assert "--again" in store.problem
    calls = (
        store.get("stream.one"),
        store.get_newest("stream.one"),
        store.cas("stream.one", b"{}", first),
        store.put_for("live.a", b"{}", 0, 5),
        store.delete("stream.one", first),
        store.scan("stream."),
        store.session("live.a", b"{}", 5),
    )
    for call in calls:
        with pytest.raises(StoreUnavailable, match="theirs"):
            await call
    await file.cas("stream.theirs", b"{}", 0)
    await file.delete("stream.two", await revision(file, "stream.two"))
    await asyncio.sleep(0.2)
    assert "stream.theirs" not in seen
    assert seen["stream.two"] is not None

    await become(file, "ours")
    await until(lambda: seen["stream.two"] is None and "stream.theirs" in seen)
    assert await store.get("stream.one") is not None
    assert store.problem == ""
    watching.cancel()
    await store.close()


async def revision(file: FileMetaStore, key: str) -> int:
    entry = await file.get(key)
    assert entry is not None
    return entry.revision


async def test_what_was_founded_by_mistake_is_taken_back(
    file: FileMetaStore, fs: SimFileSystem
) -> None:
    member = await join(file, fs, DATA, node="a", address="tcp://127.0.0.1:9292")
    assert member.cluster_id == "ours"
    await become(file, "theirs")
    entry = await file.get(CLUSTER_KEY)
    assert entry is not None
    await take_back(file, fs, DATA, "ours", entry)
    found = await file.get(CLUSTER_KEY)
    assert found is not None
    assert value_of(found)["cluster_id"] == "ours"

    # Not if a node is in it that this one has never seen.
    await become(file, "theirs")
    await join(file, fs, Path("/other"), node="x", address="tcp://127.0.0.1:9293")
    entry = await file.get(CLUSTER_KEY)
    assert entry is not None
    with pytest.raises(ConfigError, match="nodes that do not belong to cluster ours: x"):
        await take_back(file, fs, DATA, "ours", entry)
    with pytest.raises(ConfigError, match="is that of cluster theirs") as refused:
        await join(file, fs, DATA, node="a", address="tcp://127.0.0.1:9292")
    assert "--again" in str(refused.value.hint)
