"""What replicas keep beside the records: leases outlive their leader, and tombstones stay as long
as a replica needs them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.clients.ingesting import publish, publish_until_acked, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import NODES, Cluster
from support.daemons.compacted import Compacted
from support.daemons.nats_server import NatsServer
from support.disks.stored_logs import flip

from liftlog.client import connect_sync
from liftlog.errors import LiftlogError
from liftlog.log.files.checkpoint_file import read_checkpoint_file
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.leases import KIND, LEASES_NAME
from liftlog.log.files.manifest import KIND as MANIFEST
from liftlog.log.files.manifest import MANIFEST_NAME

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SETTINGS: dict[str, Any] = {
    "cleaner": {"interval": "100ms"},
    "log": {"retention_interval": "100ms"},
}
QUICK = {"session": "6s", "lag_max": "1s", "forget_after": "2s"}
TABLE: dict[str, Any] = {
    "replicas": 3,
    "dedupe_window": "0s",
    "compaction": {"tombstone_retention": "0s", "min_dirty_ratio": 0.01},
    "segment": {"max_bytes": "4KiB"},
}
STREAMS: dict[str, dict[str, Any]] = {
    "leased": {"subject": "leased", "replicas": 3, "retention": {"max_messages": 2}},
    "table": {"subject": "table", **TABLE},
    "rotten": {"subject": "rotten", **TABLE},
}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def running(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, settings=SETTINGS, cluster=QUICK) as cluster:
        yield cluster
        cluster.assert_sound()


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.start()
    for stream in STREAMS:
        running.wait_isr(stream)
        running.wait_settled(stream)
    return running


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port, timeout=30) as client:
        yield client


def checkpoint(cluster: Cluster, node: str, stream: str, name: str, kind: str) -> dict[str, Any]:
    """A small file of a stream's directory on a node."""
    path = cluster.nodes[node].data_dir / "streams" / stream / name
    return read_checkpoint_file(OsFileSystem(), path, kind) or {}


def lease_ids(cluster: Cluster, node: str) -> set[str]:
    stored = checkpoint(cluster, node, "leased", LEASES_NAME, KIND)
    return {one["lease_id"] for one in stored.get("leases", [])}


def forgotten_below(cluster: Cluster, node: str, stream: str = "table") -> int:
    manifest = checkpoint(cluster, node, stream, MANIFEST_NAME, MANIFEST)
    return int(manifest["tombstones_removed_below"])


def newest(table: Compacted) -> dict[str, bytes | None]:
    return {
        key.decode(): value for key, (_, value) in sorted(table.newest.items()) if value is not None
    }


# --- leases ---


def test_a_lease_outlives_its_leader(cluster: Cluster, raw: RawNats) -> None:
    first = publish(raw, "leased", b"0")["seq"]
    leader = cluster.leader("leased")
    with connect_sync(cluster.nodes[leader].pull_address) as client:
        lease = client.acquire_lease("leased", first, ttl=600, holder="export")
    assert [lease_ids(cluster, node) for node in NODES] == [{lease.lease_id}] * 3
    for end_it in (cluster.stop, cluster.kill):
        former = cluster.leader("leased")
        end_it(former)
        until(lambda former=former: cluster.leader("leased") != former, 60)  # type: ignore[misc]
        leader = cluster.leader("leased")
        for number in range(5):
            publish_until_acked(raw, "leased", b"%d" % number, f"{former}-{number}")
        with connect_sync(cluster.nodes[leader].pull_address) as client:
            client.renew_lease("leased", lease.lease_id, ttl=600)
            assert client.describe_stream("leased").log_start_offset == first
        cluster.start(former)
        cluster.wait_isr("leased")
    with connect_sync(cluster.nodes[leader].pull_address) as client:
        client.release_lease("leased", lease.lease_id)
        until(lambda: client.describe_stream("leased").log_start_offset > first, 30)
    assert [lease_ids(cluster, node) for node in NODES] == [set()] * 3


def losses(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    found = checkpoint(cluster, node, "leased", LEASES_NAME, KIND).get("possible_losses", [])
    return list(found)


def test_possible_losses_outlive_their_leader(cluster: Cluster, raw: RawNats) -> None:
    """Each new leader notes one, and has those of the leaders before it."""
    publish_until_acked(raw, "leased", b"0", "before")
    first = cluster.leader("leased")
    cluster.kill(first)
    until(lambda: cluster.leader("leased") != first, 60)
    second = cluster.leader("leased")
    until(lambda: losses(cluster, second), 60)
    known = losses(cluster, second)
    publish_until_acked(raw, "leased", b"1", "between")
    cluster.start(first)
    cluster.wait_isr("leased")
    cluster.kill(second)
    until(lambda: cluster.leader("leased") != second, 60)
    third = cluster.leader("leased")
    until(lambda: len(losses(cluster, third)) > len(known), 60)
    assert losses(cluster, third)[: len(known)] == known
    cluster.start(second)
    cluster.wait_isr("leased")
    until(lambda: len({str(losses(cluster, node)) for node in NODES}) == 1, 60)
    with connect_sync(cluster.nodes[cluster.leader("leased")].pull_address) as client:
        told = client.describe_stream("leased").possible_losses
    assert told == losses(cluster, NODES[0])
    assert [one["offset"] for one in told] == sorted(one["offset"] for one in told)


def test_a_lease_is_granted_when_all_in_sync_have_it(cluster: Cluster, raw: RawNats) -> None:
    publish(raw, "leased", b"0")
    leader, gone = cluster.leader("leased"), cluster.followers("leased")[0]
    address = cluster.nodes[leader].pull_address
    cluster.pause(gone)
    granted: list[tuple[str, set[str]]] = []

    def acquire() -> None:
        with connect_sync(address) as client:
            lease = client.acquire_lease("leased", "earliest", ttl=600)
            granted.append((lease.lease_id, set(cluster.stream("leased", leader).isr)))

    asking = threading.Thread(target=acquire)
    asking.start()
    asking.join(60)
    [(lease_id, isr)] = granted
    assert isr == set(NODES) - {gone}
    cluster.resume(gone)
    until(lambda: lease_id in lease_ids(cluster, gone), 30)


# --- tombstones ---


def test_tombstones_wait_for_a_replica_and_one_that_is_late_starts_over(
    cluster: Cluster, raw: RawNats
) -> None:
    table = Compacted(raw, "table")
    kept = table.put("deleted", b"must not come back")
    cluster.wait_settled("table")
    gone = cluster.followers("table")[0]
    left = [node for node in NODES if node != gone]
    cluster.kill(gone)
    cluster.wait_isr("table", left)
    deleted = table.delete("deleted")
    fill = (f"k{number % 10}" for number in range(1_000_000))

    def is_forgotten(offset: int, nodes: list[str]) -> bool:
        """With more that is rolled and compacted."""
        table.put_many([next(fill) for _ in range(40)], pad=200)
        return all(forgotten_below(cluster, node) > offset for node in nodes)

    # Once it has been away for too long, those that are there forget the deletion.
    until(lambda: is_forgotten(deleted, left), 60, "the tombstone goes")
    assert kept < deleted
    cluster.start(gone)
    cluster.wait_isr("table")
    assert cluster.nodes[gone].log.count("replica-resynced") == 1
    cluster.wait_settled("table")
    for node in NODES:
        with connect_sync(cluster.nodes[node].pull_address) as client:
            found = {one.key: one.value for one in client.read("table", until="end", replica=node)}
        assert b"deleted" not in found
        assert {key.decode(): found[key] for key in sorted(found)} == newest(table)
    # All are there: each forgets what all have, and no one starts over.
    deleted = table.delete("of all")
    until(lambda: is_forgotten(deleted, list(NODES)), 60, "the tombstone goes everywhere")
    assert cluster.nodes[gone].log.count("replica-resynced") == 1


@pytest.mark.long
def test_damage_where_tombstones_were_removed_has_the_whole_copy_replaced(
    cluster: Cluster, raw: RawNats
) -> None:
    """No other replica can repair it: one that has not compacted yet may have a deleted key."""
    table = Compacted(raw, "rotten")
    table.put_many((f"k{number}" for number in range(30)), pad=200)
    fill = (f"k{number % 10}" for number in range(1_000_000))
    deleted = table.delete("k29")

    def is_forgotten() -> bool:
        table.put_many([next(fill) for _ in range(40)], pad=200)
        return all(forgotten_below(cluster, node, "rotten") > deleted for node in NODES)

    until(is_forgotten, 60, "the tombstone goes")
    cluster.wait_settled("rotten")
    follower, leader = cluster.followers("rotten")[0], cluster.leader("rotten")
    for node in (follower, leader):
        directory = cluster.nodes[node].data_dir / "streams" / "rotten"
        first = next(path for path in sorted(directory.glob("*.log")) if path.stat().st_size > 300)
        flip(first, 200)
        asks = {"replica": node} if node == follower else {}
        with connect_sync(cluster.nodes[node].pull_address) as client, suppress(LiftlogError):
            list(client.read("rotten", until="end", **asks))  # now the damage is known
        until(lambda node=node: cluster.nodes[node].log.count("copy-dropped") == 1, 60)  # type: ignore[misc]
        cluster.wait_isr("rotten")
        table.put_until_acked("after", node.encode())
        cluster.wait_settled("rotten")
    assert cluster.leader("rotten") != leader
    for node in NODES:
        with connect_sync(cluster.nodes[node].pull_address) as client:
            found = {one.key: one.value for one in client.read("rotten", until="end", replica=node)}
        assert {key.decode(): found[key] for key in sorted(found)} == newest(table)
        assert cluster.nodes[node].metric("liftlog_quarantined_ranges", stream="rotten") == 0
