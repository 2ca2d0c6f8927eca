"""The leader of a replicated stream dies or hangs, and another node takes over by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.clients.ingesting import until
from support.daemons.cluster import NODES, Cluster, RetryingPublisher, assert_kept
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_server import NatsServer
from support.daemons.networks import Network

from liftlog.client import connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAM = "in"
STREAMS = {STREAM: {"subject": "in.>", "replicas": 3, "min_isr": 2}}


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster={"session": "6s"}) as cluster:
        cluster.wait_isr(STREAM)
        yield cluster
        cluster.assert_sound()


@pytest.fixture
def publisher(cluster: Cluster, server: NatsServer) -> RetryingPublisher:
    """Runs, and has been acked."""
    publisher = RetryingPublisher(server.port, "in.p", pad=100)
    publisher.start()
    wait_acked(publisher, 50)
    return publisher


def wait_acked(publisher: RetryingPublisher, more: int) -> None:
    wanted = len(publisher.acked) + more
    until(lambda: len(publisher.acked) >= wanted, 60, f"{more} more acks")


def replaced(cluster: Cluster, leader: str) -> str:
    until(lambda: cluster.stream(STREAM).leader not in (None, leader), 60, "another leader")
    return cluster.leader(STREAM)


def test_another_node_leads_while_the_one_that_died_stays_down(
    cluster: Cluster, publisher: RetryingPublisher
) -> None:
    leader, epoch = cluster.leader(STREAM), cluster.stream(STREAM).leader_epoch
    cluster.kill(leader)
    new = replaced(cluster, leader)
    wait_acked(publisher, 100)
    found = cluster.stream(STREAM)
    assert found.leader_epoch > epoch
    assert set(found.isr) == set(NODES) - {leader}
    with connect_sync(cluster.nodes[new].pull_address) as client:
        [*_, loss] = client.describe_stream(STREAM).possible_losses
    assert "had no leader" in loss["reason"]
    told = cluster.nodes[new].metric
    assert told("liftlog_elections_total", reason="leader-lost") >= 1
    assert told("liftlog_possible_loss_events_total", stream=STREAM) == 1
    cluster.start(leader)
    cluster.wait_isr(STREAM)
    publisher.finish()
    assert_kept([publisher], cluster.read_all(STREAM))


def test_a_leader_that_hangs_is_replaced_and_acks_nothing_more(
    cluster: Cluster, publisher: RetryingPublisher
) -> None:
    leader = cluster.leader(STREAM)
    cluster.pause(leader)
    replaced(cluster, leader)
    wait_acked(publisher, 100)
    cluster.resume(leader)
    cluster.wait_isr(STREAM)
    wait_acked(publisher, 100)
    publisher.finish()
    assert cluster.leader(STREAM) != leader
    assert_kept([publisher], cluster.read_all(STREAM))


def test_the_only_one_that_is_left_leads_and_refuses(
    cluster: Cluster, publisher: RetryingPublisher
) -> None:
    """Two of three die: the session of the second one ends before the last one leads."""
    leader, epoch = cluster.leader(STREAM), cluster.stream(STREAM).leader_epoch
    [first, last] = cluster.followers(STREAM)
    cluster.kill(first, leader)
    cluster.wait_isr(STREAM, {last})
    acked, unheard = len(publisher.acked), publisher.unheard
    until(lambda: publisher.unheard > unheard + 10, 60, "refusals")
    assert len(publisher.acked) == acked
    found = cluster.stream(STREAM)
    assert (found.leader, found.isr) == (last, [last])
    assert found.leader_epoch > epoch
    cluster.start()
    cluster.wait_isr(STREAM)
    wait_acked(publisher, 50)
    publisher.finish()
    assert_kept([publisher], cluster.read_all(STREAM))


def test_no_leader_changes_without_need(cluster: Cluster, publisher: RetryingPublisher) -> None:
    """A follower hangs for longer than a leader may be silent, and comes back."""
    leader, epoch = cluster.leader(STREAM), cluster.stream(STREAM).leader_epoch
    gone = cluster.followers(STREAM)[0]
    cluster.pause(gone)
    began = time.monotonic()
    cluster.wait_isr(STREAM, set(NODES) - {gone})
    until(lambda: time.monotonic() > began + 3, 10)
    cluster.resume(gone)
    cluster.wait_isr(STREAM)
    wait_acked(publisher, 50)
    publisher.finish()
    assert (cluster.leader(STREAM), cluster.stream(STREAM).leader_epoch) == (leader, epoch)
    assert_kept([publisher], cluster.read_all(STREAM))


def test_a_leader_that_is_cut_off_from_the_others_is_replaced() -> None:
    """Clients, NATS and the metadata still reach it, and it acks nothing more."""
    with (
        Network(NODES) as network,
        NatsServer(host=network.tests_host) as server,
        Cluster(server.url, STREAMS, cluster={"session": "6s"}, network=network) as cluster,
    ):
        cluster.wait_isr(STREAM)
        publisher = RetryingPublisher(server.port, "in.p", host=server.host, pad=100)
        publisher.start()
        wait_acked(publisher, 50)
        leader = cluster.leader(STREAM)
        network.isolate(leader)
        through = next(name for name in NODES if name != leader)
        until(
            lambda: cluster.stream(STREAM, through).leader not in (None, leader),
            60,
            "another leader",
        )
        wait_acked(publisher, 50)
        network.heal()
        cluster.wait_isr(STREAM)
        publisher.finish()
        assert_kept([publisher], cluster.read_all(STREAM))
        cluster.assert_sound()


def test_a_leader_without_nats_has_another_node_take_over() -> None:
    """The others and the metadata still reach it, so no one takes it for dead."""
    with ExitStack() as stack:
        nats = stack.enter_context(NatsCluster(3, advertised=False))
        cluster = Cluster(nats.servers[0].url, STREAMS, cluster={"suspect_after": "20s"})
        for node, server in zip(NODES, nats.servers, strict=True):
            cluster.nodes[node].settings["nats"]["servers"] = [server.url]
        stack.enter_context(cluster)
        cluster.wait_isr(STREAM)
        cluster.wait_recorded(STREAM)
        leader = cluster.leader(STREAM)
        of_leader = nats.servers[NODES.index(leader)]
        of_client = next(one for one in nats.servers if one is not of_leader)
        publisher = RetryingPublisher(of_client.port, "in.p", pad=100)
        publisher.start()
        wait_acked(publisher, 50)
        of_leader.kill()
        replaced(cluster, leader)
        wait_acked(publisher, 50)
        assert "hands-over" in cluster.nodes[leader].log
        cluster.wait_isr(STREAM)  # it follows, still without NATS
        of_leader.restart()
        publisher.finish()
        assert_kept([publisher], cluster.read_all(STREAM))
        cluster.assert_sound()
