"""A cluster of an older version is upgraded node by node under load, and one node back and forth.
No publish fails, and no message is lost or stored twice. The metadata are in files, or in a bucket
of three nats-servers which the older version has made.

`make test-upgrade` runs it; the older version is a commit of this repository (OLDER=commit).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
import yaml
from support.clients.handover_load import EveryWay
from support.clients.ingesting import until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import NODES, PATIENCE, Cluster
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.client import connect_sync
from liftlog.errors import Conflict, LiftlogError

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
LONGER_THAN_OLD_TRAILS = 20
"""Number of versions: records of older nodes may name only 16 earlier versions, those of present
nodes 64."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the packages at this commit."""
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


@pytest.fixture(params=["file", "nats"])
def cluster(request: pytest.FixtureRequest, older: Path) -> Iterator[Cluster]:
    """Yield a cluster of the older version, not yet started."""
    settings = {"balance_interval": "2s"}
    if request.param == "file":
        with NatsServer() as server:
            yield of_version(older, Cluster(server.url, STREAMS, cluster=settings))
        return
    with NatsCluster(3, jetstream=True, sync_always=True) as servers:
        urls = [server.url for server in servers.servers]
        settings["store"] = "nats"
        cluster = of_version(older, Cluster(urls, STREAMS, cluster=settings))
        make_bucket(cluster, older)
        yield cluster


def of_version(tree: Path, cluster: Cluster) -> Cluster:
    for daemon in cluster.nodes.values():
        daemon.use_version(tree)
    return cluster


def make_bucket(cluster: Cluster, tree: Path) -> None:
    """Create the bucket by this version. Nodes of both versions use it."""
    config = cluster.directory / "init.yaml"
    config.write_text(yaml.safe_dump(cluster.nodes["a"].settings))
    done = subprocess.run(
        [sys.executable, "-m", "liftlog", "cluster", "init", "-c", str(config)],
        cwd=cluster.directory,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def nats_port(cluster: Cluster) -> int:
    return int(cluster.nodes["a"].settings["nats"]["servers"][0].rpartition(":")[2])


def acked(loads: list[EveryWay], more: int = 100) -> None:
    wanted = {load: len(load.acked) + more for load in loads}
    until(lambda: all(len(load.acked) >= wanted[load] for load in loads), PATIENCE, "acks")


def lead(cluster: Cluster, node: str) -> None:
    """Let a node lead. The other version follows the records that this version commits."""

    def leads() -> bool:
        with suppress(LiftlogError), connect_sync(cluster.nodes[node].pull_address) as client:
            client.elect_leader("in", node)  # the nodes may not be connected yet
        return cluster.leader("in") == node

    until(leads, PATIENCE, f"{node} leads")


def lengthen_trail(cluster: Cluster) -> None:
    """Let the record of the stream name more earlier versions than an older node would write."""
    wanted = cluster.stream("in").leader_epoch + LONGER_THAN_OLD_TRAILS
    while cluster.stream("in").leader_epoch < wanted:
        for node in cluster.up():
            lead(cluster, node)


def test_nodes_are_upgraded_one_by_one_and_one_of_them_back(cluster: Cluster, older: Path) -> None:
    with cluster:
        cluster.wait_all_in_sync()
        loads = [EveryWay(nats_port(cluster), f"{stream}.x", RATE) for stream in STREAMS]
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
            if tree is older:
                lengthen_trail(cluster)
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


def use(cluster: Cluster, node: str, tree: Path | None) -> None:
    """Restart a node with the code of another version."""
    cluster.stop(node)
    cluster.nodes[node].use_version(tree)
    cluster.start(node)


def publish_numbers(cluster: Cluster, first: int, end: int) -> None:
    with RawNats(nats_port(cluster), timeout=PATIENCE) as raw:
        for number in range(first, end):
            assert "seq" in raw.request("in.x", b"%d" % number).json()


def worked(cluster: Cluster, node: str, count: int) -> list[int]:
    """Let a worker pull from this node, which leads, and ack; return the numbers."""
    found: list[int] = []
    with (
        connect_sync(cluster.nodes[node].pull_address) as client,
        client.worker("in", "w", batch=5, prefetch=False) as worker,
    ):
        for batch in worker:
            found += [int(one.value or b"") for one in batch]
            worker.ack(batch)
            if len(found) >= count:
                return found
    return found


@pytest.mark.parametrize("cluster", ["file"], indirect=True)
def test_consumers_with_acks_need_all_nodes_of_this_version(cluster: Cluster, older: Path) -> None:
    """Later, an older node leaves the in-sync set, so that it is not elected without the states."""
    with cluster:
        cluster.wait_all_in_sync()
        for node in ("a", "b"):
            use(cluster, node, None)
            cluster.wait_isr("in")
        lead(cluster, "a")
        with connect_sync(cluster.nodes["a"].pull_address) as client:
            with pytest.raises(Conflict, match="the nodes c have an older version"):
                client.create_consumer("in", "w")
            use(cluster, "c", None)
            cluster.wait_isr("in")
            lead(cluster, "a")
            until(lambda: created(cluster, "a"), PATIENCE, "the consumer")
        publish_numbers(cluster, 0, 30)
        assert worked(cluster, "a", 10) == [*range(10)]
        use(cluster, "c", older)
        cluster.wait_isr("in", ("a", "b"))
        publish_numbers(cluster, 30, 40)
        assert worked(cluster, "a", 10) == [*range(10, 20)]
        use(cluster, "c", None)
        cluster.wait_isr("in")
        lead(cluster, "c")
        assert worked(cluster, "c", 20) == [*range(20, 40)]
        with connect_sync(cluster.nodes["c"].pull_address) as client:
            info = client.describe_consumer("in", "w")
        assert (info.num_ack_pending, info.deliveries, info.ack_floor) == (0, 40, 41)
        cluster.assert_sound()


def created(cluster: Cluster, node: str) -> bool:
    with suppress(LiftlogError), connect_sync(cluster.nodes[node].pull_address) as client:
        client.create_consumer("in", "w")
        return True
    return False
