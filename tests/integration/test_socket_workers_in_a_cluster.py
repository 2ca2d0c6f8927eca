"""Workers on the pull socket in a cluster: they follow the leader, and confirmed acks with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.clients.raw_nats import RawNats
from support.daemons.cluster import Cluster
from support.daemons.nats_server import NatsServer

from liftlog.client import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PATIENCE = 90


@pytest.fixture
def cluster() -> Iterator[tuple[NatsServer, Cluster]]:
    with NatsServer() as server, Cluster(server.url, cluster={"session": "6s"}) as cluster:
        yield server, cluster
        cluster.assert_sound()


async def test_a_worker_follows_the_leader(cluster: tuple[NatsServer, Cluster]) -> None:
    server, nodes = cluster
    addresses = ",".join(node.pull_address for node in nodes.nodes.values())
    async with connect(addresses) as client:
        await client.create_stream("jobs", "jobs.>", replicas=3)
        with RawNats(server.port, timeout=PATIENCE) as raw:
            for number in range(300):
                assert "seq" in raw.request("jobs.a", b"%d" % number).json()
        confirmed: set[int] = set()
        async with (
            asyncio.timeout(PATIENCE),
            client.worker("jobs", "c", batch=20, prefetch=False, ack_wait=3) as worker,
        ):
            killed = False
            async for batch in worker:
                found = {int(one.value or b"") for one in batch}
                assert not found & confirmed
                if len(confirmed) >= 100 and not killed:
                    killed = True
                    leader = nodes.leader("jobs")
                    await asyncio.to_thread(nodes.kill, leader)
                await worker.ack(batch)
                confirmed |= found
                if len(confirmed) == 300:
                    break
        assert killed
        assert (await client.describe_consumer("jobs", "c")).num_ack_pending == 0
        await asyncio.to_thread(nodes.start, leader)
