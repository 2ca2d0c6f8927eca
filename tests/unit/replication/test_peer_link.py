"""The connection to another node, over a real socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.daemons.catalogs import cluster_catalog
from support.daemons.certificates import Authority
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.client.connecting.target import Target
from liftlog.log import SystemClock
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import Ping, Pong
from liftlog.protocol.replication import Peer, Replicate
from liftlog.server.metadata.membership import Member
from liftlog.server.replication import peer_link
from liftlog.server.replication.clocks import NodeClocks
from liftlog.server.replication.hearing import Hearing
from liftlog.server.replication.peer_link import PeerLink
from liftlog.tls import server_context

PATIENCE_SECONDS = 30.0
TOLD_AHEAD_NS = 5 * 3600 * 1_000_000_000
"""How far the clock of node a is ahead of that of node b."""


class Streams:
    """Node a, which knows who is connected, and hears them."""

    member = Member("c0ffee", "a", 7, is_same=True)

    def __init__(self) -> None:
        self.view = self.peers = self
        self.hearing = Hearing(asyncio.get_running_loop().time)
        self.came: list[str] = []
        self.went: list[str] = []
        self.asked: list[str] = []

    def peer_came(self, node: str) -> None:
        self.came.append(node)
        self.hearing.connected(node)

    def peer_went(self, node: str) -> None:
        self.went.append(node)
        self.hearing.disconnected(node)

    def told_time(self) -> tuple[int, bool]:
        return time.time_ns() + TOLD_AHEAD_NS, False

    def replicate(self, peer: Peer, request: Replicate, reply: Any) -> None:
        self.asked.append(request.stream)


class Node(LogBroker):
    streams: Streams

    @property
    def catalog(self) -> Any:
        return cluster_catalog(self.streams)


class Ways:
    """A relay between the two nodes, which can stop to pass on what it gets."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.connections = 0
        self._to = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, to: str) -> str:
        self._to = to
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        return f"tcp://127.0.0.1:{port}"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, _, port = self._to.removeprefix("tcp://").rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        for one, other in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass_on(one, other))
            self._tasks.add(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self.is_open.wait()
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Pair:
    """Node b with its link to node a."""

    def __init__(self, address: str, streams: Streams, ways: Ways) -> None:
        self.a, self.ways = streams, ways
        self.hearing = Hearing(asyncio.get_running_loop().time)
        self.ups = 0
        target = Target.of(address, None, None, None, 5, 5, None)
        self.clocks = NodeClocks(SystemClock(), lambda: ["a"])
        self.link = PeerLink(
            "a",
            lambda: target,
            lambda: Peer("b", 3, "c0ffee"),
            self._up,
            self.hearing,
            self.clocks,
        )

    def _up(self) -> None:
        self.ups += 1


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    broker, ways = Node(directory), Ways()
    broker.streams = Streams()
    async with pull_server(broker) as (_, address):
        made = Pair(await ways.start(address), broker.streams, ways)
        running = [asyncio.create_task(made.link.run())]
        running += [asyncio.create_task(one.hearing.run()) for one in (made, made.a)]
        try:
            yield made
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await ways.close()


async def wait(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "_PING_SECONDS", 0.05)


async def test_two_nodes_hear_each_other_over_one_connection(tmp_path: Path) -> None:
    """As long as nothing is asked: pings in one direction, their answers in the other."""
    async with pair(tmp_path) as nodes:
        await wait(lambda: nodes.ups == 1)
        loop = asyncio.get_running_loop()
        until = loop.time() + 1.0
        while loop.time() < until:
            await asyncio.sleep(0.05)
            for hearing, node in ((nodes.hearing, "a"), (nodes.a.hearing, "b")):
                assert hearing.silent_seconds(node) < 10.0
                assert hearing.gone_seconds(node) == 0.0
        nodes.ways.is_open.clear()
        for hearing, node in ((nodes.hearing, "a"), (nodes.a.hearing, "b")):
            await wait(lambda h=hearing, n=node: h.silent_seconds(n) > 0.3)  # type: ignore[misc]


async def test_pings_measure_the_clock_of_the_other_node(tmp_path: Path) -> None:
    async with pair(tmp_path) as nodes:
        assert nodes.clocks.offset("a") is None
        await wait(lambda: nodes.clocks.offset("a") is not None)
        found = nodes.clocks.offset("a")
        assert found is not None
        assert abs(found.seconds - TOLD_AHEAD_NS / 1e9) <= found.error + 0.01
        assert found.error < 5
        assert [one.sentence for one in nodes.clocks.conditions()] == [
            "a: its clock is 5 h ahead of that of this node"
        ]


async def test_a_connection_without_answers_is_given_up(tmp_path: Path) -> None:
    """A request that is under way ends with it, and the next connection is made."""
    async with pair(tmp_path) as nodes:
        await wait(lambda: nodes.ups == 1)
        nodes.ways.is_open.clear()
        asked = Exchange()
        nodes.link.request(Ping(), asked)
        await wait(lambda: asked.done)
        assert asked.error is not None
        assert "ping" in nodes.link.problem or "ping" in str(asked.error)
        nodes.ways.is_open.set()
        await wait(lambda: nodes.ups == 2)
        assert nodes.ways.connections >= 2
        again = Exchange()
        nodes.link.request(Ping(), again)
        await wait(lambda: again.done)
        assert isinstance(again.answer, Pong)
        assert nodes.hearing.gone_seconds("a") == 0.0


async def test_requests_that_wait_leave_room_for_all_others(tmp_path: Path) -> None:
    """A node follows thousands of streams of another one, and most have nothing new for long."""
    async with pair(tmp_path) as nodes:
        await wait(lambda: nodes.ups == 1)
        names = [f"stream-{number}" for number in range(3000)]
        waiting = [Exchange() for _ in names]
        for name, exchange in zip(names, waiting, strict=True):
            nodes.link.request(Replicate(name, "x" * 32, 1, 1, 0, 1 << 22, 0), exchange)
        pinged = Exchange()
        nodes.link.request(Ping(), pinged)
        await wait(lambda: pinged.done)
        assert isinstance(pinged.answer, Pong)
        assert nodes.a.asked == names
        assert not any(exchange.done for exchange in waiting)
        assert nodes.ups == 1


async def test_a_node_that_is_known_to_be_back_is_connected_to_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has connected by itself: without a link to it nothing that it leads could be followed."""
    monkeypatch.setattr(peer_link, "_LONGEST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr("liftlog.client.connecting.reconnecting.FIRST_PAUSE_SECONDS", 3600.0)
    async with pair(tmp_path) as nodes:
        await wait(lambda: nodes.ups == 1)
        address = nodes.ways.server.sockets[0].getsockname()
        assert not nodes.hearing.is_refusing("a")
        await nodes.ways.close()
        await wait(lambda: nodes.hearing.is_refusing("a"))
        nodes.ways.server = await asyncio.start_server(nodes.ways.accept, *address)
        nodes.link._backoff._ceiling = 3600.0
        nodes.link.connect_soon()
        await wait(lambda: nodes.ups == 2)
        assert not nodes.hearing.is_refusing("a")


async def test_an_unknown_ca_is_named_by_the_setting_of_a_node(tmp_path: Path) -> None:
    """And not by the options of a client."""
    one, other = Authority(tmp_path, "one"), Authority(tmp_path, "other")
    pair = one.issue("a")
    broker = Node(tmp_path / "data")
    broker.streams = Streams()
    tls = server_context(pair.cert, pair.key)
    async with pull_server(broker, listen="tls://127.0.0.1:0", tls=tls) as (_, address):
        target = Target.of(address, None, None, other.ca, 5, 5, None)
        hearing = Hearing(asyncio.get_running_loop().time)
        link = PeerLink("a", lambda: target, lambda: Peer("b", 3, "c0ffee"), bool, hearing)
        running = asyncio.create_task(link.run())
        try:
            await wait(lambda: "certificate" in link.problem)
            assert "cluster.tls_ca" in link.problem
            assert "--tls-ca" not in link.problem
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
