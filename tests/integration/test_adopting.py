"""A daemon that has run on its own becomes the first node of a cluster, and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from support.clients.ingesting import publish
from support.clients.raw_nats import RawNats
from support.daemons.cluster import Cluster
from support.daemons.nats_server import NatsServer

from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.manifest import read_manifest
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node import adopting

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    """Nothing runs yet."""
    cluster = Cluster(server.url, cluster={"session": "6s"})
    yield cluster
    cluster.end()


def adopt(cluster: Cluster) -> Result:
    words = ["cluster", "init", "-c", str(cluster.nodes["a"].config_path), "--adopt"]
    return CliRunner().invoke(cli, words)


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_everything_of_a_daemon_goes_on_in_its_cluster(
    cluster: Cluster, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes["a"]
    membership = node.settings.pop("cluster")
    node.start()
    with RawNats(server.port) as raw, connect_sync(node.pull_address) as client:
        for name in ("orders", "other"):
            client.create_stream(name, subject=f"{name}.>")
        for number in range(1, 51):
            acked = publish(raw, "orders.x", b"%d" % number, Nats_Msg_Id=f"id-{number}")
            assert acked["seq"] == number
        client.truncate_prefix("orders", 5)
        lease = client.acquire_lease("orders", 10, ttl=600)
        read = list(client.read("orders", until=31))
        info = client.describe_stream("orders")
        epoch, incarnation = info.leader_epoch, info.incarnation
        client.commit_checkpoint("billing", "orders", 31, epoch=epoch, incarnation=incarnation)
    node.settings["cluster"] = membership
    node.stop()
    node.spawn()  # it refuses to bring streams by itself
    node.wait(60)
    assert "liftlog cluster init -c FILE --adopt" in node.log

    # A stop in the middle is made good by doing it again.
    for owner, step in ((Mirror, "create"), (adopting, "_make_copy")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, stop)
            assert adopt(cluster).exit_code != 0
    done = adopt(cluster)
    assert done.exit_code == 0, done.output
    assert "belonged to it already" in adopt(cluster).output

    node.start()
    with RawNats(server.port) as raw, connect_sync(node.pull_address) as client:
        again = publish(raw, "orders.x", b"50", Nats_Msg_Id="id-50")
        assert (again["seq"], again["duplicate"]) == (50, True), "it remembers message ids"
        assert publish(raw, "orders.x", b"51")["seq"] == 51
        assert [one.lease_id for one in client.list_leases("orders")] == [lease.lease_id]
        client.renew_lease("orders", lease.lease_id, ttl=600)
        checkpoint = client.fetch_checkpoint("billing", "orders")
        assert checkpoint is not None
        assert (checkpoint.offset, checkpoint.incarnation) == (31, incarnation)
        found = list(client.read("orders", until="end"))
        assert found[: len(read)] == read
        assert [int(one.value or b"") for one in found] == list(range(5, 52))
        rest = list(client.read("orders", start=31, epoch=epoch, incarnation=incarnation, until=52))
        assert [one.offset for one in rest] == list(range(31, 52))

    cluster.start("b", "c")
    for name in ("orders", "other"):
        moved = cluster.command("cluster", "move", name, "--replicas", "a,b,c", through="b")
        assert moved.returncode == 0, moved.stderr
    readings = cluster.read_all("orders")
    for reading in readings:
        assert [record.offset for record in reading.records] == list(range(5, 52))
    refused = CliRunner().invoke(
        cli, ["cluster", "init", "-c", str(cluster.nodes["b"].config_path), "--adopt"]
    )
    assert refused.exit_code != 0, "it runs, and the cluster has other nodes"
    cluster.stop()
    cluster.assert_sound()


def test_a_stream_with_erased_records_is_not_adopted(cluster: Cluster, server: NatsServer) -> None:
    """The nodes do not exchange erased records, so a new leader would show them."""
    node = cluster.nodes["a"]
    membership = node.settings.pop("cluster")
    node.start()
    with RawNats(server.port) as raw, connect_sync(node.pull_address) as client:
        client.create_stream("orders", subject="orders.>")
        for number in range(1, 6):
            publish(raw, "orders.x", b"%d" % number)
        assert client.erase("orders", [(2, 3)]).count == 1
    node.settings["cluster"] = membership
    node.stop()
    node.spawn()  # it refuses to bring streams by itself
    node.wait(60)
    done = adopt(cluster)
    assert done.exit_code != 0
    assert "stream orders has erased records" in done.output
    manifest = read_manifest(OsFileSystem(), node.data_dir / "streams" / "orders")
    assert manifest is not None
    assert not manifest.replicated


def test_a_stream_with_unlisted_rollups_is_not_adopted(
    cluster: Cluster, server: NatsServer
) -> None:
    """After a kill, only a daemon that runs alone finds what the last roll-ups have erased."""
    node = cluster.nodes["a"]
    membership = node.settings.pop("cluster")
    node.start()
    with RawNats(server.port) as raw, connect_sync(node.pull_address) as client:
        client.create_stream("orders", subject="orders.>", jetstream={"allow_rollup_hdrs": True})
        publish(raw, "orders.x", b"1")
        publish(raw, "orders.x", b"2", Nats_Rollup="sub")
        publish(raw, "orders.y", b"3")
    node.kill()
    node.settings["cluster"] = membership
    node.spawn()
    node.wait(60)
    done = adopt(cluster)
    assert done.exit_code != 0
    assert "may have records that a roll-up has erased" in done.output
