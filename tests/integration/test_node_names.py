"""One process at a time is a node of a cluster, whichever data directory it brings."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import Cluster
from support.daemons.daemon import Daemon
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_server import NatsServer
from support.daemons.ports import free_port
from support.daemons.twins import twin_of
from support.rounds import modes

from liftlog.cli.lib.exit_codes import ExitCode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAMS = {
    "all": {"subject": "all.>", "replicas": 3},
    "one": {"subject": "one.>", "replicas": 1},
}
SESSION_SECONDS = 5
LISTENING = '"event": "listening"'


@pytest.fixture(scope="module", params=modes("files", "bucket"))
def servers(request: pytest.FixtureRequest) -> Iterator[list[NatsServer]]:
    """One without JetStream where the metadata are files, three where they are in a bucket."""
    if request.param == "files":
        with NatsServer() as server:
            yield [server]
    else:
        with NatsCluster(3, jetstream=True, sync_always=True) as servers:
            yield servers.servers


@pytest.fixture
def cluster(servers: list[NatsServer], request: pytest.FixtureRequest) -> Iterator[Cluster]:
    settings = {"session": f"{SESSION_SECONDS}s"}
    if len(servers) > 1:
        settings |= {"store": "nats", "name": f"names{abs(hash(request.node.name))}"}
    with Cluster([one.url for one in servers], STREAMS, cluster=settings) as cluster:
        cluster.wait_isr("all")
        cluster.wait_recorded("all")
        cluster.wait_recorded("one")
        yield cluster


@pytest.fixture
def raw(servers: list[NatsServer]) -> Iterator[RawNats]:
    with RawNats(servers[0].port, timeout=30) as client:
        yield client


def ended(daemon: Daemon) -> str:
    """The log of a daemon that refuses to start."""
    assert daemon.wait(60).exit_code == ExitCode.CONFIG
    return daemon.log


@pytest.mark.parametrize("directory", ["empty", "copied"])
def test_a_second_process_is_refused_while_the_first_lives(
    cluster: Cluster, raw: RawNats, tmp_path: Path, directory: str
) -> None:
    node = cluster.leader("one")
    assert publish(raw, "one.x", b"first")["seq"] == 1
    epochs = {name: cluster.stream(name).leader_epoch for name in STREAMS}
    twin = twin_of(cluster, node, tmp_path / "twin")
    if directory == "copied":
        shutil.copytree(cluster.nodes[node].data_dir, twin.data_dir)
    told = ended(twin.spawn())
    assert f"node {node} runs already: process {cluster.nodes[node].pid} on " in told
    assert f"with the data directory {cluster.nodes[node].data_dir}" in told
    assert publish(raw, "one.x", b"second")["seq"] == 2
    assert epochs == {name: cluster.stream(name).leader_epoch for name in STREAMS}
    assert cluster.status()[1] == ExitCode.OK


def test_a_copy_that_was_refused_stays_a_copy(
    cluster: Cluster, raw: RawNats, tmp_path: Path
) -> None:
    """However often it was started while its original lived. The original is known again, also when
    the file that names the holder was deleted, and owners were changed."""
    node = cluster.leader("one")
    assert publish(raw, "one.x", b"first")["seq"] == 1
    original = cluster.nodes[node]
    twin = twin_of(cluster, node, tmp_path / "twin")
    shutil.copytree(original.data_dir, twin.data_dir)
    for _ in range(2):
        assert f"node {node} runs already" in ended(twin.spawn())
    assert publish(raw, "one.x", b"second")["seq"] == 2
    cluster.kill(node)
    (original.data_dir / "lock").unlink()
    original.data_dir.chmod(0o750)
    cluster.start(node)
    cluster.wait_recorded("one")
    assert publish(raw, "one.x", b"third")["seq"] == 3
    cluster.kill(node)
    twin.spawn()
    twin.wait_listening(60)
    until(lambda: cluster.stream("one").leader is None, 60, "the copy does not lead")
    assert not cluster.stream("one").has_whole_copy
    with pytest.raises(AssertionError, match="503"):
        publish(raw, "one.x", b"not twice")
    twin.stop()


def test_all_nodes_come_back_after_a_crash_and_starts_that_failed(
    cluster: Cluster, raw: RawNats
) -> None:
    """Each knows its directory again, so what has one replica is led without an operator."""
    assert publish(raw, "one.x", b"first")["seq"] == 1
    cluster.kill(*cluster.nodes)
    for name, node in cluster.nodes.items():
        right = copy.deepcopy(node.settings)
        node.settings["cluster"]["node"] = "another"
        assert f"belongs to node {name}, not to node another" in ended(node.spawn())
        node.settings.update(right, nats={"servers": [f"nats://127.0.0.1:{free_port()}"]})
        node.spawn()
        lock = node.data_dir / "lock"
        until(lambda lock=lock: lock.read_bytes() != b"", 60, "it has the directory")  # type: ignore[misc]
        node.kill()
        node.settings.update(right)
    cluster.start()
    for stream in STREAMS:
        cluster.wait_recorded(stream)
    assert publish(raw, "one.x", b"second")["seq"] == 2
    cluster.wait_isr("all")


def test_a_node_comes_back_at_once_after_a_kill(cluster: Cluster) -> None:
    """On the machine where it ran, with its directory or with an empty one: its process is known to
    have ended."""
    node = cluster.leader("one")
    for wiped in (False, True):
        cluster.kill(node)
        if wiped:
            cluster.wipe(node)
        began = time.monotonic()
        cluster.start(node)
        assert time.monotonic() - began < SESSION_SECONDS * 0.8
        assert "node-name-awaited" not in cluster.nodes[node].log


def test_a_process_that_was_stopped_for_long_gives_way_and_comes_back_by_itself(
    cluster: Cluster, raw: RawNats, tmp_path: Path
) -> None:
    """Meanwhile another one has become the node: it waited until the session had ended."""
    node = cluster.followers("all")[0]
    cluster.pause(node)
    twin = twin_of(cluster, node, tmp_path / "twin")
    twin.start(timeout=60)
    assert "node-name-awaited" in twin.log
    os.kill(cluster.nodes[node].pid, signal.SIGCONT)
    first = cluster.nodes[node]
    until(lambda: "node-displaced" in first.log, 30, "it notices")
    assert f"process {twin.pid} on " in first.log
    until(lambda: "node-name-awaited" in first.log, 30, "it waits")
    for number in range(20):
        publish(raw, "all.x", b"%d" % number)
    assert "role-not-taken" not in first.log.split("node-displaced")[1]
    twin.stop()
    until(lambda: first.log.count(LISTENING) == 2, 60, "it has started again")
    cluster.resume(node)
    cluster.wait_isr("all")
    assert cluster.wait_settled("all") == 21
    assert first.stop().exit_code == ExitCode.OK
