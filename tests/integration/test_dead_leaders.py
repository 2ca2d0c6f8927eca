"""A stream whose only replica is on a node that died has no leader: every surface says so, and what
to do."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import Cluster
from support.daemons.nats_server import NatsServer

from liftlog.cli.lib.exit_codes import ExitCode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAMS = {
    "one": {"subject": "one.>", "replicas": 1},
    "all": {"subject": "all.>", "replicas": 3},
}


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster={"session": "3s"}) as cluster:
        for stream in STREAMS:
            cluster.wait_recorded(stream)
        cluster.wait_isr("all")
        cluster.wait_isr("_offsets")
        yield cluster


@pytest.mark.long
def test_every_surface_tells_of_a_stream_that_no_node_leads(
    cluster: Cluster, server: NatsServer
) -> None:
    gone = cluster.leader("one")
    with RawNats(server.port, timeout=30) as raw:
        assert publish(raw, "one.x", b"first")["seq"] == 1
    cluster.kill(gone)
    others = [node for node in cluster.nodes if node != gone]
    for node in others:
        until(lambda node=node: cluster.stream("one", node).leader is None, 60, "it has no leader")  # type: ignore[misc]
    cluster.wait_isr("all", set(others))
    why = f"all acked messages are only on nodes that are down: {gone}"
    for node in others:
        daemon = cluster.nodes[node]
        done = cluster.command("cluster", "status", through=node)
        assert done.returncode == ExitCode.FAILED
        assert f"No node leads one: {why}. Start it." in done.stderr
        done = cluster.command("stream", "ls", "--troubled", through=node)
        assert "one" in done.stdout.split()
        done = cluster.command("stream", "info", "one", through=node)
        assert why in done.stdout + done.stderr
        words = ("consume", "one", "--from", "1", "--until-end", "--reconnect-for", "1")
        done = cluster.command(*words, through=node)
        assert done.returncode != ExitCode.OK
        assert why in done.stderr
        assert f"start node {gone}" in done.stderr
        assert cluster.nodes[gone].pull_address not in done.stderr
        assert daemon.metric("liftlog_leader", stream="one") == 0
        with pytest.raises(KeyError):
            assert daemon.metric("liftlog_leader", stream="none")
        assert daemon.metric("liftlog_conditions", condition="no_leader") == 1
        data = json.loads(daemon.get("/ui/cluster.json")[1])
        [row] = [one for one in data["streams"] if one["name"] == "one"]
        assert (row["state"], row["leader"]) == ("no leader", "")
        assert daemon.get("/readyz")[0] == 200, "the other streams are served"
    cluster.start(gone)
    cluster.wait_recorded("one")
    for node in cluster.nodes:
        until(
            lambda node=node: cluster.nodes[node].metric("liftlog_conditions") == 0,  # type: ignore[misc]
            30,
            "nothing is wrong any more",
        )
