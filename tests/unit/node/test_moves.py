"""Moves and drains, as one node begins and continues them. The others are only in the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.store import CasUnknown
from liftlog.errors import Conflict, InvalidArgument, MetadataUnavailable, StreamNotFound
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.membership import to_bytes
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node.moves import Moves


class Store(FileMetaStore):
    """Loses the answers to the next changes, as many as a test wants."""

    answers_to_lose = 0

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        stored = await super().cas(key, value, revision)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise CasUnknown("on purpose")
        return stored


class World:
    """Nodes and streams in a store, seen by one node."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.mirror = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
        self.moves = Moves(self.mirror)

    async def add_nodes(self, names: str, **zones: str) -> None:
        for name in names:
            info = {"start": 1, "data_id": "d", "address": "", "zone": zones.get(name, "")}
            await self.store.cas(f"node.{name}", to_bytes(info), 0)
            await self.store.cas(f"live.{name}", to_bytes({"start": 1}), 0)
        await self.mirror.load()

    async def stop_node(self, name: str) -> None:
        entry = await self.store.get(f"live.{name}")
        assert entry is not None
        await self.store.delete(f"live.{name}", entry.revision)
        self.mirror.directory.live.discard(name)

    async def add_stream(self, name: str, replicas: str, **settings: Any) -> None:
        starts = dict.fromkeys(replicas, 1)
        made = transitions.create(name, f"{name}-1", settings, replicas, starts=starts)
        await self.mirror.create(made)

    async def copied(self, name: str, node: str) -> None:
        """The node catches up."""

        def step(record: StreamMetadata) -> StreamMetadata | None:
            registered = transitions.register(record, node, 1, clean=False) or record
            return transitions.expand(registered, node, 1)

        await self.mirror.change(name, step)

    def record(self, name: str = "s") -> StreamMetadata:
        return self.mirror.records[name]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = Store(tmp_path / "records", shared=False)
    world = World(store)
    await world.add_nodes("abcd")
    yield world
    store.close()


async def test_a_move_is_begun_once_and_ends_by_the_record(world: World) -> None:
    await world.add_stream("s", "abc")
    for _ in range(2):  # its answer may be lost
        await world.moves.move("s", ["a", "b", "d"])
    moving = world.record()
    assert (moving.adding, moving.removing, moving.version) == (("d",), ("c",), 2)
    assert moving.isr == ("a", "b", "c"), "no ack waits for the new one"
    with pytest.raises(Conflict, match="being moved to a, b, d") as raised:
        await world.moves.move("s", ["a", "b", "c"])
    assert "cancel" in raised.value.hint
    await world.copied("s", "d")
    assert world.record().replicas == ("a", "b", "d")


async def test_a_move_whose_answer_is_lost_may_be_asked_for_again(world: World) -> None:
    await world.add_stream("s", "abc")
    world.store.answers_to_lose = 1
    with pytest.raises(MetadataUnavailable):
        await world.moves.move("s", "abd")
    await world.moves.move("s", "abd")
    assert world.record().adding == ("d",)
    world.store.answers_to_lose = 1
    with pytest.raises(MetadataUnavailable):
        await world.moves.cancel("s")
    await world.moves.cancel("s")
    await world.moves.cancel("s")
    assert set(world.record().replicas) == set("abc")


async def test_where_a_stream_cannot_move(world: World) -> None:
    await world.add_stream("s", "abc", min_isr=2)
    with pytest.raises(InvalidArgument, match="no node 'x'") as raised:
        await world.moves.move("s", ["a", "b", "x"])
    assert "a, b, c, d" in raised.value.hint
    with pytest.raises(InvalidArgument, match="min_isr is 2, of 1"):
        await world.moves.move("s", ["a"])
    with pytest.raises(InvalidArgument, match="twice"):
        await world.moves.move("s", ["a", "a"])
    with pytest.raises(StreamNotFound):
        await world.moves.move("other", ["a"])
    await world.moves.drain("d")
    with pytest.raises(Conflict, match="d is being drained"):
        await world.moves.move("s", ["a", "b", "d"])
    await world.moves.undrain("d")
    await world.stop_node("d")
    with pytest.raises(Conflict, match="d is down"):
        await world.moves.move("s", ["a", "b", "d"])
    assert world.record().version == 1


async def test_a_stream_that_acks_before_its_sync_gets_no_second_replica(world: World) -> None:
    """No node could open it: its settings are refused. Not by the end of a move either."""
    await world.add_stream("s", "a", durability="interval")
    with pytest.raises(InvalidArgument, match="durability: interval") as raised:
        await world.moves.move("s", ["a", "b"])
    assert "--set durability=fsync" in raised.value.hint
    assert world.record().version == 1
    await world.moves.move("s", ["b"])
    assert world.record().target == ("b",)
    await world.add_stream("t", "abc", min_isr=1, durability="fsync")
    await world.moves.move("t", ["d"])
    await world.mirror.change(
        "t", lambda one: transitions.update(one, {**one.settings, "durability": "os"})
    )
    with pytest.raises(InvalidArgument, match="durability: os"):
        await world.moves.cancel("t")
    assert world.record("t").target == ("d",)


async def test_a_node_that_has_come_just_now_takes_replicas(world: World) -> None:
    await world.add_stream("s", "abc")
    other = World(world.store)
    await other.add_nodes("e")
    await world.moves.move("s", ["a", "b", "e"])
    assert world.record().adding == ("e",)


async def test_draining_moves_what_is_led_here_and_nothing_else(world: World) -> None:
    await world.add_stream("mine", "abc")
    await world.add_stream("there", "bca")
    await world.add_stream("apart", "ab")
    await world.moves.leave_drained(["mine", "apart"])
    assert world.record("mine").version == 1
    await world.moves.drain("c")
    await world.moves.drain("c")
    for _ in range(2):
        await world.moves.leave_drained(["mine", "apart"])
    assert (world.record("mine").adding, world.record("mine").removing) == (("d",), ("c",))
    assert world.record("mine").version == 2
    assert world.record("there").version == 1
    assert world.record("apart").version == 1
    await world.moves.undrain("c")
    assert not world.mirror.directory.nodes["c"].draining
    await world.moves.leave_drained(["mine"])
    assert world.record("mine").adding == ("d",), "what has begun goes on"


async def test_draining_keeps_replicas_that_are_down_and_puts_new_ones_elsewhere(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "other", shared=False)
    world = World(store)
    await world.add_nodes("abcde", a="x", b="y", c="z", d="x", e="z")
    await world.add_stream("s", "abc")
    await world.stop_node("b")
    await world.moves.drain("c")
    await world.moves.leave_drained(["s"])
    assert world.record().target == ("a", "b", "e"), "in the zone of c, not in that of a"
    store.close()


async def test_a_few_streams_at_a_time_leave_a_drained_node(world: World) -> None:
    names = [f"s{number}" for number in range(20)]
    for name in names:
        await world.add_stream(name, "ab")
    await world.moves.drain("b")
    left = set(names)
    rounds = 0
    while left:
        rounds += 1
        await world.moves.leave_drained(names)
        copying = [name for name in names if world.record(name).adding]
        assert 0 < len(copying) <= 8
        for name in copying:
            await world.copied(name, world.record(name).adding[0])
            left.discard(name)
    assert rounds == 3
    held = [node for name in names for node in world.record(name).replicas]
    assert (held.count("c"), held.count("d")) == (10, 10)


async def test_a_node_that_others_cannot_replace_is_not_drained(world: World) -> None:
    await world.add_stream("all", "abcd")
    for number in range(7):
        await world.add_stream(f"s{number}", "abcd"[:3] if number else "abcd")
    with pytest.raises(Conflict) as raised:
        await world.moves.drain("a")
    assert "2 streams: all, s0" in raised.value.message
    assert "3 live nodes that take any: b, c, d" in raised.value.message
    assert "start another node" in raised.value.hint
    assert not world.mirror.directory.nodes["a"].draining
    with pytest.raises(InvalidArgument, match="no node 'x'"):
        await world.moves.drain("x")


async def test_a_stream_that_finds_no_place_meanwhile_waits_for_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.add_stream("s", "abc")
    await world.moves.drain("c")
    await world.stop_node("d")
    for _ in range(3):
        await world.moves.leave_drained(["s"])
    assert world.record().version == 1
    assert caplog.text.count("not-moved stream=s") == 1
    world.mirror.directory.live.add("d")
    await world.moves.leave_drained(["s"])
    assert world.record().adding == ("d",)


async def test_a_node_is_forgotten_once_it_is_down_and_empty(world: World) -> None:
    await world.add_stream("s", "abc")
    with pytest.raises(Conflict, match="c is live"):
        await world.moves.forget("c")
    await world.stop_node("c")
    with pytest.raises(Conflict, match="1 stream: s") as raised:
        await world.moves.forget("c")
    assert "liftlog cluster drain c" in raised.value.hint
    await world.moves.drain("c")
    await world.moves.leave_drained(["s"])
    await world.copied("s", "d")
    assert world.record().starts.keys() == set("abcd"), "c may still have its copy"
    await world.moves.forget("c")
    assert world.record().starts.keys() == set("abd")
    assert "c" not in world.mirror.directory.nodes
    assert await world.store.get("node.c") is None
    with pytest.raises(InvalidArgument, match="no node 'c'"):
        await world.moves.forget("c")


async def test_a_node_that_starts_meanwhile_is_not_forgotten(world: World) -> None:
    await world.stop_node("d")
    forgotten = Forgetful(world)
    with pytest.raises(Conflict, match="d has started"):
        await forgotten.moves.forget("d")
    assert await world.store.get("node.d") is not None


class Forgetful(World):
    """Node d starts after this one has looked, and before it acts."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self.mirror.load = self._load  # type: ignore[method-assign]

    async def _load(self) -> None:
        await Mirror.load(self.mirror)
        entry = await self.store.get("node.d")
        assert entry is not None
        info = {"start": 2, "data_id": "d", "address": ""}
        await self.store.cas("node.d", to_bytes(info), entry.revision)


async def test_two_leaders_that_drain_at_once_do_not_disturb_each_other(world: World) -> None:
    await world.add_stream("s", "abc")
    await world.moves.drain("c")
    other = World(world.store)
    await other.mirror.load()
    await asyncio.gather(world.moves.leave_drained(["s"]), other.moves.leave_drained(["s"]))
    assert world.record().version == other.record().version == 2
