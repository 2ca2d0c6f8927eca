"""What a client that calls itself a node gets from a daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.clients.raw_pull import RawPull
from support.daemons.catalogs import cluster_catalog
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from liftlog.protocol.replication import Peer, PeerAnswer, SuspectAnswer
from liftlog.server.metadata.membership import Member
from liftlog.server.replication.hearing import Hearing

PEER = {"k": "peer", "i": 1, "n": "b", "t": 1, "c": "c0ffee"}
SUSPECT = {"k": "suspect", "i": 3, "n": "c"}
REPLICATE = {"k": "replicate", "i": 2, "s": "s", "x": "x", "e": 1, "o": 1, "l": 0, "m": 100}


class Streams:
    """Stands in for `ReplicatedStreams`."""

    member = Member("c0ffee", "a", 7, True)

    def __init__(self) -> None:
        self.view = self.peers = self
        self.hearing = Hearing(lambda: 0.0)
        self.asked: list[tuple[Peer, Any]] = []
        self.there: list[str] = []

    def peer_came(self, node: str) -> None:
        self.there.append(node)

    def peer_went(self, node: str) -> None:
        self.there.remove(node)

    def replicate(self, peer: Peer, request: Any, reply: Any) -> None:
        self.asked.append((peer, request))
        reply.refuse(ValueError("a defect"))

    def check_is_here(self, node: str) -> None:
        assert node == "a"

    def opinion(self, node: str) -> SuspectAnswer:
        return SuspectAnswer(node == "c", 1500, {"s": [2, 40]})


class Node(LogBroker):
    peers = Streams()

    @property
    def catalog(self) -> Any:
        return cluster_catalog(self.peers)


async def test_a_daemon_on_its_own_is_no_node(tmp_path: Path) -> None:
    async with pull_server(LogBroker(tmp_path)) as (_, address):
        async with await RawPull.connect(address) as peer:
            peer.send(PEER)
            assert (await peer.receive())["n"] == "CONFLICT"
            peer.send(REPLICATE)
            assert (await peer.receive())["n"] == "BAD_REQUEST"


async def test_a_node_introduces_itself_once(tmp_path: Path) -> None:
    broker = Node(tmp_path)
    broker.peers = streams = Streams()
    async with pull_server(broker) as (_, address):
        async with await RawPull.connect(address) as peer:
            peer.send(REPLICATE)
            assert (await peer.receive())["n"] == "BAD_REQUEST"
            peer.send(PEER | {"c": "another"})
            assert (await peer.receive())["n"] == "CONFLICT"
            assert streams.there == []
            for _ in range(2):
                peer.send(PEER)
                answer = await peer.receive()
                assert (answer["k"], answer["n"], answer["t"]) == (PeerAnswer.KIND, "a", 7)
            assert streams.there == ["b"]
            peer.send(PEER | {"n": "c"})
            assert (await peer.receive())["n"] == "BAD_REQUEST"
            peer.send(REPLICATE)
            assert (await peer.receive())["n"] == "INTERNAL"
            assert streams.asked[0][0].node == "b"
    assert streams.there == []


async def test_only_a_node_asks_whether_another_one_is_heard(tmp_path: Path) -> None:
    broker = Node(tmp_path)
    broker.peers = Streams()
    async with pull_server(broker) as (_, address):
        async with await RawPull.connect(address) as peer:
            peer.send(SUSPECT)
            assert (await peer.receive())["n"] == "BAD_REQUEST"
            peer.send(PEER)
            await peer.receive()
            peer.send(SUSPECT)
            answer = await peer.receive()
            assert answer["k"] == SuspectAnswer.KIND
            assert (answer["s"], answer["t"], answer["d"]) == (True, 1500, {"s": [2, 40]})


NODES_ONLY = """
principals: {anonymous: {}}
roles: {node: [{allow: [replicate], streams: ["*", "_offsets"]}]}
bindings: {anonymous: [node]}
"""


async def test_a_node_reads_the_copy_of_another_one_by_its_right_to_replicate(
    tmp_path: Path,
) -> None:
    broker = Node(tmp_path)
    broker.peers = Streams()
    broker.add("s").append([b"1", b"2"])
    fetch = {"k": "fetch", "i": 4, "s": "s", "o": 1, "r": "a"}
    async with pull_server(broker, policy=Policy.load(NODES_ONLY)) as (_, address):
        async with await RawPull.connect(address) as peer:
            peer.send(fetch)
            assert (await peer.receive())["n"] == "FORBIDDEN"
            peer.send(PEER)
            await peer.receive()
            peer.send({name: value for name, value in fetch.items() if name != "r"})
            assert (await peer.receive())["n"] == "FORBIDDEN"
            peer.send(fetch)
            header = await peer.receive()
            assert (header["k"], header["c"], header["td"]) == ("data", 2, 0)


@pytest.mark.parametrize("key", ["x", "e", "o", "l", "m"])
async def test_a_request_that_lacks_something(tmp_path: Path, key: str) -> None:
    async with pull_server(Node(tmp_path)) as (_, address):
        async with await RawPull.connect(address) as peer:
            peer.send(PEER)
            await peer.receive()
            peer.send({name: value for name, value in REPLICATE.items() if name != key})
            assert (await peer.receive())["n"] == "BAD_REQUEST"
