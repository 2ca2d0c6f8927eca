"""Machines that do not reach each other: three, each with a node and a NATS server of the bucket
that holds the metadata, on a network whose lines are cut one way or both.

Publishers and readers reach all machines, so that an old leader is asked as long as it listens.
Lines are cut again once the NATS servers have caught up: a server that has not elects no leader of
the bucket, nor is elected, and two such faults in a row are more than JetStream promises. How long
it took until all went on is printed: `make cluster-torture ARGS="-k partitions"`. A short form
of it is in `integration/test_failover`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from support.clients.replicated_load import NODE_SETTINGS, Load
from support.daemons.cluster import NODES, Cluster
from support.daemons.nats_cluster import NatsCluster
from support.daemons.networks import Network
from support.rounds import chance_of, rounds

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(36000),
    pytest.mark.skipif(not rounds(0), reason="a campaign: make cluster-torture"),
]

STORE = {"store": "nats", "session": "15s", "lag_max": "2s"}
NATS = {"jetstream": True, "sync_always": True, "ping_interval": "2s", "ping_max": 2}
HEALED_SECONDS = 20.0
"""Seconds after the repair of the lines within which all streams must continue."""
WHOLE_EACH = 40
ANY = "any lines"


@dataclass
class Lines:
    """The cluster, and the lines between its machines."""

    network: Network
    cluster: Cluster
    chance: random.Random
    leader: str = ""
    """The leader of one of the streams, before lines are cut."""
    cut_off: set[str] = field(default_factory=set)
    """Machines whose clients cannot expect acks, because the other machines are a majority."""
    is_torn: bool = False
    """True if a machine reaches others that do not reach each other. Messages of publishers at some
    of them reach each stream, but not at any."""

    def followers(self) -> list[str]:
        found = [name for name in NODES if name != self.leader]
        self.chance.shuffle(found)
        return found


Cut = Callable[[Lines], None]


def the_leader_is_alone(lines: Lines) -> None:
    lines.network.isolate(lines.leader)
    lines.cut_off = {lines.leader}


def a_follower_is_alone(lines: Lines) -> None:
    gone = lines.followers()[0]
    lines.network.isolate(gone)
    lines.cut_off = {gone}


def the_leader_is_not_heard(lines: Lines) -> None:
    lines.network.isolate(lines.leader, hears=True)
    lines.cut_off = {lines.leader}


def the_leader_hears_nothing(lines: Lines) -> None:
    lines.network.isolate(lines.leader, is_heard=True)
    lines.cut_off = {lines.leader}


def a_follower_is_not_heard(lines: Lines) -> None:
    gone = lines.followers()[0]
    lines.network.isolate(gone, hears=True)
    lines.cut_off = {gone}


def a_follower_hears_nothing(lines: Lines) -> None:
    gone = lines.followers()[0]
    lines.network.isolate(gone, is_heard=True)
    lines.cut_off = {gone}


def the_leader_misses_a_follower(lines: Lines) -> None:
    """Both reach the third."""
    lines.network.separate(lines.leader, lines.followers()[0])
    lines.is_torn = True


def followers_miss_each_other(lines: Lines) -> None:
    lines.network.separate(*lines.followers())
    lines.is_torn = True


def a_ring_in_one_direction(lines: Lines) -> None:
    """Each machine receives data from one other and sends to the third, so no connection works."""
    around = [lines.leader, *lines.followers(), lines.leader]
    for one, other in pairwise(around):
        lines.network.cut(one, other)
    lines.cut_off = set(NODES)


def all_are_alone(lines: Lines) -> None:
    for name in NODES:
        lines.network.isolate(name)
    lines.cut_off = set(NODES)


CUTS: dict[str, Cut] = {
    "the leader is alone": the_leader_is_alone,
    "a follower is alone": a_follower_is_alone,
    "the leader is not heard": the_leader_is_not_heard,
    "the leader hears nothing": the_leader_hears_nothing,
    "a follower is not heard": a_follower_is_not_heard,
    "a follower hears nothing": a_follower_hears_nothing,
    "the leader misses a follower": the_leader_misses_a_follower,
    "followers miss each other": followers_miss_each_other,
    "a ring in one direction": a_ring_in_one_direction,
    "all are alone": all_are_alone,
}


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(NODES) as network:
        yield network


@pytest.fixture(scope="module")
def servers(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Their logs are kept, because only they show who leads the bucket, and why not."""
    directory = tmp_path_factory.mktemp("servers")
    with NatsCluster(3, directory, network=network, debug=True, **NATS) as servers:
        yield servers


@pytest.mark.parametrize("name", [ANY, *CUTS])
def test_partitions(name: str, network: Network, servers: NatsCluster, tmp_path: Path) -> None:
    chance = chance_of(name)
    chosen = chance.choices(list(CUTS), k=rounds(0)) if name == ANY else [name] * rounds(0)
    load = Load(servers.servers, f"lines.{name.replace(' ', '-')}")
    urls = [server.url for server in servers.servers]
    store = {**STORE, "name": f"lines-{[ANY, *CUTS].index(name)}"}
    found: list[tuple[float, float]] = []
    with Cluster(
        urls,
        load.settings,
        settings={**NODE_SETTINGS, "nats": {**NODE_SETTINGS["nats"], "ping_interval": "2s"}},
        cluster=store,
        directory=tmp_path,
        network=network,
    ) as cluster:
        cluster.wait_all_in_sync()
        load.start(cluster)
        lines = Lines(network, cluster, chance)
        for number, cut in enumerate(chosen, 1):
            servers.wait_healthy()
            load.wait_acked(chance.randint(10, 60))
            lines.leader = cluster.leader(chance.choice(list(load.settings)))
            lines.cut_off, lines.is_torn = set(), False
            began = time.monotonic()
            CUTS[cut](lines)
            print(f"round {number}: {cut}, ", end="", flush=True)
            meanwhile = while_cut(lines, load)
            network.heal()
            found.append(until_healed(cluster, load))
            load.check(cluster, whole=number % WHOLE_EACH == 0)
            took, (acks, in_sync) = time.monotonic() - began, found[-1]
            print(f"{took:.1f} s; {meanwhile}; healed: acks after {acks:.1f} s, ", end="")
            print(f"in sync after {in_sync:.1f} s", flush=True)
        load.finish()
        load.check_all(cluster)
    slowest = max(acks for acks, _ in found)
    print(f"{len(found)} rounds of {name}: acks of all at most {slowest:.1f} s after healing")
    assert slowest < HEALED_SECONDS


def while_cut(lines: Lines, load: Load) -> str:
    """Wait for a while; if a majority is connected, wait until it continues."""
    began = time.monotonic()
    seconds = lines.chance.choice([1, 4, 10, 20])
    told = "nothing can go on"
    if len(lines.cut_off) < len(NODES):
        if lines.is_torn:
            load.wait_acked(1, [name for name, some in load.publishers.items() if len(some) > 1])
        else:
            load.wait_each_acked(without={lines.network.host(name) for name in lines.cut_off})
        told = f"went on after {time.monotonic() - began:.1f} s"
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return told


def until_healed(cluster: Cluster, load: Load) -> tuple[float, float]:
    """Return the seconds until all streams continue, and until all copies are in sync."""
    began = time.monotonic()
    load.wait_acked(1)
    acked = time.monotonic() - began
    load.wait_each_acked()
    cluster.wait_all_in_sync()
    return acked, time.monotonic() - began
