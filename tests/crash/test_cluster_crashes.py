"""Nodes of a cluster that are killed, cut off, set back, wiped and damaged, under load."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import NODES, PATIENCE, Cluster, TimedPublisher, assert_kept
from support.ingesting import until
from support.losefs import Reboots, losefs
from support.nats_server import NatsServer
from support.rounds import rounds
from support.stored_logs import batch_positions, flip

from liftlog.client import connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

STREAM = "in"
SETTINGS = {
    "log": {"recovery_checkpoint_interval": "100ms", "retention_interval": "100ms"},
    "cleaner": {"interval": "100ms"},
    "nats": {"reconnect_wait": "50ms"},
}
QUICK = {"session": "3s", "lag_max": "2s"}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


class Load:
    """Some publishers on the one stream, and a comparison of all copies with what they know."""

    def __init__(self, port: int, prefix: str) -> None:
        self.publishers = [
            TimedPublisher(port, f"{prefix}.{number}", in_flight=40, pad=100) for number in range(2)
        ]
        self.settings: dict[str, dict[str, Any]] = {
            STREAM: {
                "subject": f"{prefix}.>",
                "replicas": 3,
                "min_isr": 2,
                "segment": {"max_bytes": "64KiB"},
                "rebatch": {"min_age": "0s"},
            }
        }

    def start(self) -> None:
        for publisher in self.publishers:
            publisher.start()

    def finish(self) -> None:
        for publisher in self.publishers:
            publisher.finish()

    def ease(self, easy: bool) -> None:
        """What is published is read in all rounds that follow."""
        for publisher in self.publishers:
            publisher.easy = easy

    @property
    def acked(self) -> int:
        return sum(len(publisher.acked) for publisher in self.publishers)

    def wait_acked(self, more: int) -> None:
        wanted = self.acked + more
        until(lambda: self.acked >= wanted, PATIENCE, f"{more} more acks")

    def check(self, cluster: Cluster, nodes: tuple[str, ...] = NODES, **more: bool) -> None:
        """What each of these nodes can give now, also of copies that still follow."""
        assert_kept(self.publishers, [cluster.read(STREAM, name) for name in nodes], **more)

    def check_all(self, cluster: Cluster, **more: bool) -> None:
        """When no one publishes any more."""
        assert_kept(self.publishers, cluster.read_all(STREAM), **more)
        cluster.assert_sound()


def running(server: NatsServer, load: Load, **more: Any) -> Cluster:
    return Cluster(server.url, load.settings, settings=SETTINGS, cluster=QUICK, **more)


def test_followers_are_killed(server: NatsServer) -> None:
    """One or both, in any order; acks wait, or are refused, and come back by themselves."""
    chance = random.Random("followers")
    load = Load(server.port, "followers")
    with running(server, load) as cluster:
        cluster.wait_isr(STREAM)
        leader, followers = cluster.leader(STREAM), cluster.followers(STREAM)
        load.start()
        for _ in range(rounds(2)):
            load.wait_acked(chance.randint(100, 1000))
            gone = chance.sample(followers, chance.choice([1, 1, 2]))
            cluster.kill(*gone)
            if len(gone) == 1 and chance.random() < 0.5:
                load.wait_acked(50)  # without it
            load.ease(True)
            cluster.start(*gone)
            cluster.wait_isr(STREAM)
            load.check(cluster)
            load.ease(False)
        assert cluster.leader(STREAM) == leader
        load.finish()
        load.check_all(cluster)


def test_the_leader_is_killed_and_comes_back(server: NatsServer) -> None:
    """What it had acked is there, with any leader."""
    chance = random.Random("leader")
    load = Load(server.port, "leader")
    with running(server, load) as cluster:
        cluster.wait_isr(STREAM)
        load.start()
        for _ in range(rounds(2)):
            load.wait_acked(chance.randint(100, 1000))
            load.ease(True)
            gone = cluster.leader(STREAM)
            cluster.kill(gone)
            cluster.start(gone)
            cluster.wait_isr(STREAM)
            load.wait_acked(1)
            load.check(cluster)
            load.ease(False)
        load.finish()
        load.check_all(cluster)


def test_all_nodes_are_killed_at_once(server: NatsServer) -> None:
    chance = random.Random("all")
    load = Load(server.port, "all")
    with running(server, load) as cluster:
        cluster.wait_isr(STREAM)
        load.start()
        for _ in range(rounds(2)):
            load.wait_acked(chance.randint(100, 1000))
            load.ease(True)
            cluster.kill()
            cluster.start()
            cluster.wait_isr(STREAM)
            load.wait_acked(1)
            load.check(cluster)
            load.ease(False)
        load.finish()
        load.check_all(cluster)


def test_power_of_all_nodes_is_cut_at_once(server: NatsServer, tmp_path: Path) -> None:
    """The machine that they share forgets what was not synced, on each of their disks."""
    chance = random.Random("power")
    load = Load(server.port, "power")
    with losefs(tmp_path / "disk") as disk:
        reboots = Reboots(tmp_path)
        disks = dict.fromkeys(NODES, disk.path)
        place = {"directory": tmp_path / "nodes", "disks": disks, "store": disk.path / "meta"}
        with running(server, load, **place, wrapper=reboots.wrapper) as cluster:
            cluster.wait_isr(STREAM)
            load.start()
            for number in range(rounds(2)):
                load.wait_acked(chance.randint(100, 1000))
                load.ease(True)
                disk.cut_after(chance.randint(1, 100))
                disk.wait_cut()
                seed = chance.randrange(1 << 30)
                disk.cut("none" if seed % 4 == 0 else "some", seed)
                cluster.kill()
                for name, daemon in cluster.nodes.items():
                    # No one hears what is logged without power; kept for debugging.
                    daemon.log_path.rename(tmp_path / f"{name}.{number}.log")
                reboots.reboot()
                disk.mount()
                cluster.start()
                cluster.wait_isr(STREAM)
                load.wait_acked(1)
                load.check(cluster, refused_may_be_stored=True)
                load.ease(False)
            load.finish()
            load.check_all(cluster, refused_may_be_stored=True)


def test_a_follower_is_stopped_for_longer_than_it_may_lag(server: NatsServer) -> None:
    chance = random.Random("stopped")
    load = Load(server.port, "stopped")
    with running(server, load) as cluster:
        cluster.wait_isr(STREAM)
        load.start()
        for _ in range(rounds(2)):
            load.wait_acked(chance.randint(100, 500))
            gone = chance.choice(cluster.followers(STREAM))
            cluster.pause(gone)
            cluster.wait_isr(STREAM, set(NODES) - {gone})
            load.wait_acked(500)
            load.ease(True)
            cluster.resume(gone)
            cluster.wait_isr(STREAM)
            load.check(cluster)
            load.ease(False)
        load.finish()
        load.check_all(cluster)


def test_a_wiped_follower_fetches_everything_again(server: NatsServer) -> None:
    load = Load(server.port, "wiped")
    with running(server, load) as cluster:
        cluster.wait_isr(STREAM)
        load.start()
        load.wait_acked(2000)
        gone = cluster.followers(STREAM)[0]
        cluster.kill(gone)
        cluster.wipe(gone)
        load.wait_acked(200)
        cluster.start(gone)
        cluster.wait_isr(STREAM)
        load.wait_acked(200)
        load.finish()
        load.check_all(cluster)


def test_a_follower_that_was_set_back_does_not_count(server: NatsServer, tmp_path: Path) -> None:
    """Its directory is a copy of some time ago: what it confirmed since is not there. The other
    follower goes before it could catch up, so an ack of the two that are left would be a lie."""
    load = Load(server.port, "back")
    with running(server, load) as cluster:
        cluster.wait_isr(STREAM)
        back, gone = cluster.followers(STREAM)
        load.start()
        load.wait_acked(1000)
        cluster.kill(back)
        data = cluster.nodes[back].data_dir
        shutil.copytree(data, tmp_path / "copy")
        cluster.start(back)
        cluster.wait_isr(STREAM)
        load.wait_acked(2000)
        cluster.kill(back, gone)
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "copy", data)
        cluster.start(back)
        cluster.wait_isr(STREAM, {cluster.leader(STREAM), back})
        load.ease(True)
        load.wait_acked(10)
        cluster.start(gone)
        cluster.wait_isr(STREAM)
        load.finish()
        load.check_all(cluster)


@pytest.mark.parametrize("where", [9, 90])
def test_rot_on_a_follower_hides_at_most_its_batch_there(where: int, server: NatsServer) -> None:
    """The others have it, and acks go on. No reader gets anything wrong anywhere."""
    load = Load(server.port, f"rot{where}")
    del load.settings[STREAM]["rebatch"]  # which leaves files that do not count yet
    with running(server, load) as cluster:
        cluster.wait_isr(STREAM)
        gone = cluster.followers(STREAM)[0]
        load.start()
        load.wait_acked(3000)
        cluster.kill(gone)
        segments = sorted((cluster.nodes[gone].data_dir / "streams" / STREAM).glob("*.log"))
        assert len(segments) > 2
        batches = batch_positions(segments[0])
        position, header = batches[len(batches) // 2]
        flip(segments[0], position + where)
        cluster.start(gone)
        load.wait_acked(500)
        cluster.wait_isr(STREAM)
        load.finish()
        for reading in cluster.read_all(STREAM):
            if reading.reader != gone:
                assert not reading.damaged
            else:
                assert all(
                    first >= header.base_offset and following <= header.next_offset
                    for first, following in reading.damaged
                ), reading.damaged
        load.check_all(cluster)


FAULTS = {
    "a write fails": ("write", errno.EIO, 3),
    "no space": ("write", errno.ENOSPC, 20),
    "an fsync fails": ("fsync", errno.EIO, 1),
    "no segment can be created": ("create", errno.EMFILE, 3),
}


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_the_disk_of_a_node_fails(role: str, server: NatsServer, tmp_path: Path) -> None:
    """It may leave and come back; no ack was a lie, and acks go on by themselves."""
    load = Load(server.port, f"disk-{role}")
    with losefs(tmp_path / "disk") as disk:
        settings = load.settings.pop(STREAM)
        with running(server, load, disks={"b": disk.path}) as cluster:
            # The node that is asked for a stream leads it, as long as all have as many.
            through = cluster.nodes["b" if role == "leader" else "a"]
            with connect_sync(through.pull_address) as client:
                client.create_stream(STREAM, **settings)
            cluster.wait_isr(STREAM)
            assert (cluster.leader(STREAM) == "b") == (role == "leader")
            load.start()
            for name, (operation, error, times) in FAULTS.items():
                load.wait_acked(100)
                disk.fail(operation, path=".log", error=error, times=times)
                until(lambda: disk.status["hits"], PATIENCE, name)
                disk.heal()
                load.wait_acked(300)
                cluster.wait_isr(STREAM)
                load.ease(True)
                load.check(cluster)
                load.ease(False)
            assert disk.status["retried"] == 0, "a file whose fsync failed was synced again"
            load.finish()
            load.check_all(cluster)
            cluster.stop()
