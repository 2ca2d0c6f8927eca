"""Clients find the leader of a stream, and the next one when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.clients.ingesting import publish_until_acked
from support.clients.raw_nats import RawNats
from support.daemons.cluster import Cluster
from support.daemons.nats_server import NatsServer

from liftlog.client import connect, connect_sync
from liftlog.errors import StreamNotFound

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAM = "in"
STREAMS = {STREAM: {"subject": "in.>", "replicas": 3, "min_isr": 2}}
COUNT = 20


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster={"session": "6s"}) as cluster:
        cluster.wait_isr(STREAM)
        with RawNats(server.port, timeout=60) as raw:
            for number in range(COUNT):
                publish_until_acked(raw, "in.x", b"%d" % number, f"first-{number}")
        yield cluster
        cluster.assert_sound()


async def test_reads_go_to_the_leader_and_follow_it(cluster: Cluster, server: NatsServer) -> None:
    """One client of all three addresses, and one that knows a follower only."""
    leader = cluster.leader(STREAM)
    follower = cluster.nodes[cluster.followers(STREAM)[0]].pull_address
    every = ",".join(node.pull_address for node in cluster.nodes.values())
    for address in (every, follower):
        with connect_sync(address) as client:
            values = [one.value for one in client.read(STREAM, until="end")]
            assert values == [b"%d" % number for number in range(COUNT)]
            assert client.fetch(STREAM).next_offset == COUNT + 1
            with pytest.raises(StreamNotFound):
                client.fetch("none")
    async with connect(every) as client, connect(follower) as other:
        readers = [aiter(one.read(STREAM)) for one in (client, other)]
        for reader in readers:
            for _ in range(COUNT):
                await anext(reader)
        await asyncio.to_thread(cluster.kill, leader)
        await asyncio.to_thread(publish_more, server.port)
        for reader in readers:
            record = await anext(reader)
            assert (record.offset, record.value) == (COUNT + 1, b"more")
        for reader in readers:
            await reader.aclose()
    with connect_sync(every) as again:  # one of the addresses answers no more
        assert again.fetch(STREAM, COUNT + 1).next_offset == COUNT + 2
        assert len(list(again.read(STREAM, until="end"))) == COUNT + 1


def publish_more(port: int) -> None:
    with RawNats(port, timeout=60) as raw:
        publish_until_acked(raw, "in.x", b"more", "more")
