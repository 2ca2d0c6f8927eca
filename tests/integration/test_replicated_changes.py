"""What an operator changes of a replicated stream is changed on every node, and stays."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import nats.errors
import pytest
from support.clients.ingesting import until
from support.clients.raw_nats import RawNats, header_block
from support.clients.raw_pull import RawPull
from support.daemons.cluster import NODES, PATIENCE, Cluster
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from acl.tokens import hash_token
from liftlog.client import connect_sync
from liftlog.errors import Conflict, NotLeader, OffsetOutOfRange, StreamNotFound

pytestmark = pytest.mark.integration

STREAM = "s"


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, settings={"http": {"log_api": True}}) as cluster:
        yield cluster
        cluster.assert_sound()


@pytest.fixture
def leader(cluster: Cluster) -> Iterator[str]:
    with connect_sync(cluster.nodes["a"].pull_address) as client:
        client.create_stream(STREAM, "s.>", replicas=3)
    cluster.wait_settled(STREAM)  # on every node
    yield cluster.leader(STREAM)
    with connect_sync(cluster.nodes["a"].pull_address) as client:
        client.delete_stream(STREAM)
    for name in NODES:
        directory = cluster.nodes[name].data_dir / "streams" / STREAM
        wait(lambda directory=directory: not directory.exists())  # type: ignore[misc]


def wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def setting(cluster: Cluster, node: str, name: str) -> object:
    """None as long as the node does not know the stream."""
    with connect_sync(cluster.nodes[node].pull_address) as client:
        try:
            return client.describe_stream(STREAM).settings[name]
        except StreamNotFound:
            return None


def publish(server: NatsServer, count: int) -> None:
    with RawNats(server.port) as client:
        for number in range(count):
            client.request("s.x", b"%d" % number)


def test_settings_reach_every_node_and_outlive_the_leader(cluster: Cluster, leader: str) -> None:
    with connect_sync(cluster.nodes[leader].pull_address) as client:
        client.update_stream(STREAM, max_message_bytes="1KiB")
        client.pause_stream(STREAM)
    for name in NODES:
        wait(lambda name=name: setting(cluster, name, "paused") is True)  # type: ignore[misc]
        assert setting(cluster, name, "max_message_bytes") == "1KiB"
    cluster.kill(leader)
    cluster.start(leader)
    cluster.wait_isr(STREAM)
    for name in NODES:
        wait(lambda name=name: setting(cluster, name, "max_message_bytes") == "1KiB")  # type: ignore[misc]
        assert setting(cluster, name, "paused") is True


def test_a_file_creates_a_stream_and_changes_it_no_more(server: NatsServer) -> None:
    """Nodes have a file each. A node whose file says something else tells so at its start."""
    with Cluster(server.url, {"f": {"subject": "f.>", "replicas": 3}}) as cluster:
        cluster.wait_isr("f")
        with connect_sync(cluster.nodes["a"].pull_address) as client:
            client.update_stream("f", min_isr=3)
            assert client.describe_stream("f").origin == "api"
        assert "file-not-applied" not in "".join(one.log for one in cluster.nodes.values())
        cluster.stop("b")
        cluster.start("b")
        told = "min_isr: 3 here, 2 in the file"
        until(lambda: told in cluster.nodes["b"].log, PATIENCE, "a warning")
        with connect_sync(cluster.nodes["b"].pull_address) as client:
            assert client.describe_stream("f").settings["min_isr"] == 3
        cluster.assert_sound()


async def test_fetches_go_to_the_leader_and_all_else_through_any_node(
    cluster: Cluster, server: NatsServer, leader: str
) -> None:
    other = next(name for name in NODES if name != leader)
    publish(server, 5)
    async with await RawPull.connect(cluster.nodes[other].pull_address) as peer:
        peer.send({"k": "fetch", "i": 1, "s": STREAM})
        answer = await peer.receive()
        assert (answer["k"], answer["n"]) == ("error", NotLeader.name)
        assert answer["d"]["leader"] == leader
        assert answer["d"]["address"] == cluster.nodes[leader].pull_address
        for number, request in enumerate(
            (
                {"k": "pause", "s": STREAM},
                {"k": "update", "s": STREAM, "c": {"max_message_bytes": "2KiB"}},
                {"k": "truncate", "s": STREAM, "o": 3},
                {"k": "resume", "s": STREAM},
                {"k": "lease", "s": STREAM, "o": 4, "t": 60_000},
                {"k": "describe", "s": STREAM},
                {"k": "extents", "s": STREAM, "o": 3, "z": 1024},
            ),
            2,
        ):
            peer.send({**request, "i": number})
            answer = await peer.receive()
            assert answer["k"] != "error", (request, answer)
            if request["k"] == "describe":
                assert (answer["d"]["log_start_offset"], answer["d"]["state"]) == (3, "attached")
                assert answer["d"]["settings"]["max_message_bytes"] == "2KiB"
    page = cluster.nodes[other].get(f"/api/v1/streams/{STREAM}/bounds")[1]
    assert json.loads(page)["high_watermark"] == 6


def test_a_stream_of_one_replica_is_reached_through_every_node(cluster: Cluster) -> None:
    """Most nodes have no copy of it."""
    with connect_sync(cluster.nodes["a"].pull_address) as client:
        client.create_stream("lone", "lone.>", replicas=1)
    leader = cluster.leader("lone")
    for name in NODES:
        daemon = cluster.nodes[name]
        cluster.stream("lone", through=name)
        with connect_sync(daemon.pull_address) as client:
            assert client.describe_stream("lone").state == "attached"
            assert "lone" in [one.name for one in client.list_streams()]
            assert [one.name for one in client.streams_for("lone.x")] == ["lone"]
            assert client.create_stream("lone", "lone.>", replicas=1).name == "lone"
            assert client.pause_stream("lone").settings["paused"] is True
            assert client.resume_stream("lone").settings["paused"] is False
            assert list(client.read("lone", until="end")) == []
        # On a busy machine another node's answer may come too late for a page.
        until(lambda at=daemon: at.get("/ui/streams/lone.json")[0] == 200)  # type: ignore[misc]
        page = daemon.get("/ui/streams/lone.json")[1]
        assert json.loads(page)["state"] == "attached"
        page = daemon.get("/api/v1/streams/lone/records/1")[1]
        assert json.loads(page)["error"]["name"] == (
            "NO_RECORD" if name == leader else "NOT_LEADER"
        )
    with connect_sync(cluster.nodes[NODES[0]].pull_address) as client:
        client.delete_stream("lone")


def test_what_was_created_takes_messages_at_once(server: NatsServer, cluster: Cluster) -> None:
    """The answer comes when NATS has confirmed the subscriptions of the node that leads."""
    with connect_sync(cluster.nodes["a"].pull_address) as client, RawNats(server.port) as raw:
        for number in range(12):
            name = f"quick{number}"
            client.create_stream(name, f"{name}.>", replicas=1 + 2 * (number % 2))
            assert client.describe_stream(name).state == "attached"
            assert raw.request(f"{name}.x", b"1").json()["seq"] == 1
            client.delete_stream(name)


def test_no_ack_is_stored_by_a_stream_of_another_node(server: NatsServer, cluster: Cluster) -> None:
    """Who may publish to one stream could write into any other one by its acks."""
    names = ("first", "second", "third")  # each goes to the node with the fewest replicas
    with connect_sync(cluster.nodes["a"].pull_address) as client:
        for name in names:
            client.create_stream(name, f"{name}.>", replicas=1)
        leaders = {name: cluster.leader(name) for name in names}
        other = next(name for name in names if leaders[name] != leaders["first"])
        with RawNats(server.port) as publisher:
            publisher.pub("first.x", b"1", reply=f"{other}.x")
            publisher.request("first.x", b"2")  # what is answered before was, or was not
            publisher.request(f"{other}.x", b"3")
        stored = [record.value for record in client.read(other, until="end")]
        for name in names:
            client.delete_stream(name)
    assert stored == [b"3"]


def test_a_client_of_another_node_is_led_to_the_leader(cluster: Cluster, leader: str) -> None:
    other = next(name for name in NODES if name != leader)
    with connect_sync(cluster.nodes[other].pull_address) as client:
        client.pause_stream(STREAM)
        assert setting(cluster, leader, "paused") is True
        client.resume_stream(STREAM)
        assert list(client.read(STREAM, until="end")) == []


def test_what_is_truncated_does_not_come_back(
    cluster: Cluster, server: NatsServer, leader: str
) -> None:
    publish(server, 10)
    with connect_sync(cluster.nodes[leader].pull_address) as client:
        with pytest.raises(OffsetOutOfRange):
            client.truncate_prefix(STREAM, 50)
        client.truncate_prefix(STREAM, 6)
        publish(server, 1)
    for name in NODES:
        with connect_sync(cluster.nodes[name].pull_address) as client:
            wait(lambda client=client: client.describe_stream(STREAM).log_start_offset == 6)  # type: ignore[misc]
    cluster.kill()
    cluster.start()
    cluster.wait_isr(STREAM)
    with connect_sync(cluster.nodes[cluster.leader(STREAM)].pull_address) as client:
        assert [record.offset for record in client.read(STREAM, until="end")] == list(range(6, 12))


def test_message_ids_outlive_their_records_on_every_node(
    cluster: Cluster, server: NatsServer, leader: str
) -> None:
    """A node that has started since knows them from its files, as the leader does."""
    other = next(name for name in NODES if name != leader)
    with RawNats(server.port) as publisher, connect_sync(cluster.nodes[leader].pull_address) as one:
        acked = publish_once(publisher, "first")
        assert acked == {"stream": STREAM, "seq": 1}
        one.truncate_prefix(STREAM, 2)
        publish_once(publisher, "second")
        cluster.wait_settled(STREAM)
        records = cluster.nodes[other].data_dir / "streams" / STREAM
        wait(lambda: '"log_start_offset":2' in (records / "manifest").read_text())
    cluster.stop(other)
    cluster.start(other)
    cluster.wait_isr(STREAM)
    assert cluster.command("cluster", "elect", STREAM, "--node", other).returncode == 0
    with RawNats(server.port) as publisher:
        until(lambda: publish_once(publisher, "third"), 30, "it is subscribed")
        assert publish_once(publisher, "first") == {**acked, "duplicate": True}


def publish_once(client: RawNats, message_id: str) -> dict[str, object]:
    """The answer; empty if none subscribes."""
    answer = client.request("s.x", b"1", headers=header_block({"Nats-Msg-Id": message_id}))
    return json.loads(answer.payload) if answer.payload else {}


def test_creating_again_and_deleting(cluster: Cluster, leader: str) -> None:
    with connect_sync(cluster.nodes["b"].pull_address) as client:
        client.create_stream(STREAM, "s.>", replicas=3)
        with pytest.raises(Conflict):
            client.create_stream(STREAM, "other.>", replicas=3)
        with pytest.raises(StreamNotFound):
            client.delete_stream("nothing")


def test_the_web_page_of_each_node(cluster: Cluster, leader: str) -> None:
    cluster.wait_isr(STREAM)
    for daemon in cluster.nodes.values():
        page = json.loads(daemon.get("/ui/cluster.json")[1])
        assert [(one["node"], one["state"]) for one in page["nodes"]] == [
            (name, "live") for name in NODES
        ]
        [row] = [one for one in page["streams"] if one["name"] == STREAM]
        assert (row["leader"], sorted(row["in_sync"]), row["state"]) == (
            leader,
            list(NODES),
            "in sync",
        )
        status, text = daemon.get("/ui/cluster")
        assert (status, f">{STREAM}</a>" in text) == (200, True)
        stream = json.loads(daemon.get(f"/ui/streams/{STREAM}.json")[1])
        assert stream["replication"]["leader"] == leader
        assert "Replication" in daemon.get(f"/ui/streams/{STREAM}")[1]


@pytest.mark.long
def test_a_follower_draws_what_it_copies(cluster: Cluster, leader: str, server: NatsServer) -> None:
    cluster.wait_isr(STREAM)
    follower = cluster.nodes[cluster.followers(STREAM)[0]]
    until(lambda: "records" in _series(follower))  # the page has begun to look
    publish(server, 20)
    until(lambda: max(_series(follower)["records"]) > 0)
    assert max(_series(follower)["received_bytes"]) > 0
    rate = json.loads(follower.get(f"/ui/streams/{STREAM}.json")[1])["history"]
    assert max(rate) > 0


def _series(daemon: Daemon) -> dict[str, list[float]]:
    page = json.loads(daemon.get(f"/ui/streams/{STREAM}/charts.json")[1])
    return {name: values for name, values in page["series"].items() if values}


def test_metrics_of_replicas(cluster: Cluster, leader: str) -> None:
    cluster.wait_isr(STREAM)

    def value(node: str, metric: str, more: str = "") -> str | None:
        _, page = cluster.nodes[node].get("/metrics")
        found = re.search(rf'^liftlog_{metric}{{stream="{STREAM}"{more}}} (\S+)$', page, re.M)
        return None if found is None else found[1]

    others = [name for name in NODES if name != leader]
    assert [value(leader, one) for one in ("leader", "isr_size", "under_replicated")] == [
        "1",
        "3",
        "0",
    ]
    assert value(leader, "stream_attached") == "1"
    for node in others:
        assert value(node, "leader") == "0"
        wait(lambda node=node: value(leader, "replica_lag", f',node="{node}"') == "0")  # type: ignore[misc]
        assert value(node, "isr_size") is value(node, "stream_attached") is None
        wait(lambda node=node: cluster.nodes[node].metric("liftlog_session_valid") == 1)  # type: ignore[misc]
        assert cluster.nodes[node].metric("liftlog_metadata_age_seconds") > 0
        wait(lambda node=node: cluster.nodes[node].get("/readyz")[0] == 200)  # type: ignore[misc]
    cluster.kill(*others)
    wait(lambda: value(leader, "under_min_isr") == "1")
    assert value(leader, "under_replicated") == "1"
    assert cluster.nodes[leader].metric("liftlog_isr_changes_total", stream=STREAM) > 0
    assert cluster.nodes[leader].metric("liftlog_metadata_cas_total", result="stored") > 0
    cluster.start(*others)
    cluster.wait_isr(STREAM)


async def test_a_checkpoint_over_nats_is_committed_by_one_node(
    cluster: Cluster, server: NatsServer, leader: str
) -> None:
    connection = await nats.connect(server.url)
    answers = await connection.subscribe("answers")
    await asyncio.to_thread(cluster.wait_isr, "_offsets")  # it does not move to more nodes now
    subject = f"liftlog.tests.offsets.{STREAM}.someone"
    await connection.publish(subject, b'{"offset": 1}', reply="answers")
    assert b"error" not in (await answers.next_msg(timeout=10)).data
    with pytest.raises(nats.errors.TimeoutError):
        await answers.next_msg(timeout=0.5)
    await connection.close()


# --- with an ACL ---

SECRETS = {name: f"the-secret-of-{name}-is-long-enough" for name in ("node", "reader")}
ACL_FILE = f"""
principals:
  node: {{token_hash: "{hash_token(SECRETS["node"])}"}}
  reader: {{token_hash: "{hash_token(SECRETS["reader"])}"}}
  anonymous: {{}}
roles:
  node: [{{allow: [replicate], streams: ["*", "_*"]}}]
  look: [{{allow: [read], streams: ["*"]}}]
bindings:
  node: [node]
  reader: [look]
  anonymous: [look]
"""


@pytest.mark.parametrize("who", ["node", "reader"])
def test_nodes_log_in_to_each_other(server: NatsServer, tmp_path: Path, who: str) -> None:
    """With a token that may only read, no follower is in sync, and the daemon says why."""
    (tmp_path / "acl.yaml").write_text(ACL_FILE)
    (tmp_path / "token").write_text(f"{who}.{SECRETS[who]}\n")
    with Cluster(
        server.url,
        {"t": {"subject": "t.>", "replicas": 3}},
        settings={"acl": {"file": str(tmp_path / "acl.yaml")}},
        cluster={"token_file": str(tmp_path / "token"), "lag_max": "1s", "session": "6s"},
    ) as cluster:
        leader = cluster.leader("t")
        if who == "node":
            with RawNats(server.port) as client:
                wait(lambda: client.request("t.x", b"1").payload)  # empty: no one subscribes yet
            cluster.wait_settled("t")
        else:
            wait(lambda: cluster.stream("t", through=leader).isr == [leader])
            followers = [cluster.nodes[name] for name in NODES if name != leader]
            for daemon in followers:
                wait(lambda daemon=daemon: "may not replicate" in daemon.log)  # type: ignore[misc]
