"""Which node should lead the streams that this one leads."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import StreamUnavailable
from liftlog.server.metadata.membership import Directory, NodeInfo
from liftlog.server.node import leadership
from liftlog.server.node.leadership import Leadership


def led_by(leader: str, name: str, *replicas: str) -> StreamMetadata:
    record = transitions.create(name, name, {}, replicas, starts=dict.fromkeys(replicas, 1))
    return record if leader == replicas[0] else transitions.transfer(record, leader) or record


class World:
    """Node a leads some streams; handovers succeed, except those to `deaf` nodes."""

    def __init__(self, *records: StreamMetadata) -> None:
        nodes = {name: NodeInfo(name, 1, "d", f"tcp://{name}:1") for name in "abc"}
        self.directory = Directory(nodes, set(nodes))
        self.records = {one.name: one for one in records}
        self.connected = {"b", "c"}
        self.deaf: set[str] = set()
        self.deaf_once: set[str] = set()
        self.given: list[tuple[str, str]] = []
        self.moving: dict[str, StreamMetadata] = {}
        """Handovers that were under way, and what comes of them."""
        self.under_way = self.most_under_way = 0
        self.node, self.is_stopping = "a", False
        self.coming: list[StreamMetadata] = []
        """What this node is taking over: one comes each time it looks."""
        self.not_led_yet: set[str] = set()
        self.refusing: dict[str, float] = {}
        mirror: Any = SimpleNamespace(directory=self.directory, records=self.records)
        handovers: Any = self
        self.leadership = Leadership(
            mirror,
            handovers,
            self.link_to,
            self.led,  # type: ignore[arg-type]
            self.is_coming,
            lambda name: self.refusing.get(name, 0.0),
        )

    def link_to(self, node: str) -> Any:
        return SimpleNamespace(peer=node if node in self.connected else None)

    def led(self) -> dict[str, Any]:
        return {
            name: None
            for name, one in self.records.items()
            if one.leader == "a" and name not in self.not_led_yet
        }

    def is_coming(self) -> bool:
        if not self.coming:
            return False
        record = self.coming.pop()
        self.records[record.name] = record
        self.not_led_yet.add(record.name)
        asyncio.get_running_loop().call_later(0.1, self.not_led_yet.discard, record.name)
        return True

    async def finished(self, name: str) -> None:
        if name in self.moving:
            await asyncio.sleep(0.01)
            self.records[name] = self.moving.pop(name)

    async def hand_over(self, name: str, to: str) -> None:
        assert name not in self.moving
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        if to in self.deaf_once:
            self.deaf_once.discard(to)
            raise StreamUnavailable("on purpose, once")
        if to in self.deaf:
            raise StreamUnavailable("on purpose")
        self.given.append((name, to))
        self.records[name] = transitions.transfer(self.records[name], to) or self.records[name]


async def test_a_stop_hands_over_everything_to_nodes_that_lead_least() -> None:
    world = World(*(led_by("a", f"s{number}", "a", "b", "c") for number in range(20)))
    await world.leadership.hand_over_all()
    assert world.is_stopping
    assert not world.led()
    assert world.most_under_way == 8
    shares = [to for _, to in world.given]
    assert sorted((shares.count("b"), shares.count("c"))) == [10, 10]


async def test_a_stop_with_many_streams_tells_how_many_are_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leadership, "_TELL_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "liftlog.server.replication")
    world = World(*(led_by("a", f"s{number}", "a", "b", "c") for number in range(4)))
    await world.leadership.hand_over_all()
    told = [line for line in caplog.messages if line.startswith("handing-over")]
    assert told == [f"handing-over left={left} of=4" for left in (3, 2, 1)]


async def test_a_stop_waits_for_handovers_that_are_under_way() -> None:
    moved, kept = led_by("a", "moved", "a", "b", "c"), led_by("a", "kept", "a", "b", "c")
    world = World(moved, kept)
    world.moving = {"moved": transitions.transfer(moved, "c") or moved, "kept": kept}
    await world.leadership.hand_over_all()
    assert [name for name, _ in world.given] == ["kept"]
    assert world.records["moved"].leader == "c"
    assert not world.led()


async def test_a_stop_waits_for_what_is_on_its_way_here_and_hands_that_over_too() -> None:
    """The record gives the lead to this node, which then takes a moment to begin."""
    world = World(led_by("a", "s", "a", "b", "c"), led_by("b", "late", "b", "a", "c"))
    world.coming = [led_by("a", "late", "b", "a", "c"), led_by("a", "new", "a", "b", "c")]
    await world.leadership.hand_over_all()
    assert sorted(name for name, _ in world.given) == ["late", "new", "s"]
    assert not world.led()


async def test_a_stop_does_not_wait_long_for_a_lead_that_is_never_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream cannot be opened, perhaps."""
    monkeypatch.setattr(leadership, "_COMING_SECONDS", 0.05)
    world = World(led_by("a", "s", "a", "b", "c"))
    world.not_led_yet = {"s"}
    async with asyncio.timeout(30):
        await world.leadership.hand_over_all()
    assert not world.given


async def test_a_stop_asks_again() -> None:
    world = World(led_by("a", "s", "a", "b"))
    world.deaf_once = {"b"}
    await world.leadership.hand_over_all()
    assert world.given == [("s", "b")]


async def test_a_node_that_stops_is_given_nothing() -> None:
    world = World(led_by("a", "s", "a", "b", "c"))
    world.directory.nodes["b"] = NodeInfo("b", 1, "d", "tcp://b:1", stopping=True)
    await world.leadership.hand_over_all()
    assert world.given == [("s", "c")]


async def test_a_stop_tries_the_next_node_and_leaves_the_rest_to_an_election() -> None:
    world = World(led_by("a", "s", "a", "b", "c"), led_by("a", "two", "a", "b"))
    world.deaf = {"b"}
    await world.leadership.hand_over_all()
    assert world.given == [("s", "c")]
    assert list(world.led()) == ["two"]


@pytest.mark.parametrize("trouble", ["none", "down", "drained", "no connection", "not in sync"])
async def test_streams_return_to_their_first_replica_once_it_is_well(trouble: str) -> None:
    back, mine = led_by("a", "back", "b", "a", "c"), led_by("a", "mine", "a", "b", "c")
    if trouble == "not in sync":
        back = transitions.shrink(back, "b") or back
    world = World(back, mine)
    if trouble == "down":
        world.directory.live.discard("b")
    elif trouble == "drained":
        world.directory.nodes["b"] = NodeInfo("b", 1, "d", "tcp://b:1", draining=True)
    elif trouble == "no connection":
        world.connected.discard("b")
    balancing = asyncio.create_task(world.leadership.balance(0.001, 0.02))
    began = asyncio.get_running_loop().time()
    for _ in range(1000 if trouble == "none" else 60):
        await asyncio.sleep(0.001)
        if world.given:
            assert asyncio.get_running_loop().time() - began >= 0.02
            break
    balancing.cancel()
    assert world.given == ([("back", "b")] if trouble == "none" else [])


async def test_a_handover_that_fails_ends_no_balance() -> None:
    world = World(led_by("a", "s", "b", "a"), led_by("a", "t", "c", "a"))
    world.deaf = {"b"}
    balancing = asyncio.create_task(world.leadership.balance(0.001, 0.0))
    async with asyncio.timeout(30):
        while not world.given:
            await asyncio.sleep(0.001)
    assert not balancing.done()
    balancing.cancel()
    assert world.given[0] == ("t", "c")
    assert world.most_under_way == 1


async def test_what_cannot_be_stored_here_is_led_elsewhere() -> None:
    """By the next replica that takes it; a short failure moves nothing, nor does a lone copy."""
    names = ("full", "brief", "well", "alone")
    world = World(
        *(led_by("a", name, "a", "b", "c") for name in names[:3]), led_by("a", "alone", "a")
    )
    world.refusing = {"full": 5.0, "brief": 0.2, "alone": 100.0}
    world.deaf.add("b")
    await world.leadership.hand_over_refusing()
    assert world.given == [("full", "c")]
    world.is_stopping = True
    world.refusing["well"] = 5.0
    await world.leadership.hand_over_refusing()
    assert world.given == [("full", "c")], "a stop hands over everything by itself"
