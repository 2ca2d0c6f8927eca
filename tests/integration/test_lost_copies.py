"""All complete copies of a stream are lost, and an operator has an older one lead."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import NODES, Cluster
from support.daemons.nats_server import NatsServer

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import connect_sync
from liftlog.errors import Diverged, InvalidArgument
from liftlog.protocol.described import StreamInfo

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAM = "in"
STREAMS = {STREAM: {"subject": "in.>", "replicas": 3, "min_isr": 1}}


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster={"session": "4s"}) as cluster:
        cluster.wait_isr(STREAM)
        cluster.wait_recorded(STREAM)
        yield cluster
        cluster.assert_sound()


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port, timeout=30) as client:
        yield client


@pytest.mark.long
def test_an_older_copy_leads_once_an_operator_gives_up_the_others(
    cluster: Cluster, raw: RawNats
) -> None:
    kept = [b"kept %d" % number for number in range(5)]
    for value in kept:
        publish(raw, "in.x", value)
    last = cluster.leader(STREAM)
    [older, other] = cluster.followers(STREAM)
    cluster.wait_settled(STREAM)

    def elect(*words: str) -> tuple[int, str]:
        done = cluster.command("cluster", "elect", STREAM, *words, "--yes", through=other)
        return done.returncode, done.stderr

    code, told = elect("--node", older, "--lost", f"{last},{other}")
    assert code == ExitCode.CONFLICT, "it would cost what the leader has"
    assert f"node {last} leads stream {STREAM}" in told

    cluster.kill(older, other)
    cluster.wait_isr(STREAM, {last})
    for number in range(5):
        publish(raw, "in.x", b"on one disk %d" % number)
    with connect_sync(cluster.nodes[last].pull_address) as client:
        seen = client.describe_stream(STREAM)
    cluster.kill(last)
    cluster.start(older, other)
    until(
        lambda: f"complete replicas on {last}" in elect("--node", older, "--lost", other)[1],
        60,
        "its session ends, and its copy can come back",
    )
    assert f"node {last} is down" in elect("--node", last, "--lost", older)[1]
    assert elect("--lost", last)[0] == ExitCode.USAGE
    with connect_sync(cluster.nodes[other].pull_address) as client:
        with pytest.raises(InvalidArgument):
            client.elect_leader(STREAM, lost=[last])
    cluster.wipe(last)
    cluster.start(last)
    until(lambda: cluster.stream(STREAM).isr == [], 60, "it has come back without what was acked")
    assert elect("--node", older)[0] == ExitCode.TRY_AGAIN
    told = cluster.command("cluster", "status", through=other)
    assert told.returncode == ExitCode.FAILED
    assert f"No complete copy is left of 1 stream: {STREAM}." in told.stderr
    epoch = cluster.stream(STREAM).leader_epoch

    assert elect("--node", older, "--lost", last) == (
        ExitCode.OK,
        f"Stream {STREAM} is led by node {older}.\n",
    )
    cluster.wait_isr(STREAM)
    found = cluster.stream(STREAM)
    assert (found.leader, found.leader_epoch) == (older, epoch + 1)
    cluster.wait_recorded(STREAM)
    assert publish(raw, "in.x", b"new")["seq"] == len(kept) + 1
    cluster.wait_settled(STREAM)
    for node in NODES:
        with connect_sync(cluster.nodes[node].pull_address) as client:
            values = [one.value for one in client.read(STREAM, until="end", replica=node)]
        assert values == [*kept, b"new"]
    assert_loss_is_told(cluster.nodes[older].pull_address, seen)


def assert_loss_is_told(address: str, seen: StreamInfo) -> None:
    """To who looks, and to a reader that has `seen` what was given up."""
    with connect_sync(address) as client:
        [*_, loss] = client.describe_stream(STREAM).possible_losses
        assert "complete copies were given up" in loss["reason"]
        reader = client.read(
            STREAM,
            seen.high_watermark,
            until="end",
            incarnation=seen.incarnation,
            epoch=seen.leader_epoch,
        )
        with pytest.raises(Diverged):
            list(reader)


@pytest.mark.long
def test_the_longest_copy_leads_by_itself_where_that_is_wanted(
    server: NatsServer, raw: RawNats
) -> None:
    """`cluster.unclean: balanced`: only once all replicas are up, and not the first one that is."""
    balanced = {"session": "4s", "unclean": "balanced"}
    with Cluster(server.url, STREAMS, cluster=balanced) as cluster:
        cluster.wait_isr(STREAM)
        cluster.wait_recorded(STREAM)
        publish(raw, "in.x", b"on all")
        last = cluster.leader(STREAM)
        [shorter, longer] = cluster.followers(STREAM)
        cluster.wait_settled(STREAM)
        cluster.kill(shorter)
        cluster.wait_isr(STREAM, {last, longer})
        publish(raw, "in.x", b"on two")
        cluster.wait_settled(STREAM, nodes=(last, longer))
        cluster.kill(longer)
        cluster.wait_isr(STREAM, {last})
        publish(raw, "in.x", b"on one disk")
        cluster.kill(last)
        cluster.wipe(last)
        cluster.start(last, shorter)
        until(lambda: cluster.stream(STREAM, through=shorter).isr == [], 60, "no copy is complete")
        epoch = cluster.stream(STREAM, through=shorter).leader_epoch
        time.sleep(5)
        found = cluster.stream(STREAM, through=shorter)
        assert (found.leader, found.isr) == (None, []), f"{longer} may have more, and has"
        told = cluster.command("cluster", "status", through=shorter)
        assert f"No complete copy is left of 1 stream: {STREAM}." in told.stderr

        cluster.start(longer)
        cluster.wait_isr(STREAM)
        found = cluster.stream(STREAM)
        assert (found.leader, found.leader_epoch) == (longer, epoch + 1)
        cluster.wait_recorded(STREAM)
        assert publish(raw, "in.x", b"new")["seq"] == 3
        cluster.wait_settled(STREAM)
        for node in NODES:
            with connect_sync(cluster.nodes[node].pull_address) as client:
                values = [one.value for one in client.read(STREAM, until="end", replica=node)]
            assert values == [b"on all", b"on two", b"new"]
        with connect_sync(cluster.nodes[longer].pull_address) as client:
            [*_, loss] = client.describe_stream(STREAM).possible_losses
        assert "complete copies were given up" in loss["reason"]
        node = cluster.nodes[longer]
        assert 'liftlog_elections_total{reason="unclean"} 1' in node.get("/metrics")[1]
        assert '"event": "unclean-recovery", "stream": "in"' in node.log
        cluster.assert_sound()
