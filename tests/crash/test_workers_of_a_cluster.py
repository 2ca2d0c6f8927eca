"""Workers on one consumer of a cluster while its leader is killed, stopped, frozen or replaced, or
while lines between its nodes are cut: the promises of a confirmed ack and of a delivery count."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from support.clients.worker_campaign import STREAM, SUBJECT, Campaign, Oracle
from support.clients.workers_over_nats import leafnode_of
from support.daemons.cluster import NODES, Cluster
from support.daemons.nats_server import NatsServer
from support.daemons.networks import Network
from support.rounds import chance_of, is_torture, modes, rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

ROUNDS = rounds(2)
WORKERS = 4
PATIENCE_SECONDS = 180.0
WAYS = ("kill", "hand over", "stop", "freeze", "kill a follower", "kill all")


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


def strike(cluster: Cluster, way: str, seconds: float) -> None:
    """Return when all nodes run and are in sync again."""
    leader = cluster.leader(STREAM)
    follower = cluster.followers(STREAM)[0]
    if way == "hand over":
        cluster.command("cluster", "elect", STREAM, "--node", follower)
    elif way == "stop":
        cluster.stop(leader)
    elif way == "freeze":
        cluster.pause(leader)
    else:
        names = {"kill": (leader,), "kill a follower": (follower,), "kill all": ()}[way]
        cluster.kill(*names)
    time.sleep(seconds)
    cluster.resume()
    cluster.start()
    cluster.wait_isr(STREAM)


@pytest.mark.long
@pytest.mark.parametrize("kind", modes("pull", "push"))
async def test_workers_are_busy_while_leaders_change(kind: str, server: NatsServer) -> None:
    settings = {"nats": {"jetstream_api": True, "leafnode": leafnode_of(server)}}
    streams = {STREAM: {"subject": f"{SUBJECT}.>", "replicas": 3}}
    luck, oracle, seen = chance_of(f"cluster workers {kind}"), Oracle(), Counter[str]()
    with Cluster(server.url, streams, settings=settings) as cluster:
        campaign = Campaign(server.url, oracle, luck, is_push=kind == "push")
        await campaign.start(WORKERS)
        for number in range(ROUNDS):
            await asyncio.sleep(luck.uniform(0.5, 2.5))
            way = WAYS[number % len(WAYS)]
            await asyncio.to_thread(strike, cluster, way, luck.uniform(0.1, 4.0))
            if way == "freeze":
                oracle.disturbed()
            seen[way] += 1
        await campaign.finish(PATIENCE_SECONDS)
        print(f"{dict(seen)}: {oracle.summary()}")
        assert not oracle.wrong, oracle.wrong[:10]
        never = oracle.never_came(oracle.unfinished)
        assert not never, sorted(never)[:10]
        assert oracle.confirmed > 5 * ROUNDS
        cluster.assert_sound()


CUTS = ("leader", "follower", "from the leader", "to the leader", "leader and follower")


def cut(network: Network, cluster: Cluster, lines: str) -> None:
    leader = cluster.leader(STREAM)
    follower = next(one for one in NODES if one != leader)
    if lines == "leader and follower":
        network.separate(leader, follower)
    else:
        name = follower if lines == "follower" else leader
        network.isolate(name, hears=lines.startswith("from"), is_heard=lines.startswith("to"))


@pytest.mark.long
async def test_workers_are_busy_while_lines_are_cut() -> None:
    """NATS and the metadata reach all nodes, so a former leader could go on to deliver."""
    luck, oracle, seen = chance_of("cluster workers lines"), Oracle(), Counter[str]()
    streams = {STREAM: {"subject": f"{SUBJECT}.>", "replicas": 3, "min_isr": 2}}
    with (
        Network(NODES) as network,
        NatsServer(
            host=network.tests_host, leafnodes={"listen": f"{network.tests_host}:-1"}
        ) as server,
        Cluster(
            server.url,
            streams,
            settings={"nats": {"jetstream_api": True, "leafnode": leafnode_of(server)}},
            cluster={"session": "6s", "lag_max": "2s"},
            network=network,
        ) as cluster,
    ):
        cluster.wait_isr(STREAM)
        campaign = Campaign(server.url, oracle, luck, is_push=False)
        await campaign.start(WORKERS)
        for number in range(ROUNDS):
            await asyncio.sleep(luck.uniform(0.5, 2.5))
            lines = CUTS[number % len(CUTS)]
            await asyncio.to_thread(cut, network, cluster, lines)
            await asyncio.sleep(luck.uniform(1, 15 if is_torture() else 6))
            await asyncio.to_thread(network.heal)
            oracle.disturbed()
            await asyncio.to_thread(cluster.wait_isr, STREAM)
            seen[lines] += 1
        await campaign.finish(PATIENCE_SECONDS)
        print(f"{dict(seen)}: {oracle.summary()}")
        assert not oracle.wrong, oracle.wrong[:10]
        never = oracle.never_came(oracle.unfinished)
        assert not never, sorted(never)[:10]
        assert oracle.confirmed > 5 * ROUNDS
        cluster.assert_sound()
