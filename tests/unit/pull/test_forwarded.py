"""Requests at a node that does not lead the stream: its leader answers, the node judges."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from support.clients.raw_pull import AUTH, HELLO, RawPull
from support.daemons.catalogs import cluster_catalog
from support.daemons.http_port import http_port
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.client import connect
from liftlog.client.connecting.target import Target
from liftlog.errors import Forbidden, NotLeader, NotReady, StreamNotFound
from liftlog.protocol.frames import encode_map
from liftlog.protocol.replication import Peer
from liftlog.server.http import log_api
from liftlog.server.metadata.membership import Member
from liftlog.server.replication.forwarding import Forwarding
from liftlog.server.replication.hearing import Hearing
from liftlog.server.replication.peer_link import PeerLink

PATIENCE_SECONDS = 30.0
SECRET = "a-secret-that-is-long-enough"
ACL_FILE = f"""
principals:
  reader: {{token_hash: "{hash_token(SECRET)}"}}
roles:
  look: [{{allow: [read], streams: ["orders"], subjects: ["orders.eu.>"]}}]
bindings:
  reader: [look]
"""


class Streams:
    """Stands in for `ReplicatedStreams`, of a node that knows who leads."""

    def __init__(self, name: str, leader: str) -> None:
        self.member = Member("c0ffee", name, 1, is_same=True)
        self.hearing = Hearing(asyncio.get_running_loop().time)
        self.leader = leader
        self.links: dict[str, PeerLink] = {}
        self.forwarding = Forwarding(self.links.__getitem__, self.not_leader)
        self.view = self.peers = self

    def answerer(self, name: str) -> str | None:
        return None if self.leader == self.member.name else self.leader

    def other_leaders(self) -> dict[str, str]:
        return {} if self.leader == self.member.name else {self.leader: "orders"}

    def leads(self, name: str) -> bool:
        return self.leader == self.member.name

    def has_failed(self, name: str) -> bool:
        return False

    def begins_to_lead(self, name: str) -> NotReady:
        return NotReady(f"b begins to lead {name}")

    @property
    def led(self) -> Any:
        """It has led for long."""
        led = SimpleNamespace(leader=SimpleNamespace(is_ready=True))
        return SimpleNamespace(get=lambda name: led)

    def not_leader(self, name: str) -> NotLeader:
        return NotLeader(f"{self.leader} leads {name}", leader=self.leader)

    def peer_came(self, node: str) -> None:
        self.hearing.connected(node)

    def peer_went(self, node: str) -> None:
        self.hearing.disconnected(node)

    def told_time(self) -> tuple[int, bool]:
        return time.time_ns(), False


class Node(LogBroker):
    streams_of_cluster: Streams

    @property
    def catalog(self) -> Any:
        return cluster_catalog(self.streams_of_cluster)


class Two:
    """Node a leads all streams, node b has none of them."""

    def __init__(self, directory: Path) -> None:
        self.a, self.b = Node(directory / "a"), Node(directory / "b")
        self.a.streams_of_cluster = Streams("a", "a")
        self.b.streams_of_cluster = Streams("b", "a")
        for name in ("orders", "secret"):
            self.a.add(name, subject=f"{name}.>").append([b"1", b"2", b"3"])
        self.address = ""
        self.pull: Any = None  # the server of b


@asynccontextmanager
async def two_nodes(directory: Path, policy: Policy | None = None) -> AsyncIterator[Two]:
    """`policy` is that of node b."""
    two = Two(directory)
    streams = two.b.streams_of_cluster
    async with (
        pull_server(two.a) as (_, address),
        pull_server(two.b, policy=policy) as (two.pull, two.address),
    ):
        target = Target.of(address, None, None, None, 5, 5, None)
        up = asyncio.Event()
        link = PeerLink(
            "a", lambda: target, lambda: Peer("b", 1, "c0ffee"), up.set, streams.hearing
        )
        streams.links["a"] = link
        running = asyncio.create_task(link.run())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await up.wait()
            yield two
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    two.a.close()
    two.b.close()


async def test_a_client_of_one_address_gets_what_the_leader_knows(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as two, connect(two.address) as client:
        assert (await client.describe_stream("orders")).high_watermark == 4
        assert [one.name for one in await client.list_streams()] == ["orders", "secret"]
        lease = await client.acquire_lease("orders", holder="me")
        assert (lease.low, lease.high) == (1, 4)
        assert [one.lease_id for one in await client.list_leases("orders")] == [lease.lease_id]
        await client.release_lease("orders", lease.lease_id)
        assert await client.list_leases("orders") == []
        assert (await client.compact_stream("orders")).compaction["requested"] == 1
        with pytest.raises(StreamNotFound):
            await client.describe_stream("none")
        assert two.b.streams_of_cluster.forwarding.waiting == 0


async def test_the_node_that_is_asked_judges(tmp_path: Path) -> None:
    """The other one, which has no ACL here, shows everything."""
    async with (
        two_nodes(tmp_path, Policy.load(ACL_FILE)) as two,
        connect(two.address, token=f"reader.{SECRET}") as reader,
    ):
        for refused in (
            reader.compact_stream("orders"),
            reader.describe_stream("secret"),
            reader.acquire_lease("secret"),
        ):
            with pytest.raises(Forbidden):
                await refused
        assert two.b.streams_of_cluster.forwarding.forwarded_total == 0
        assert (await reader.describe_stream("orders")).readable_subjects == ["orders.eu.>"]
        assert [one.name for one in await reader.list_streams()] == ["orders"]
        lease = await reader.acquire_lease("orders", holder="job")
        assert lease.holder == "reader: job", "the leader knows whose it is"
        assert [one.lease_id for one in await reader.list_leases("orders")] == [""]


async def test_other_subjects_are_not_recorded_by_way_of_another_node(tmp_path: Path) -> None:
    """Whoever may change a stream need not be allowed to read what another subject carries."""
    tender = ACL_FILE.replace("allow: [read]", "allow: [read, admin]")
    async with (
        two_nodes(tmp_path, Policy.load(tender)) as two,
        connect(two.address, token=f"reader.{SECRET}") as client,
    ):
        with pytest.raises(Forbidden, match="create"):
            await client.update_stream("orders", {"subject": ["orders.>", "payments.>"]})
        assert two.b.streams_of_cluster.forwarding.forwarded_total == 0


async def test_the_leader_does_not_search_for_who_may_read_some_subjects_only(
    tmp_path: Path,
) -> None:
    """The sizes of the pieces would tell which other subjects and keys there are."""
    async with (
        two_nodes(tmp_path, Policy.load(ACL_FILE)) as two,
        await RawPull.connect(two.address, hello=False) as reader,
    ):
        for request in (HELLO, {**AUTH, "m": "token", "t": f"reader.{SECRET}"}):
            reader.send(request)
            await reader.receive()
        reader.send({"k": "extents", "i": 3, "s": "orders", "o": 1, "z": 4096, "fk": b"key"})
        answer = await reader.receive()
        assert answer["k"] == "measured", answer
        assert not answer.get("q")
        assert two.b.streams_of_cluster.forwarding.forwarded_total == 1


async def test_there_is_no_second_hop(tmp_path: Path) -> None:
    """Node a has just learned that c leads."""
    async with two_nodes(tmp_path) as two, await RawPull.connect(two.address) as client:
        two.a.streams_of_cluster.leader = "c"
        client.send({"k": "describe", "i": 1, "s": "orders"})
        answer = await client.receive()
        assert (answer["n"], answer["d"]["leader"]) == ("NOT_LEADER", "c")
        assert two.a.streams_of_cluster.forwarding.forwarded_total == 0


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        (encode_map({"k": "fetch", "i": 1, "s": "orders", "o": 1}), "UNKNOWN_REQUEST"),
        (encode_map({"k": "forward", "i": 1, "m": b"\x80"}), "UNKNOWN_REQUEST"),
        (encode_map({"k": "peer", "i": 1, "n": "b", "t": 1, "c": "c0ffee"}), "UNKNOWN_REQUEST"),
        (encode_map({"k": ["pause"], "i": 1}), "UNKNOWN_REQUEST"),
        (encode_map({"k": "describe", "i": 1}), "BAD_REQUEST"),
        (encode_map({"k": "describe", "i": 1, "s": "../etc"}), "INVALID_ARGUMENT"),
        (b"\xc1", "BAD_REQUEST"),
        (b"\xdd\xff\xff\xff\xff", "BAD_REQUEST"),
    ],
    ids=["fetch", "forward", "peer", "kind", "key", "name", "garbage", "bomb"],
)
async def test_what_a_node_may_not_forward(tmp_path: Path, request_: bytes, refused: str) -> None:
    broker = Node(tmp_path)
    broker.streams_of_cluster = Streams("a", "a")
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        forward = {"k": "forward", "i": 2, "m": request_}
        peer.send(forward)
        assert (await peer.receive())["n"] == "BAD_REQUEST", "it has not introduced itself"
        peer.send({"k": "peer", "i": 1, "n": "b", "t": 1, "c": "c0ffee"})
        assert (await peer.receive())["k"] == "node"
        peer.send(forward)
        assert (await peer.receive())["n"] == refused
        peer.send({"k": "ping", "i": 3})
        assert (await peer.receive())["k"] == "pong", "the connection goes on"
    broker.close()


async def test_one_record_over_http_is_there_once_its_leader_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower's copy is a moment behind what was acked."""
    async with (
        two_nodes(tmp_path) as two,
        http_port(two.pull) as (_, url, _),
        aiohttp.ClientSession() as session,
    ):
        copy = two.b.add("orders")
        copy.append([b"1"])

        async def read(offset: int) -> tuple[int, str]:
            async with session.get(f"{url}/api/v1/streams/orders/records/{offset}") as answer:
                told = await answer.json()
                return answer.status, told.get("value") or told["error"]["name"]

        assert await read(1) == (200, "1")
        reading = asyncio.create_task(read(2))
        while not copy.waiters:
            await asyncio.sleep(0)
            assert not reading.done(), reading.result()
        copy.append([b"2"])
        assert await reading == (200, "2")
        assert await read(4) == (404, "OFFSET_OUT_OF_RANGE"), "its leader has none either"
        monkeypatch.setattr(log_api, "_CATCH_UP_SECONDS", 0.01)
        assert await read(3) == (503, "NOT_LEADER")


async def test_a_new_leader_tells_no_end_over_http_that_it_does_not_know_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        two_nodes(tmp_path) as two,
        http_port(two.pull) as (_, url, _),
        aiohttp.ClientSession() as session,
    ):
        two.b.add("orders").append([b"1"])
        streams = two.b.streams_of_cluster
        streams.leader = "b"

        monkeypatch.setattr(Streams, "led", SimpleNamespace(get=lambda name: None))
        for path, status in (("bounds", 503), ("records/2", 503), ("records/1", 200)):
            async with session.get(f"{url}/api/v1/streams/orders/{path}") as answer:
                assert answer.status == status, path
