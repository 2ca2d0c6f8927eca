"""Whether a data directory is the one that its node had at its last start."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.disks.simfs import MachineStopped, SimFileSystem

from liftlog.cluster.store import Entry
from liftlog.errors import ConfigError, CorruptMetadata
from liftlog.log.data_dir import make_durable_directory
from liftlog.log.files.checkpoint_file import write_checkpoint_text
from liftlog.log.files.identity import DirectoryIdentity, Witness
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.membership import (
    FEATURES,
    Directory,
    Member,
    create_cluster,
    join,
    read_node_file,
    to_bytes,
    value_of,
)
from liftlog.server.metadata.mirror import Mirror

STORE, DATA = Path("/meta"), Path("/data")
ADDRESS = "tcp://127.0.0.1:9292"


def machine() -> SimFileSystem:
    fs = SimFileSystem()
    for directory in (STORE, DATA, Path("/other")):
        make_durable_directory(fs, directory)
    return fs


async def joined(
    fs: SimFileSystem, *, store: SimFileSystem | None = None, data: Path = DATA, node: str = "a"
) -> Member:
    meta = FileMetaStore(STORE / "records", shared=False, fs=store or fs)
    try:
        return await join(meta, fs, data, node=node, address=ADDRESS)
    finally:
        meta.close()


async def test_each_start_is_higher_and_the_directory_is_known_again() -> None:
    fs = machine()
    first = await joined(fs)
    assert (first.start, first.is_same) == (1, False)
    second = await joined(fs.kill())
    assert (second.start, second.is_same) == (2, True)
    assert second.cluster_id == first.cluster_id


async def test_keys_of_newer_versions_stay_in_the_record_of_a_node() -> None:
    """An older version, to which a node is set back, changes only what it knows."""
    fs = machine()
    await joined(fs)
    store = FileMetaStore(STORE / "records", shared=False, fs=fs)
    entry = await store.get("node.a")
    assert entry is not None
    newer = {**value_of(entry), "racks": ["r1"], "features": ["later"]}
    await store.cas("node.a", to_bytes(newer), entry.revision)
    store.close()
    again = await joined(fs)
    assert again.record["racks"] == ["r1"]
    store = FileMetaStore(STORE / "records", shared=False, fs=fs)
    mirror = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
    await mirror.load()
    assert mirror.directory.nodes["a"].start == 2
    await mirror.nodes.change("a", lambda value: {**value, "draining": True})
    entry = await store.get("node.a")
    assert entry is not None
    assert value_of(entry)["racks"] == ["r1"]
    assert value_of(entry)["features"] == list(FEATURES), "those of the version that runs"
    store.close()


async def test_an_empty_directory_and_one_that_was_set_back_are_others() -> None:
    fs = machine()
    await joined(fs)
    old = fs.power_cut("all")  # a copy
    await joined(fs)
    await joined(fs)
    empty = await joined(fs, data=Path("/other"))
    assert (empty.start, empty.is_same) == (4, False)
    back = await joined(old, store=fs)
    assert (back.start, back.is_same) == (5, False)
    again = await joined(old, store=fs)
    assert (again.start, again.is_same) == (6, True)


async def test_a_store_that_was_made_again_takes_the_directory_at_its_word() -> None:
    """What was confirmed in lives that the directory does not know of is not there."""
    fs = machine()
    first = await joined(fs)
    old = fs.power_cut("all")  # a copy
    await joined(fs)
    lost = machine()
    await again(lost, first.cluster_id)
    member = await joined(fs, store=lost)
    assert (member.start, member.is_same) == (3, True)
    assert [member.had(start) for start in range(5)] == [False, True, True, True, False]
    lost = machine()
    await again(lost, first.cluster_id)
    member = await joined(old, store=lost)
    assert (member.start, member.is_same) == (2, True)
    assert not member.had(3)
    assert member.had(1)


@pytest.mark.parametrize(
    ("change", "is_copy"),
    [
        ({"lock_changed_ns": 9}, False),  # a start that failed, a change of the owner
        ({"lock_changed_ns": 9, "inode": 7}, False),  # a file system that draws them at each mount
        ({"born_ns": 9, "lock_changed_ns": 9}, True),
        ({"born_ns": 9, "lock_changed_ns": 9, "inode": 7}, True),
    ],
)
async def test_a_copy_of_the_directory_is_another_one(
    change: dict[str, int], is_copy: bool
) -> None:
    """It may lack what the node confirmed after it was made; but for one that was made, or begun,
    after the node had stopped in order."""
    fs = machine()
    first = Witness(1, 2, 3)
    found = first._replace(**change)
    meta = FileMetaStore(STORE / "records", shared=False, fs=fs)

    async def start(found: Witness, closed_start: int = 0) -> Member:
        identity = DirectoryIdentity(found, found, closed_start)
        return await join(meta, fs, DATA, node="a", address=ADDRESS, identity=identity)

    await start(first)
    member = await start(found)
    assert (member.start, member.is_same) == (2, not is_copy)
    assert (await start(found)).is_same
    elsewhere = Witness(99, 99, 99)
    assert (await start(elsewhere, closed_start=3)).is_same, "it was moved after the last stop"
    assert not (await start(first, closed_start=3)).is_same, "another one was the node since"
    meta.close()


async def test_a_directory_that_has_lost_its_node_file_is_refused() -> None:
    fs = machine()
    await joined(fs)
    write_checkpoint_text(fs, DATA / "known-records", "known-records", '{"nodes":{},"streams":{}}')
    await joined(fs)
    fs.unlink(DATA / "node")
    with pytest.raises(ConfigError, match="its file node is gone") as raised:
        await joined(fs)
    assert "start node a with an empty data_dir" in str(raised.value.hint)


async def again(fs: SimFileSystem, cluster_id: str) -> None:
    meta = FileMetaStore(STORE / "records", shared=False, fs=fs)
    assert await create_cluster(meta, cluster_id)
    meta.close()


@pytest.mark.parametrize("store_survives", [True, False])
async def test_a_start_that_stops_anywhere_is_followed_by_one_that_knows_the_directory(
    store_survives: bool,
) -> None:
    """`store_survives`: the metadata lie on another machine."""
    stops = 0
    while True:
        fs = machine()
        await joined(fs)
        fs.stop_at = fs.operations + stops
        try:
            await joined(fs)
        except MachineStopped:
            after = fs.power_cut("some", stops)
            store = fs.kill() if store_survives else after
            member = await joined(after, store=store)
            assert member.is_same
            assert member.start >= 2
            stops += 1
        else:
            assert stops > 5
            return


async def test_the_directory_of_another_node_is_refused() -> None:
    fs = machine()
    await joined(fs)
    with pytest.raises(ConfigError, match="belongs to node a"):
        await joined(fs, node="b")
    assert read_node_file(fs, DATA) is not None


async def test_the_directory_of_another_cluster_is_refused() -> None:
    fs, other = machine(), machine()
    await joined(fs)
    with pytest.raises(ConfigError, match=r"store is empty.* belongs to cluster"):
        await joined(fs, store=other)
    await joined(other)
    with pytest.raises(ConfigError, match="of cluster"):
        await joined(fs, store=other)


async def test_an_empty_store_is_made_by_a_node_without_data_or_by_an_operator() -> None:
    fs = machine()
    meta = FileMetaStore(STORE / "records", shared=False, fs=fs)
    with pytest.raises(ConfigError, match="cluster init"):
        await join(meta, fs, DATA, node="a", address=ADDRESS, may_create=False)
    assert await meta.scan("") == {}
    assert await create_cluster(meta)
    assert not await create_cluster(meta)
    member = await join(meta, fs, DATA, node="a", address=ADDRESS, may_create=False)
    assert member.start == 1
    meta.close()


@pytest.mark.parametrize(
    "junk", [b"", b"[" * 100_000, b"{}", b'{"start":null,"data_id":1,"address":2}', b"\xff", b"[]"]
)
async def test_what_is_no_record_of_a_node_is_refused(junk: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        Directory().note("node.a", Entry(1, junk))
    fs = machine()
    meta = FileMetaStore(STORE / "records", shared=False, fs=fs)
    assert await create_cluster(meta)
    if junk.isascii() and junk != b"{}":
        await meta.cas("node.a", junk, 0)
        if not junk.startswith(b"{"):
            with pytest.raises(CorruptMetadata):
                await join(meta, fs, DATA, node="a", address=ADDRESS)
    meta.close()


async def test_who_is_there() -> None:
    fs = machine()
    member = await joined(fs)
    meta = FileMetaStore(STORE / "records", shared=False, fs=fs)
    directory = Directory()
    for key, entry in (await meta.scan("")).items():
        directory.note(key, entry)
    meta.close()
    assert directory.nodes["a"].start == member.start
    assert directory.nodes["a"].address == ADDRESS
    assert directory.live == set()
    assert directory.note("live.a", Entry(1, b"{}"))
    assert not directory.note("live.a", Entry(2, b"{}"))
    assert directory.live == {"a"}
    assert not directory.note("barrier.a", Entry(3, b"{}"))
    with pytest.raises(CorruptMetadata):
        directory.note("node.a", Entry(4, b"{}"))
    assert directory.nodes["a"].start == member.start
    directory.note("node.a", None)
    directory.note("live.a", None)
    assert directory.nodes == {}
