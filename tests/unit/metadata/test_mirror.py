"""The records as one node knows them, and changes by several nodes at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.disks.simfs import Fault, SimFileSystem

from liftlog.cluster import transitions
from liftlog.cluster.record import Change, StreamMetadata
from liftlog.cluster.store import MAX_VALUE_BYTES, Entry
from liftlog.errors import Conflict, CorruptMetadata, InvalidArgument, MetadataUnavailable
from liftlog.log.data_dir import make_durable_directory
from liftlog.server.metadata import mirror
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.mirror import Mirror, record_of

STORE = Path("/meta")


class Node:
    def __init__(self, store: FileMetaStore) -> None:
        self.seen: list[StreamMetadata] = []
        self.nodes_changed = 0
        self.mirror = Mirror(store, on_record=self.seen.append, on_nodes=self._note)

    def _note(self) -> None:
        self.nodes_changed += 1


def new_record(incarnation: str = "one") -> StreamMetadata:
    starts = {"a": 1, "b": 1, "c": 1}
    return transitions.create("s", incarnation, {"min_isr": 2}, "abc", starts=starts)


@pytest.fixture
def fs() -> SimFileSystem:
    fs = SimFileSystem()
    make_durable_directory(fs, STORE)
    return fs


@pytest.fixture
def store(fs: SimFileSystem) -> Iterator[FileMetaStore]:
    store = FileMetaStore(STORE / "records", shared=False, fs=fs)
    yield store
    store.close()


async def test_who_creates_second_gets_the_record_of_the_first(store: FileMetaStore) -> None:
    one, two = Node(store), Node(store)
    first, second = await asyncio.gather(
        one.mirror.create(new_record("one")), two.mirror.create(new_record("two"))
    )
    assert first == second
    assert one.mirror.records == two.mirror.records == {"s": first}


async def test_settings_leave_room_for_what_nodes_decide(store: FileMetaStore) -> None:
    """A record that is full could name no other leader: the stream would stop with its first."""

    def large(size: int) -> dict[str, Any]:
        return {"min_isr": 2, "metadata": {"text": "x" * size}}

    node, starts = Node(store), {"a": 1, "b": 1, "c": 1}
    with pytest.raises(InvalidArgument, match="less metadata"):
        await node.mirror.create(
            transitions.create("s", "one", large(50_000), "abc", starts=starts)
        )
    adopted = transitions.create("adopted", "one", large(60_000), "abc", starts=starts)
    assert await node.mirror.create(adopted, has_log=True) == adopted
    most = transitions.create("s", "one", large(45_000), "abc", starts=starts)
    for number in range(100):  # it was created and deleted as often
        after = transitions.in_place_of(most, transitions.delete(most) or most)
        most = replace(after, incarnation=f"{number:032}")
    record = await node.mirror.create(most)
    with pytest.raises(InvalidArgument, match="less metadata"):
        await node.mirror.update("s", lambda one: transitions.update(one, large(50_000)))
    for number in range(200):
        to = "bc"[number % 2]
        await node.mirror.change("s", lambda one, to=to: transitions.transfer(one, to))  # type: ignore[misc]
    record = node.mirror.records["s"]
    assert len(record.to_json()) < MAX_VALUE_BYTES - 8192
    # One of a version that took more:
    full = replace(record, settings=large(60_000))
    await store.cas("stream.s", full.to_json(), (await store.scan(""))["stream.s"].revision)
    paused = {**large(60_000 - 100), "paused": True}
    await Node(store).mirror.update("s", lambda one: transitions.update(one, paused))


async def test_changes_at_once_are_all_made(store: FileMetaStore) -> None:
    nodes = [Node(store) for _ in range(4)]
    await nodes[0].mirror.create(new_record())
    await asyncio.gather(
        *(
            node.mirror.change("s", lambda r, to=to: transitions.truncate(r, to))  # type: ignore[misc]
            for node, to in zip(nodes, (10, 20, 30, 40), strict=True)
        )
    )
    for node in nodes:
        await node.mirror.load()
        assert node.mirror.records["s"].log_start == 40
        versions = [record.version for record in node.seen]
        assert versions == sorted(set(versions))


async def test_a_stream_that_was_deleted_can_be_created_again(store: FileMetaStore) -> None:
    node = Node(store)
    await node.mirror.create(new_record("one"))
    await node.mirror.change("s", transitions.delete)
    again = await node.mirror.create(new_record("two"))
    assert (again.incarnation, again.version) == ("two", 1)
    assert node.mirror.records["s"] == again
    other = Node(store)
    await other.mirror.load()
    assert other.mirror.records["s"] == again


async def test_a_leader_that_is_late_learns_the_newer_record(store: FileMetaStore) -> None:
    leader, other = Node(store), Node(store)
    record = await leader.mirror.create(new_record())
    shrunk = transitions.fence(record, {"b"})
    assert shrunk is not None
    newer = await other.mirror.change("s", lambda r: transitions.fence(r, {"c"}))
    await leader.mirror.commit(Change(record, shrunk))
    assert leader.mirror.records["s"] == newer
    assert newer is not None
    after = transitions.fence(newer, {"b"})
    assert after is not None
    await leader.mirror.commit(Change(newer, after))
    assert leader.mirror.records["s"] == after


class CountingStore:
    """Passes everything on, and counts it."""

    def __init__(self, store: FileMetaStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._store, name)


async def test_a_change_of_a_known_record_is_one_read_and_one_write(store: FileMetaStore) -> None:
    counted = CountingStore(store)
    node, other = Node(counted), Node(store)  # type: ignore[arg-type]
    await node.mirror.create(new_record())
    counted.calls.clear()
    await node.mirror.change("s", lambda record: transitions.truncate(record, 10))
    assert counted.calls == {"get": 1, "cas": 1}
    # What another node has changed is not known here, and is not lost.
    await other.mirror.load()
    await other.mirror.change("s", lambda record: transitions.fence(record, {"c"}))
    counted.calls.clear()
    after = await node.mirror.change("s", lambda record: transitions.truncate(record, 20))
    assert counted.calls == {"get": 1, "cas": 1}
    assert after is not None
    assert (after.log_start, after.isr, after.version) == (20, ("a", "b"), 4)


def set_back(node: Node, store: FileMetaStore) -> None:
    """The store that the node uses is replaced by another history of it."""
    node.mirror._store.raw = store


@pytest.mark.parametrize("how", ["change", "commit"])
async def test_what_was_stored_after_the_store_was_set_back_is_not_lost_unread(
    fs: SimFileSystem, how: str
) -> None:
    """Another node's change got the very revision at which the record is known here."""
    stores = [FileMetaStore(STORE / str(number), shared=False, fs=fs) for number in range(2)]
    node, other = Node(stores[0]), Node(stores[1])
    await node.mirror.create(new_record())
    await other.mirror.create(new_record())
    known = await node.mirror.change("s", lambda record: transitions.fence(record, {"c"}))
    elected = await other.mirror.change("s", lambda record: transitions.transfer(record, "b"))
    assert known is not None
    entries = [await one.get("stream.s") for one in stores]
    assert entries[0] is not None
    assert entries[1] is not None
    assert entries[0].revision == entries[1].revision
    set_back(node, stores[1])
    after = transitions.expand(known, "c", 1)
    assert after is not None
    with pytest.raises(MetadataUnavailable, match="an older record"):
        if how == "commit":
            await node.mirror.commit(Change(known, after))
        else:
            await node.mirror.change("s", lambda record: transitions.transfer(record, "b"))
    assert await other.mirror.read("s") == elected
    assert node.mirror.doubtful == {"s"}
    for store in stores:
        store.close()


async def test_only_a_record_that_was_read_says_that_nothing_is_to_be_changed(
    store: FileMetaStore,
) -> None:
    node, other = Node(store), Node(store)
    await node.mirror.create(new_record())
    newer = await other.mirror.change("s", lambda record: transitions.truncate(record, 10))
    assert await node.mirror.change("s", lambda present: None) == newer

    def refuse(record: StreamMetadata) -> StreamMetadata | None:
        if record.log_start < 20:
            raise Conflict("too low")
        return transitions.truncate(record, 30)

    await other.mirror.change("s", lambda record: transitions.truncate(record, 20))
    after = await node.mirror.change("s", refuse)
    assert after is not None
    assert after.log_start == 30


async def test_who_has_stored_a_record_does_not_look_at_its_notice(
    store: FileMetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = Node(store), Node(store)
    await node.mirror.create(new_record())
    looked_at: list[str] = []

    def looked(key: str, entry: Entry) -> StreamMetadata:
        looked_at.append(key)
        return record_of(key, entry)

    monkeypatch.setattr(mirror, "record_of", looked)
    await node.mirror.load()
    assert looked_at == []
    await other.mirror.change("s", lambda record: transitions.truncate(record, 10))
    looked_at.clear()
    await node.mirror.load()
    assert looked_at == ["stream.s"]
    assert node.mirror.records["s"].log_start == 10


async def test_what_another_node_told_can_be_changed_after_the_store_was_set_back(
    fs: SimFileSystem,
) -> None:
    """Its revision there is below that of the record before, which was forgotten."""
    stores = [FileMetaStore(STORE / str(number), shared=False, fs=fs) for number in range(2)]
    for _ in range(9):
        entry = await stores[0].get("other")
        await stores[0].cas("other", b"{}", 0 if entry is None else entry.revision)
    node, other = Node(stores[0]), Node(stores[1])
    record = await node.mirror.create(new_record())
    told = transitions.fence(record, {"b"})
    assert told is not None
    await other.mirror.create(told)
    set_back(node, stores[1])
    node.mirror.told(told)
    assert node.mirror.records["s"] == told
    await node.mirror.load()
    after = transitions.fence(told, {"c"})
    assert after is not None
    await node.mirror.commit(Change(told, after))
    assert (await other.mirror.read("s"), node.mirror.records["s"]) == (after, after)
    for store in stores:
        store.close()


async def test_what_is_not_there_and_what_is_not_changed(store: FileMetaStore) -> None:
    node = Node(store)
    assert await node.mirror.change("s", transitions.delete) is None
    record = await node.mirror.create(new_record())
    assert await node.mirror.change("s", lambda _: None) == record
    assert [one.version for one in node.seen] == [1]


async def test_a_store_that_fails(store: FileMetaStore, fs: SimFileSystem) -> None:
    node = Node(store)
    record = await node.mirror.create(new_record())
    fs.faults = [Fault("rename", path="records")]
    with pytest.raises(MetadataUnavailable):
        await node.mirror.change("s", transitions.delete)
    fs.faults = []
    changed = await node.mirror.change("s", transitions.delete)
    assert changed is not None
    assert changed.deleted
    assert changed.version == record.version + 1


async def test_what_is_no_record_is_reported_and_changes_nothing(
    store: FileMetaStore, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(store)
    await node.mirror.create(new_record())
    known = dict(node.mirror.records)
    for key, value in {
        "stream.other": new_record().to_json(),
        "stream.junk": b"{",
        "stream.number": b"7",
        "node.x": b"{}",
        "what.is.this": b"x",
    }.items():
        await store.cas(key, value, 0)
    await node.mirror.load()
    assert node.mirror.records == known
    assert caplog.text.count("record-not-read") == 4
    with pytest.raises(CorruptMetadata, match="stream 's'"):
        await node.mirror.change("other", lambda record: record)
    with pytest.raises(CorruptMetadata):
        await node.mirror.change("junk", lambda record: record)
