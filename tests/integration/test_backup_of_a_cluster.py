"""`liftlog backup` of the nodes of a cluster: nothing that was acked is missing, or it is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from support.cluster import NODES, Cluster
from support.command_line import Cli
from support.ingesting import publish
from support.nats_server import NatsServer
from support.raw_nats import RawNats

from liftlog.cli.exit_codes import ExitCode
from liftlog.client import connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAMS: dict[str, dict[str, Any]] = {
    "three": {"subject": "three.>", "replicas": 3, "min_isr": 2},
    "alone": {"subject": "alone.>", "replicas": 1},
}
COUNT = 200


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster={"session": "6s"}) as cluster:
        for stream in STREAMS:
            cluster.wait_recorded(stream)
        cluster.wait_isr("three")
        yield cluster
        cluster.assert_sound()


def fill(server: NatsServer) -> None:
    """The last ack has come when it returns."""
    with RawNats(server.port, timeout=30) as raw:
        for stream in STREAMS:
            for number in range(COUNT):
                publish(raw, f"{stream}.x", b"%d" % number)


def back_up(cluster: Cluster, node: str, place: Path, *more: str) -> CompletedProcess[str]:
    """Of a node, with no server named: the command finds the daemon by its data directory."""
    data_dir = cluster.nodes[node].data_dir
    return cluster.command("backup", "create", str(data_dir), str(place), *more)


def shown(cluster: Cluster, place: Path) -> dict[str, Any]:
    done = cluster.command("backup", "info", str(place), "-o", "json")
    assert done.returncode == ExitCode.OK, done.stderr
    return {one["name"]: one for one in json.loads(done.stdout)["streams"]}


def test_everything_acked_is_in_it_on_every_node(
    cluster: Cluster, server: NatsServer, tmp_path: Path
) -> None:
    fill(server)
    with connect_sync(cluster.nodes["a"].pull_address) as client:
        client.commit_checkpoint("billing", "three", COUNT + 1)
    holder = cluster.leader("alone")
    for node in NODES:
        place = tmp_path / node
        done = back_up(cluster, node, place)
        assert done.returncode == ExitCode.OK, done.stderr
        found = shown(cluster, place)
        assert found["three"]["end_offset"] == COUNT + 1
        assert found["three"]["may_lack"] == ""
        assert ("alone" in found) == (node == holder)
        if node == holder:
            assert found["alone"]["end_offset"] == COUNT + 1
        else:
            assert f"alone (on {holder})" in done.stderr
        if "_offsets" in found:
            assert found["_offsets"]["end_offset"] == 2
        assert cluster.command("backup", "verify", str(place)).returncode == ExitCode.OK


def test_a_follower_that_lags_says_how_far_it_is(
    cluster: Cluster, server: NatsServer, tmp_path: Path
) -> None:
    follower = cluster.followers("three")[0]
    leader = cluster.leader("three")
    fill(server)
    cluster.pause(leader)  # who is asked waits for it in vain
    done = back_up(cluster, follower, tmp_path / "behind", "--wait", "1s")
    cluster.resume(leader)
    assert done.returncode == ExitCode.BEHIND, done.stderr
    found = shown(cluster, tmp_path / "behind")["three"]
    assert found["end_offset"] <= COUNT + 1
    assert found["may_lack"]
    assert f"three: the backup ends at offset {found['end_offset']}, and may lack" in done.stderr
    again = cluster.command("backup", "info", str(tmp_path / "behind"))
    assert found["may_lack"] in again.stderr


def test_without_a_daemon_it_says_what_may_be_missing(
    cluster: Cluster, server: NatsServer, tmp_path: Path
) -> None:
    fill(server)
    holder = cluster.leader("alone")
    cluster.kill()
    data_dir = cluster.nodes[holder].data_dir
    done = Cli(cluster.nodes[holder], server)(  # its address answers no more
        "backup", "create", str(data_dir), str(tmp_path / "cold")
    )
    assert done.exit_code == ExitCode.BEHIND, done.output
    assert "three: the backup ends at offset" in done.stderr
    assert "Back up again while the daemon runs" in done.stderr
    cluster.start()
    found = shown(cluster, tmp_path / "cold")
    assert found["three"]["may_lack"]
    # No other node can have acked anything of a stream with this replica only.
    assert (found["alone"]["end_offset"], found["alone"]["may_lack"]) == (COUNT + 1, "")
    done = back_up(cluster, holder, tmp_path / "warm")
    assert done.returncode == ExitCode.OK, done.stderr
    assert shown(cluster, tmp_path / "warm")["three"]["end_offset"] == COUNT + 1
