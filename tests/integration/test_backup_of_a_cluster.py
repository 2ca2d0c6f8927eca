"""`liftlog backup` of the nodes of a cluster: nothing that was acked is missing, or it is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from support.clients.command_line import Cli
from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import NODES, Cluster
from support.daemons.nats_server import NatsServer
from support.pages import blocks, run_shell

from acl.tokens import hash_token
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli as root
from liftlog.client import connect_sync
from liftlog.errors import Diverged
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.manifest import read_manifest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAMS: dict[str, dict[str, Any]] = {
    "three": {"subject": "three.>", "replicas": 3, "min_isr": 2},
    "alone": {"subject": "alone.>", "replicas": 1},
}
COUNT = 60
BACK_UP, RESTORE_ONE, MOVE, RESTORE_ALL = range(4)
"""The examples of the page."""


@pytest.fixture(scope="module")
def shared_server() -> Iterator[NatsServer]:
    """A server for `shared` alone: other clusters would ack the same messages."""
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def shared(shared_server: NatsServer) -> Iterator[Cluster]:
    """A cluster for tests that leave it running and add only a few records."""
    with of_three_nodes(shared_server) as cluster:
        yield cluster


@pytest.fixture
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with of_three_nodes(server) as cluster:
        yield cluster


@contextmanager
def of_three_nodes(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS, cluster={"session": "6s"}) as cluster:
        for stream in STREAMS:
            cluster.wait_recorded(stream)
        cluster.wait_isr("three")
        cluster.wait_isr("_offsets")
        yield cluster
        cluster.assert_sound()


def fill(server: NatsServer) -> int:
    """Fill both streams; return where they end when the last ack has come."""
    with RawNats(server.port, timeout=30) as raw:
        for number in range(COUNT):
            for stream in STREAMS:
                acked = publish(raw, f"{stream}.x", b"%d" % number)
    return int(acked["seq"]) + 1


def as_on_the_page(number: int, cluster: Cluster, node: str, place: Path) -> str:
    """Run an example of the page, with the paths, addresses and the stream of this test."""
    script = blocks("how-to/backup-cluster.md", "sh")[number]
    daemon = cluster.nodes[node]
    for shown, real in (
        ("/var/lib/liftlog", str(daemon.data_dir)),
        ("/backup/liftlog-a", str(place / "backup")),
        ("/etc/liftlog/liftlog.yaml", config_of(cluster, node)),
        ("orders", "three"),
    ):
        script = script.replace(shown, real)
    server = daemon.pull_address if daemon.running else ""
    return run_shell(script, place, {"LIFTLOG_SERVER": server} if server else {})


def back_up(cluster: Cluster, node: str, place: Path, *more: str) -> Result:
    """Back up a node without naming a server: the command finds the daemon by its directory."""
    return cli("backup", "create", str(cluster.nodes[node].data_dir), str(place), *more)


def shown(place: Path) -> dict[str, Any]:
    done = cli("backup", "info", str(place), "-o", "json")
    assert done.exit_code == ExitCode.OK, done.output
    return {one["name"]: one for one in json.loads(done.stdout)["streams"]}


def cli(*words: str) -> Result:
    return CliRunner().invoke(root, words)


def test_everything_acked_is_in_it_on_every_node(
    shared: Cluster, shared_server: NatsServer, tmp_path: Path
) -> None:
    cluster = shared
    end = fill(shared_server)
    with connect_sync(cluster.nodes["a"].pull_address) as client:
        client.commit_checkpoint("billing", "three", end)
    holder = cluster.leader("alone")
    for node in NODES:
        place = tmp_path / node
        done = back_up(cluster, node, place)
        assert done.exit_code == ExitCode.OK, done.stderr
        found = shown(place)
        assert found["three"]["end_offset"] == end
        assert found["three"]["may_lack"] == ""
        assert ("alone" in found) == (node == holder)
        if node == holder:
            assert found["alone"]["end_offset"] == end
        else:
            assert f"alone (on {holder})" in done.stderr
        if "_offsets" in found:
            assert found["_offsets"]["end_offset"] == 2
        assert cli("backup", "verify", str(place)).exit_code == ExitCode.OK


def test_a_follower_that_lags_says_how_far_it_is(
    shared: Cluster, shared_server: NatsServer, tmp_path: Path
) -> None:
    cluster = shared
    follower = cluster.followers("three")[0]
    others = [node for node in NODES if node != follower]
    end = fill(shared_server)
    cluster.pause(*others)  # the leader does not answer, and no other node is elected
    done = back_up(cluster, follower, tmp_path / "behind", "--wait", "1s")
    cluster.resume(*others)
    assert done.exit_code == ExitCode.BEHIND, done.stderr
    found = shown(tmp_path / "behind")["three"]
    assert found["end_offset"] <= end
    assert found["may_lack"]
    assert f"three: the backup ends at offset {found['end_offset']}, and may lack" in done.stderr
    again = cli("backup", "info", str(tmp_path / "behind"))
    assert found["may_lack"] in again.stderr


def test_without_a_daemon_it_says_what_may_be_missing(
    shared: Cluster, shared_server: NatsServer, tmp_path: Path
) -> None:
    cluster = shared
    end = fill(shared_server)
    holder = cluster.leader("alone")
    cluster.kill()
    data_dir = cluster.nodes[holder].data_dir
    done = Cli(cluster.nodes[holder], shared_server)(  # its address answers no more
        "backup", "create", str(data_dir), str(tmp_path / "cold")
    )
    assert done.exit_code == ExitCode.BEHIND, done.output
    assert "three: the backup ends at offset" in done.stderr
    assert "Back up again while the daemon runs" in done.stderr
    cluster.start()
    found = shown(tmp_path / "cold")
    assert found["three"]["may_lack"]
    # No other node can have acked anything of a stream with this replica only.
    assert (found["alone"]["end_offset"], found["alone"]["may_lack"]) == (end, "")
    done = back_up(cluster, holder, tmp_path / "warm")
    assert done.exit_code == ExitCode.OK, done.stderr
    assert shown(tmp_path / "warm")["three"]["end_offset"] == end


# --- restoring ---


def values(cluster: Cluster, stream: str, node: str) -> list[int]:
    reading = cluster.read(stream, node)
    return [int(value or b"") for _, value, _ in (one.content for one in reading.records)]


@pytest.mark.long
def test_a_restored_backup_becomes_the_first_node_of_a_cluster(
    cluster: Cluster, server: NatsServer, tmp_path: Path
) -> None:
    """With the checkpoints of its consumers, and the groups, by which they go on."""
    fill(server)
    with connect_sync(cluster.nodes["a"].pull_address) as client:
        client.commit_checkpoint("billing", "three", 50)
        read = []
        with client.group("workers", "three", member="one") as group:
            for record in group:
                read.append(record.offset)
                if len(read) == COUNT:
                    break
        cluster.wait_isr("_offsets")
    holder = cluster.leader("alone")
    assert "ok, 3 streams" in as_on_the_page(BACK_UP, cluster, holder, tmp_path)
    # What comes later is not in it.
    with RawNats(server.port, timeout=30) as raw:
        publish(raw, "three.x", b"lost")
    cluster.stop()

    with new_cluster(server, tmp_path) as other:
        node = other.nodes["a"]
        assert as_on_the_page(RESTORE_ALL, other, "a", tmp_path).count("adopted") == 2
        done = cli("cluster", "init", "-c", config_of(other, "a"), "--adopt")
        assert done.output.count("belonged to it already") == 2, done.output
        other.start("a")
        for stream in STREAMS:
            assert values(other, stream, "a") == list(range(COUNT))
        with connect_sync(node.pull_address) as client:
            found = client.fetch_checkpoint("billing", "three")
            assert found is not None
            assert (found.offset, found.problem) == (50, "")
            group_info = client.describe_group("workers", "three")
            assert group_info is not None
            assert min(group_info.offsets) == COUNT, "it left with the last one"
            assert [one.name for one in client.cluster().replicated if one.is_moving] == []
        other.start("b", "c")
        moved = other.command("cluster", "move", "three", "--replicas", "a,b,c")
        assert moved.returncode == 0, moved.stderr
        other.wait_isr("three")
        other.wait_all_in_sync()
        with RawNats(server.port, timeout=30) as raw:
            assert publish(raw, "three.x", b"%d" % COUNT)["seq"] == COUNT + 1
        for reading in other.read_all("three"):
            assert [one.offset for one in reading.records] == list(range(1, COUNT + 2))
        other.assert_sound()
    adopt_what_an_older_version_restored(server, tmp_path / "backup", tmp_path / "older")


def adopt_what_an_older_version_restored(server: NatsServer, backup: Path, place: Path) -> None:
    """It left manifests that call themselves replicas."""
    with new_cluster(server, place) as other:
        data_dir = other.nodes["a"].data_dir
        assert cli("backup", "restore", str(backup), str(data_dir)).exit_code == 0
        for stream in STREAMS:
            path = data_dir / "streams" / stream
            manifest = read_manifest(OsFileSystem(), path)
            assert manifest is not None
            manifest = manifest.with_changes(replicated=True, incomplete="it was restored")
            manifest.write(OsFileSystem(), path)
        done = cli("cluster", "init", "-c", config_of(other, "a"), "--adopt")
        assert done.output.count("adopted") == 2, done.output
        other.start("a")
        for stream in STREAMS:
            assert values(other, stream, "a") == list(range(COUNT))


@pytest.mark.long
def test_one_stream_is_restored_into_a_running_cluster(
    cluster: Cluster, server: NatsServer, tmp_path: Path
) -> None:
    fill(server)
    epoch = cluster.stream("three").leader_epoch
    assert back_up(cluster, "a", tmp_path / "backup", "-s", "three").exit_code == ExitCode.OK
    with connect_sync(cluster.nodes["a"].pull_address) as client:
        client.commit_checkpoint("billing", "three", 50)
        incarnation = client.describe_stream("three").incarnation
    add = ("backup", "restore", str(tmp_path / "backup"), str(cluster.nodes["a"].data_dir))
    add = (*add, "--stream", "three", "--add")
    adopt = ("cluster", "adopt", "-c", config_of(cluster, "a"), "three")
    assert cli(*add).exit_code == ExitCode.USAGE, "it is there"

    configured = cluster.nodes["a"].settings["streams"].pop("three")
    for node in ("b", "c"):
        del cluster.nodes[node].settings["streams"]["three"]
        cluster.stop(node)
        cluster.start(node)
    cluster.stop("a")
    cluster.start("a")
    cluster.kill("c")  # it comes back with a copy that was deleted meanwhile
    deleted = cluster.command("stream", "delete", "three", "--yes", through="b")
    assert deleted.returncode == 0, deleted.stderr
    until(lambda: not (cluster.nodes["a"].data_dir / "streams" / "three").exists(), 60)

    refused = cli(*add)
    assert refused.exit_code == ExitCode.TRY_AGAIN, "the daemon runs"
    cluster.stop("a")
    assert "adopted" in as_on_the_page(RESTORE_ONE, cluster, "a", tmp_path)
    assert cli(*add).exit_code == ExitCode.USAGE, "it is there"
    done = cli(*adopt)
    assert "belonged to it already" in done.output
    cluster.start("a", "c")
    assert values(cluster, "three", "a") == list(range(COUNT))
    with connect_sync(cluster.nodes["b"].pull_address) as client:
        info = client.describe_stream("three")
        assert info.incarnation == incarnation
        assert info.leader_epoch > epoch
        found = client.fetch_checkpoint("billing", "three")
        assert found is not None
        assert (found.offset, found.problem) == (50, "")
    as_on_the_page(MOVE, cluster, "b", tmp_path)
    cluster.wait_isr("three")
    cluster.wait_recorded("three")
    with RawNats(server.port, timeout=30) as raw:
        assert publish(raw, f"{configured['subject'][:-2]}.x", b"%d" % COUNT)["seq"] == COUNT + 1
    for reading in cluster.read_all("three"):
        assert [one.offset for one in reading.records] == list(range(1, COUNT + 2))


def test_what_is_not_adopted(shared: Cluster, shared_server: NatsServer, tmp_path: Path) -> None:
    cluster = shared
    fill(shared_server)
    assert back_up(cluster, "a", tmp_path / "backup").exit_code == ExitCode.OK
    adopt = ("cluster", "adopt", "-c", config_of(cluster, "a"))
    assert cli(*adopt).exit_code == ExitCode.TRY_AGAIN, "the daemon runs"
    cluster.stop("a")
    done = cli(*adopt)
    assert (done.exit_code, "no stream that belongs to no" in done.output) == (0, True), done.output
    assert cli(*adopt, "nothing").exit_code == ExitCode.NOT_FOUND
    # The cluster has it, on other nodes as well.
    path = cluster.nodes["a"].data_dir / "streams" / "three"
    path.rename(tmp_path / "aside")
    add = ("backup", "restore", str(tmp_path / "backup"), str(cluster.nodes["a"].data_dir))
    assert cli(*add, "--stream", "three", "--add").exit_code == ExitCode.OK
    done = cli(*adopt)
    assert done.exit_code == ExitCode.CONFLICT, done.output
    assert "liftlog stream delete" in done.stderr
    shutil.rmtree(path)
    (tmp_path / "aside").rename(path)
    cluster.start("a")


def config_of(cluster: Cluster, node: str) -> str:
    """Its configuration, also before it has run."""
    daemon = cluster.nodes[node]
    daemon.config_path.parent.mkdir(parents=True, exist_ok=True)
    daemon.config_path.write_text(yaml.safe_dump(daemon.settings, sort_keys=False))
    return str(daemon.config_path)


@contextmanager
def new_cluster(server: NatsServer, place: Path) -> Iterator[Cluster]:
    """Nothing runs yet."""
    other = Cluster(server.url, cluster={"session": "6s"}, directory=place / "other")
    try:
        yield other
    finally:
        other.end()


def test_a_node_that_lost_its_disk_continues_with_the_backup(
    server: NatsServer, tmp_path: Path
) -> None:
    """The metadata are whole, and no other node has its streams."""
    with new_cluster(server, tmp_path) as cluster:
        node = cluster.nodes["a"]
        node.settings["streams"] = {"alone": dict(STREAMS["alone"])}
        cluster.start("a")
        cluster.wait_recorded("alone")
        with RawNats(server.port) as raw, connect_sync(node.pull_address) as client:
            for number in range(5):
                publish(raw, "alone.x", b"%d" % number)
            assert back_up(cluster, "a", tmp_path / "backup").exit_code == ExitCode.OK
            assert publish(raw, "alone.x", b"lost")["seq"] == 6
            before = client.describe_stream("alone")
        cluster.stop("a")
        cluster.wipe("a")
        assert cli("backup", "restore", str(tmp_path / "backup"), str(node.data_dir)).exit_code == 0
        done = cli("cluster", "init", "-c", config_of(cluster, "a"), "--adopt")
        assert done.exit_code == ExitCode.OK, done.output
        assert "adopted" in done.output
        cluster.start("a")
        cluster.wait_recorded("alone")
        with RawNats(server.port) as raw, connect_sync(node.pull_address) as client:
            after = client.describe_stream("alone")
            assert after.incarnation == before.incarnation
            assert after.leader_epoch > before.leader_epoch
            assert publish(raw, "alone.x", b"5")["seq"] == 6
            ahead = {"epoch": before.leader_epoch, "incarnation": before.incarnation}
            with pytest.raises(Diverged):
                client.fetch("alone", 7, **ahead)  # type: ignore[arg-type]
        assert values(cluster, "alone", "a") == list(range(6))
        cluster.stop("a")
        cluster.assert_sound()


SECRETS = {name: f"the-secret-of-{name}-is-long-enough" for name in ("node", "backup", "other")}
ACL_FILE = f"""
principals:
  node: {{token_hash: "{hash_token(SECRETS["node"])}"}}
  backup: {{token_hash: "{hash_token(SECRETS["backup"])}"}}
  other: {{token_hash: "{hash_token(SECRETS["other"])}"}}
roles:
  node: [{{allow: [replicate], streams: ["*", "_*"]}}]
  backup: [{{allow: [read], streams: ["*", "_offsets"]}}]
  other: [{{allow: [read], streams: ["alone"]}}]
bindings:
  node: [node]
  backup: [backup]
  other: [other]
"""


def test_with_an_acl_it_needs_to_read_the_streams(server: NatsServer, tmp_path: Path) -> None:
    """A login that may not is said: the backup is made from what is stored."""
    (tmp_path / "acl.yaml").write_text(ACL_FILE)
    (tmp_path / "token").write_text(f"node.{SECRETS['node']}\n")
    with Cluster(
        server.url,
        STREAMS,
        settings={"acl": {"file": str(tmp_path / "acl.yaml")}},
        cluster={"session": "6s", "token_file": str(tmp_path / "token")},
    ) as cluster:
        with connect_sync(
            cluster.nodes["a"].pull_address, token=f"backup.{SECRETS['backup']}"
        ) as client:
            for stream in STREAMS:
                until(
                    lambda stream=stream: client.describe_stream(stream).state == "attached",  # type: ignore[misc]
                    60,
                )
            (alone,) = [one for one in client.cluster().replicated if one.name == "alone"]
        fill(server)
        node = str(alone.leader)
        for name, lacking in (("", {"three"}), ("other", {"three"}), ("backup", set())):
            token = [f"--token={name}.{SECRETS[name]}"] if name else []
            place = tmp_path / f"by-{name}"
            done = back_up(cluster, node, place, "-s", "three", "-s", "alone", *token)
            assert done.exit_code == (ExitCode.BEHIND if lacking else ExitCode.OK), done.stderr
            found = shown(place)
            assert {one for one, info in found.items() if info["may_lack"]} == lacking
            assert found["alone"]["end_offset"] == COUNT + 1
        cluster.assert_sound()
