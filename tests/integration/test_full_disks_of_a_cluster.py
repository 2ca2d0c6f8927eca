"""A full disk of one node of a cluster: the others go on without it, at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.clients.ingesting import publish, publish_until_acked
from support.clients.raw_nats import RawNats
from support.daemons.cluster import NODES, PATIENCE, Cluster
from support.daemons.nats_server import NatsServer
from support.disks.small_disks import SmallDisk, small_disk

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STREAMS = {"in": {"subject": "in.>", "replicas": 3, "min_isr": 2}}
LAG_MAX = 60.0
"""Seconds; a test that waits for it fails."""
PATIENT = {"balance_interval": "1h", "suspect_after": "20s", "lag_max": f"{LAG_MAX:.0f}s"}
VALUE = b"x" * 60_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk("tmpfs", tmp_path) as found:
        yield found


@contextmanager
def cluster_on(server: NatsServer, disk: SmallDisk, node: str) -> Iterator[Cluster]:
    """The data of `node` is on the small disk."""
    with Cluster(server.url, STREAMS, cluster=PATIENT, disks={node: disk.path}) as cluster:
        cluster.wait_isr("in")
        yield cluster


def have_lead(cluster: Cluster, node: str) -> None:
    if cluster.leader("in") != node:
        done = cluster.command("cluster", "elect", "in", "--node", node)
        assert done.returncode == 0, done.stderr


def publish_all(raw: RawNats) -> tuple[list[int], list[float]]:
    """One message after the other: the acked offsets, and how long each answer took."""
    acked, took = [], []
    for _ in range(50):
        began = time.monotonic()
        answer = publish(raw, "in.x", VALUE)
        took.append(time.monotonic() - began)
        if "error" not in answer:
            acked.append(answer["seq"])
    return acked, took


def test_a_follower_whose_disk_is_full(server: NatsServer, disk: SmallDisk) -> None:
    """It says so, and acks do not wait for it for `lag_max`."""
    with cluster_on(server, disk, "c") as cluster, RawNats(server.port) as raw:
        have_lead(cluster, "a")
        assert publish(raw, "in.x", VALUE)["seq"] == 1
        disk.fill()
        acked, took = publish_all(raw)
        assert acked == list(range(2, 52))
        assert max(took) < 5.0 < LAG_MAX
        cluster.wait_isr("in", [node for node in NODES if node != "c"])
        disk.make_room()
        cluster.wait_isr("in", NODES)
        assert publish(raw, "in.x", VALUE)["seq"] == acked[-1] + 1


def test_a_leader_whose_disk_is_full(server: NatsServer, disk: SmallDisk) -> None:
    """It hands over to a node that has room."""
    with cluster_on(server, disk, "a") as cluster, RawNats(server.port) as raw:
        have_lead(cluster, "a")
        acked = [publish(raw, "in.x", VALUE)["seq"]]
        disk.fill()

        began = time.monotonic()
        number = 0
        while cluster.leader("in") == "a":
            assert time.monotonic() - began < PATIENCE
            number += 1
            acked.append(publish_until_acked(raw, "in.x", VALUE, f"n{number}")["seq"])
        assert time.monotonic() - began < 30.0 < LAG_MAX
        assert "gave-up-lead" in cluster.nodes["a"].log
        more, _ = publish_all(raw)
        assert more
        assert [*acked, *more] == list(range(1, len(acked) + len(more) + 1)), "none twice"
        disk.make_room()
        cluster.wait_isr("in", NODES)
