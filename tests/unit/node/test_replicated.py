"""The replicated streams of a node, which follow their records."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.clients.ingesting import until
from support.daemons.local_broker import Running
from support.daemons.node_inside import (
    forget_gone,
    give_up,
    is_asking,
    link_by,
    replica_of,
    succession_of,
)

import liftlog.server.requests.handlers  # noqa: F401 - its answers are registered
from liftlog.cli.clustering.cluster import _state
from liftlog.cluster import transitions
from liftlog.cluster.election import Patience
from liftlog.cluster.followers import FetchRequest, Kind
from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.store import CasUnknown, Entry, StoreUnavailable
from liftlog.errors import (
    Conflict,
    LiftlogError,
    MetadataUnavailable,
    NotLeader,
    NotReady,
    StorageError,
    StreamNotFound,
    UnknownEpoch,
)
from liftlog.log import DataDir, FileSystem
from liftlog.log.files.manifest import Manifest
from liftlog.log.structure import LogStructure
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.messages import DescribeStream, Message, StreamAnswer
from liftlog.protocol.replication import Peer, Replicate
from liftlog.records.header import parse_header
from liftlog.sequencing import MessageRun
from liftlog.server.access.gate import Gate
from liftlog.server.commits.host import StreamHost
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.membership import Member, to_bytes, value_of
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node import copies
from liftlog.server.node.cluster_catalog import ClusterCatalog
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.requests.rights import Caller, perform
from liftlog.settings import parse_stream_settings

PATIENCE_SECONDS = 30.0


class Store(FileMetaStore):
    """Fails the next changes, as many as a test wants."""

    failing = 0
    failed = 0
    under_way = 0
    most_under_way = 0
    together = 0
    """So many changes wait for each other."""
    unheard = 0
    """So many of the next changes are made without an answer."""

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        if self.failing > self.failed:
            self.failed += 1
            raise StoreUnavailable("on purpose")
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await wait(lambda: self.most_under_way >= self.together)
            stored = await super().cas(key, value, revision)
            if self.unheard:
                self.unheard -= 1
                raise CasUnknown("on purpose")
            return stored
        finally:
            self.under_way -= 1


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "records", shared=False)
    yield store
    store.close()


def described(start: int) -> dict[str, Any]:
    return {"start": start, "data_id": "a", "address": f"tcp://a:{start}"}


class Node:
    """Node a, alone: what it asks others is never answered."""

    def __init__(self, directory: Path, store: Store, start: int, lag_max: float = 10.0) -> None:
        self.running = Running(directory)
        self.streams = ReplicatedStreams(
            Member("c0ffee", "a", start, True, record=described(start), known_start=start - 1),
            store,
            self.running.broker.hosted,
            self.running.data_dir,
            link_to=self.link_to,
            lag_max_seconds=lag_max,
            catch_up_bytes_per_second=1e9,
        )
        self.running.broker.catalog = ClusterCatalog(self.streams, self.running.broker.own)
        # Each replica waits for it.
        self.opening = asyncio.ensure_future(self.running.broker.journal.open())

    def link_to(self, node: str) -> PeerLink:
        return PeerLink(node, lambda: None, no_introduction, lambda: None, self.streams.hearing)

    async def close(self) -> None:
        await self.streams.close()
        await self.running.broker.close()
        self.running.data_dir.close(None)


def no_introduction() -> Any:
    raise AssertionError("there is no connection")


def new_record(name: str, leader: str) -> StreamMetadata:
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


@pytest.mark.parametrize("least", [2, 3], ids=["it leaves", "it stays eligible"])
async def test_a_follower_tells_of_another_in_sync_set_when_that_is_on_its_disk(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """The leader takes it for known also after a start, whatever the metadata store forgets."""
    node = Node(tmp_path / "a", store, start=1)
    mirror = node.streams.mirror
    record = new_record("s", leader="b")
    record = replace(record, settings={**record.settings, "min_isr": least})
    await mirror.create(record)
    await wait(lambda: node.streams.followed)
    await mirror.remembered()
    may_write, asked, remembered = asyncio.Event(), asyncio.Event(), mirror.remembered

    async def slowly() -> None:
        asked.set()
        await may_write.wait()
        await remembered()

    monkeypatch.setattr(mirror, "remembered", slowly)
    followed = node.streams.followed["s"].follower
    left = await change(store, lambda present: transitions.fence(present, {"c"}))
    mirror.told(left)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asked.wait()
    assert followed.record == record
    may_write.set()
    await wait(lambda: followed.record == left)
    asked.clear()
    may_write.clear()
    joined = await change(store, lambda present: transitions.expand(present, "c", 1))
    mirror.told(joined)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asked.wait()
    assert followed.record == left
    may_write.set()
    await wait(lambda: followed.record == joined)
    await node.close()


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
    keeping = asyncio.create_task(streams.upkeep.keep_in_sync())
    await wait(lambda: keeping.done() or streams.mirror.records["sound"].isr == ("a",))
    assert not keeping.done(), keeping
    assert set(streams.mirror.records["garbage"].isr) == {"a", "b", "c"}
    keeping.cancel()
    await node.close()


async def test_subjects_that_are_changed_while_the_lead_begins_stay_changed(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role was begun by an older record, whose subjects would be subscribed to again."""
    node = Node(tmp_path / "a", store, start=1)
    broker, recorded = node.running.broker, list[str]()
    has_changed = asyncio.Event()
    attach, streams_changed = broker.hosted.attach_replica, broker.hosted.streams_changed

    async def attach_slowly(host: StreamHost) -> bool:
        found = await attach(host)
        await broker.administration.update_stream("s", {"subject": "other.>"})
        recorded.append("")
        has_changed.set()
        return found

    def note() -> None:
        recorded.extend(broker.hosts["s"].settings.subjects)
        streams_changed()

    monkeypatch.setattr(broker.hosted, "attach_replica", attach_slowly)
    monkeypatch.setattr(broker.hosted, "streams_changed", note)
    await node.streams.mirror.create(new_record("s", leader="a"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await has_changed.wait()
    version = node.streams.mirror.records["s"].version
    await node.streams.peers.look_again("s", version)
    assert recorded[-1] == "" or {*recorded[recorded.index("") :]} == {"", "other.>"}
    assert broker.hosts["s"].settings.subjects == ("other.>",)
    await node.close()


async def test_a_copy_that_is_dropped_is_not_written_to_any_more(
    tmp_path: Path, store: Store
) -> None:
    """This node led when the copy was found to be damaged. What the store says next is that it has
    to register, which opens the log."""
    node = Node(tmp_path / "a", store, start=1)
    streams, broker = node.streams, node.running.broker
    await streams.mirror.create(new_record("s", leader="a"))
    await wait(lambda: "s" in streams.led)
    replica_of(streams, "s").copy_again()
    await streams.mirror.change(
        "s",
        lambda record: replace(
            transitions.fence(record, {"a"}) or record,
            leader="b",
            starts={**record.starts, "a": 0},
        ),
    )
    await wait(lambda: "s" in streams.followed and not broker.broken)
    await wait(lambda: "a" not in streams.mirror.records["s"].isr)
    assert (copy_of(tmp_path / "a") / "manifest").exists()
    await node.close()


class Described:
    """The connection to a leader that describes its copy."""

    node = "b"

    def __init__(self, info: StreamInfo) -> None:
        self.info = info

    def request(self, message: Message, exchange: Exchange) -> None:
        if isinstance(message, DescribeStream):
            exchange.finish(StreamAnswer(self.info.to_wire()), None)

    def give_up(self, exchange: Exchange) -> None: ...


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("the copy of node b is damaged as well", {"quarantined": [{"first_offset": 7}]}),
        ("node b does not report the state of its copy", {"state": "failed"}),
        ("node b does not report the state of its copy", {"incarnation": "s-2"}),
        ("node b does not report the state of its copy", {"state": "elsewhere"}),
        ("node b does not report the state of its copy", {"state": "follower"}),
        ("node b does not report the state of its copy", {"leader_epoch": 2}),
        ("", {}),
    ],
)
async def test_a_copy_is_dropped_only_while_that_of_the_leader_is_whole(
    tmp_path: Path,
    store: Store,
    caplog: pytest.LogCaptureFixture,
    reason: str,
    state: dict[str, Any],
) -> None:
    """Each of two damaged copies may have what the other one has lost."""
    node = Node(tmp_path / "a", store, start=1)
    streams = node.streams
    link: Any = Described(
        StreamInfo(**{"incarnation": "s-1", "leader_epoch": 1, "state": "recording", **state})
    )
    node.link_to = lambda node: link  # type: ignore[method-assign]
    link_by(streams, node.link_to)
    await streams.mirror.create(new_record("s", leader="b"))
    await wait(lambda: "s" in streams.followed)
    manifest = (copy_of(tmp_path / "a") / "manifest").stat().st_ino
    with caplog.at_level("WARNING"):
        replica_of(streams, "s").copy_again()
        await wait(lambda: "copy-kept" in caplog.text or "copy-dropped" in caplog.text)
    assert ("a" in streams.mirror.records["s"].isr) == bool(reason)
    assert reason in caplog.text
    if reason:
        assert (copy_of(tmp_path / "a") / "manifest").stat().st_ino == manifest
        assert "s" in streams.followed
    await node.close()


async def test_a_copy_stays_if_there_is_another_leader_than_the_one_that_was_asked(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "a", store, start=1)
    streams = node.streams
    changing: list[asyncio.Task[StreamMetadata]] = []

    class DeposedMeanwhile(Described):
        def request(self, message: Message, exchange: Exchange) -> None:
            if isinstance(message, DescribeStream):
                step = partial(transitions.transfer, node="c")
                changing.append(asyncio.create_task(change(store, step)))
                changing[0].add_done_callback(
                    lambda _: super(DeposedMeanwhile, self).request(message, exchange)
                )

    info = StreamInfo(incarnation="s-1", leader_epoch=1, state="recording")
    link: Any = DeposedMeanwhile(info)
    node.link_to = lambda node: link  # type: ignore[method-assign]
    link_by(streams, node.link_to)
    await streams.mirror.create(new_record("s", leader="b"))
    await wait(lambda: "s" in streams.followed)
    replica_of(streams, "s").copy_again()
    await wait(lambda: "leads no longer" in caplog.text or "copy-dropped" in caplog.text)
    await wait(lambda: "s" in streams.followed and streams.mirror.records["s"].leader == "c")
    assert "a" in streams.mirror.records["s"].isr
    assert "copy-dropped" not in caplog.text
    await node.close()


# --- copies of another history of the record ---


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_node_goes_over_to_another_history_with_an_empty_copy(
    tmp_path: Path,
    store: Store,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
) -> None:
    """Also if the copy cannot be removed at first: what it has may not be told from what others
    have."""
    left = [StorageError("on purpose")] * failures

    def remove(data_dir: DataDir, record: StreamMetadata) -> None:
        if left:
            raise left.pop()
        remove_copy(data_dir, record)

    remove_copy = copies.remove_copy
    monkeypatch.setattr(copies, "remove_copy", remove)
    node = Node(tmp_path / "a", store, start=1)
    streams = node.streams
    first = await streams.mirror.create(new_record("s", leader="b"))
    await wait(lambda: "s" in streams.followed)
    await streams.mirror.change("s", lambda one: transitions.truncate(one, 5))
    fork = transitions.register(first, "c", 2, clean=True)
    assert fork is not None
    entry = await store.get("stream.s")
    assert entry is not None
    await store.cas("stream.s", fork.to_json(), entry.revision)
    with caplog.at_level("INFO"):
        give_up(streams, replace(fork, version=7))
        await wait(lambda: "following stream=s" in caplog.text)
        assert "replica-removed" not in caplog.text, "the store has changed since that was found"
        give_up(streams, fork)
        await wait(lambda: "copy-given-up" in caplog.text and "s" in streams.followed)
    record = streams.mirror.records["s"]
    assert record == streams.mirror.known["s"]
    assert record.isr == ("b", "c")
    assert record.log_start == first.log_start
    assert record.leader_epoch > fork.leader_epoch
    assert "replica-created stream=s" in caplog.text
    await node.close()


@pytest.mark.parametrize("before", ["", "it was repaired"])
@pytest.mark.parametrize("error", [Conflict("on purpose"), MetadataUnavailable("on purpose")])
async def test_a_copy_counts_for_what_it_was_while_its_node_cannot_go_over(
    tmp_path: Path,
    store: Store,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    error: LiftlogError,
) -> None:
    """With the mark of one that is given up it would be dropped: this one lags behind, and is not
    counted on."""
    node = Node(tmp_path / "a", store, start=1)
    streams = node.streams
    record = replace(new_record("s", leader="b"), isr=("b", "c"))
    await streams.mirror.create(record)
    await wait(lambda: "s" in streams.followed)
    streams.followed["s"].host.log.structure.note_incomplete(before)
    marks: list[str] = []

    def note(structure: LogStructure, reason: str) -> None:
        marks.append(reason)
        note_incomplete(structure, reason)

    async def fail(*_: object) -> None:
        assert marks == [copies.GIVEN_UP]
        raise error

    note_incomplete = LogStructure.note_incomplete
    monkeypatch.setattr(LogStructure, "note_incomplete", note)
    monkeypatch.setattr(streams.mirror, "go_over", fail)
    with caplog.at_level("INFO"):
        give_up(streams, record)
        await wait(lambda: "following stream=s" in caplog.text)
    assert marks == [copies.GIVEN_UP, before]
    assert "replica-created" not in caplog.text, "the copy was dropped"
    assert not streams.followed["s"].host.log.view.manifest.incomplete
    await node.close()


@pytest.mark.parametrize(("replicas", "isr"), [("abc", "ab"), ("abc", "a"), ("a", "a")])
async def test_a_copy_that_is_given_up_is_dropped_after_a_stop_too(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture, replicas: str, isr: str
) -> None:
    """It was marked, and the node has stopped then. The only copy is never dropped; nor the last
    one that an operator may still choose, before another one is chosen."""
    await with_copy(tmp_path / "a", store)
    record = await change(
        store, lambda one: replace(one, leader=None, replicas=(*replicas,), isr=(*isr,), version=9)
    )
    running = Running(tmp_path / "a")
    log, _ = copies.open_copy(running.data_dir, record)
    log.structure.note_incomplete(copies.GIVEN_UP)
    log.close()
    running.data_dir.close(None)
    with caplog.at_level("INFO"):
        node = await started(tmp_path / "a", store)
        if replicas != isr == "a":
            await wait(lambda: "the copy is kept" in node.running.broker.broken.get("s", ""))
            await change(store, lambda one: transitions.recover(one, "b"))
            await node.streams.mirror.load()
        await wait(lambda: "s" in {**node.streams.followed, **node.streams.led})
    is_kept = replicas == "a"
    await wait(lambda: not node.running.broker.broken)
    assert node.streams.mirror.records["s"].must_keep("a") == is_kept
    assert ("replica-created stream=s" not in caplog.text) == is_kept
    assert not node.running.broker.hosts["s"].log.view.manifest.incomplete
    await node.close()


@pytest.mark.parametrize("reason", [copies.GIVEN_UP, "it was repaired"])
async def test_a_copy_that_is_given_up_is_dropped_though_the_store_answers_late(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    """The node has registered, and is not told that it has."""
    await with_copy(tmp_path / "a", store)
    record = await change(store, lambda one: replace(one, version=9))
    running = Running(tmp_path / "a")
    log, _ = copies.open_copy(running.data_dir, record)
    log.structure.note_incomplete(reason)
    log.close()
    running.data_dir.close(None)
    store.unheard = 1
    with caplog.at_level("INFO"):
        node = await started(tmp_path / "a", store)
        await node.streams.mirror.load()
        await wait(lambda: "s" in node.streams.followed)
    assert store.unheard == 0
    assert not node.streams.mirror.records["s"].must_keep("a")
    assert ("replica-created stream=s" in caplog.text) == (reason == copies.GIVEN_UP)
    assert not node.running.broker.hosts["s"].log.view.manifest.incomplete
    await node.close()


# --- copies of streams that were deleted ---


def copy_of(directory: Path, name: str = "s") -> Path:
    return directory / "streams" / name


async def with_copy(directory: Path, store: Store) -> None:
    """The node has a copy of the stream s, and is stopped."""
    node = Node(directory, store, start=1)
    await node.streams.mirror.create(new_record("s", leader="b"))
    await wait(lambda: node.streams.followed)
    await node.close()


async def change(
    store: Store, step: Callable[[StreamMetadata], StreamMetadata | None]
) -> StreamMetadata:
    """By another node."""
    mirror = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
    record = await mirror.change("s", step)
    assert record is not None
    return record


async def started(directory: Path, store: Store) -> Node:
    node = Node(directory, store, start=2)
    await node.streams.opening.find_copies()
    await node.streams.opening.open_streams()
    return node


async def test_a_copy_that_is_created_at_the_start_is_not_taken_for_an_unfinished_one(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start removes directories that a creation has left without a manifest: of earlier starts,
    not of its own. The stream was created while the node was away; its manifest takes long."""
    mirror = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
    await mirror.create(new_record("s", leader="b"))
    judged = threading.Event()

    def stream_names(data_dir: DataDir) -> list[str]:
        if "s" in node.streams.mirror.records:  # it is being created then
            until(copy_of(tmp_path / "a").exists, PATIENCE_SECONDS)
        found = list_streams(data_dir)
        judged.set()
        return found

    def is_unfinished(data_dir: DataDir, name: str) -> bool:
        found = judge(data_dir, name)
        if name == "s":
            judged.set()
            until((copy_of(tmp_path / "a") / "manifest").exists, PATIENCE_SECONDS)
        return found

    def write(manifest: Manifest, fs: FileSystem, directory: Path) -> None:
        assert judged.wait(PATIENCE_SECONDS)
        write_manifest(manifest, fs, directory)

    list_streams, judge = DataDir.stream_names, DataDir._is_unfinished
    write_manifest = Manifest.write_first
    monkeypatch.setattr(DataDir, "stream_names", stream_names)
    monkeypatch.setattr(DataDir, "_is_unfinished", is_unfinished)
    monkeypatch.setattr(Manifest, "write_first", write)
    left = copy_of(tmp_path / "a", "left")
    left.mkdir(parents=True)
    node = Node(tmp_path / "a", store, start=2)
    await node.streams.opening.find_copies()
    await node.streams.opening.open_streams()
    await wait(lambda: "s" in node.streams.followed)
    assert {path.name for path in copy_of(tmp_path / "a").iterdir()} >= {"manifest", "acked"}
    assert not left.exists()
    assert node.running.broker.broken == {}
    await node.close()


async def test_a_node_that_was_away_removes_the_copy_of_a_deleted_stream(
    tmp_path: Path, store: Store
) -> None:
    await with_copy(tmp_path / "a", store)
    assert copy_of(tmp_path / "a").exists()
    await change(store, transitions.delete)
    node = await started(tmp_path / "a", store)
    await wait(lambda: "a" not in node.streams.mirror.records["s"].starts)
    assert not copy_of(tmp_path / "a").exists()
    assert set(node.streams.mirror.records["s"].starts) == {"b", "c"}, "the others have not"
    assert node.running.broker.broken == {}
    await node.close()


async def test_a_stream_that_was_created_again_meanwhile_replaces_the_copy(
    tmp_path: Path, store: Store
) -> None:
    await with_copy(tmp_path / "a", store)
    await change(store, transitions.delete)
    again = replace(new_record("s", leader="b"), incarnation="s-2")
    mirror = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
    assert (await mirror.create(again)).former == ("s-1",)
    node = await started(tmp_path / "a", store)
    await wait(lambda: node.streams.followed)
    assert node.running.broker.hosts["s"].log.incarnation == "s-2"
    await node.close()


@pytest.mark.parametrize("is_created_again", [False, True])
async def test_a_copy_that_no_record_accounts_for_is_neither_adopted_nor_removed(
    tmp_path: Path, store: Store, is_created_again: bool
) -> None:
    """As after the metadata were set back: it may be the only copy."""
    await with_copy(tmp_path / "a", store)
    entry = await store.get("stream.s")
    assert entry is not None
    await store.delete("stream.s", entry.revision)
    if is_created_again:
        again = replace(new_record("s", leader="b"), incarnation="s-2")
        mirror = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
        await mirror.create(again)
    node = await started(tmp_path / "a", store)
    broker = node.running.broker
    await wait(lambda: "s" in broker.broken)
    assert "set back" in broker.broken["s"]
    assert copy_of(tmp_path / "a").exists()
    assert broker.hosts == {}
    if not is_created_again:
        await broker.delete_stream("s")
        assert not copy_of(tmp_path / "a").exists()
        assert broker.broken == {}
    await node.close()


async def test_a_stream_of_a_daemon_on_its_own_is_never_replaced(
    tmp_path: Path, store: Store
) -> None:
    alone = Running(tmp_path / "a")
    await alone.broker.create_stream("s", {"subject": "s.>"})
    await alone.broker.close()
    alone.data_dir.close(None)
    mirror = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
    await mirror.create(new_record("s", leader="b"))
    for _ in range(2):
        node = await started(tmp_path / "a", store)
        broker = node.running.broker
        await wait(lambda broker=broker: "belonged to no cluster" in broker.broken.get("s", ""))
        await node.close()
        await change(store, transitions.delete)
    assert copy_of(tmp_path / "a").exists()


async def test_the_record_of_a_deleted_stream_is_purged_when_no_copy_is_left(
    tmp_path: Path, store: Store
) -> None:
    await with_copy(tmp_path / "a", store)
    node = await started(tmp_path / "a", store)
    purging = asyncio.create_task(node.streams.upkeep.purge_deleted(0.05))
    watching = asyncio.create_task(node.streams.mirror.run())
    await change(store, transitions.delete)
    await change(store, lambda record: transitions.removed(record, "b"))
    await wait(lambda: not copy_of(tmp_path / "a").exists())
    await asyncio.sleep(0.2)  # several rounds
    assert await store.get("stream.s") is not None, "c may have a copy"
    await change(store, lambda record: transitions.removed(record, "c"))
    await wait(lambda: "s" not in node.streams.mirror.records)
    assert await store.get("stream.s") is None
    assert (await node.streams.mirror.create(new_record("s", leader="b"))).former == ()
    for task in (purging, watching):
        task.cancel()
    await asyncio.gather(purging, watching, return_exceptions=True)
    await node.close()


async def test_a_stream_that_is_created_again_at_once_is_opened_when_that_returns(
    tmp_path: Path, store: Store
) -> None:
    """The copy of the deleted one is still being removed, or that has not begun."""
    node = await started(tmp_path / "a", store)
    streams, hosts = node.streams, node.running.broker.hosts
    for number in range(1, 7):
        record = replace(new_record("s", leader="b"), incarnation=f"s-{number}")
        record = replace(record, starts={"a": 2, "b": 1, "c": 1})
        await streams.mirror.create(record)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await streams.replicas.opened("s")
        assert hosts["s"].log.incarnation == f"s-{number}"
        await node.running.broker.catalog.delete("s")
        for _ in range(number * number):
            await asyncio.sleep(0.001)
    await node.close()


async def test_nodes_that_have_come_just_now_get_replicas(tmp_path: Path, store: Store) -> None:
    """The store knows them, and no notice has arrived here yet."""
    node = Node(tmp_path / "a", store, start=1)
    wanted = parse_stream_settings({"subject": "s.>", "replicas": 3})
    for name in "abc":
        with pytest.raises(Conflict, match=f"there are {'abc'.index(name)} live nodes"):
            await node.streams.new_streams.create_for_client("s", wanted)
        await add_node(store, name)
    record = await node.streams.new_streams.create_for_client("s", wanted)
    assert set(record.replicas) == {"a", "b", "c"}
    await node.close()


async def add_node(store: Store, name: str, **info: Any) -> None:
    """A node that is live."""
    told = {"start": 1, "data_id": "d", "address": f"tcp://127.0.0.1:{ord(name)}", **info}
    await store.cas(f"node.{name}", to_bytes(told), 0)
    await store.cas(f"live.{name}", to_bytes({"start": 1}), 0)


async def test_new_streams_are_spread_over_zones_and_nodes(tmp_path: Path, store: Store) -> None:
    """A node that is drained, or down, gets none."""
    node = Node(tmp_path / "a", store, start=1)
    zones = {"a": "x", "b": "x", "c": "y", "d": "y", "e": "y", "f": "z"}
    for name, zone in zones.items():
        await add_node(store, name, zone=zone, draining=name == "e")
    entry = await store.get("live.f")
    assert entry is not None
    await store.delete("live.f", entry.revision)
    wanted = parse_stream_settings({"subject": "s.>", "replicas": 2})
    await node.streams.mirror.load()
    create = node.streams.new_streams.create_for_client
    made = [await create(f"s{number}", wanted) for number in range(8)]
    for record in made:
        assert len({zones[name] for name in record.replicas}) == 2, "one in each zone"
    assert Counter(name for record in made for name in record.replicas) == dict.fromkeys("abcd", 4)
    assert Counter(record.leader for record in made) == dict.fromkeys("abcd", 2)
    many = parse_stream_settings({"subject": "s.>", "replicas": 5})
    with pytest.raises(Conflict, match=r"4 live nodes .* a, b, c, d \(e, f down or drained\)"):
        await node.streams.new_streams.create_for_client("many", many)
    await node.close()


async def test_a_follower_that_is_gone_leaves_all_in_sync_sets_at_once(
    tmp_path: Path, store: Store
) -> None:
    """One change after the other would keep the acks of the last stream waiting for all others."""
    node = Node(tmp_path / "a", store, start=1, lag_max=0.0)
    streams = node.streams
    names = [f"s{number}" for number in range(20)]
    for name in names:
        await streams.mirror.create(new_record(name, leader="a"))
    await wait(lambda: len(streams.led) == len(names))
    store.most_under_way = 0
    keeping = asyncio.create_task(streams.upkeep.keep_in_sync())
    await wait(lambda: all(streams.mirror.records[name].isr == ("a",) for name in names))
    assert store.most_under_way == len(names)
    assert not keeping.done()
    keeping.cancel()
    await node.close()


# --- roles ---


async def test_a_change_of_role_keeps_the_log_open(tmp_path: Path, store: Store) -> None:
    """From follower to leader to follower: the copy can be read all the time."""
    node = await started(tmp_path / "a", store)
    streams, hosts = node.streams, node.running.broker.hosts
    record = replace(new_record("s", leader="b"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(record)
    await wait(lambda: streams.followed)
    log, seen = hosts["s"].log, []

    async def watch() -> None:
        while True:
            seen.append("s" in hosts and not hosts["s"].turns.is_closed)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    for leader in ("a", "b", "a", "c"):
        await streams.mirror.change("s", lambda one, to=leader: transitions.transfer(one, to))
        if leader == "a":
            await wait(lambda: streams.led)
            assert hosts["s"].is_leading
            assert log.leader_epoch == streams.mirror.records["s"].leader_epoch
        else:
            await wait(lambda: streams.followed)
            assert not hosts["s"].is_leading
        assert hosts["s"].log is log
    watching.cancel()
    assert all(seen)
    await node.close()


async def test_a_leader_that_stays_leads_on_in_the_next_epoch(tmp_path: Path, store: Store) -> None:
    """A move ends, or a copy is dropped: publishers keep their stream, and what waits is acked."""
    node = await started(tmp_path / "a", store)
    streams, broker = node.streams, node.running.broker
    sent: list[bytes] = []
    broker.intake.write = sent.append
    record = replace(new_record("s", leader="a"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(record)
    await wait(lambda: streams.led)
    host, led = broker.hosts["s"], streams.led["s"]
    host.receive(MessageRun([b"s.1"], [b"reply"], [b"waits"], has_cookie=False))
    host.kick()
    await wait(lambda: host.log.durable_end_offset == 2)
    assert host.log.high_watermark == 1, "both followers lack it"
    moved = transitions.reassign(record, ["a", "b"])
    assert moved is not None
    assert (moved.leader_epoch, moved.replicas) == (2, ("a", "b"))
    await streams.mirror.change("s", lambda present: moved)
    await wait(lambda: led.leader.epoch == 2)
    assert (broker.hosts["s"], streams.led["s"]) == (host, led)
    assert host.is_accepting
    assert host.log.view.manifest.epochs == ((1, 1), (2, 2))
    verdict = led.gate.fetched(FetchRequest("b", 1, 1, 2, 1))
    assert verdict.kind is Kind.FENCED_EPOCH, "what it confirmed in the epoch before is no ack"
    assert sent == []
    led.gate.fetched(FetchRequest("b", 1, 2, 2, 1))
    assert [b'"seq":1' in one for one in sent] == [True]
    host.receive(MessageRun([b"s.2"], [b""], [b"next"], has_cookie=False))
    host.kick()
    await wait(lambda: host.log.durable_end_offset == 3)
    led.gate.fetched(FetchRequest("b", 1, 2, 3, 2))
    with host.log.read(2, 1 << 20) as found:
        assert parse_header(found.pread()).leader_epoch == 2
    await node.close()


async def test_a_leader_that_is_asked_in_a_later_epoch_reads_the_record(
    tmp_path: Path, store: Store
) -> None:
    """Notices can come late, and acks wait for followers that know more than it does."""
    node = await started(tmp_path / "a", store)
    streams = node.streams
    record = replace(new_record("s", leader="a"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(record)
    await wait(lambda: streams.led)
    other = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
    await other.change("s", lambda one: transitions.reassign(one, ["a", "b"]))
    assert streams.led["s"].leader.epoch == 1, "it has not heard of it"
    refused: list[Exception] = []
    reply: Any = SimpleNamespace(refuse=refused.append)
    request = Replicate("s", record.incarnation, 2, 1, 0, 1000)
    streams.peers.replicate(Peer("b", 1, "c0ffee"), request, reply)
    assert [type(one) for one in refused] == [UnknownEpoch]
    await wait(lambda: streams.led["s"].leader.epoch == 2)
    await node.close()


async def test_a_new_leader_describes_no_stream_whose_end_it_does_not_know_yet(
    tmp_path: Path, store: Store
) -> None:
    """Readers and jobs take the end from there: it would be lower than what the former leader has
    acked and shown."""
    node = await started(tmp_path / "a", store)
    streams, broker = node.streams, node.running.broker
    caller = Caller(None, Gate(None), broker, "")
    record = replace(new_record("s", leader="a"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(record)
    await wait(lambda: streams.led)
    host = broker.hosts["s"]
    host.receive(MessageRun([b"s.1"], [b""], [b"waits"], has_cookie=False))
    host.kick()
    await wait(lambda: host.log.durable_end_offset == 2)

    async def end() -> int:
        answer = await perform(caller, DescribeStream("s"))
        assert isinstance(answer, StreamAnswer)
        return answer.info.high_watermark

    assert await end() == 1, "what the former leader has shown is known"
    await streams.mirror.change("s", lambda one: transitions.transfer(one, "b"))
    await wait(lambda: streams.followed)
    await streams.mirror.change("s", lambda one: transitions.transfer(one, "a"))
    with pytest.raises(NotReady):  # it is elected, and does not lead yet
        await end()
    await wait(lambda: streams.led)
    with pytest.raises(NotReady):
        await end()
    broker.broken["s"] = "on purpose"
    assert await end() == 0, "why it is not served is told all the same"
    del broker.broken["s"]
    for other in "bc":
        streams.led["s"].gate.fetched(FetchRequest(other, 1, 3, 2, 1))
    assert await end() == 2
    await node.close()


@pytest.mark.parametrize("how", ["resigned before", "resigns meanwhile", "hands over", "disk"])
async def test_a_leader_that_cannot_lead_on_begins_anew(
    how: str, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await started(tmp_path / "a", store)
    streams, broker = node.streams, node.running.broker
    record = replace(new_record("s", leader="a"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(record)
    await wait(lambda: streams.led)
    host, led = broker.hosts["s"], streams.led["s"]
    begin_epoch = host.log.writer.begin_epoch
    loop = asyncio.get_running_loop()

    def begin(epoch: int) -> None:
        monkeypatch.setattr(host.log.writer, "begin_epoch", begin_epoch)
        if how == "disk":
            raise StorageError("on purpose")
        loop.call_soon_threadsafe(host.step_down, "on purpose")
        begin_epoch(epoch)

    if how == "resigned before":
        host.step_down("on purpose")
    elif how == "hands over":
        monkeypatch.setattr(streams.handovers, "is_giving", lambda name: True)
    else:
        monkeypatch.setattr(host.log.writer, "begin_epoch", begin)
    moved = transitions.reassign(record, ["a", "b"])
    assert moved is not None
    await streams.mirror.change("s", lambda present: moved)
    await wait(lambda: "s" in streams.led and streams.led["s"].leader.epoch == 2)
    assert streams.led["s"] is not led
    assert broker.hosts["s"] is not host
    assert broker.hosts["s"].is_accepting
    assert host.is_accepting is False
    await node.close()


async def test_a_leader_that_was_replaced_unheard_tells_no_client_that_its_records_are_gone(
    tmp_path: Path, store: Store
) -> None:
    """A client has read of the next leader, and asks the one before. Where the metadata were
    restored without an epoch, what was read in it is gone indeed."""
    node = await started(tmp_path / "a", store)
    streams = node.streams
    record = replace(new_record("s", leader="a"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(record)
    await wait(lambda: streams.led)

    async def asked() -> None:
        await wait(lambda: not is_asking(streams.successors))

    with pytest.raises(NotLeader):
        streams.successors.check_epoch("s", 3)
    await asked()
    streams.successors.check_epoch("s", 3)  # the store has no such epoch: DIVERGED
    streams.successors.check_epoch("s", 2)
    with pytest.raises(NotLeader):
        streams.successors.check_epoch("s", 4)
    await asked()
    elected = await change(store, lambda one: transitions.failover(one, {"a"}, "b"))
    assert streams.led["s"].leader.epoch < elected.leader_epoch == 2, "it has not heard of it"
    forget_gone(streams.successors)
    with pytest.raises(NotLeader):
        streams.successors.check_epoch("s", 2)
    await wait(lambda: streams.followed)
    await asked()
    with pytest.raises(NotLeader):
        streams.successors.check_epoch("s", 2)
    await node.close()


async def test_a_leader_of_a_stream_that_was_created_again_unheard_sends_its_readers_on(
    tmp_path: Path, store: Store
) -> None:
    """It would tell a client of the new stream that its records are gone. One of a stream that was
    before this one is told so: at once, if the record knows of that stream."""
    node = await started(tmp_path / "a", store)
    streams = node.streams
    starts = {"a": 2, "b": 1, "c": 1}
    old = replace(new_record("s", leader="a"), starts=starts, former=("older",))
    await streams.mirror.create(old)
    await wait(lambda: streams.led)
    check, present = streams.successors.check_incarnation, old.incarnation

    async def asked() -> None:
        await wait(lambda: not is_asking(streams.successors))

    check("s", present, "older")
    with pytest.raises(NotLeader):
        check("s", present, "unknown")
    await asked()
    check("s", present, "unknown")  # the store has this stream still: STALE_INCARNATION
    with pytest.raises(NotLeader):
        check("s", present, "new")
    await asked()
    check("s", present, "unknown")
    check("s", present, "new")
    forget_gone(streams.successors)
    other = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
    await other.change("s", transitions.delete)
    new = await other.create(replace(new_record("s", leader="b"), incarnation="new"))
    assert streams.mirror.records["s"] == old, "it has not heard of it"
    with pytest.raises(NotLeader):
        check("s", present, "new")
    await asked()
    assert streams.mirror.records["s"].incarnation == new.incarnation
    with pytest.raises(NotLeader):  # its log may be the old one still
        check("s", present, "new")
    check("s", "new", present)
    await node.close()


async def test_a_log_in_doubt_is_opened_again_for_the_next_role(
    tmp_path: Path, store: Store
) -> None:
    node = await started(tmp_path / "a", store)
    streams, hosts = node.streams, node.running.broker.hosts
    record = replace(new_record("s", leader="a"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(record)
    await wait(lambda: streams.led)
    log = hosts["s"].log
    hosts["s"].fail("on purpose")
    await wait(lambda: streams.followed)
    assert hosts["s"].log is not log
    assert not hosts["s"].failure
    await node.close()


# --- the lead moves ---


async def test_a_stream_is_handed_over_to_none_that_could_not_lead(
    tmp_path: Path, store: Store
) -> None:
    node = await started(tmp_path / "a", store)
    streams = node.streams
    record = replace(new_record("s", leader="a"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(transitions.fence(record, {"c"}) or record)
    await wait(lambda: streams.led)
    with pytest.raises(Conflict, match="in sync are a, b"):
        await streams.handovers.hand_over("s", "c")
    with pytest.raises(Conflict, match="in sync are a, b"):
        await streams.handovers.hand_over("s", "a")
    with pytest.raises(Conflict, match="not attached to NATS"):
        await streams.handovers.hand_over("s", "b")
    with pytest.raises(Conflict, match="does not lead"):
        await streams.handovers.hand_over("missing", "b")
    assert await streams.leadership.elect("s") == "a", "it leads already"
    with pytest.raises(StreamNotFound):
        await streams.leadership.elect("missing")
    assert streams.handovers.given == 0
    assert streams.mirror.records["s"].leader == "a"
    await streams.leadership.hand_over_all()  # no other node is there
    assert streams.led
    await node.close()


async def test_leaving_is_tried_again_while_the_store_does_not_answer(
    tmp_path: Path, store: Store
) -> None:
    node = await started(tmp_path / "a", store)
    streams = node.streams
    record = replace(new_record("s", leader="a"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(record)
    await wait(lambda: streams.led)
    store.failing = store.failed + 3
    await streams.leave()
    assert store.failed == store.failing
    found = streams.mirror.records["s"]
    assert (found.leader, found.isr) == (None, ("b", "c"))
    await node.close()


async def test_that_a_node_stops_is_known_before_it_leaves(tmp_path: Path, store: Store) -> None:
    """Who leads would take it in again at its next request, and acks would wait for it."""
    node = await started(tmp_path / "a", store)
    streams = node.streams
    await with_nodes(store, streams)
    entry = await store.get("node.a")
    assert entry is not None
    value = to_bytes({**described(2), "stopping": False})
    await store.cas("node.a", value, entry.revision)
    record = replace(new_record("s", leader="b"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(record)
    await wait(lambda: streams.followed)
    await streams.leave()
    told, left = await store.get("node.a"), await store.get("stream.s")
    assert told is not None
    assert left is not None
    assert b'"stopping":true' in told.value
    assert told.revision < left.revision
    assert streams.mirror.directory.stopping == {"a"}
    assert StreamMetadata.from_json(left.value).isr == ("b", "c")
    await node.close()


async def with_nodes(store: Store, streams: ReplicatedStreams) -> None:
    for name in "abc":
        await store.cas(f"node.{name}", to_bytes({"start": 1, "data_id": name, "address": ""}), 0)
        await store.cas(f"live.{name}", to_bytes({"start": 1}), 0)
    await streams.mirror.load()


async def test_streams_created_at_the_same_time_do_not_wait_for_each_other(
    tmp_path: Path, store: Store
) -> None:
    node = Node(tmp_path / "a", store, start=1)
    await with_nodes(store, node.streams)
    store.together, store.most_under_way = 6, 0
    names = [f"s{number}" for number in range(6)]
    created = (
        node.running.broker.create_stream(name, {"subject": f"{name}.>", "replicas": 3})
        for name in names
    )
    found = await asyncio.gather(*created, return_exceptions=True)
    records = [node.streams.mirror.records[name] for name in names]
    assert Counter(one.leader for one in records) == {"a": 2, "b": 2, "c": 2}
    for record, result in zip(records, found, strict=True):
        is_here = record.leader == "a"
        assert isinstance(result, StreamInfo if is_here else NotLeader), result
    assert node.streams.led.keys() == {one.name for one in records if one.leader == "a"}
    await node.close()


async def test_the_streams_of_the_configuration_are_created_together_once_there_are_nodes(
    tmp_path: Path, store: Store
) -> None:
    node = Node(tmp_path / "a", store, start=1)
    settings = {
        f"s{number}": parse_stream_settings({"subject": f"s{number}.>", "replicas": 3})
        for number in range(100)
    }
    creating = asyncio.create_task(node.streams.new_streams.create_configured(settings))
    await asyncio.sleep(0.05)
    assert not creating.done(), "no node is there"
    await with_nodes(store, node.streams)
    store.together, store.most_under_way = 32, 0
    await creating
    assert store.most_under_way <= 64
    leaders = Counter(node.streams.mirror.records[name].leader for name in settings)
    assert sorted(leaders.values()) == [33, 33, 34]
    await node.close()


async def test_a_stream_of_the_configuration_that_is_refused_keeps_no_others_waiting(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "a", store, start=1)
    large = {"jetstream": {"metadata": {"text": "x" * 100_000}}}
    settings = {
        name: parse_stream_settings({"subject": f"{name}.>", "replicas": 3, **more})
        for name, more in (("r", large), ("s", {}))
    }
    await with_nodes(store, node.streams)
    await node.streams.new_streams.create_configured(settings)
    assert "stream-not-created stream=r" in caplog.text
    assert set(node.streams.mirror.records) == {"s"}
    await node.close()


async def test_a_stream_of_the_configuration_waits_until_its_record_can_be_read(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator may remove what is there, or restore it."""
    node = Node(tmp_path / "a", store, start=1)
    settings = {
        name: parse_stream_settings({"subject": f"{name}.>", "replicas": 3}) for name in "rs"
    }
    revision = await store.cas("stream.r", b"garbage", 0)
    await with_nodes(store, node.streams)
    tries = 0
    create = node.streams.mirror.create

    async def counted(record: StreamMetadata) -> StreamMetadata:
        nonlocal tries
        tries += record.name == "r"
        return await create(record)

    node.streams.mirror.create = counted  # type: ignore[method-assign, assignment]
    creating = asyncio.create_task(node.streams.new_streams.create_configured(settings))
    await wait(lambda: creating.done() or tries > 2)
    await store.delete("stream.r", revision)
    await creating
    assert caplog.text.count("stream-waits stream=r") == 1
    assert set(node.streams.mirror.records) == {"r", "s"}
    await node.close()


async def test_the_status_tells_which_node_is_about_to_stop(tmp_path: Path, store: Store) -> None:
    node = Node(tmp_path / "a", store, start=1)
    await with_nodes(store, node.streams)
    await node.streams.mirror.nodes.change("b", lambda value: {**value, "stopping": True})
    told = node.running.broker.catalog.describe_cluster(lambda name: True).members
    assert {one.node: _state(one) for one in told} == {"a": "live", "b": "stopping", "c": "live"}
    silent = replace(told[1], silent_seconds=4.2, draining=True)
    assert _state(silent) == "stopping, drained, silent for 4 s"
    assert _state(replace(silent, live=False)) == "down, drained"
    await node.close()


async def test_a_node_that_the_store_has_forgotten_says_again_where_it_is(
    tmp_path: Path, store: Store
) -> None:
    node = Node(tmp_path / "a", store, start=2)
    mirror = node.streams.mirror
    revision = await store.cas("node.a", to_bytes(described(2)), 0)
    watching = asyncio.create_task(mirror.run())
    await wait(lambda: "a" in mirror.directory.nodes)
    for older in (None, described(1)):  # as from before this node came, or before its last start
        if older is None:
            await store.delete("node.a", revision)
        else:
            await store.cas("node.a", to_bytes(older), (await newest(store)).revision)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while value_of(await newest(store)) != described(2):
                await asyncio.sleep(0.01)
        await wait(lambda: [one.start for one in mirror.directory.nodes.values()] == [2])
    watching.cancel()
    await node.close()


async def test_a_newer_start_of_a_node_is_left_alone(tmp_path: Path, store: Store) -> None:
    node = Node(tmp_path / "a", store, start=2)
    await store.cas("node.a", to_bytes(described(3)), 0)
    await node.streams.mirror.nodes.restore("a", described(2))
    assert value_of(await newest(store)) == described(3)
    await node.close()


async def newest(store: Store) -> Entry:
    entry = await store.get("node.a")
    return Entry(0, b"{}") if entry is None else entry


class Session:
    """Of node a, which never ends."""

    renewed_at = 0.0
    deadline = float("inf")

    async def abandon(self) -> None: ...

    async def close(self) -> None: ...


async def led_by_unknown(directory: Path, store: Store) -> Node:
    """Stream s is led by b, and the metadata store does not know that node."""
    node = Node(directory, store, start=1)
    await store.cas("node.a", to_bytes(described(1)), 0)
    await store.cas("live.a", to_bytes({"start": 1}), 0)
    await node.streams.mirror.load()
    node.streams.candidacy.stand(Session(), Patience(session=0.2, veto=0.2))
    await node.streams.mirror.create(new_record("s", leader="b"))
    await wait(lambda: node.streams.followed)
    return node


async def test_a_dead_leader_is_replaced_though_the_store_has_forgotten_it(
    tmp_path: Path, store: Store
) -> None:
    node = await led_by_unknown(tmp_path / "a", store)
    tasks = [asyncio.create_task(node.streams.hearing.run())]
    tasks.append(asyncio.create_task(node.streams.candidacy.run()))
    await wait(lambda: node.streams.mirror.records["s"].leader == "a")
    for task in tasks:
        task.cancel()
    await node.close()


async def test_a_leader_that_is_heard_leads_on_though_the_store_has_forgotten_it(
    tmp_path: Path, store: Store
) -> None:
    node = await led_by_unknown(tmp_path / "a", store)
    succession = succession_of(node.streams)
    for _ in range(100):
        node.streams.hearing.heard("b")
        succession.look()
        await asyncio.sleep(0.01)
    assert node.streams.mirror.records["s"].leader == "b"


async def test_a_copy_that_could_not_be_created_is_created_when_the_disk_has_room(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first try has left is no stream of someone else."""
    left = [OSError(errno.ENOSPC, "full")] * 2

    def write(manifest: Manifest, fs: FileSystem, directory: Path) -> None:
        if left:
            raise left.pop()
        write_manifest(manifest, fs, directory)

    write_manifest = Manifest.write_first
    monkeypatch.setattr(Manifest, "write_first", write)
    node = Node(tmp_path / "a", store, start=1)
    await node.streams.mirror.create(new_record("s", leader="b"))
    await wait(lambda: "s" in node.streams.followed)
    assert not left
    await wait(lambda: not node.running.broker.broken)
    await node.close()


@pytest.mark.parametrize("epoch", [1, 3])
async def test_the_leader_of_a_stream_that_is_created_again_unheard_leads_the_new_one(
    tmp_path: Path, store: Store, epoch: int
) -> None:
    """It sees the new record only. The epochs of the two streams have nothing to do with each
    other: those that were given up in the old one are free in the new one."""
    node = await started(tmp_path / "a", store)
    streams = node.streams
    first = replace(new_record("s", leader="a"), starts={"a": 2, "b": 1, "c": 1})
    await streams.mirror.create(replace(first, leader_epoch=epoch))
    await wait(lambda: streams.led)
    await change(store, transitions.delete)
    other = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
    await other.create(replace(first, incarnation="s-2"))
    await streams.mirror.load()
    await wait(lambda: streams.led and streams.led["s"].leader.record.incarnation == "s-2")
    leader = streams.led["s"].leader
    assert (leader.epoch, leader.record.isr) == (1, first.isr)
    await node.close()


async def test_a_copy_whose_record_is_not_believed_keeps_no_opinion_from_others(
    tmp_path: Path, store: Store
) -> None:
    """Without it they would elect no leader of any stream before a session ends."""
    await with_copy(tmp_path / "a", store)
    entry = await store.get("stream.s")
    assert entry is not None
    known = await change(store, lambda one: transitions.truncate(one, 5))
    before = Node(tmp_path / "a", store, start=1)
    await before.streams.mirror.load()
    await before.streams.mirror.remembered()
    await before.close()
    now = await store.get("stream.s")
    assert now is not None
    await store.cas("stream.s", entry.value, now.revision)
    node = Node(tmp_path / "a", store, start=2)
    await node.streams.opening.remember()
    await node.streams.mirror.load()
    assert (node.streams.mirror.records, node.streams.mirror.known) == ({}, {"s": known})
    session = await store.session("live.a", b"{}", 15)
    node.streams.candidacy.stand(session, Patience())
    give_up(node.streams, replace(known, version=7))  # which is not what is stored
    assert node.streams.peers.opinion("b").logs == {}
    await session.close()
    await node.close()


async def test_no_ack_goes_to_what_another_node_records(tmp_path: Path, store: Store) -> None:
    """It would be stored there as a message."""
    node = Node(tmp_path / "a", store, start=1)
    mirror, broker = node.streams.mirror, node.running.broker
    await mirror.create(new_record("here", leader="a"))
    await wait(lambda: node.streams.led)
    record = transitions.create("far", "far-1", {"subject": "far.>"}, ["b"], starts={"b": 1})
    sequencer = broker.hosts["here"].sequencer
    await mirror.create(record)
    await wait(lambda: not sequencer.destinations.allows(b"far.x"))
    assert not broker.destinations.allows(b"far.x")
    assert sequencer.sibling_streams[b"far"] == ("far.>",)

    await mirror.update("far", lambda one: transitions.update(one, {"subject": "farther.>"}))
    await wait(lambda: not sequencer.destinations.allows(b"farther.x"))
    assert sequencer.destinations.allows(b"far.x")

    await mirror.change("far", transitions.delete)
    await wait(lambda: sequencer.destinations.allows(b"farther.x"))
    assert b"far" not in sequencer.sibling_streams
    await node.close()


async def test_what_was_truncated_does_not_come_back_with_a_leader_that_commits_it_later(
    tmp_path: Path, store: Store
) -> None:
    """Its high watermark was below that when it looked, and nothing changes the record."""
    node = Node(tmp_path / "a", store, start=1)
    streams = node.streams
    await streams.mirror.create(new_record("s", leader="a"))
    await wait(lambda: streams.led)
    host, led = node.running.broker.hosts["s"], streams.led["s"]
    subjects = [b"s.1", b"s.2", b"s.3"]
    host.receive(MessageRun(subjects, [b""] * 3, [b"1", b"2", b"3"], has_cookie=False))
    host.kick()
    await wait(lambda: host.log.durable_end_offset == 4)
    await streams.mirror.change("s", lambda record: transitions.truncate(record, 3))
    await wait(lambda: led.leader.record.log_start == 3)
    assert (host.log.high_watermark, host.log.log_start_offset) == (1, 1)
    keeping = asyncio.create_task(streams.upkeep.keep_in_sync())
    for follower in "bc":
        led.gate.fetched(FetchRequest(follower, 1, 1, 4, 1))
    assert host.log.high_watermark == 4
    await wait(lambda: host.log.log_start_offset == 3)
    keeping.cancel()
    await node.close()


async def test_what_is_published_after_a_loss_is_not_taken_for_what_was_deleted(
    tmp_path: Path, store: Store
) -> None:
    """The copies that reached the log start are gone: this one begins there, and deletes nothing
    that it acks."""
    node = Node(tmp_path / "a", store, start=1)
    streams = node.streams
    await streams.mirror.create(replace(new_record("s", leader="a"), log_start=1000))
    await wait(lambda: streams.led)
    host, led = node.running.broker.hosts["s"], streams.led["s"]
    subjects = [b"s.1", b"s.2", b"s.3"]
    host.receive(MessageRun(subjects, [b""] * 3, [b"1", b"2", b"3"], has_cookie=False))
    host.kick()
    await wait(lambda: host.log.durable_end_offset == 1003)
    keeping = asyncio.create_task(streams.upkeep.keep_in_sync())
    for follower in "bc":
        led.gate.fetched(FetchRequest(follower, 1, 1, 1003, 1))
    await wait(lambda: host.log.high_watermark == 1003)
    await asyncio.sleep(0.3)
    assert host.log.log_start_offset == 1000
    keeping.cancel()
    await node.close()


# --- no copy is there: it is lost, or never was ---


@pytest.fixture
def alone() -> StreamMetadata:
    settings = {"subject": "s.>", "replicas": 1}
    return transitions.create("s", "s-1", settings, ["a"], starts={"a": 1})


async def begun(directory: Path, store: Store, start: int) -> Node:
    node = Node(directory, store, start=start)
    await node.streams.opening.remember()
    await node.streams.opening.find_copies()
    await node.streams.opening.open_streams()
    return node


async def lost(
    path: Path, store: Store, alone: StreamMetadata, *, had_it: bool, noted: bool = True
) -> StreamMetadata:
    """The record after a start of the node that finds no copy. `noted`: the version that ran before
    has noted which ones it had."""
    node = await begun(path, store, 1)
    await node.streams.mirror.create(new_record("other", leader="b"))
    if had_it:
        await node.streams.mirror.create(alone)
        await wait(lambda: node.streams.led)
    await node.streams.mirror.remembered()
    await node.close()
    if had_it:
        shutil.rmtree(path / "streams" / "s")
    else:
        await store.cas("stream.s", alone.to_json(), 0)
    if not noted:
        (path / "known-records").unlink()
    node = await begun(path, store, 2)
    await wait(lambda: node.streams.mirror.records["s"].starts["a"] == 2)
    record = node.streams.mirror.records["s"]
    await node.close()
    return record


async def test_one_that_the_directory_had_is_lost(
    tmp_path: Path, store: Store, alone: StreamMetadata
) -> None:
    record = await lost(tmp_path / "a", store, alone, had_it=True)
    assert (record.leader, record.isr, record.last_eligible) == (None, (), ("a",))


async def test_one_that_it_never_had_is_new(
    tmp_path: Path, store: Store, alone: StreamMetadata
) -> None:
    """The node was placed as a replica when it was down, or stopped before it had made the copy."""
    record = await lost(tmp_path / "a", store, alone, had_it=False)
    assert (record.leader, record.isr) == ("a", ("a",))


async def test_without_a_note_of_an_older_version_it_is_taken_for_lost(
    tmp_path: Path, store: Store, alone: StreamMetadata
) -> None:
    record = await lost(tmp_path / "a", store, alone, had_it=False, noted=False)
    assert record.leader is None


async def test_one_that_disappears_while_the_node_runs_is_not_begun_again(
    tmp_path: Path, store: Store, alone: StreamMetadata
) -> None:
    node = await begun(tmp_path / "a", store, 1)
    await node.streams.mirror.create(alone)
    await wait(lambda: node.streams.led)
    replica = replica_of(node.streams, "s")
    (tmp_path / "a" / "streams" / "s").rename(tmp_path / "aside")
    await replica.role.end()
    replica.wake()
    broken = node.running.broker.broken
    await wait(lambda: "s" in broken)
    assert "has disappeared while the daemon runs" in broken["s"]
    assert not node.streams.led
    await node.close()
