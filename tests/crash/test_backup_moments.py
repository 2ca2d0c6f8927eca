"""Backups of a cluster's nodes at random moments: under load, while leaders die and hand over, and
of nodes that were killed or stopped. If the exit code is 0, the backup has every message that was
acked before the command began. Otherwise the backup names the streams that may lack messages. The
restored cluster acks no offset of the backup again, and no node uses the store of another cluster.

`make identity-torture` runs many rounds.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from support.clients.ingesting import number_of, publish, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import NODES, PATIENCE, Cluster, RetryingPublisher
from support.daemons.nats_server import NatsServer
from support.rounds import chance_of, rounds

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.log import DataDir, LogConfig, LogEnvironment
from liftlog.log.environment import SystemClock
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.records import iter_batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

STREAMS: dict[str, dict[str, Any]] = {
    "three": {"subject": "three.>", "replicas": 3, "min_isr": 2},
    "alone": {"subject": "alone.>", "replicas": 1},
}
CALM = ("load", "hand over", "follower pauses")
"""Settings under which nothing prevents a complete backup."""
WEATHER = (*CALM, "leader dies", "node is killed", "node is stopped")


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


class Round:
    """One backup of one node."""

    def __init__(
        self,
        cluster: Cluster,
        publishers: dict[str, RetryingPublisher],
        place: Path,
        chance: random.Random,
        weather: str,
    ) -> None:
        self.cluster, self.publishers, self.place = cluster, publishers, place
        self.weather = weather
        self.leader = cluster.leader("three")
        others = [node for node in NODES if node != self.leader]
        self.node = chance.choice(others if weather == "leader dies" else NODES)
        self.other = chance.choice([one for one in others if one != self.node])
        self.has_alone = cluster.leader("alone") == self.node

    def run(self) -> None:
        self._begin()
        before = self._acked()
        process = self._create()
        if self.weather == "hand over":
            self.cluster.command("cluster", "elect", "three", "--node", self.other)
        output = process.communicate(timeout=120)[1]
        code = process.returncode
        self._end()
        about = f"{self.weather}, node {self.node}: {output}"
        wanted = (ExitCode.OK,) if self.weather in CALM else (ExitCode.OK, ExitCode.BEHIND)
        assert code in wanted, f"{code}, {about}"
        assert cluster_cli("backup", "verify", str(self.backup)).exit_code == ExitCode.OK, about
        lacking = self._lacking()
        assert bool(lacking) == (code == ExitCode.BEHIND), about
        if self.weather.startswith("node is"):
            assert "alone" not in lacking, "no other node can have acked for it"
        for stream, values in self._restored().items():
            self._compare(stream, values, before[stream], stream in lacking, about)

    @property
    def backup(self) -> Path:
        return self.place / "backup"

    def _begin(self) -> None:
        if self.weather == "follower pauses":
            self.cluster.pause(self.other)
        elif self.weather == "leader dies":
            self.cluster.kill(self.leader)
        elif self.weather == "node is killed":
            self.cluster.kill(self.node)
        elif self.weather == "node is stopped":
            self.cluster.stop(self.node)

    def _end(self) -> None:
        self.cluster.resume()
        self.cluster.start()

    def _create(self) -> subprocess.Popen[str]:
        from support.clients.command_line import COMMAND

        data_dir = str(self.cluster.nodes[self.node].data_dir)
        return subprocess.Popen(
            [*COMMAND, "backup", "create", data_dir, str(self.backup)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _acked(self) -> dict[str, dict[int, int]]:
        """Return the number of the message at each offset, by stream."""
        found = {}
        for stream, publisher in self.publishers.items():
            if publisher.error is not None:
                raise publisher.error
            found[stream] = {offset: number for number, offset in publisher.acked.copy().items()}
        return found

    def _lacking(self) -> set[str]:
        shown = json.loads(cluster_cli("backup", "info", str(self.backup), "-o", "json").stdout)
        return {one["name"] for one in shown["streams"] if one["may_lack"]}

    def _restored(self) -> dict[str, dict[int, int]]:
        """Return the number of the record at each offset, by stream."""
        target = self.place / "restored"
        done = cluster_cli("backup", "restore", str(self.backup), str(target))
        assert done.exit_code == ExitCode.OK, done.output
        names = [name for name in STREAMS if (target / "streams" / name).exists()]
        assert ("alone" in names) == self.has_alone
        directory = DataDir(target, LogEnvironment.create(OsFileSystem(), SystemClock()))
        directory.open()
        found, states = {}, {}
        for name in names:
            log, report = directory.open_log(name, LogConfig())
            assert report.clean, report.events
            rows = found[name] = {}
            offset = log.log_start_offset
            while (piece := log.read(offset, 1 << 20)) is not None:
                with piece:
                    for batch in iter_batches(piece.pread()):
                        numbers = [number_of(value) for value in batch.values()]
                        rows |= zip(batch.offsets(), numbers, strict=True)
                    offset = piece.next_offset
            states[name] = log.close()
        directory.close({name: state for name, state in states.items() if state is not None})
        shutil.rmtree(target)
        return found

    def _compare(
        self,
        stream: str,
        values: dict[int, int],
        before: dict[int, int],
        is_lacking: bool,
        about: str,
    ) -> None:
        assert sorted(values) == list(range(1, len(values) + 1)), about
        missing = before.keys() - values.keys()
        assert is_lacking or not missing, f"{stream} lacks {len(missing)} offsets: {about}"
        after = self._acked()[stream]
        for offset, number in values.items():
            assert after.get(offset, number) == number, f"{stream} at {offset}: {about}"


def cluster_cli(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_at_random_moments(server: NatsServer, tmp_path: Path) -> None:
    chance = chance_of("backups at random moments")
    count = rounds(2)
    with Cluster(server.url, STREAMS, cluster={"session": "6s"}) as cluster:
        for stream in STREAMS:
            cluster.wait_recorded(stream)
        cluster.wait_isr("three")
        publishers = {name: RetryingPublisher(server.port, f"{name}.x") for name in STREAMS}
        for publisher in publishers.values():
            publisher.start()
        try:
            for number in range(count):
                wanted = {name: len(one.acked) + 50 for name, one in publishers.items()}
                until(
                    lambda wanted=wanted: all(  # type: ignore[misc]
                        len(one.acked) >= wanted[name] for name, one in publishers.items()
                    ),
                    PATIENCE,
                )
                cluster.wait_isr("three")
                weather = WEATHER[number % len(WEATHER)] if count > 3 else chance.choice(WEATHER)
                place = tmp_path / f"{number}"
                Round(cluster, publishers, place, chance, weather).run()
                if number < count - 1:
                    shutil.rmtree(place)
            for publisher in publishers.values():
                publisher.finish()
        finally:
            for publisher in publishers.values():
                publisher.give_up()
        cluster.wait_settled("three")
        cluster.stop()
        cluster.assert_sound()
        _go_on_elsewhere(cluster, server, tmp_path / f"{count - 1}" / "backup", tmp_path)


def _go_on_elsewhere(old: Cluster, server: NatsServer, backup: Path, place: Path) -> None:
    """Make another cluster from the backup. No node of either cluster uses the store of the other
    cluster."""
    other = Cluster(server.url, cluster={"session": "6s"}, directory=place / "other")
    try:
        node = other.nodes["a"]
        assert cluster_cli("backup", "restore", str(backup), str(node.data_dir)).exit_code == 0
        adopted = cluster_cli("cluster", "init", "-c", written(other, "a"), "--adopt")
        assert adopted.exit_code == ExitCode.OK, adopted.output
        other.start("a")
        with RawNats(server.port) as raw, connect_sync(node.pull_address) as client:
            end = client.describe_stream("three").high_watermark
            until(lambda: client.describe_stream("three").state == "attached", PATIENCE)
            acked = [publish(raw, "three.x", b"%d" % number)["seq"] for number in range(5)]
            assert acked == [*range(end, end + 5)], "no offset of the backup is acked again"
        _refuse_each_other(old, other)
        other.stop("a")
        other.assert_sound()
    finally:
        other.end()


def _refuse_each_other(old: Cluster, other: Cluster) -> None:
    """Configure a node of the old cluster with the store of the other cluster, which is in use."""
    lost = old.nodes["b"]
    right = lost.settings["cluster"]["store"]
    lost.settings["cluster"]["store"] = other.nodes["a"].settings["cluster"]["store"]
    before = other.stored()
    lost.spawn()
    assert lost.wait(PATIENCE).exit_code == ExitCode.CONFIG
    assert "check cluster.store" in lost.log_tail(3)
    again = cluster_cli("cluster", "init", "-c", written(old, "b"), "--again")
    assert again.exit_code == ExitCode.CONFIG, again.output
    assert "nodes that do not belong to cluster" in again.stderr
    assert b'"cluster_id' in before
    lost.settings["cluster"]["store"] = right
    old.start("b")
    old.stop("b")


def written(cluster: Cluster, node: str) -> str:
    """Return the configuration of a node, even before it has run."""
    daemon = cluster.nodes[node]
    daemon.config_path.parent.mkdir(parents=True, exist_ok=True)
    daemon.config_path.write_text(yaml.safe_dump(daemon.settings, sort_keys=False))
    return str(daemon.config_path)
