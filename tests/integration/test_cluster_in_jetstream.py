"""Three daemons that keep their metadata in a bucket of three nats-servers, which fail as well."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.ingesting import until
from support.clients.store_campaign import eventually
from support.daemons.cluster import NODES, Cluster, TimedPublisher, assert_kept
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_server import NatsServer

from liftlog.server.metadata.kv_link import KvLink
from liftlog.settings import NatsSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAMS: dict[str, dict[str, Any]] = {
    "all": {"subject": "all.>", "replicas": 3, "min_isr": 2},
}
STORE = {"name": "prod", "store": "nats", "session": "15s"}
PATIENCE = 60.0


@pytest.fixture(scope="module")
def servers() -> Iterator[list[NatsServer]]:
    with NatsCluster(3, jetstream=True, sync_always=True) as cluster:
        yield cluster.servers


@pytest.fixture
def cluster(servers: list[NatsServer]) -> Iterator[Cluster]:
    urls = [server.url for server in servers]
    with Cluster(urls, STREAMS, cluster=STORE) as cluster:
        cluster.wait_isr("all")
        yield cluster
        cluster.assert_sound()


def ask(servers: list[NatsServer], what: str) -> dict[str, Any]:
    """Ask JetStream about the bucket."""

    async def run() -> dict[str, Any]:
        link = KvLink(NatsSettings(), [one.url for one in servers if one.running], "unused")
        link.start()
        await link.wait_connected(PATIENCE)
        subject = f"$JS.API.STREAM.{what}.KV_liftlog_prod"
        try:
            answer = await eventually(lambda: link.ask(subject, b"", json.loads, seconds=3))
        finally:
            await link.close()
        assert isinstance(answer, dict)
        return answer

    return asyncio.run(run())


def store_leader(servers: list[NatsServer]) -> NatsServer:
    found: list[str] = []

    def is_elected() -> bool:
        found[:] = [str(ask(servers, "INFO")["cluster"].get("leader", ""))]
        return any(server.running for server in servers if f"n{servers.index(server)}" == found[0])

    until(is_elected, PATIENCE, "a leader of the bucket")
    return servers[int(found[0].removeprefix("n"))]


def wait_acked(publisher: TimedPublisher, more: int) -> None:
    wanted = len(publisher.acked) + more
    until(lambda: len(publisher.acked) >= wanted, PATIENCE, f"{more} more acks")


@pytest.mark.long
def test_nodes_go_on_while_their_store_fails(cluster: Cluster, servers: list[NatsServer]) -> None:
    first = store_leader(servers)
    other = next(server for server in servers if server is not first)
    publisher = TimedPublisher(other.port, "all.p", pad=200)
    publisher.easy = True
    publisher.start()
    wait_acked(publisher, 100)
    leader, epoch = cluster.leader("all"), cluster.stream("all").leader_epoch

    first.kill()
    wait_acked(publisher, 300)
    assert cluster.stream("all").leader == leader
    assert cluster.stream("all").leader_epoch == epoch
    # The lead can be handed over when the bucket has a leader again.
    assert store_leader(servers) is not first
    cluster.stop(leader)
    wait_acked(publisher, 100)
    assert cluster.leader("all") != leader
    assert cluster.stream("all").leader_epoch > epoch
    first.start()
    cluster.start(leader)
    cluster.wait_isr("all")
    leader = cluster.leader("all")

    # Without its records a cluster goes on with the leaders that it has.
    assert ask(servers, "DELETE")["success"]
    began = time.monotonic()
    until(
        lambda: all("there is no bucket" in cluster.nodes[name].log for name in NODES),
        PATIENCE,
        "each node has noticed",
    )
    wait_acked(publisher, 300)
    assert cluster.stream("all").leader == leader
    assert time.monotonic() - began < PATIENCE
    until(lambda: cluster.status()[0]["is_store_lost"], PATIENCE, "the session has ended")
    assert cluster.status()[1] == 1

    # It is made again, empty: the nodes store again what they have seen, of themselves as well.
    epoch = cluster.stream("all").leader_epoch
    config = cluster.nodes["b"].config_path
    done = cluster.command("cluster", "init", "--again", "-c", str(config))
    assert done.returncode == 0, done.stderr
    until(lambda: cluster.stream("all").leader_epoch > epoch, PATIENCE, "a restored record")
    wait_acked(publisher, 100)
    cluster.wait_isr("all")
    until(lambda: [one["live"] for one in cluster.status()[0]["nodes"]] == [True] * 3, PATIENCE)
    publisher.finish()
    assert_kept([publisher], cluster.read_all("all"))
    assert any("metadata-restored" in cluster.nodes[name].log for name in NODES)
