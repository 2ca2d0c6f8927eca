"""What a node with many streams costs the metadata store when it stops, starts and dies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.clients.ingesting import until
from support.daemons.cluster import NODES, PATIENCE, Cluster
from support.daemons.nats_server import NatsServer

from liftlog.client import ClusterStream, connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COUNT = 30
STREAMS = {f"s{number}": {"subject": f"s{number}.>", "replicas": 3} for number in range(COUNT)}
FEW = COUNT // 5
"""Of the stream with the checkpoints, and what a machine that stands still may cause."""


def writes(cluster: Cluster) -> dict[str, float]:
    """How many changes of records each node has tried to make since its start."""
    return {node: cluster.nodes[node].metric("liftlog_metadata_cas_total") for node in cluster.up()}


def replicated(cluster: Cluster) -> Sequence[ClusterStream]:
    with connect_sync(cluster.nodes[cluster.up()[0]].pull_address) as client:
        return client.cluster().replicated


def test_each_stream_costs_as_few_changes_of_its_record_as_can_be(server: NatsServer) -> None:
    calm = {"balance_interval": "1h", "suspect_after": "5s"}
    with Cluster(server.url, STREAMS, cluster=calm) as cluster:
        until(lambda: len(replicated(cluster)) >= COUNT, PATIENCE, "they are created")
        cluster.wait_all_in_sync()
        before = writes(cluster)
        cluster.stop("c")
        after = writes(cluster)
        # It hands over and leaves by itself, and is not taken in again by what it asked last.
        assert sum(after[node] - before[node] for node in "ab") <= FEW
        cluster.start("c")
        cluster.wait_all_in_sync()
        started = writes(cluster)
        assert COUNT <= started["c"] <= COUNT + FEW, "each is registered"
        taken_in = sum(started[node] - after[node] for node in "ab")
        assert COUNT <= taken_in <= COUNT + FEW
        cluster.kill("a")

        def is_over() -> bool:
            found = replicated(cluster)
            return all(one.leader in ("b", "c") and "a" not in one.isr for one in found)

        until(is_over, PATIENCE, "it leads nothing, and no ack waits for it")
        killed = writes(cluster)
        # Who takes over drops the dead node with the same change.
        assert sum(killed[node] - started[node] for node in "bc") <= COUNT + FEW
        assert set(NODES) - set(cluster.up()) == {"a"}
