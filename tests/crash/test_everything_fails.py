"""NATS servers fail in turn, and nodes and servers fail at once: the servers are killed, and so are
the nodes, or their disks forget what was not synced. The metadata are in a bucket of the servers.

The servers' own files are on a disk that keeps everything: nats-server does not sync directories
that it makes, so a disk of our kind would forget the whole bucket.

How long it took until all streams were acked again is printed:
`make cluster-torture ARGS="-k everything"`. On a free machine that is below 15 s.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.clients.ingesting import until
from support.clients.replicated_load import NODE_SETTINGS, Load
from support.daemons.cluster import PATIENCE, Cluster
from support.daemons.nats_cluster import NatsCluster, wait_replicated
from support.daemons.nats_server import NatsServer
from support.disks.losefs import LoseFsHandle, Reboots, losefs
from support.rounds import chance_of, rounds

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(36000),
    # nats-py does not close a connection that a server ends before it has answered.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(not rounds(0), reason="a campaign: make cluster-torture"),
]

STORE = {"store": "nats", "session": "15s", "name": "everything"}
BUCKET = "KV_liftlog_everything"
NATS = {"jetstream": True, "sync_always": True}


@dataclass
class Site:
    """All that there is."""

    cluster: Cluster
    servers: NatsCluster
    load: Load
    chance: random.Random
    directory: Path
    disk: LoseFsHandle | None = None
    reboots: Reboots | None = None
    seconds: list[float] = field(default_factory=list)
    """Seconds of each round until all streams were acked again."""

    def start(self) -> None:
        """Start the servers first, as `how-to/cluster-faults` recommends."""
        began = time.monotonic()
        for server in self.servers.servers:
            server.start()
        self.cluster.start()
        self.load.wait_acked(1)
        self.seconds.append(time.monotonic() - began)
        self.cluster.wait_all_in_sync()
        self.load.wait_each_acked()


def kill_everything(site: Site) -> None:
    site.cluster.kill()
    for server in site.servers.servers:
        server.kill()
    site.start()


def cut_power(site: Site) -> None:
    disk, reboots = site.disk, site.reboots
    assert disk is not None
    assert reboots is not None
    disk.cut_after(site.chance.randint(1, 300))
    disk.wait_cut()
    seed = site.chance.randrange(1 << 30)
    disk.cut("none" if seed % 4 == 0 else "some", seed)
    site.cluster.kill()
    for server in site.servers.servers:
        server.kill()
    site.cluster.put_logs_aside(site.directory, str(len(site.seconds)))
    reboots.reboot()
    disk.mount()
    site.start()


def set_bucket_back(site: Site) -> None:
    """Start all servers with older files, as from a backup that was made before a node died and
    returned. The nodes store the changes that they have received again."""
    cluster, load, servers = site.cluster, site.load, site.servers.servers

    def with_files(change: Callable[[NatsServer, Path], None]) -> None:
        for server in servers:
            server.kill()
        for number, server in enumerate(servers):
            change(server, site.directory / f"backup-{number}")
        for server in servers:
            server.start()
        site.servers.wait_healthy()

    def back_up(server: NatsServer, to: Path) -> None:
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(server.directory / "jetstream", to)

    def restore(server: NatsServer, to: Path) -> None:
        shutil.rmtree(server.directory / "jetstream")
        shutil.copytree(to, server.directory / "jetstream")

    with_files(back_up)
    load.wait_acked(5)
    cluster.kill(cluster.leader(site.chance.choice(list(load.settings))))
    cluster.start()
    cluster.wait_all_in_sync()
    epochs = {name: epoch for name, (_, epoch) in leads(site).items()}
    began = time.monotonic()
    with_files(restore)
    for name, epoch in epochs.items():
        until(
            lambda name=name, epoch=epoch: cluster.stream(name).leader_epoch > epoch,  # type: ignore[misc]
            PATIENCE,
            f"{name} is restored",
        )
    load.wait_acked(1)
    site.seconds.append(time.monotonic() - began)
    cluster.wait_all_in_sync()
    load.wait_each_acked()


def kill_servers_in_turn(site: Site) -> None:
    """Leaders continue, because their followers receive their data, and they need no metadata."""
    before = leads(site)
    for server in site.servers.servers:
        wait_replicated(site.servers.servers, BUCKET)
        began = time.monotonic()
        server.kill()
        site.load.wait_each_acked()
        site.seconds.append(time.monotonic() - began)
        time.sleep(site.chance.choice([0, 1, 5, 12]))
        assert leads(site) == before
        server.start()
        site.load.wait_each_acked()
    assert leads(site) == before


def leads(site: Site) -> dict[str, tuple[str | None, int]]:
    found = {name: site.cluster.stream(name) for name in site.load.settings}
    return {name: (one.leader, one.leader_epoch) for name, one in found.items()}


@contextmanager
def site_on(directory: Path, chance: random.Random, *, lossy: bool) -> Iterator[Site]:
    """Yield a site on a disk that forgets unsynced data, or on the real disk."""
    if not lossy:
        with NatsCluster(3, directory / "servers", **NATS) as servers:
            load, urls = Load(servers.servers, "all"), [one.url for one in servers.servers]
            with Cluster(
                urls, load.settings, settings=NODE_SETTINGS, cluster=STORE, directory=directory
            ) as cluster:
                yield Site(cluster, servers, load, chance, directory)
        return
    with losefs(directory / "disk") as disk, NatsCluster(3, directory / "nats", **NATS) as servers:
        reboots = Reboots(directory)
        load, urls = Load(servers.servers, "all"), [one.url for one in servers.servers]
        with Cluster(
            urls,
            load.settings,
            settings=NODE_SETTINGS,
            cluster=STORE,
            directory=directory / "nodes",
            disks=dict.fromkeys("abc", disk.path),
            wrapper=reboots.wrapper,
            boot_id=reboots.boot_id,
        ) as cluster:
            yield Site(cluster, servers, load, chance, directory, disk, reboots)


FAULTS: dict[str, Callable[[Site], None]] = {
    "everything is killed": kill_everything,
    "power is cut and servers are killed": cut_power,
    "servers are killed in turn": kill_servers_in_turn,
    "the bucket is set back": set_bucket_back,
}


@pytest.mark.parametrize("name", FAULTS)
def test_everything_fails(name: str, tmp_path: Path) -> None:
    lossy = FAULTS[name] is cut_power
    with site_on(tmp_path, chance_of(name), lossy=lossy) as site:
        site.cluster.wait_all_in_sync()
        site.load.start(site.cluster)
        for number in range(1, rounds(0) + 1):
            site.load.wait_acked(site.chance.randint(10, 60))
            FAULTS[name](site)
            site.load.check(site.cluster, whole=number % 40 == 0, refused_may_be_stored=lossy)
            print(f"round {number}: acks after {site.seconds[-1]:.1f} s", flush=True)
        site.load.finish()
        site.load.check_all(site.cluster, refused_may_be_stored=lossy)
    found = sorted(site.seconds)
    p50, p99 = (found[int(share * (len(found) - 1))] for share in (0.5, 0.99))
    print(
        f"{rounds(0)} rounds: acks after p50 {p50:.1f}, p99 {p99:.1f}, most {found[-1]:.1f} s; "
        f"load {os.getloadavg()[0]:.1f}"
    )
