"""Readers of a cluster: rot on one node costs them a delay at most, since it is repaired from
another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.cluster import NODES, Cluster
from support.ingesting import publish, until
from support.nats_server import NatsServer
from support.raw_nats import RawNats
from support.stored_logs import batch_positions, flip

from liftlog.client import connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STREAMS: dict[str, dict[str, Any]] = {
    "orders": {
        "subject": "orders",
        "replicas": 3,
        "segment": {"max_bytes": "16KiB"},
        "rebatch": {"enabled": False},
    }
}
RECORDS = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with NatsServer() as server, Cluster(server.url, STREAMS) as cluster:
        cluster.wait_isr("orders")
        with RawNats(server.port, timeout=60) as raw:
            for number in range(RECORDS):
                publish(raw, "orders", b"%d" % number + bytes(700))
        cluster.wait_settled("orders")
        yield cluster
        cluster.assert_sound()


def values(cluster: Cluster, node: str, **options: Any) -> list[bytes | None]:
    """What a client of that node reads to the end."""
    with connect_sync(cluster.nodes[node].pull_address) as client:
        return [one.value for one in client.read("orders", until="end", **options)]


EXPECTED = [b"%d" % number + bytes(700) for number in range(RECORDS)]


def sealed(cluster: Cluster, node: str) -> list[Path]:
    directory = cluster.nodes[node].data_dir / "streams" / "orders"
    return sorted(directory.glob("*.log"))[:-1]


def spoil(paths: Sequence[Path], inside: int) -> None:
    """A wrong byte in every other batch of these segments."""
    for path in paths:
        for position, _ in batch_positions(path)[::2]:
            flip(path, position + inside)


def quarantined(cluster: Cluster, node: str) -> int:
    return int(cluster.nodes[node].metric("liftlog_quarantined_ranges", stream="orders"))


def repaired(cluster: Cluster, node: str) -> int:
    return int(cluster.nodes[node].metric("liftlog_repaired_ranges_total", stream="orders"))


# --- rot ---


@pytest.mark.parametrize("inside", [9, 90], ids=["headers", "bodies"])
def test_rot_of_the_leader_is_repaired_while_a_reader_waits(cluster: Cluster, inside: int) -> None:
    leader = cluster.leader("orders")
    before = repaired(cluster, leader)
    damaged = sealed(cluster, leader)[:3]
    spoil(damaged, inside)
    assert values(cluster, leader) == EXPECTED
    assert not any(path.exists() for path in damaged)
    assert quarantined(cluster, leader) == 0
    assert repaired(cluster, leader) - before >= 3
    assert cluster.leader("orders") == leader


def test_a_reader_with_a_filter_waits_too(cluster: Cluster) -> None:
    leader = cluster.leader("orders")
    spoil(sealed(cluster, leader)[1:3], 90)
    assert values(cluster, leader, columns=["value"]) == EXPECTED


def test_rot_of_a_follower_is_repaired_when_its_copy_is_read(cluster: Cluster) -> None:
    node = cluster.followers("orders")[0]
    damaged = sealed(cluster, node)
    spoil(damaged, 90)
    assert values(cluster, node, replica=node) == EXPECTED
    assert not any(path.exists() for path in damaged)
    [readings, *others] = [one.records for one in cluster.read_all("orders")]
    assert others == [readings, readings]


def test_what_is_damaged_everywhere_is_told_as_lost(cluster: Cluster) -> None:
    """A node that has the offsets is asked for them; here none has."""
    _, header = batch_positions(sealed(cluster, NODES[0])[-1])[0]
    for node in NODES:
        for path in sealed(cluster, node):
            for at, found in batch_positions(path):
                if found.base_offset == header.base_offset:
                    flip(path, at + 90)
    lost: list[tuple[int, int]] = []
    with connect_sync(cluster.nodes[cluster.leader("orders")].pull_address) as client:
        read = client.read(
            "orders",
            until="end",
            on_corrupt=lambda damage: lost.append((damage.first_offset, damage.next_offset)),
        )
        found = [record.offset for record in read]
    assert lost == [(header.base_offset, header.next_offset)]
    assert len(found) == RECORDS - (header.next_offset - header.base_offset)
    until(lambda: quarantined(cluster, cluster.leader("orders")) == 1)
