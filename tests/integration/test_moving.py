"""Streams move between nodes while they are in use, and nothing acked is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.handover_load import EveryWay
from support.clients.ingesting import until
from support.daemons.cluster import Cluster, RetryingPublisher, assert_kept
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync

STREAMS = {"in": {"subject": "in.>", "replicas": 2, "min_isr": 1}}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster={"session": "6s"}) as cluster:
        cluster.wait_all_in_sync()
        yield cluster
        cluster.assert_sound()


def wait_acked(publisher: RetryingPublisher, more: int) -> None:
    wanted = len(publisher.acked) + more
    until(lambda: len(publisher.acked) >= wanted, 60, f"{more} more acks")


@pytest.mark.long
def test_a_stream_goes_round_all_nodes_while_it_is_written(
    cluster: Cluster, server: NatsServer
) -> None:
    """By a move of the leader's replica, by a drain, and while nodes die and come back."""
    publisher = RetryingPublisher(server.port, "in.p", pad=100, rate=150.0)
    publisher.start()
    wait_acked(publisher, 50)
    old = cluster.leader("in")
    [other] = cluster.followers("in")
    [new] = {"a", "b", "c"} - {old, other}
    moved = run(cluster, other, "move", "in", "--replicas", f"{other},{new}")
    assert (moved["replicas"], moved["adding"], moved["removing"]) == ([other, new], [], [])
    wait_acked(publisher, 50)
    copy = cluster.nodes[old].data_dir / "streams" / "in"
    until(lambda: not copy.exists(), 60, "the old copy is removed")

    cluster.kill(other)  # the leader; what is asked now waits for its successor
    run(cluster, new, "drain", other, "--no-wait")
    until(lambda: old in cluster.stream("in", through=new).replicas, 60, "the drain goes on")
    cluster.start(other)
    drained = run(cluster, new, "drain", other)
    assert (drained["replicas"], drained["draining"]) == (0, True)
    assert set(cluster.stream("in", through=new).replicas) == {old, new}
    wait_acked(publisher, 50)
    copy = cluster.nodes[other].data_dir / "streams" / "in"
    until(lambda: not copy.exists(), 60, "this one, too")

    cluster.stop(other)
    until(lambda: "is live" not in failed(cluster, new, "forget", other), 60, "its session ends")
    told = cluster.status(through=new)[0]
    assert [node["node"] for node in told["nodes"]] == sorted((old, new))
    publisher.finish()
    assert_kept([publisher], cluster.read_all("in", (old, new)))


def test_publishers_notice_nothing_of_a_move(cluster: Cluster, server: NatsServer) -> None:
    """Of a follower's replica, of a new one, and of the leader's own: no publish fails, and each
    message is stored once, also without a reply subject."""
    load = EveryWay(server.port, "in", 200.0)
    load.start()
    try:
        leader = cluster.leader("in")
        [follower] = cluster.followers("in")
        [third] = {"a", "b", "c"} - {leader, follower}
        for nodes in (
            [leader, third],
            [leader, third, follower],
            [follower, third],
            [leader, third],
        ):
            acked = len(load.acked)
            until(lambda acked=acked: len(load.acked) > acked + 40, 60, "acks")  # type: ignore[misc]
            run(cluster, leader, "move", "in", "--replicas", ",".join(nodes))
    finally:
        load.finish()
    cluster.wait_settled("in", nodes)
    load.check(cluster, "in", nodes)
    assert "possible-loss" not in "".join(daemon.log for daemon in cluster.nodes.values())


@pytest.mark.long
@pytest.mark.parametrize("durability", ["interval", "os"])
def test_what_was_acked_early_moves_along(
    cluster: Cluster, server: NatsServer, durability: str
) -> None:
    """With one replica acks may leave before the sync, and the next leader has all of it."""
    node = cluster.nodes["a"]
    with connect_sync(node.pull_address) as client:
        client.create_stream("early", "early.>", replicas=1, durability=durability)
    publisher = RetryingPublisher(server.port, "early.p", pad=20_000, rate=200.0)
    publisher.start()
    wait_acked(publisher, 200)
    refused = failed(cluster, "a", "move", "early", "--replicas", "a,b,c")
    assert f"cannot have 3 replicas with durability: {durability}" in refused
    for _ in range(2):
        leader = cluster.leader("early")
        other = next(name for name in cluster.nodes if name != leader)
        moved = run(cluster, leader, "move", "early", "--replicas", other)
        assert (moved["replicas"], moved["adding"], moved["removing"]) == ([other], [], [])
        wait_acked(publisher, 50)
    publisher.finish()
    assert_kept([publisher], cluster.read_all("early", (other,)))
    log = "".join(daemon.log for daemon in cluster.nodes.values())
    assert "possible-loss" not in log
    assert "not-handed-over" not in log


def run(cluster: Cluster, through: str, *words: str) -> Any:
    """What the command prints; it must succeed."""
    done = cluster.command("cluster", *words, "--output", "json", through=through)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def failed(cluster: Cluster, through: str, *words: str) -> str:
    """What the command says about its failure; empty when it succeeds."""
    return cluster.command("cluster", *words, through=through).stderr
