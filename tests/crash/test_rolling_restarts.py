"""All nodes of a cluster are restarted in turn, again and again, under load: no publish fails, and
no message is lost or stored twice, not even one without a reply subject. Applications with nats-py,
nats.go and Node publish to a stream of their own.

A campaign of `make cluster-torture`; `integration/test_handovers` is its short form. How long acks
took, at which rate and load, is printed: `make cluster-torture ROUNDS=20 ARGS="-s -k restarted"`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from support.clients.client_publishers import ClientPublisher, client_publishers
from support.clients.handover_load import EveryWay
from support.clients.ingesting import until
from support.daemons.cluster import NODES, PATIENCE, Cluster, assert_kept
from support.daemons.nats_server import NatsServer
from support.rounds import rounds

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(36000),
    pytest.mark.skipif(not rounds(0), reason="a campaign: make cluster-torture"),
]

REPLICATED = {"replicas": 3, "min_isr": 2}
STREAMS = {
    "in": {"subject": "in.>", **REPLICATED},
    "shared": {"subject": "shared.>", "queue_group": "workers", **REPLICATED},
}
CLIENTS = "clients"
RATE = 500.0
"""Messages per second to each of the two streams. Half of them have no reply subject."""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def wait_acked(loads: list[EveryWay], more: int) -> None:
    wanted = {load: len(load.acked) + more for load in loads}
    until(lambda: all(len(load.acked) >= wanted[load] for load in loads), PATIENCE, "acks")


def check_clients(cluster: Cluster, clients: list[ClientPublisher], start: int) -> None:
    """Check that each attempt was acked, and each message stored once on every node."""
    cluster.wait_settled(CLIENTS)
    readings = [cluster.read(CLIENTS, node, start, is_last=True) for node in NODES]
    assert_kept(clients, readings)
    assert not any(client.failures for client in clients), [one.summary() for one in clients]


def test_all_nodes_are_restarted_in_turn(server: NatsServer) -> None:
    seconds: list[float] = []
    stops: list[float] = []
    sent: Counter[str] = Counter()
    by_client: dict[str, list[float]] = {}
    loaded = 0.0
    streams = {**STREAMS, CLIENTS: {"subject": "clients.>", **REPLICATED}}
    with Cluster(server.url, streams, cluster={"balance_interval": "2s"}) as cluster:
        for number in range(rounds(0)):
            cluster.wait_all_in_sync()
            starts = {stream: cluster.wait_settled(stream) for stream in streams}
            clients = client_publishers([server], f"clients.{number}", timeout=20)
            loads = [EveryWay(server.port, f"{stream}.{number}", RATE) for stream in STREAMS]
            began_at = time.monotonic()
            for load in [*loads, *clients]:
                load.start()
            for node in NODES:
                wait_acked(loads, 200)
                began = time.monotonic()
                cluster.stop(node)
                stops.append(time.monotonic() - began)
                wait_acked(loads, 200)
                cluster.start(node)
                for stream in streams:
                    cluster.wait_isr(stream)
            wait_acked(loads, 200)
            for load in loads:
                load.finish()
                sent += load.sent
            for client in clients:
                client.finish()
                by_client.setdefault(client.client, []).extend(client.seconds)
            loaded += time.monotonic() - began_at
            for stream, load in zip(STREAMS, loads, strict=True):
                cluster.wait_settled(stream)
                load.check(cluster, stream, NODES, start=starts[stream])
                seconds += load.seconds
            check_clients(cluster, clients, starts[CLIENTS])
            print(f"\nround {number + 1}: {summary(seconds)}", flush=True)
        cluster.assert_sound()
        logs = "".join(daemon.log for daemon in cluster.nodes.values())
        assert '"possible-loss"' not in logs
    print(f"{rounds(0)} rounds: {summary(seconds)}, longest stop {max(stops):.2f} s")
    print(
        f"{sent.total()} published, {sent.total() / loaded:.0f} per second, {sent['silent']} and "
        f"{sent['headed']} without a reply subject: 0 failed, 0 lost, 0 doubled; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for name, waited in by_client.items():
        print(f"{name}: {summary(waited)}")


def summary(seconds: list[float]) -> str:
    found = sorted(seconds)
    shares = {name: found[int(share * (len(found) - 1))] for name, share in
              (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("most", 1.0))}  # fmt: skip
    told = ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in shares.items())
    return f"{len(found)} acks: {told}"
