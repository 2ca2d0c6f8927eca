"""Readers of a cluster. Rot on one node costs them a delay at most, since it is repaired from
another one; and they may read from followers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.clients.ingesting import publish, publish_until_acked, until
from support.clients.opened_client import router_of
from support.clients.raw_nats import RawNats
from support.clients.raw_pull import BlockingPull, frame
from support.daemons.cluster import NODES, Cluster
from support.daemons.nats_server import NatsServer
from support.daemons.ports import free_port
from support.disks.stored_logs import batch_positions, flip
from support.repository import REPOSITORY

from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.errors import NotLeader
from liftlog.protocol.messages import ANY_REPLICA, Fetch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STREAMS: dict[str, dict[str, Any]] = {
    "orders": {
        "subject": "orders",
        "replicas": 3,
        "segment": {"max_bytes": "16KiB"},
        "rebatch": {"enabled": False},
    }
}
RECORDS = 120
READER = REPOSITORY / "docs" / "examples" / "reader.js"
NODE_JS = shutil.which("node")
needs_node = pytest.mark.skipif(NODE_JS is None, reason="node is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, STREAMS) as cluster:
        cluster.wait_isr("orders")
        cluster.wait_recorded("orders")
        del EXPECTED[RECORDS:]  # tests of a module that are run in two parts get two clusters
        with RawNats(server.port, timeout=60) as raw:
            for number in range(RECORDS):
                publish(raw, "orders", b"%d" % number + bytes(700))
        cluster.wait_settled("orders")
        yield cluster
        cluster.assert_sound()


def values(cluster: Cluster, node: str, **options: Any) -> list[bytes | None]:
    """What a client of that node reads to the end."""
    with connect_sync(cluster.nodes[node].pull_address) as client:
        return [one.value for one in client.read("orders", until="end", **options)]


EXPECTED: list[bytes] = [b"%d" % number + bytes(700) for number in range(RECORDS)]


def sealed(cluster: Cluster, node: str) -> list[Path]:
    directory = cluster.nodes[node].data_dir / "streams" / "orders"
    return sorted(directory.glob("*.log"))[:-1]


def spoil(paths: Sequence[Path], inside: int) -> None:
    """A wrong byte in every other batch of these segments."""
    for path in paths:
        for position, _ in batch_positions(path)[::2]:
            flip(path, position + inside)


def quarantined(cluster: Cluster, node: str) -> int:
    return int(cluster.nodes[node].metric("liftlog_quarantined_ranges", stream="orders"))


def repaired(cluster: Cluster, node: str) -> int:
    return int(cluster.nodes[node].metric("liftlog_repaired_ranges_total", stream="orders"))


# --- rot ---


@pytest.mark.parametrize("inside", [9, 90], ids=["headers", "bodies"])
def test_rot_of_the_leader_is_repaired_while_a_reader_waits(cluster: Cluster, inside: int) -> None:
    leader = cluster.leader("orders")
    before = repaired(cluster, leader)
    damaged = sealed(cluster, leader)[:3]
    spoil(damaged, inside)
    assert values(cluster, leader) == EXPECTED
    assert not any(path.exists() for path in damaged)
    assert quarantined(cluster, leader) == 0
    assert repaired(cluster, leader) - before >= 3
    assert cluster.leader("orders") == leader


def test_a_reader_with_a_filter_waits_too(cluster: Cluster) -> None:
    leader = cluster.leader("orders")
    spoil(sealed(cluster, leader)[1:3], 90)
    assert values(cluster, leader, columns=["value"]) == EXPECTED


def test_rot_of_a_follower_is_repaired_when_its_copy_is_read(cluster: Cluster) -> None:
    node = cluster.followers("orders")[0]
    damaged = sealed(cluster, node)
    spoil(damaged, 90)
    assert values(cluster, node, replica=node) == EXPECTED
    assert not any(path.exists() for path in damaged)
    [readings, *others] = [one.records for one in cluster.read_all("orders")]
    assert others == [readings, readings]


# --- followers ---


def served(cluster: Cluster, node: str) -> float:
    """Records that clients have got of this node."""
    return cluster.nodes[node].metric("liftlog_pull_records_total")


def test_the_nearest_copy_in_sync_is_read(cluster: Cluster) -> None:
    leader, near = cluster.leader("orders"), cluster.followers("orders")[0]
    before = served(cluster, leader), served(cluster, near)
    assert values(cluster, near, prefer="nearest") == EXPECTED
    assert values(cluster, near, prefer="nearest", start="latest") == []
    assert values(cluster, near, prefer="nearest", start=100) == EXPECTED[99:]
    assert served(cluster, leader) == before[0]
    assert served(cluster, near) >= before[1] + RECORDS
    assert values(cluster, leader, prefer="nearest") == EXPECTED


def test_the_nearest_copy_has_what_was_acked_before(cluster: Cluster, raw: RawNats) -> None:
    near = cluster.followers("orders")[0]
    with connect_sync(cluster.nodes[near].pull_address) as client:
        for number in range(RECORDS, RECORDS + 20):
            offset = publish(raw, "orders", b"%d" % number + bytes(700))["seq"]
            [*_, last] = client.read("orders", start=offset, until="end", prefer="nearest")
            assert last.offset == offset
            EXPECTED.append(last.value or b"")


def test_a_copy_that_hangs_behind_sends_the_reader_to_the_leader(cluster: Cluster) -> None:
    """It would have to be waited for; it is no longer in sync when it is asked."""
    leader, near = cluster.leader("orders"), cluster.followers("orders")[0]
    end = len(EXPECTED) + 1
    with connect_sync(cluster.nodes[near].pull_address) as client:
        fetch = Fetch("orders", 1, replica=ANY_REPLICA, at_least=end + 1)
        exchange = router_of(client)._session_at(client.address).ask(fetch, 30)
        assert isinstance(exchange.error, NotLeader)
        assert exchange.error.details["address"] == cluster.nodes[leader].pull_address
    assert len(values(cluster, near, prefer="nearest")) == len(EXPECTED)


def test_the_command_reads_the_nearest_copy(cluster: Cluster) -> None:
    near = cluster.followers("orders")[1]
    before = served(cluster, near)
    environ = {"LIFTLOG_SERVER": cluster.nodes[near].pull_address}
    options = ["--until-end", "--prefer", "nearest", "--output", "jsonl"]
    done = CliRunner(env=environ).invoke(cli, ["consume", "orders", *options])
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == len(EXPECTED)
    assert served(cluster, near) >= before + len(EXPECTED)


# --- a reader in another language ---


@needs_node
def test_the_reader_in_javascript_finds_the_leader_and_follows_it(
    cluster: Cluster, raw: RawNats
) -> None:
    """It is given an address where no one listens, and one of a follower."""
    leader, follower = cluster.leader("orders"), cluster.followers("orders")[0]
    nowhere, near = free_port(), cluster.nodes[follower].pull_address
    command = [str(NODE_JS), str(READER), "orders", "--server"]
    done = subprocess.run([*command, near], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(EXPECTED)

    addresses = f"tcp://127.0.0.1:{nowhere},{near}"
    count = len(EXPECTED) + 3
    reading = subprocess.Popen(
        [*command, addresses, "--follow", "--count", str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reading.stdout is not None
    assert reading.stderr is not None
    try:
        first = reading.stdout.readline()  # it is on its way, from the leader
        cluster.stop(leader)
        for number in range(3):
            publish_until_acked(raw, "orders", b"%d" % number, f"js-{number}")
            EXPECTED.append(b"%d" % number)
        # `communicate` would lose what is in the buffer behind the first line.
        out, complaints = reading.stdout.read(), reading.stderr.read()
        exit_code = reading.wait(120)
    finally:
        reading.kill()
        reading.stdout.close()
        reading.stderr.close()
        cluster.start()
    assert (exit_code, complaints) == (0, "")
    offsets = [int(json.loads(line)["offset"]) for line in [first, *out.splitlines()]]
    assert offsets == list(range(1, count + 1))
    cluster.wait_isr("orders")


@pytest.mark.parametrize(
    ("read", "answer"), [({"e": 99}, "DIVERGED"), ({"x": "other"}, "STALE_INCARNATION")]
)
def test_a_reader_who_has_read_of_a_leader_unknown_here_is_not_told_that_its_records_are_gone(
    cluster: Cluster, read: dict[str, Any], answer: str
) -> None:
    """Before the metadata store has said that there is no such epoch, or no such stream."""
    with BlockingPull(cluster.nodes[cluster.leader("orders")].pull_port) as pull:
        said = []
        while not said or said[-1] != answer:
            pull.send(frame({"k": "fetch", "i": 1, "s": "orders", "o": 1, **read}))
            said.append(pull.receive()["n"])
    assert {*said} == {"NOT_LEADER", answer}
    assert said[0] == "NOT_LEADER"


def test_what_is_damaged_everywhere_is_told_as_lost(cluster: Cluster) -> None:
    """A node that has the offsets is asked for them; here none has."""
    _, header = batch_positions(sealed(cluster, NODES[0])[-1])[0]
    for node in NODES:
        for path in sealed(cluster, node):
            for at, found in batch_positions(path):
                if found.base_offset == header.base_offset:
                    flip(path, at + 90)
    lost: list[tuple[int, int]] = []
    with connect_sync(cluster.nodes[cluster.leader("orders")].pull_address) as client:
        read = client.read(
            "orders",
            until="end",
            on_corrupt=lambda damage: lost.append((damage.first_offset, damage.next_offset)),
        )
        found = [record.offset for record in read]
    assert lost == [(header.base_offset, header.next_offset)]
    assert len(found) == len(EXPECTED) - (header.next_offset - header.base_offset)
    until(lambda: quarantined(cluster, cluster.leader("orders")) == 1)
