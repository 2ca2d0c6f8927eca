"""A data directory, or a part of it, is empty at a start: a mount was forgotten. What it had is not
begun again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import Cluster
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import connect_sync
from liftlog.errors import InvalidArgument, StreamUnavailable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAMS = {
    "one": {"subject": "one.>", "replicas": 1},
    "all": {"subject": "all.>", "replicas": 3},
}


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster={"session": "4s"}) as cluster:
        for stream in STREAMS:
            cluster.wait_recorded(stream)
        cluster.wait_isr("all")
        cluster.wait_isr("_offsets")
        yield cluster


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port, timeout=5) as client:
        yield client


@pytest.mark.parametrize("lost", ["directory", "stream", "streams"])
def test_a_stream_with_one_replica_stays_without_a_leader(
    cluster: Cluster, raw: RawNats, lost: str
) -> None:
    node = cluster.leader("one")
    data_dir = cluster.nodes[node].data_dir
    assert [publish(raw, "one.x", b"%d" % number)["seq"] for number in range(3)] == [1, 2, 3]
    cluster.kill(node)
    if lost == "directory":
        cluster.wipe(node)
    else:
        shutil.rmtree(data_dir / "streams" / ("one" if lost == "stream" else ""))
    cluster.start(node)
    until(lambda: cluster.stream("one").leader is None, 60, "it has no leader")
    cluster.wait_isr("all")  # what others have is fetched
    found = cluster.stream("one")
    assert (found.isr, found.eligible) == ([], [])
    with pytest.raises(AssertionError, match="503"):
        publish(raw, "one.x", b"not twice")
    done = cluster.command("cluster", "status")
    assert done.returncode == ExitCode.FAILED
    assert "No complete copy is left of 1 stream: one." in done.stderr

    cluster.kill(node)  # nor after another start
    cluster.start(node)
    assert cluster.stream("one").leader is None
    done = cluster.command("cluster", "elect", "one", "--node", node, "--lost", node, "--yes")
    assert done.returncode == ExitCode.OK, done.stderr
    cluster.wait_recorded("one")
    assert publish(raw, "one.x", b"again")["seq"] == 1
    with connect_sync(cluster.nodes[node].pull_address) as client:
        [*_, loss] = client.describe_stream("one").possible_losses
    assert "complete copies were given up" in loss["reason"]


@pytest.mark.long
@pytest.mark.parametrize("lost", ["nothing", "stream"])
def test_a_node_that_cannot_read_what_it_has_held_waits_for_that(
    cluster: Cluster, raw: RawNats, lost: str, tmp_path: Path
) -> None:
    """An error is not an empty list: it would take a lost copy for one that never was there."""
    name = cluster.leader("one")
    node = cluster.nodes[name]
    assert publish(raw, "one.x", b"first")["seq"] == 1
    cluster.kill(name)
    known = node.data_dir / "known-records"
    known.rename(tmp_path / "aside")
    known.mkdir()  # a read of it ends with an error
    if lost == "stream":
        shutil.rmtree(node.data_dir / "streams" / "one")
    node.spawn()
    node.wait_listening()
    until(lambda: "known_records" in node.get("/readyz")[1], 60, "a condition")
    with pytest.raises(AssertionError, match="503"):
        publish(raw, "one.x", b"not yet")
    cluster.wait_isr("all", [one for one in cluster.nodes if one != name])
    assert known.is_dir(), "it is not replaced"
    known.rmdir()
    (tmp_path / "aside").rename(known)
    until(lambda: "known_records" not in node.get("/readyz")[1], 60, "the end of the condition")
    cluster.wait_isr("all")
    if lost == "nothing":
        cluster.wait_recorded("one")
        assert publish(raw, "one.x", b"second")["seq"] == 2
    else:
        until(lambda: cluster.stream("one").leader is None, 60, "it has no leader")
        with pytest.raises(AssertionError, match="503"):
            publish(raw, "one.x", b"not twice")


def test_checkpoints_that_were_lost_do_not_begin_again_without_a_word(server: NatsServer) -> None:
    """Consumers would begin where their first position is. An operator says that they are gone."""
    streams = {"alone": {"subject": "alone.>"}}
    with Daemon(server.url, {"streams": streams}) as daemon:
        with connect_sync(daemon.pull_address) as client:
            client.commit_checkpoint("billing", "alone", 1)
        daemon.kill()
        directory = daemon.data_dir / "streams" / "_offsets"
        shutil.move(directory, daemon.directory / "aside")
        for _ in range(2):
            daemon.spawn()
            daemon.wait_listening()
            assert not directory.exists()
            told = daemon.get("/readyz")[1]
            assert "checkpoints" in told
            assert f"{directory} is missing, and this data directory had it" in told
            assert "take the file records away" in told
            with connect_sync(daemon.pull_address) as client:
                with pytest.raises(StreamUnavailable):
                    client.fetch_checkpoint("billing", "alone")
            daemon.kill()
        shutil.move(daemon.directory / "aside", directory)
        daemon.start()
        with connect_sync(daemon.pull_address) as client:
            assert client.fetch_checkpoint("billing", "alone")
            with pytest.raises(InvalidArgument):
                client.delete_stream("_offsets")
        daemon.kill()
        shutil.rmtree(directory)
        (daemon.data_dir / "records").unlink()
        daemon.start()
        assert "is missing" not in daemon.get("/readyz")[1]
        with connect_sync(daemon.pull_address) as client:
            client.commit_checkpoint("billing", "alone", 1)


@pytest.mark.parametrize("lost", ["stream", "streams"])
def test_a_daemon_on_its_own_does_not_begin_a_stream_again(
    server: NatsServer, raw: RawNats, lost: str, tmp_path: Path
) -> None:
    """Its directory is missing: not before an operator says so, or the directory is back."""
    streams = {"alone": {"subject": "alone.>"}, "other": {"subject": "other.>"}}
    with Daemon(server.url, {"streams": streams}) as daemon:
        assert publish(raw, "alone.x", b"first")["seq"] == 1
        daemon.kill()
        part = daemon.data_dir / "streams" / ("alone" if lost == "stream" else "")
        part.rename(tmp_path / "aside")
        for _ in range(2):
            daemon.spawn()
            daemon.wait_listening()
            with pytest.raises(AssertionError, match="503"):
                publish(raw, "alone.x", b"not twice")
            with connect_sync(daemon.pull_address) as client:
                found = client.describe_stream("alone")
            assert found.state == "failed"
            assert "is missing, and this data directory had it" in str(found)
            daemon.kill()
        if part.exists():
            shutil.rmtree(part)
        (tmp_path / "aside").rename(part)
        daemon.start()
        assert publish(raw, "alone.x", b"second")["seq"] == 2

        daemon.kill()
        shutil.rmtree(daemon.data_dir / "streams" / "alone")
        daemon.spawn()
        daemon.wait_listening()
        with connect_sync(daemon.pull_address) as client:
            client.delete_stream("alone")
        daemon.restart()
        assert publish(raw, "alone.x", b"again")["seq"] == 1
