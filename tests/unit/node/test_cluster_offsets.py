"""The checkpoints of a cluster on one node: who serves them when, and by what they are judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.daemons.local_broker import Running
from support.daemons.node_inside import succession_of

from liftlog.cluster import transitions
from liftlog.cluster.election import Patience
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import (
    ConnectionLost,
    LiftlogError,
    NotEnoughReplicas,
    NotReady,
    OffsetOutOfRange,
    StaleIncarnation,
    StreamNotFound,
)
from liftlog.protocol.messages import Fetch, FetchHeader
from liftlog.protocol.replication import Peer, Replicate
from liftlog.server.checkpoints import OFFSETS_STREAM, Checkpoints
from liftlog.server.checkpoints.opening import offsets_settings, open_checkpoints
from liftlog.server.checkpoints.service import complete
from liftlog.server.commits.host import SYSTEM
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.membership import Member, to_bytes
from liftlog.server.node import cluster_catalog, own_offsets
from liftlog.server.node.cluster_catalog import ClusterCatalog
from liftlog.server.node.offsets import ReplicatedOffsets
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.streams.housekeeping import expire_checkpoints
from liftlog.server.streams.settings import record_settings

PATIENCE_SECONDS = 30.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileMetaStore]:
    store = FileMetaStore(tmp_path / "records", shared=False)
    await comes(store, "a")
    yield store
    store.close()


async def comes(store: FileMetaStore, node: str) -> None:
    described = {"v": 1, "start": 1, "data_id": node, "address": "tcp://127.0.0.1:1"}
    await store.cas(f"node.{node}", to_bytes(described), 0)
    await store.cas(f"live.{node}", to_bytes({"start": 1}), 0)


class Node:
    """Node a; the others are here only what they say."""

    def __init__(self, directory: Path, store: FileMetaStore) -> None:
        self.running = Running(directory)
        self.broker = self.running.broker
        self.streams = ReplicatedStreams(
            Member("c0ffee", "a", 1, is_same=True),
            store,
            self.broker.hosted,
            self.running.data_dir,
            link_to=self.link_to,
            lag_max_seconds=60.0,
            catch_up_bytes_per_second=1e9,
        )
        self.broker.catalog = ClusterCatalog(self.streams, self.broker.own)
        self._work: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await asyncio.to_thread(own_offsets.set_aside, self.running.data_dir)
        await self.broker.journal.open()
        await self.streams.opening.open_streams()
        own = own_offsets.OwnCheckpoints(self.running.data_dir)
        offsets = ReplicatedOffsets(self.broker, self.streams, self.running.clock.now_ns, own)
        for work in (
            offsets.run(),
            self.streams.upkeep.keep_in_sync(),
            own.take_over(self.broker, self.streams),
        ):
            self._work.append(asyncio.create_task(work))

    def link_to(self, node: str) -> PeerLink:
        return PeerLink(node, lambda: None, no_introduction, lambda: None, self.streams.hearing)

    async def follow(self, node: str, stream: str = OFFSETS_STREAM) -> None:
        """`node` has all that there is, until it is asked again."""
        log = self.broker.hosts[stream].log
        record = self.streams.mirror.records[stream]
        request = Replicate(
            stream, record.incarnation, record.leader_epoch, log.log_end_offset, 0, 1 << 20
        )
        epochs = log.view.manifest.epochs
        last = epochs[-1][0] if log.log_end_offset > 1 else 0
        request = request.replaced(last_epoch=last, side_version=log.leases.side_state.version)
        self.streams.peers.replicate(Peer(node, 1, "c0ffee"), request, Ignored())
        await asyncio.sleep(0)

    async def close(self) -> None:
        for work in self._work:
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.streams.close()
        await self.broker.close()
        self.running.data_dir.close(None)


class Ignored:
    """What the follower is answered."""

    may_copy = True

    def replica(self, header: Any, body: Any) -> None:
        if body is not None and not isinstance(body, bytes):
            body.release()

    def refuse(self, error: Exception) -> None:
        pass


def no_introduction() -> Any:
    raise AssertionError("there is no connection")


async def wait(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def commit(checkpoints: Checkpoints, stream: str, offset: int, **more: Any) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    checkpoints.commit("me", stream, offset, partial(complete, future), **more)
    await future


def record_elsewhere(name: str = "s") -> StreamMetadata:
    return transitions.create(
        name, f"{name}-1", {"subject": f"{name}.>"}, ["b"], starts={"b": 1}, leader_epoch=4
    )


async def test_the_first_node_makes_the_stream_and_judges_by_records(
    tmp_path: Path, store: FileMetaStore
) -> None:
    node = Node(tmp_path / "a", store)
    await node.start()
    await wait(lambda: node.broker.has_checkpoints)
    record = node.streams.mirror.records[OFFSETS_STREAM]
    assert (record.replicas, record.system, record.leader) == (("a",), True, "a")
    await node.streams.mirror.create(record_elsewhere())
    checkpoints = node.broker.checkpoints
    with pytest.raises(StreamNotFound):
        await commit(checkpoints, "none", 1)
    await commit(checkpoints, "s", 1_000_000, incarnation="s-1", epoch=4)
    with pytest.raises(StaleIncarnation):
        await commit(checkpoints, "s", 7, incarnation="s-0", epoch=4)
    with pytest.raises(NotReady):
        await commit(checkpoints, "s", 7, incarnation="s-1", epoch=5)
    found = checkpoints.fetch("me", "s", check=True)
    assert found is not None
    assert (found.offset, found.epoch, found.lag) == (1_000_000, 4, None)
    (told,) = node.streams.peers.ends([OFFSETS_STREAM, "s", "none"]).values()
    assert told == (record.incarnation, 1, 2)
    with pytest.raises(OffsetOutOfRange):  # this one is led here
        await commit(checkpoints, OFFSETS_STREAM, 50)
    await node.close()


async def test_it_grows_with_the_cluster_and_waits_for_its_replicas(
    tmp_path: Path, store: FileMetaStore
) -> None:
    node = Node(tmp_path / "a", store)
    mirror = node.streams.mirror
    await node.start()
    await wait(lambda: node.broker.has_checkpoints)
    await node.streams.mirror.create(record_elsewhere())
    await commit(node.broker.checkpoints, "s", 5)
    for name in ("b", "c", "d"):
        await comes(store, name)
    await mirror.load()
    await wait(lambda: mirror.records[OFFSETS_STREAM].adding)
    assert set(mirror.records[OFFSETS_STREAM].adding) == {"c", "d"}, "b has a stream already"
    first = mirror.records[OFFSETS_STREAM].leader_epoch
    for name in ("c", "d"):
        await mirror.change(
            OFFSETS_STREAM, partial(transitions.register, node=name, start=1, clean=False)
        )

    async def all_in_sync() -> None:
        while mirror.records[OFFSETS_STREAM].adding:
            for name in ("c", "d"):
                await node.follow(name)
            await asyncio.sleep(0.05)

    await asyncio.wait_for(all_in_sync(), PATIENCE_SECONDS)
    # A new epoch: the table is loaded again, when the replicas have said how far they are.
    assert mirror.records[OFFSETS_STREAM].leader_epoch > first
    await wait(lambda: node.streams.led.get(OFFSETS_STREAM) is not None)

    async def ready() -> None:
        while not node.broker.has_checkpoints:
            for name in ("c", "d"):
                await node.follow(name)
            await asyncio.sleep(0.05)

    await asyncio.wait_for(ready(), PATIENCE_SECONDS)
    await wait(lambda: mirror.records[OFFSETS_STREAM].min_isr == 2)
    found = node.broker.checkpoints.fetch("me", "s", check=True)
    assert found is not None
    assert found.offset == 5

    waiting = asyncio.create_task(commit(node.broker.checkpoints, "s", 6))
    await wait(lambda: node.broker.hosts[OFFSETS_STREAM].log.log_end_offset == 3)
    assert not waiting.done(), "it is on one disk"
    await node.follow("c")
    await node.follow("d")
    await waiting
    record = await mirror.change(
        OFFSETS_STREAM, lambda present: transitions.fence(present, {"c", "d"})
    )
    assert record is not None
    led = node.streams.led.get(OFFSETS_STREAM)
    assert led is not None
    await wait(lambda: not led.leader.can_commit)
    with pytest.raises(NotEnoughReplicas):
        await commit(node.broker.checkpoints, "s", 7)
    await node.close()


async def three_replicas(tmp_path: Path, store: FileMetaStore) -> Node:
    """Node a leads the checkpoints, c and d have all of them."""
    node = Node(tmp_path / "a", store)
    for name in ("c", "d"):
        await comes(store, name)
    settings = offsets_settings(node.broker.settings, replicas=3)
    record = transitions.create(
        OFFSETS_STREAM,
        "o-1",
        record_settings(settings, SYSTEM),
        ["a", "c", "d"],
        starts={"a": 1, "c": 1, "d": 1},
        system=True,
    )
    await node.streams.mirror.create(record)
    await node.start()

    async def ready() -> None:
        while not node.broker.has_checkpoints:
            if node.streams.led.get(OFFSETS_STREAM) is not None:
                for name in ("c", "d"):
                    await node.follow(name)
            await asyncio.sleep(0.02)

    await asyncio.wait_for(ready(), PATIENCE_SECONDS)
    return node


async def test_a_leader_without_a_session_answers_no_look_ups(
    tmp_path: Path, store: FileMetaStore
) -> None:
    """Another node may have been elected, and have stored newer ones. Here no task looks at the
    session: that is done at each request."""
    node = await three_replicas(tmp_path, store)
    await node.streams.mirror.create(record_elsewhere())
    kept = node.broker.checkpoints
    session: Any = SimpleNamespace(deadline=asyncio.get_running_loop().time() + 3600)
    node.streams.candidacy.stand(session, Patience(veto=0.2, session=3600))
    succession = succession_of(node.streams)
    succession.look()
    assert node.broker.checkpoints is kept
    succession._elections._deadline = 0.0  # it has ended
    await wait(lambda: not node.broker.has_checkpoints)
    with pytest.raises(NotReady):
        _ = node.broker.checkpoints
    found = None
    async with asyncio.timeout(PATIENCE_SECONDS):
        while found is None:
            await node.follow("c")  # most replicas show that they have elected no one
            with suppress(NotReady):  # if the machine was busy for 0.2 s
                found = node.broker.checkpoints
    assert found is kept
    await node.close()


async def test_a_leader_that_has_resigned_answers_no_look_ups(
    tmp_path: Path, store: FileMetaStore
) -> None:
    node = await three_replicas(tmp_path, store)
    node.broker.hosts[OFFSETS_STREAM].step_down("test")
    with pytest.raises(NotReady):
        _ = node.broker.checkpoints
    # It stops in the middle of the change of its role, and does not wait for ever.
    await node.close()


async def test_checkpoints_of_a_stream_without_a_copy_here_expire_as_its_leader_tells(
    tmp_path: Path, store: FileMetaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "a", store)
    await node.start()
    await wait(lambda: node.broker.has_checkpoints)
    await node.streams.mirror.create(record_elsewhere())
    checkpoints = node.broker.checkpoints
    await commit(checkpoints, "s", 40)
    before_ns = node.running.clock.now_ns() + 1
    asked: list[Fetch] = []
    answers: list[Any] = [ConnectionLost("away"), 40, 41]

    async def ask(link: PeerLink, message: Fetch) -> Any:
        asked.append(message)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        header = FetchHeader(answer, answer, answer, 0, 50, 1, 50, 4, "s-1")
        return SimpleNamespace(answer=header)

    monkeypatch.setattr(cluster_catalog, "ask", ask)
    expected = [0, 0, 1]  # the leader is away; the consumer has read all since; it has not
    for count in expected:
        assert await expire_checkpoints(node.broker, before_ns) == count
    assert {(one.stream, one.timestamp_ns, one.replica) for one in asked} == {("s", before_ns, "b")}
    assert checkpoints.fetch("me", "s", check=False) is None
    await node.close()


async def test_what_a_daemon_had_before_is_taken_over(tmp_path: Path, store: FileMetaStore) -> None:
    alone = Running(tmp_path / "a")
    broker = await alone.start()
    await broker.create_stream("s", {"subject": "in"})
    await alone.publish("s", *[b"x"] * 9)
    checkpoints = await open_checkpoints(broker)
    await commit(checkpoints, "s", 5, metadata="host 3", owner="billing")
    await commit(checkpoints, OFFSETS_STREAM, 2)
    own = broker.hosts["s"].log.incarnation
    await broker.close()
    alone.data_dir.close(None)

    node = Node(tmp_path / "a", store)
    await node.streams.mirror.create(replace(record_elsewhere(), incarnation=own))
    await node.start()
    aside = tmp_path / "a" / "streams" / "_offsets_before"
    await wait(lambda: node.broker.has_checkpoints and not aside.exists())
    found = node.broker.checkpoints.fetch("me", "s", check=True)
    assert found is not None
    assert (found.offset, found.metadata, found.owner) == (5, "host 3", "billing")
    assert node.broker.checkpoints.fetch("me", OFFSETS_STREAM, check=False) is None, "another one"
    await commit(node.broker.checkpoints, "s", 8)
    await node.close()

    again = Node(tmp_path / "a", store)
    await again.start()
    await wait(lambda: again.broker.has_checkpoints)
    found = again.broker.checkpoints.fetch("me", "s", check=True)
    assert found is not None
    assert found.offset == 8
    await again.close()


async def test_without_the_lead_there_are_no_checkpoints_here(
    tmp_path: Path, store: FileMetaStore
) -> None:
    node = Node(tmp_path / "a", store)
    await node.start()
    await wait(lambda: node.broker.has_checkpoints)
    waiting = node.broker.checkpoints
    await node.streams.mirror.change(OFFSETS_STREAM, partial(transitions.fence, nodes={"a"}))
    await wait(lambda: not node.broker.has_checkpoints)
    with pytest.raises(NotReady):
        _ = node.broker.checkpoints
    errors: list[LiftlogError | None] = []
    with pytest.raises(NotReady):
        waiting.delete("me", "s", errors.append)
    assert errors == []
    await node.close()
