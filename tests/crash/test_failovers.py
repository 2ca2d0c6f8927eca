"""The leader of a replicated stream, or a follower, is killed or stopped again and again, under
load.

Publishers repeat what is not acked, with the same id. On every replica, each acked message is
stored once, at its own offset. The longest time without an ack of each round is printed, with the
steps that took this time: `make cluster-torture ARGS="-k failovers"`. Campaigns have publishers
with nats-py, nats.go and Node as well, and keep the metadata in files and in a bucket of three NATS
servers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.clients.client_publishers import ClientPublisher, client_publishers
from support.clients.ingesting import until
from support.daemons.cluster import NODES, PATIENCE, Cluster, RetryingPublisher, assert_kept
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_server import NatsServer
from support.daemons.takeovers import Takeover, parts
from support.rounds import chance_of, is_torture, modes, rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(36000)]

STREAM = "in"
STREAMS = {STREAM: {"subject": "in.>", "replicas": 3, "min_isr": 2}}
SETTINGS = {"nats": {"reconnect_wait": "50ms"}, "log": {"recovery_checkpoint_interval": "1s"}}
RATE = 3000.0
"""Messages per second of each of two publishers."""


@dataclass(frozen=True)
class Site:
    """NATS servers, and True if the metadata are in their bucket and not in files."""

    servers: list[NatsServer]
    in_bucket: bool

    def cluster(self, name: str, **more: Any) -> Cluster:
        store = {"store": "nats", "name": f"failovers-{name}"} if self.in_bucket else {}
        urls = [server.url for server in self.servers]
        return Cluster(urls, STREAMS, settings=SETTINGS, cluster={**store, **more})


@pytest.fixture(scope="module", params=modes("files", "bucket"))
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if request.param == "files":
        with NatsServer() as server:
            yield Site([server], in_bucket=False)
    else:
        with NatsCluster(3, jetstream=True, sync_always=True) as servers:
            yield Site(servers.servers, in_bucket=True)


class Rounds:
    """Publishers on a cluster. In each round, the leader or a `follower` fails and returns. If it
    is a follower, acks only pause, and the leader does not change."""

    def __init__(self, cluster: Cluster, site: Site, what: str, *, follower: bool = False) -> None:
        self.cluster = cluster
        self.follower = follower
        self.chance = chance_of(what)
        self.pauses: list[float] = []
        self.takeovers: list[dict[str, float]] = []
        ports = [server.port for server in site.servers]
        self.publishers = [
            RetryingPublisher(ports[number % len(ports)], f"in.{one}", rate=RATE)
            for number, one in enumerate("pq")
        ]
        self.clients = client_publishers(site.servers, "in.with") if is_torture() else []
        self.client_pauses: dict[ClientPublisher, list[float]] = {one: [] for one in self.clients}

    def wait_acked(self, more: int) -> None:
        wanted = {one: len(one.acked) + more for one in self.publishers}
        until(
            lambda: all(len(one.acked) >= wanted[one] for one in self.publishers),
            PATIENCE,
            f"{more} more acks for each",
        )
        few = {one: one.acked + 5 for one in self.clients}
        until(
            lambda: all(one.acked >= few[one] for one in self.clients), PATIENCE, "acks of clients"
        )

    def run(self, count: int, break_it: Callable[[str], None], mend: Callable[[str], None]) -> None:
        cluster = self.cluster
        cluster.wait_isr(STREAM)
        began = time.monotonic()
        for publisher in [*self.publishers, *self.clients]:
            publisher.start()
        for number in range(1, count + 1):
            self.wait_acked(self.chance.randint(20, 200))
            leader = cluster.leader(STREAM)
            chosen = self.chance.choice(cluster.followers(STREAM)) if self.follower else leader
            takeover = Takeover(cluster, STREAM)
            broken = time.monotonic()
            break_it(chosen)
            if self.follower:
                cluster.wait_isr(STREAM, set(NODES) - {chosen})
                assert cluster.stream(STREAM).leader == leader
            else:
                takeover.wait()
            self.wait_acked(20)
            self.pauses.append(max(one.longest_wait(broken - 0.5) for one in self.publishers))
            for client, pauses in self.client_pauses.items():
                pauses.append(client.longest_wait(broken - 0.5))
            if not self.follower:
                self.takeovers.append(takeover.steps(self.publishers))
            mend(chosen)
            cluster.wait_isr(STREAM, timeout=2 * PATIENCE)
            told = parts(self.takeovers[-1:])
            print(f"round {number}: {self.pauses[-1]:.2f} s without an ack; {told}", flush=True)
        seconds = time.monotonic() - began
        for publisher in [*self.publishers, *self.clients]:
            publisher.finish()
        assert_kept([*self.publishers, *self.clients], cluster.read_all(STREAM))
        cluster.assert_sound()
        acked = sum(len(one.acked) for one in self.publishers)
        print(
            f"\n{len(self.pauses)} rounds, seconds without an ack: {shares(self.pauses)}; "
            f"{acked} acked in {seconds:.0f} s, pauses included; load {os.getloadavg()[0]:.1f}"
        )
        if self.takeovers:
            print(f"medians of its parts: {parts(self.takeovers)}")
        for client, pauses in self.client_pauses.items():
            print(f"{client.summary()}; seconds without an ack: {shares(pauses)}")


def shares(pauses: list[float]) -> str:
    found = sorted(pauses)
    return (
        f"p50 {found[len(found) // 2]:.2f}, p90 {found[len(found) * 9 // 10]:.2f}, "
        f"p99 {found[len(found) * 99 // 100]:.2f}, most {found[-1]:.2f}"
    )


def test_the_leader_is_killed_while_others_take_over(site: Site) -> None:
    with site.cluster("killed") as cluster:
        Rounds(cluster, site, "killed").run(rounds(1), cluster.kill, cluster.start)


@pytest.mark.long
def test_the_leader_is_stopped_for_ten_seconds(site: Site) -> None:
    with site.cluster("stopped") as cluster:
        assert set(cluster.nodes) == set(NODES)
        stopped = Stopped(cluster)
        Rounds(cluster, site, "stopped").run(rounds(1), stopped.stop, stopped.resume_late)


class Stopped:
    """Stop one node at a time, for ten seconds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._at = 0.0

    def stop(self, node: str) -> None:
        self._at = time.monotonic()
        self._cluster.pause(node)

    def resume_late(self, node: str) -> None:
        until(lambda: time.monotonic() > self._at + 10, 60)
        self._cluster.resume(node)


CALM = {"balance_interval": "1h"}
"""Settings under which the leader changes only because of a fault."""


@pytest.mark.skipif(not rounds(0), reason="a campaign: make cluster-torture")
def test_a_follower_is_killed(site: Site) -> None:
    """In `make test`, `integration/test_cluster` and `crash/test_cluster_crashes` cover this
    case."""
    with site.cluster("follower-killed", **CALM) as cluster:
        run = Rounds(cluster, site, "follower killed", follower=True)
        run.run(rounds(0), cluster.kill, cluster.start)


@pytest.mark.skipif(not rounds(0), reason="a campaign: make cluster-torture")
def test_a_follower_is_stopped_for_ten_seconds(site: Site) -> None:
    with site.cluster("follower-stopped", **CALM) as cluster:
        stopped = Stopped(cluster)
        run = Rounds(cluster, site, "follower stopped", follower=True)
        run.run(rounds(0), stopped.stop, stopped.resume_late)
