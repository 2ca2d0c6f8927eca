"""A disk of one node hangs: its `fdatasync` does not return, and the process answers all the same.

So no other node considers it dead. A leader must detect by itself that acks wait for its disk, and
let another replica take over. A follower leaves the in-sync set like a lagging one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.clients.ingesting import until
from support.daemons.cluster import NODES, Cluster, RetryingPublisher, assert_kept
from support.daemons.nats_server import NatsServer
from support.disks.losefs import LoseFsHandle, losefs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAM = "in"
STREAMS = {STREAM: {"subject": "in.>", "replicas": 3, "min_isr": 2}}
SLOW = "a"
"""The node with the hanging disk."""
SESSION, LAG_MAX = 6.0, 4.0
SETTINGS = {"commit": {"inline_max_messages": 0}}
"""In the event loop, a hanging sync would make the process hang, which other nodes detect."""
WHOLE_DISK, LOG_ALONE = "", f"/streams/{STREAM}/"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@contextmanager
def nodes(
    server: NatsServer, directory: Path, leader: str
) -> Iterator[tuple[Cluster, LoseFsHandle]]:
    with losefs(directory / "disk") as disk:
        with Cluster(
            server.url,
            STREAMS,
            settings=SETTINGS,
            cluster={
                "session": f"{SESSION:.0f}s",
                "lag_max": f"{LAG_MAX:.0f}s",
                "balance_interval": "1h",
            },
            directory=directory / "nodes",
            disks={SLOW: disk.path},
        ) as cluster:
            try:
                cluster.wait_isr(STREAM)
                run(cluster, "move", "--replicas", ",".join(NODES))
                run(cluster, "elect", "--node", leader)
                yield cluster, disk
            finally:
                disk.go_on()  # or it could not be killed
            cluster.assert_sound()


def run(cluster: Cluster, command: str, *words: str) -> None:
    done = cluster.command("cluster", command, STREAM, *words)
    assert done.returncode == 0, done.stderr


def wait_acked(publisher: RetryingPublisher, more: int) -> None:
    wanted = len(publisher.acked) + more
    until(lambda: len(publisher.acked) >= wanted, 60, f"{more} more acks")


def started(server: NatsServer, **more: int) -> RetryingPublisher:
    publisher = RetryingPublisher(server.port, "in.p", pad=100, **more)
    publisher.start()
    wait_acked(publisher, 50)
    return publisher


@pytest.mark.long
@pytest.mark.parametrize("part", [WHOLE_DISK, LOG_ALONE], ids=["disk", "log"])
def test_a_leader_whose_disk_hangs_has_another_node_take_over(
    server: NatsServer, tmp_path: Path, part: str
) -> None:
    with nodes(server, tmp_path, SLOW) as (cluster, disk):
        publisher = started(server)
        disk.stall(part)
        stalled = time.monotonic()
        until(lambda: cluster.stream(STREAM, "b").leader in ("b", "c"), 60, "another leader")
        cluster.wait_isr(STREAM, {"b", "c"})
        wait_acked(publisher, 200)
        pause = publisher.longest_wait(stalled - 0.5)
        print(f"{pause:.1f} s without an ack")
        assert SESSION - 1 < pause < SESSION + 3
        assert disk.status["stalled"]
        stopped = f'"event": "stepped-down", "stream": "{STREAM}"'
        until(lambda: stopped in cluster.nodes[SLOW].log, 10, "the old leader takes nothing more")
        disk.go_on()
        cluster.wait_isr(STREAM)
        wait_acked(publisher, 50)
        publisher.finish()
        assert publisher.nacked == {}
        assert_kept([publisher], cluster.read_all(STREAM))


@pytest.mark.long
def test_a_follower_whose_disk_hangs_is_not_elected(server: NatsServer, tmp_path: Path) -> None:
    """It stays in sync for a while, has all records, and is the first candidate. But it could not
    begin to lead."""
    with nodes(server, tmp_path, "b") as (cluster, disk):
        publisher = started(server, in_flight=1)
        disk.stall(LOG_ALONE)
        until(lambda: disk.status["stalled"] > 0, 10, "it waits for its disk")
        stalled = time.monotonic()
        until(lambda: time.monotonic() > stalled + 1.2, 10)
        cluster.kill("b")
        until(lambda: cluster.stream(STREAM, "c").leader not in (None, "b"), 60, "another leader")
        assert cluster.stream(STREAM, "c").leader == "c"
        cluster.start("b")
        cluster.wait_isr(STREAM, {"b", "c"})
        wait_acked(publisher, 50)
        disk.go_on()
        cluster.wait_isr(STREAM)
        publisher.finish()
        assert_kept([publisher], cluster.read_all(STREAM))


@pytest.mark.long
def test_a_follower_whose_disk_hangs_leaves_the_in_sync_set(
    server: NatsServer, tmp_path: Path
) -> None:
    with nodes(server, tmp_path, "b") as (cluster, disk):
        publisher = started(server)
        disk.stall()
        stalled = time.monotonic()
        cluster.wait_isr(STREAM, set(NODES) - {SLOW})
        wait_acked(publisher, 200)
        pause = publisher.longest_wait(stalled - 0.5)
        print(f"{pause:.1f} s without an ack")
        assert LAG_MAX - 1 < pause < LAG_MAX + 2
        disk.go_on()
        cluster.wait_isr(STREAM)
        publisher.finish()
        assert cluster.leader(STREAM) == "b"
        assert_kept([publisher], cluster.read_all(STREAM))
