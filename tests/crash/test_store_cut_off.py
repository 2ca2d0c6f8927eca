"""Nodes that cannot reach the metadata store, while the lines between them are whole, under load.

Each node has a NATS server of its own; together these hold the bucket with the metadata. A server
that the others do not reach still takes messages and has no bucket. So publishers at the leader's
server are acked as before, for as long as it takes: `make cluster-torture ARGS="-k store_cut_off"`
prints for how long they were not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import until
from support.daemons.cluster import NODES, Cluster, RetryingPublisher, assert_kept
from support.daemons.nats_cluster import NatsCluster
from support.daemons.networks import Network
from support.rounds import chance_of, rounds

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(36000),
    pytest.mark.skipif(not rounds(0), reason="a campaign: make cluster-torture"),
]

SERVERS = {node: f"{node}-nats" for node in NODES}
"""The machine of the NATS server that a node uses."""
STREAM = "in"
STREAMS = {STREAM: {"subject": "in.>", "replicas": 3, "min_isr": 2}}
STORE = {"store": "nats", "session": "15s", "lag_max": "2s", "balance_interval": "1h"}
NATS = {"jetstream": True, "sync_always": True, "ping_interval": "2s", "ping_max": 2}
CUT_SECONDS = 30.0
"""Twice the length of a session, in seconds."""
PAUSE_SECONDS = 12.0
"""Seconds for which acks may pause when a follower is killed. The pause is longer if the
disconnected server led the bucket, because NATS must elect first."""
HEALED_SECONDS = 20.0
"""Seconds after the repair within which publishers at every server get acks."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network([*NODES, *SERVERS.values()]) as network:
        yield network


@pytest.fixture(scope="module")
def servers(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    directory = tmp_path_factory.mktemp("servers")
    machines = list(SERVERS.values())
    with NatsCluster(
        len(NODES), directory, network=network, machines=machines, advertised=False, **NATS
    ) as servers:
        yield servers


def cut_off(network: Network, nodes: list[str]) -> None:
    """Disconnect the server of each of these nodes from the other servers. Its own node still
    reaches it."""
    for node in nodes:
        for other in NODES:
            if other != node:
                network.separate(SERVERS[node], SERVERS[other])


def a_follower(leader: str, others: list[str]) -> list[str]:
    return others[:1]


def the_leader(leader: str, others: list[str]) -> list[str]:
    return [leader]


def all_nodes(leader: str, others: list[str]) -> list[str]:
    return list(NODES)


Choice = Callable[[str, list[str]], list[str]]


@pytest.mark.parametrize("kill", [False, True], ids=["alone", "and one dies"])
@pytest.mark.parametrize("who", [a_follower, the_leader, all_nodes])
def test_acks_go_on(
    who: Choice, kill: bool, network: Network, servers: NatsCluster, tmp_path: Path
) -> None:
    """If a follower dies meanwhile, the leader must reach the store to continue without it. The
    other follower gets this change only from the leader."""
    if kill and who is not a_follower:
        pytest.skip("nothing can take a follower out of the in-sync set")
    name = f"{who.__name__}-{kill}"
    chance = chance_of(name)
    urls = [server.url for server in servers.servers]
    publishers = {
        node: RetryingPublisher(server.port, f"in.{node}", rate=100, host=server.host)
        for node, server in zip(NODES, servers.servers, strict=True)
    }
    cluster = Cluster(
        urls,
        STREAMS,
        settings={"nats": {"reconnect_wait": "50ms"}},
        cluster={**STORE, "name": f"store-{name.replace('_', '-').lower()}"},
        directory=tmp_path,
        network=network,
    )
    for node, url in zip(NODES, urls, strict=True):
        cluster.nodes[node].settings["nats"]["servers"] = [url]
    pauses: list[float] = []
    with cluster:
        cluster.wait_all_in_sync()
        for publisher in publishers.values():
            publisher.start()
        for number in range(1, rounds(0) + 1):
            servers.wait_healthy()
            wait_acked(publishers.values(), chance.randint(10, 60), 60.0)
            leader = cluster.leader(STREAM)
            others = [node for node in NODES if node != leader]
            chance.shuffle(others)
            began = time.monotonic()
            cut_off(network, who(leader, others))
            if kill:
                time.sleep(chance.choice([1.0, 5.0, 12.0, 20.0]))
                cluster.kill(others[1])
            time.sleep(began + CUT_SECONDS - time.monotonic())
            wait_acked([publishers[leader]], 1, PAUSE_SECONDS)
            pauses.append(publishers[leader].longest_wait(began))
            network.heal()
            mended = time.monotonic()
            if kill:
                cluster.start(others[1])
            wait_acked(publishers.values(), 1, HEALED_SECONDS + 20.0 * kill)
            healed = time.monotonic() - mended
            cluster.wait_all_in_sync()
            assert kill or cluster.leader(STREAM) == leader, "no one had to take over"
            print(f"round {number}: {pauses[-1]:.2f} s without an ack, ", end="")
            print(f"at all servers {healed:.1f} s after mending", flush=True)
        for publisher in publishers.values():
            publisher.finish()
        assert_kept(publishers.values(), cluster.read_all(STREAM))
        cluster.assert_sound()
    print(f"{len(pauses)} rounds of {name}: {max(pauses):.2f} s without an ack at most")
    assert max(pauses) < PAUSE_SECONDS


def wait_acked(publishers: Iterable[RetryingPublisher], more: int, seconds: float) -> None:
    wanted = {one: len(one.acked) + more for one in publishers}
    until(
        lambda: all(len(one.acked) >= count for one, count in wanted.items()),
        seconds,
        f"{more} more acks of each",
    )
