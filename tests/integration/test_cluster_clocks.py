"""A node whose clock is wrong leads a stream: what it deletes, and who is told of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.clients.command_line import COMMAND
from support.clients.ingesting import publish, records_of, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import PATIENCE, Cluster
from support.daemons.nats_server import NatsServer
from support.daemons.shifted_clock import ShiftedClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

HOURS = 5
COUNT = 20
STREAMS = {
    "orders": {
        "subject": "orders",
        "replicas": 3,
        "min_isr": 2,
        "retention": {"max_age": "1h"},
        "segment": {"max_bytes": "4KiB", "max_age": "500ms"},
        "dedupe_window": "1s",
    }
}
SETTINGS = {"log": {"retention_interval": "100ms"}}
CALM = {"balance_interval": "1h"}


def cluster_command(cluster: Cluster, through: str, *args: str) -> str:
    address = cluster.nodes[through].pull_address
    return subprocess.run(
        [*COMMAND, "cluster", *args, "--server", address],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout


def warnings(cluster: Cluster, node: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(cluster.nodes[node].get("/readyz")[1])["warnings"]
    return found


@pytest.mark.long
def test_a_leader_whose_clock_is_ahead_deletes_nothing(server: NatsServer, tmp_path: Path) -> None:
    clock = ShiftedClock(tmp_path / "clock")
    clock.set_ahead(HOURS * 3600)
    with (
        Cluster(
            server.url, STREAMS, settings=SETTINGS, cluster=CALM, clocks={"a": clock}
        ) as cluster,
        RawNats(server.port) as raw,
    ):
        cluster.wait_isr("orders")
        cluster_command(cluster, "b", "elect", "orders", "--node", "b")
        for _ in range(COUNT):
            assert publish(raw, "orders", b"x" * 1000)
        cluster.kill("a")  # the next process there knows nothing but the stamps
        cluster.start("a")
        cluster.wait_isr("orders")
        cluster_command(cluster, "b", "elect", "orders", "--node", "a")
        until(lambda: "a: its clock is 5 h ahead" in warnings(cluster, "b").get("clock_skew", ""))
        until(lambda: "another time" in warnings(cluster, "a").get("clock", ""))
        assert "clock 18,000 s ahead" in cluster_command(cluster, "c", "status")
        ahead = 'liftlog_peer_clock_ahead_seconds{node="b"} -1'
        assert ahead in cluster.nodes["a"].get("/metrics")[1]
        assert publish(raw, "orders", b"x" * 1000)  # and with it a roll, and a round of retention
        until(lambda: len(list(logs_of(cluster, "a"))) > 4)
        assert len(records_of(cluster.nodes["a"], "orders")) == COUNT + 1

        silent = "have not answered since"  # the doubt stays, over a restart too
        cluster.kill("b", "c")
        until(lambda: silent in warnings(cluster, "a").get("clock", ""))
        cluster.kill("a")
        cluster.nodes["a"].spawn()
        cluster.nodes["a"].wait_listening()
        until(lambda: silent in warnings(cluster, "a").get("clock", ""))
        clock.set_ahead(0)
        cluster.start("b", "c")
        until(lambda: "clock_skew" not in warnings(cluster, "b"))
        assert "clock" not in warnings(cluster, "b")
        until(lambda: "another time" not in warnings(cluster, "a").get("clock", ""))
        cluster.wait_isr("orders")
        assert len(records_of(cluster.nodes[cluster.leader("orders")], "orders")) == COUNT + 1


def logs_of(cluster: Cluster, node: str) -> list[Path]:
    return list((cluster.nodes[node].data_dir / "streams" / "orders").glob("*.log"))
