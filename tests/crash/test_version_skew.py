"""A cluster of an older version is upgraded node by node under load, and one node back and forth.
No publish fails, and no message is lost or stored twice.

`make test-upgrade` runs it; the older version is a commit of this repository (OLDER=commit).
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
from support.cluster import NODES, PATIENCE, Cluster
from support.handover_load import EveryWay
from support.ingesting import until
from support.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.client import connect_sync
from liftlog.errors import LiftlogError

OLDER = os.environ.get("UPGRADE_FROM", "")
PACKAGES = ("liftlog", "envelope", "compaction", "acl")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not OLDER, reason="it starts eight daemons from nothing: make test-upgrade"),
]

REPLICATED = {"replicas": 3, "min_isr": 2}
STREAMS = {
    "in": {"subject": "in.>", **REPLICATED},
    "shared": {"subject": "shared.>", "queue_group": "workers", **REPLICATED},
}
RATE = 200.0


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as they were at that commit."""
    done = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", OLDER, *PACKAGES],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"there is no commit {OLDER} here: {done.stderr.decode().strip()}")
    tree = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return tree


def acked(loads: list[EveryWay], more: int = 100) -> None:
    wanted = {load: len(load.acked) + more for load in loads}
    until(lambda: all(len(load.acked) >= wanted[load] for load in loads), PATIENCE, "acks")


def lead(cluster: Cluster, node: str) -> None:
    """What one version commits the other one follows."""

    def leads() -> bool:
        with suppress(LiftlogError), connect_sync(cluster.nodes[node].pull_address) as client:
            client.elect_leader("in", node)  # the nodes may not be connected yet
        return cluster.leader("in") == node

    until(leads, PATIENCE, f"{node} leads")


def test_nodes_are_upgraded_one_by_one_and_one_of_them_back(
    server: NatsServer, older: Path
) -> None:
    cluster = Cluster(server.url, STREAMS, cluster={"balance_interval": "2s"})
    for daemon in cluster.nodes.values():
        daemon.use_version(older)
    with cluster:
        cluster.wait_all_in_sync()
        loads = [EveryWay(server.port, f"{stream}.x", RATE) for stream in STREAMS]
        for load in loads:
            load.start()
        with connect_sync(cluster.nodes["a"].pull_address) as client:
            client.commit_checkpoint("old", "in", 1)
        steps = [("a", None), ("b", None), ("c", None), ("b", older), ("b", None)]
        for node, tree in steps:
            acked(loads)
            cluster.stop(node)
            cluster.nodes[node].use_version(tree)
            acked(loads)
            cluster.start(node)
            for stream in STREAMS:
                cluster.wait_isr(stream)
            lead(cluster, node)
        acked(loads)
        for load in loads:
            load.finish()
        for stream, load in zip(STREAMS, loads, strict=True):
            cluster.wait_settled(stream)
            load.check(cluster, stream, NODES)
        with connect_sync(cluster.nodes["a"].pull_address) as client:
            found = client.fetch_checkpoint("old", "in")
        assert found is not None
        assert found.offset == 1
        cluster.assert_sound()
