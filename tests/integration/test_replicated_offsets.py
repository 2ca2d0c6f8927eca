"""The checkpoints of a cluster: committed and found at any node, and they outlive their leader."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from support.clients.raw_nats import RawNats
from support.daemons.cluster import NODES, PATIENCE, Cluster
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync
from liftlog.errors import CheckpointMoved, OffsetOutOfRange, StreamNotFound

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COUNT = 20
STREAMS = {"s": {"subject": "s.>", "replicas": 3}}


def wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_checkpoints_are_found_at_every_node_and_after_their_leader_died(
    server: NatsServer,
) -> None:
    with Cluster(server.url, STREAMS) as cluster:
        cluster.wait_isr("_offsets")
        leader = cluster.leader("_offsets")
        others = [name for name in NODES if name != leader]
        with connect_sync(cluster.nodes[others[0]].pull_address) as client:
            client.create_stream("lone", "lone.>", replicas=1)
        for stream in ("s", "lone"):
            cluster.wait_recorded(stream)
        with RawNats(server.port, timeout=PATIENCE) as raw:
            for number in range(COUNT):
                raw.request("s.x", b"%d" % number)
                raw.request("lone.x", b"%d" % number)
        cluster.wait_settled("s")
        for number, name in enumerate(NODES, 2):
            with connect_sync(cluster.nodes[name].pull_address) as client:
                client.commit_checkpoint(f"at-{name}", "s", number)
                client.commit_checkpoint(f"at-{name}", "lone", number)
                with pytest.raises(CheckpointMoved):
                    client.commit_checkpoint(f"at-{name}", "s", number, expected=9)
                with pytest.raises(StreamNotFound):
                    client.commit_checkpoint("x", "none", 1)
                with pytest.raises(StreamNotFound):
                    client.fetch_checkpoint("x", "none")
        with connect_sync(cluster.nodes[cluster.leader("s")].pull_address) as client:
            if cluster.leader("s") == leader:
                with pytest.raises(OffsetOutOfRange):
                    client.commit_checkpoint("beyond", "s", 1000)
        assert_all_known(cluster, NODES)
        _, page = cluster.nodes[others[0]].get("/ui/consumers.json")
        assert json.loads(page)["totals"] == {"consumers": 6, "lag": 108, "problems": 0}

        cluster.kill(leader)
        with connect_sync(cluster.nodes[others[0]].pull_address) as client:
            client.commit_checkpoint("afterwards", "s", 7)  # waits for the next leader
            found = client.fetch_checkpoint(f"at-{leader}", "s")
            assert found is not None
            assert found.offset == 2 + NODES.index(leader)
        cluster.start(leader)
        cluster.wait_isr("_offsets")
        assert_all_known(cluster, NODES)
        with connect_sync(cluster.nodes[leader].pull_address) as client:
            assert client.fetch_checkpoint("afterwards", "s").offset == 7
            client.delete_checkpoint("afterwards", "s")
        for name in others:
            with connect_sync(cluster.nodes[name].pull_address) as client:
                assert client.fetch_checkpoint("afterwards", "s") is None
        cluster.assert_sound()


def assert_all_known(cluster: Cluster, nodes: tuple[str, ...]) -> None:
    """With their lags, wherever the stream and the checkpoints are led."""
    wanted = {
        (f"at-{name}", stream): (number, COUNT + 1 - number)
        for number, name in enumerate(NODES, 2)
        for stream in ("s", "lone")
    }
    for name in nodes:
        with connect_sync(cluster.nodes[name].pull_address) as client:

            def all_there(client: object = client) -> bool:
                found = client.list_checkpoints()  # type: ignore[attr-defined]
                shown = {(one.consumer, one.stream): (one.offset, one.lag) for one in found}
                shown.pop(("afterwards", "s"), None)
                return shown == wanted

            wait(all_there)
