"""Three daemons that replicate to each other: acks, refusals, what readers see and what is told."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.cluster import NODES, Cluster, TimedPublisher, assert_kept
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_server import NatsServer
from support.rounds import modes

from liftlog.client import connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAMS: dict[str, dict[str, Any]] = {
    "all": {"subject": "all.>", "replicas": 3, "min_isr": 2},
    "leader": {"subject": "leader.>", "replicas": 3, "min_isr": 2, "ack_policy": "leader"},
    "alone": {"subject": "alone.>", "replicas": 1},
}
QUICK = {"session": "6s", "suspect_after": "20s", "lag_max": "60s"}
HUNG = 3.0


@pytest.fixture(scope="module", params=modes("file", "nats"))
def store(request: pytest.FixtureRequest) -> str:
    """Where the nodes keep their metadata. In JetStream only under `make kv-torture`: another
    module has what every run of the tests looks at."""
    return str(request.param)


@pytest.fixture(scope="module")
def server(store: str) -> Iterator[NatsServer]:
    """The nodes and the publishers connect to it."""
    if store == "nats":
        with NatsCluster(3, jetstream=True, sync_always=True) as cluster:
            yield cluster.servers[0]
    else:
        with NatsServer() as server:
            yield server


@pytest.fixture
def quick(store: str) -> dict[str, str]:
    """Settings of the cluster."""
    if store == "nats":
        return {**QUICK, "store": "nats", "name": f"c{secrets.token_hex(4)}"}
    return QUICK


@pytest.fixture
def cluster(server: NatsServer, quick: dict[str, str]) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster=quick) as cluster:
        for stream in STREAMS:
            cluster.wait_recorded(stream)
        cluster.wait_isr("all")
        yield cluster
        cluster.assert_sound()


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port, timeout=30) as client:
        yield client


def test_every_replica_holds_what_was_acked(cluster: Cluster, server: NatsServer) -> None:
    publishers = [TimedPublisher(server.port, f"all.{number}", pad=200) for number in range(3)]
    for publisher in publishers:
        publisher.start()
    until(lambda: all(len(one.acked) > 500 for one in publishers), 60)
    for publisher in publishers:
        publisher.finish()
    history = assert_kept(publishers, cluster.read_all("all"))
    assert history.acks == sum(one.published for one in publishers)


def test_the_status_is_that_of_the_contract(cluster: Cluster, raw: RawNats) -> None:
    assert publish(raw, "all.x", b"1")["seq"] == 1
    end = cluster.wait_settled("all")
    # On a busy machine a replica of some stream may have left its in-sync set for a moment.
    until(lambda: cluster.status()[1] == 0)
    told, _ = cluster.status()
    assert set(told) >= {"cluster_id", "nodes", "streams"}
    assert [node["node"] for node in told["nodes"]] == list(NODES)
    for node in told["nodes"]:
        assert node["live"] is True
        assert node["draining"] is False
        assert node["address"] == cluster.nodes[node["node"]].pull_address
        assert node["version"]
    [found] = [stream for stream in told["streams"] if stream["name"] == "all"]
    assert found["leader"] in NODES
    assert found["leader_epoch"] >= 1
    assert set(found["replicas"]) == set(found["isr"]) == set(NODES)
    assert found["eligible"] == []
    assert (found["high_watermark"], found["log_end_offset"]) == (end, end) == (2, 2)
    [alone] = [stream for stream in told["streams"] if stream["name"] == "alone"]
    assert len(alone["replicas"]) == 1


def test_all_nodes_tell_the_same_of_a_stream(cluster: Cluster) -> None:
    told = [cluster.status(through=name)[0] for name in NODES]
    assert len({one["cluster_id"] for one in told}) == 1
    for stream in STREAMS:
        views = [
            (found["leader"], found["leader_epoch"], sorted(found["isr"]))
            for one in told
            for found in one["streams"]
            if found["name"] == stream
        ]
        assert views == [views[0]] * 3


def test_the_status_says_when_a_replica_is_missing(cluster: Cluster) -> None:
    gone = cluster.followers("all")[0]
    left = set(NODES) - {gone}
    seen: set[str] = set()

    with connect_sync(cluster.nodes[min(left)].pull_address) as client:
        cluster.kill(gone)

        def is_told() -> bool:
            nodes = client.cluster().members
            seen.update(one.node for one in nodes if one.live and one.silent_seconds)
            return {one.node for one in nodes if one.live} == left

        until(is_told, 30, "the node's session has ended")
    assert seen == {gone}, "it was live by its session, and not heard"
    cluster.wait_isr("all", left)
    status, code = cluster.status()
    assert code == 1
    nodes = status["nodes"]
    assert {node["node"] for node in nodes if not node["live"]} == {gone}
    cluster.start(gone)
    cluster.wait_isr("all")
    until(lambda: cluster.status()[1] == 0, 30, "nothing is under-replicated")


def test_too_few_in_sync_refuse_what_asks_for_an_ack(cluster: Cluster, raw: RawNats) -> None:
    leader = cluster.leader("all")
    first = publish(raw, "all.x", b"0")["seq"]
    cluster.kill(*cluster.followers("all"))
    cluster.wait_isr("all", {leader})
    alone = cluster.nodes[leader]
    # The leader acts on the record a moment later: what comes before waits for the others.
    until(lambda: alone.metric("liftlog_under_min_isr", stream="all") == 1, 30, "it knows that")
    refused = publish(raw, "all.x", b"1")
    assert (refused["error"]["code"], refused["error"]["err_code"]) == (503, 10008)
    assert "in sync" in refused["error"]["description"], refused
    # Without a reply it is stored, and no one reads it before it is on enough disks.
    raw.send(pub_frame("all.x", b"2"))
    raw.ping()
    until(lambda: cluster.stream("all", leader).log_end_offset == first + 2)
    assert cluster.stream("all", leader).high_watermark == first + 1
    assert values(cluster, leader) == [b"0"]
    _, code = cluster.status()
    assert code == 1
    cluster.start()
    cluster.wait_isr("all")
    assert publish(raw, "all.x", b"3")["seq"] == first + 2
    cluster.wait_settled("all")
    for node in NODES:
        assert values(cluster, node) == [b"0", b"2", b"3"]


def values(cluster: Cluster, node: str, stream: str = "all") -> list[bytes | None]:
    with connect_sync(cluster.nodes[node].pull_address) as client:
        return [one.value for one in client.read(stream, until="end", replica=node)]


def test_the_policy_leader_waits_for_no_follower(cluster: Cluster, raw: RawNats) -> None:
    leader = cluster.leader("leader")
    followers = cluster.followers("leader")
    ack = publish(raw, "leader.x", b"0")
    assert ack["policy"] == "leader"
    cluster.wait_settled("leader")
    cluster.pause(*followers)
    ack = publish(raw, "leader.x", b"1")
    assert (ack["seq"], ack["policy"]) == (2, "leader")
    assert cluster.stream("leader", leader).high_watermark == 2  # not on enough disks
    cluster.resume(*followers)
    cluster.wait_isr("leader")
    cluster.wait_settled("leader")
    for node in NODES:
        assert values(cluster, node, "leader") == [b"0", b"1"]


def test_acks_of_the_policy_all_say_nothing_more(cluster: Cluster, raw: RawNats) -> None:
    """Clients of JetStream get what they know."""
    assert publish(raw, "all.x", b"0") == {"stream": "all", "seq": 1}
    assert publish(raw, "alone.x", b"0") == {"stream": "alone", "seq": 1}


def test_a_stopped_follower_delays_acks_until_it_leaves(
    cluster: Cluster, server: NatsServer
) -> None:
    leader, gone = cluster.leader("all"), cluster.followers("all")[-1]
    publisher = TimedPublisher(server.port, "all.p", pad=200)
    publisher.easy = True
    publisher.start()
    wait_acked(publisher, 200)
    stopped = time.monotonic()
    cluster.pause(gone)

    def ack_wait_seconds() -> float:
        return cluster.nodes[leader].metric("liftlog_ack_wait_seconds", stream="all")

    until(lambda: ack_wait_seconds() > 1.0, 60, "an alert is due")
    cluster.wait_isr("all", set(NODES) - {gone})
    assert time.monotonic() - stopped < HUNG + 10
    wait_acked(publisher, 200)
    assert ack_wait_seconds() < HUNG
    assert publisher.longest_wait(stopped) < HUNG + 5
    cluster.resume(gone)
    cluster.wait_isr("all")
    publisher.finish()
    assert cluster.leader("all") == leader
    assert_kept([publisher], cluster.read_all("all"))


@pytest.mark.long
def test_a_slow_follower_costs_refusals_and_no_memory(
    server: NatsServer, quick: dict[str, str]
) -> None:
    bound = 8 << 20
    settings = {"ingest": {"max_pending_bytes": bound}}
    with Cluster(
        server.url, STREAMS, settings=settings, cluster={**quick, "session": "15s", "lag_max": "8s"}
    ) as cluster:
        cluster.wait_isr("all")
        leader = cluster.nodes[cluster.leader("all")]
        publisher = TimedPublisher(server.port, "all.p", in_flight=40_000, pad=1000)
        cluster.pause(*cluster.followers("all"))
        leader.reset_peak_rss()
        before = leader.rss_bytes
        publisher.start()
        until(lambda: len(publisher.nacked) > 1000, 60, "refusals")
        assert set(publisher.nacked.copy().values()) <= {10167, 10008}
        grown = leader.peak_rss_bytes - before
        assert grown < 6 * bound, f"grew by {grown} bytes"
        publisher.easy = True
        cluster.resume()
        cluster.wait_isr("all")
        publisher.finish()
        assert_kept([publisher], cluster.read_all("all"))
        cluster.assert_sound()


def test_a_stream_created_through_any_node_is_everywhere(
    cluster: Cluster, server: NatsServer
) -> None:
    with connect_sync(cluster.nodes["c"].pull_address) as client:
        client.create_stream("new", subject="new.>", replicas=3, min_isr=2)
    cluster.wait_isr("new")
    with RawNats(server.port) as raw:
        until(lambda: raw.request("new.x", b"1").payload, 30, "a subscription")
        assert publish(raw, "new.x", b"2")["seq"] == 2
    assert cluster.wait_settled("new") == 3
    readings = cluster.read_all("new")
    assert [[record.offset for record in one.records] for one in readings] == [[1, 2]] * 3


def wait_acked(publisher: TimedPublisher, more: int) -> None:
    wanted = len(publisher.acked) + more
    until(lambda: len(publisher.acked) >= wanted, 60, f"{more} more acks")


def test_planned_stops_of_followers_cost_nothing(cluster: Cluster, server: NatsServer) -> None:
    publisher = TimedPublisher(server.port, "all.p", pad=200)
    publisher.easy = True
    publisher.start()
    for name in cluster.followers("all"):
        wait_acked(publisher, 100)
        cluster.stop(name)
        wait_acked(publisher, 100)
        cluster.start(name)
        cluster.wait_isr("all")
    publisher.finish()
    assert not publisher.nacked
    assert_kept([publisher], cluster.read_all("all"))


@pytest.mark.long
def test_a_planned_stop_of_the_leader_makes_another_one_lead(
    cluster: Cluster, server: NatsServer
) -> None:
    publisher = TimedPublisher(server.port, "all.p", pad=200)
    publisher.easy = True
    publisher.start()
    for _ in range(3):
        wait_acked(publisher, 100)
        leader, epoch = cluster.leader("all"), cluster.stream("all").leader_epoch
        cluster.stop(leader)
        wait_acked(publisher, 100)
        assert cluster.leader("all") != leader
        assert cluster.stream("all").leader_epoch > epoch
        cluster.start(leader)
        cluster.wait_isr("all")
    publisher.finish()
    assert_kept([publisher], cluster.read_all("all"))
