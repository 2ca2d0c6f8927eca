"""The metadata store is restored from an older copy: the nodes put back what they have seen, and
nothing acked is lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from support.clients.command_line import COMMAND
from support.clients.ingesting import until
from support.daemons.cluster import NODES, Cluster, RetryingPublisher, assert_kept
from support.daemons.nats_server import NatsServer

from liftlog.log.files.filesystem import OsFileSystem
from liftlog.server.metadata.known_records import read_known_records

STREAMS = {"in": {"subject": "in.>", "replicas": 3, "min_isr": 2}}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster={"session": "6s"}) as cluster:
        cluster.wait_all_in_sync()
        yield cluster
        cluster.assert_sound()


@pytest.fixture
def publisher(cluster: Cluster, server: NatsServer) -> Iterator[RetryingPublisher]:
    """It has begun. It ends with the test: others use the same server."""
    publisher = RetryingPublisher(server.port, "in.p", pad=100)
    publisher.start()
    try:
        yield publisher
    finally:
        publisher.give_up()


def test_a_store_that_was_set_back_is_put_right_by_the_nodes(
    cluster: Cluster, publisher: RetryingPublisher
) -> None:
    wait_acked(publisher, 50)
    old = cluster.stored()
    leader, epoch = cluster.leader("in"), cluster.stream("in").leader_epoch
    cluster.kill(leader)  # which the old copy has as leader
    until(lambda: cluster.stream("in").leader not in (None, leader), 60, "another leader")
    epoch = cluster.stream("in").leader_epoch
    cluster.start(leader)
    cluster.wait_isr("in")

    # While all run.
    cluster.set_store_back(old)
    until(lambda: cluster.stream("in").leader_epoch > epoch, 60, "a restored record")
    wait_acked(publisher, 50)
    cluster.wait_isr("in")
    epoch = cluster.stream("in").leader_epoch

    # While none does: each finds out at its start.
    cluster.kill()
    cluster.set_store_back(old)
    cluster.start()
    cluster.wait_isr("in")
    until(lambda: cluster.stream("in").leader_epoch > epoch, 60, "a restored record again")
    wait_acked(publisher, 50)
    publisher.finish()
    assert_kept([publisher], cluster.read_all("in"))
    assert any("metadata-restored" in cluster.nodes[name].log for name in NODES)


def test_an_operator_restores_what_the_nodes_do_not(
    cluster: Cluster, publisher: RetryingPublisher
) -> None:
    """Two nodes are gone, so the third may lack what they have seen."""
    wait_acked(publisher, 50)
    publisher.finish()
    old = cluster.stored()
    last = cluster.followers("in")[0]
    before = cluster.stream("in", through=last)
    gone = [name for name in NODES if name != last]
    cluster.stop(gone[0])
    cluster.wait_isr("in", set(NODES) - {gone[0]})
    until(
        lambda: cluster.stream("in", through=last).isr != before.isr, 30, "what is to be forgotten"
    )
    cluster.kill(gone[1])
    cluster.set_store_back(old)
    until(lambda: "metadata-set-back" in cluster.nodes[last].log, 60, "it is noticed")
    shown = cluster.command("cluster", "restore-metadata", "--dry-run", "--output", "json")
    # The checkpoints of the cluster may have changed as well.
    [told] = [one for one in json.loads(shown.stdout)["streams"] if one["stream"] == "in"]
    assert told["restored"] is False
    assert told["stored_version"] < told["known_version"]
    assert json.loads(shown.stdout)["unheard"] == sorted(gone)
    refused = cluster.command("cluster", "restore-metadata")
    assert refused.returncode == 2, "there is no terminal to ask on"
    done = cluster.command("cluster", "restore-metadata", "--yes")
    assert done.returncode == 0, done.stderr
    cluster.start()
    cluster.wait_isr("in")
    assert_kept([publisher], cluster.read_all("in"))


def test_a_node_that_went_on_alone_from_the_older_copy_begins_again(
    cluster: Cluster, publisher: RetryingPublisher
) -> None:
    """It has not heard of what the others know, so the record has two histories. Nothing can have
    been acked in its own: it goes over to the other one, and copies what it has."""
    wait_acked(publisher, 50)
    old = cluster.stored()
    version = max(seen_version(cluster, name) for name in NODES)
    alone = cluster.followers("in")[0]
    others = [name for name in NODES if name != alone]
    cluster.kill(alone)
    cluster.wait_isr("in", set(others))
    wait_acked(publisher, 50)
    cluster.kill()
    cluster.set_store_back(old)
    cluster.nodes[alone].spawn()
    until(
        lambda: seen_version(cluster, alone) > version, 60, "it has registered, and remembers that"
    )
    cluster.kill(alone)
    cluster.start(*others)
    until(lambda: cluster.stream("in", through=others[0]).leader is not None, 60, "a leader")
    wait_acked(publisher, 50)
    cluster.start(alone)
    cluster.wait_isr("in")
    assert '"event": "copy-given-up", "stream": "in"' in cluster.nodes[alone].log
    publisher.finish()
    assert_kept([publisher], cluster.read_all("in"))


def test_a_store_that_was_lost_while_no_node_runs_is_made_again(
    cluster: Cluster, publisher: RetryingPublisher
) -> None:
    wait_acked(publisher, 50)
    before = cluster.stream("in")
    cluster.kill()
    (cluster.store / "records").unlink()
    init = ("cluster", "init", "--again", "-c", str(cluster.nodes["b"].config_path))
    for said in ("ready for the nodes", "left as it is"):
        done = subprocess.run(
            [*COMMAND, *init], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, said in done.stderr) == (0, True), done.stderr
    cluster.start()
    until(lambda: cluster.stream("in").leader_epoch > before.leader_epoch, 60, "restored")
    wait_acked(publisher, 50)
    cluster.wait_isr("in")
    assert cluster.stream("in").replicas == before.replicas
    publisher.finish()
    assert_kept([publisher], cluster.read_all("in"))


def seen_version(cluster: Cluster, node: str) -> int:
    """Of the record of the stream, as the node knows it after a start."""
    records = read_known_records(OsFileSystem(), cluster.nodes[node].data_dir).streams
    return records["in"].version


def wait_acked(publisher: RetryingPublisher, more: int) -> None:
    wanted = len(publisher.acked) + more
    until(lambda: len(publisher.acked) >= wanted, 60, f"{more} more acks")
