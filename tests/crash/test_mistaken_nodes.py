"""Operators confuse data directories or nodes, under load.

A second daemon with a node's name, copied directories, empty ones where a mount was forgotten,
swapped ones: at random moments, on a cluster of one node and of three. No offset is acked for two
messages, no acked message is lost, and each refusal names the next command. `make identity-torture`
runs any number of rounds.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.clients.ingesting import until
from support.daemons.cluster import PATIENCE, Cluster, RetryingPublisher, assert_kept
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.twins import twin_of
from support.rounds import chance_of, is_torture, rounds

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(36000)]

SESSION_SECONDS = 3
SETTINGS = {"nats": {"reconnect_wait": "50ms"}}


class OneNode(Cluster):
    """Only node a."""

    def start(self, *names: str) -> None:
        super().start(*(names or ("a",)))


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@dataclass
class Campaign:
    cluster: Cluster
    streams: list[str]
    chance: random.Random
    directory: Path
    publishers: list[RetryingPublisher]
    number: int = 0
    twins: list[Daemon] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        return self.cluster.up()

    def some_node(self) -> str:
        return self.chance.choice(self.nodes)

    def data_dir(self, node: str) -> Path:
        return self.cluster.nodes[node].data_dir

    def aside(self, name: str) -> Path:
        return self.directory / f"{self.number}-{name}"

    def twin(self, node: str, *, copied: bool) -> Daemon:
        twin = twin_of(self.cluster, node, self.aside("twin"))
        if copied:
            copy(self.data_dir(node), twin.data_dir)
        self.twins.append(twin)
        return twin

    def wait_acked(self, more: int = 5) -> None:
        """Wait for acks of every stream, so that each has a leader that records."""
        wanted = {one: len(one.acked) + more for one in self.publishers}
        until(
            lambda: all(len(one.acked) >= wanted[one] for one in self.publishers),
            PATIENCE,
            f"{more} more acks of each",
        )

    def is_given_up(self, stream: str) -> bool:
        """No node leads it, and none has a copy that is known to be complete."""
        found = self.cluster.stream(stream)
        return found.leader is None and not found.has_whole_copy

    def elect(self, node: str) -> None:
        """Let an operator declare that the directory of `node` is the right one again, for streams
        without another replica."""
        with connect_sync(self.cluster.nodes[node].pull_address) as client:
            streams = client.cluster().replicated
        for one in streams:
            if one.replicas == [node] and one.leader is None:
                words = ("cluster", "elect", one.name, "--node", node, "--lost", node, "--yes")
                done = self.cluster.command(*words, through=node)
                assert done.returncode == ExitCode.OK, done.stderr

    def check(self) -> None:
        """Check that no offset was acked for two messages, by any process and directory."""
        for one in self.publishers:
            assert one.error is None, one.error
            acked = one.acked.copy()
            taken: dict[int, int] = {}
            for number, offset in acked.items():
                other = taken.setdefault(offset, number)
                assert other == number, f"{one.subject}: {offset} is acked for {other}, {number}"


def copy(source: Path, target: Path) -> None:
    """Copy as `cp -a` does while a daemon writes: files come and go meanwhile."""

    def one_file(name: str, to: str) -> None:
        try:
            shutil.copy2(name, to)
        except FileNotFoundError:
            return

    shutil.copytree(source, target, copy_function=one_file)


def refused(twin: Daemon, *words: str) -> None:
    assert twin.wait(PATIENCE).exit_code == ExitCode.CONFIG, twin.log_tail()
    for one in words:
        assert one in twin.log, twin.log_tail()


# --- mistakes ---------------------------------------------------------------------------


def a_second_daemon(campaign: Campaign) -> None:
    """It has the name of a running node, and an empty or a copied directory."""
    node = campaign.some_node()
    twin = campaign.twin(node, copied=campaign.chance.random() < 0.5)
    twin.spawn()
    pid = campaign.cluster.nodes[node].pid
    refused(twin, f"node {node} runs already: process {pid} on", "stop the running daemon first")
    campaign.wait_acked()


def a_daemon_for_one_that_hangs(campaign: Campaign) -> None:
    """The first daemon continues, finds the other in its place, and starts again when the other has
    ended."""
    node = campaign.some_node()
    first, twin = campaign.cluster.nodes[node], None
    before = first.log.count('"event": "listening"')
    copied = campaign.chance.random() < 0.5
    twin = campaign.twin(node, copied=copied)
    campaign.cluster.pause(node)
    try:
        twin.spawn()
        twin.wait_listening(PATIENCE)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    until(lambda: "node-displaced" in first.log, PATIENCE, "the first notices")
    time.sleep(campaign.chance.random())
    campaign.check()
    twin.stop()
    until(lambda: first.log.count('"event": "listening"') > before, PATIENCE, "the first is back")
    campaign.cluster.resume(node)
    first.wait_listening()
    campaign.elect(node)


def a_mount_is_forgotten(campaign: Campaign) -> None:
    """The mount of the whole directory is forgotten, or that of the streams in it."""
    node = campaign.some_node()
    cluster, part = campaign.cluster, campaign.data_dir(node)
    if campaign.chance.random() < 0.5:
        part = part / "streams"
    start_without(campaign, node, part, None)
    cluster.start(node)
    campaign.elect(node)


def an_older_copy_is_used(campaign: Campaign) -> None:
    """The copy was made while the daemon ran, and messages were acked after that."""
    node = campaign.some_node()
    old = campaign.aside("old")
    copy(campaign.data_dir(node), old)
    campaign.wait_acked()
    start_without(campaign, node, campaign.data_dir(node), old)
    campaign.cluster.start(node)
    campaign.elect(node)


def start_without(campaign: Campaign, node: str, part: Path, instead: Path | None) -> None:
    """Kill the node, and start it for a while without a part of its directory."""
    cluster = campaign.cluster
    only_here = [one for one in campaign.streams if cluster.stream(one).replicas == [node]]
    cluster.kill(node)
    part.rename(campaign.aside("right"))
    if instead is not None:
        instead.rename(part)
    cluster.nodes[node].spawn()
    cluster.nodes[node].wait_listening(PATIENCE)
    for stream in only_here:
        until(
            lambda stream=stream: campaign.is_given_up(stream),  # type: ignore[misc]
            PATIENCE,
            f"{stream} has no leader",
        )
    told = cluster.command("cluster", "status", through=node)
    assert not only_here or "liftlog cluster elect" in told.stderr, told.stderr
    time.sleep(campaign.chance.random())
    cluster.kill(node)
    shutil.rmtree(part)
    campaign.aside("right").rename(part)


def directories_are_swapped(campaign: Campaign) -> None:
    """Each node refuses the directory of the other."""
    cluster, chance = campaign.cluster, campaign.chance
    if len(campaign.nodes) < 2:
        return a_second_daemon(campaign)
    one, other = chance.sample(campaign.nodes, 2)
    for node in (one, other):
        if chance.random() < 0.5:
            cluster.kill(node)
        else:
            cluster.stop(node)
    swap(campaign, one, other)
    for node, owner in ((one, other), (other, one)):
        cluster.nodes[node].spawn()
        refused(
            cluster.nodes[node],
            f"the data directory belongs to node {owner}",
            "give each node its own data_dir",
        )
    swap(campaign, one, other)
    cluster.start(one, other)
    return None


def the_cluster_is_left_out(campaign: Campaign) -> None:
    """The settings lack the cluster. A single daemon must not serve replicas."""
    node = campaign.some_node()
    cluster, daemon = campaign.cluster, campaign.cluster.nodes[node]
    cluster.kill(node)
    whole = dict(daemon.settings)
    del daemon.settings["cluster"], daemon.settings["streams"]  # it serves what it finds
    daemon.spawn()
    refused(
        daemon, f"belongs to node {node} of a cluster", "start the daemon with the section cluster"
    )
    daemon.settings = whole
    cluster.start(node)


def the_store_of_another_cluster(campaign: Campaign) -> None:
    """The settings of a node name the metadata store of another cluster, or a new one."""
    node = campaign.some_node()
    cluster, daemon = campaign.cluster, campaign.cluster.nodes[node]
    whole = dict(daemon.settings)
    place = {**whole["cluster"], "store": campaign.aside("store").as_uri()}
    is_new = campaign.chance.random() < 0.5
    if not is_new:
        other = twin_of(cluster, node, campaign.aside("other"))
        other.settings.update(streams={}, cluster={**place, "name": "elsewhere"})
        campaign.twins.append(other)
        other.start(timeout=PATIENCE)
        other.stop()
    cluster.kill(node)
    daemon.settings = {**whole, "cluster": place}
    daemon.spawn()
    refused(daemon, "cluster init -c FILE --again" if is_new else "check cluster.store")
    daemon.settings = whole
    cluster.start(node)


def swap(campaign: Campaign, one: str, other: str) -> None:
    between = campaign.aside("between")
    campaign.data_dir(one).rename(between)
    campaign.data_dir(other).rename(campaign.data_dir(one))
    between.rename(campaign.data_dir(other))


MISTAKES: list[Callable[[Campaign], None]] = [
    a_second_daemon,
    a_mount_is_forgotten,
    an_older_copy_is_used,
    directories_are_swapped,
    the_cluster_is_left_out,
    the_store_of_another_cluster,
    a_daemon_for_one_that_hangs,
]


@pytest.mark.parametrize("count", [1, 3])
def test_no_mistake_costs_an_ack(server: NatsServer, tmp_path: Path, count: int) -> None:
    """In `make test` each mistake occurs once or twice; with TORTURE_ROUNDS they occur in any
    order."""
    chance = chance_of(f"mistakes on {count}")
    streams = {f"one{count}": 1} if count == 1 else {"one3": 1, "all3": 3}
    settings = {
        name: {"subject": f"{name}.>", "replicas": replicas} for name, replicas in streams.items()
    }
    kind = OneNode if count == 1 else Cluster
    more = {"session": f"{SESSION_SECONDS}s", "name": f"mistakes-{count}"}
    with kind(server.url, settings, settings=SETTINGS, cluster=more) as cluster:
        for name in [*streams, "_offsets"]:
            nodes = list(cluster.nodes)[:count] if name not in ("one3",) else [cluster.leader(name)]
            cluster.wait_isr(name, nodes)
        publishers = [RetryingPublisher(server.port, f"{name}.x", rate=300.0) for name in streams]
        campaign = Campaign(cluster, list(streams), chance, tmp_path, publishers)
        for publisher in publishers:
            publisher.start()
        try:
            for mistake in chosen(chance, count):
                campaign.number += 1
                campaign.wait_acked()
                time.sleep(chance.random() / 2)
                print(f"{campaign.number}: {mistake.__name__}", flush=True)
                mistake(campaign)
                campaign.wait_acked()
                if count == 3:
                    cluster.wait_isr("all3")
                campaign.check()
        except BaseException:
            for publisher in publishers:
                publisher.give_up()
            raise
        finally:
            for twin in campaign.twins:
                if twin.running:
                    twin.kill()
        for publisher in publishers:
            publisher.finish()
        campaign.check()
        for publisher, (name, replicas) in zip(publishers, streams.items(), strict=True):
            nodes = list(cluster.nodes) if replicas == 3 else [cluster.leader(name)]
            assert_kept([publisher], cluster.read_all(name, nodes))
        cluster.assert_sound()
        acked = sum(len(one.acked) for one in publishers)
        print(f"{campaign.number} mistakes on {count} nodes, {acked} acked")


def chosen(chance: random.Random, count: int) -> list[Callable[[Campaign], None]]:
    """Return each mistake once in `make test`, for one of the two clusters; otherwise choose at
    random."""
    if is_torture():
        return [chance.choice(MISTAKES) for _ in range(rounds(0))]
    return MISTAKES[:3] if count == 1 else MISTAKES[3:]
