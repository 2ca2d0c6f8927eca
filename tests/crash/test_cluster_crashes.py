"""Nodes of a cluster that are killed, stopped, set back, wiped and damaged, under load.

One cluster lives through all rounds, since a daemon takes most of a second to start. `make test`
has a round of each fault; `make cluster-torture` has many of each, and many of any.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.clients.ingesting import until
from support.clients.replicated_load import NODE_SETTINGS, STREAMS, Load
from support.daemons.cluster import NODES, PATIENCE, Cluster
from support.daemons.nats_server import NatsServer
from support.daemons.shifted_clock import ShiftedClock
from support.disks.losefs import LoseFsHandle, Reboots, losefs
from support.disks.stored_logs import batch_positions, flip
from support.rounds import chance_of, is_torture, modes, one_in, rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

QUICK = {"lag_max": "2s"}
QUICK_BOOT = {**QUICK, "session": "5s"}
"""A machine that has booted waits for the session of its node, since it may be a copy of it."""
_ROTTEN_BATCHES = 100
_ROT_TRIES = 10
WHOLE_FIRST = 20
"""Number of rounds after which every copy is read from its beginning. It doubles each time, because
the copies grow."""
ANY = "any fault"
EACH = "each fault once"
"""In `make test` only every second one runs."""
FEW = ("plain", "keyed", "leader")


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@dataclass
class Campaign:
    """One cluster, its load, and the random choices of the faults."""

    cluster: Cluster
    load: Load
    chance: random.Random
    directory: Path
    disk: LoseFsHandle | None = None
    reboots: Reboots | None = None
    clocks: Mapping[str, ShiftedClock] = field(default_factory=dict)
    rounds: int = 0

    def any_stream(self) -> str:
        return self.chance.choice(list(self.load.settings))

    def load_for_a_while(self) -> None:
        self.load.wait_acked(self.chance.randint(10, 80))

    def start(self, *nodes: str) -> None:
        """Start all stopped nodes, or these. On return everything is in sync, and acks arrive."""
        self.cluster.start(*nodes)
        self.cluster.wait_all_in_sync()
        self.load.wait_acked(1)


Fault = Callable[[Campaign], None]


def is_whole(number: int) -> bool:
    """Return True if every copy is read from its beginning after this round."""
    times, rest = divmod(number, WHOLE_FIRST)
    return rest == 0 and times.bit_count() == 1


def run(campaign: Campaign, faults: dict[str, Fault], name: str) -> None:
    cluster, load = campaign.cluster, campaign.load
    cluster.wait_all_in_sync()
    load.start(cluster)
    chosen = list(faults)
    if name == ANY:
        chosen = campaign.chance.choices(chosen, k=rounds(1))
    elif name == EACH:
        chosen = list(one_in(2, chosen, name))
    else:
        chosen = [name] * rounds(1)
    lenient = campaign.disk is not None
    for number, fault in enumerate(chosen, 1):
        began = time.monotonic()
        campaign.rounds = number
        campaign.load_for_a_while()
        try:
            faults[fault](campaign)
            load.check(cluster, whole=is_whole(number), refused_may_be_stored=lenient)
        except BaseException:
            print(f"round {number}: {fault}", flush=True)
            raise
        print(f"round {number}: {fault}, {time.monotonic() - began:.1f} s", flush=True)
    load.finish()
    load.check_all(cluster, refused_may_be_stored=lenient)


# --- nodes ----------------------------------------------------------------------------


def followers_are_killed(campaign: Campaign) -> None:
    """Kill one or both followers of a stream. Its acks wait or are refused, and then continue
    without help. No other node leads, unless the leader hands over."""
    cluster, chance, stream = campaign.cluster, campaign.chance, campaign.any_stream()
    leader, epoch = cluster.leader(stream), cluster.stream(stream).leader_epoch
    logged = cluster.nodes[leader].log_path.stat().st_size
    gone = chance.sample(cluster.followers(stream), chance.choice([1, 1, 2]))
    cluster.kill(*gone)
    if len(gone) == 1 and chance.random() < 0.5:
        campaign.load.wait_acked(20, [stream])  # without it
    campaign.start()
    found = cluster.stream(stream)
    if (found.leader, found.leader_epoch) != (leader, epoch):
        log = cluster.nodes[leader].log_path.read_bytes()[logged:].decode()
        assert f'"event": "handed-over", "stream": "{stream}"' in log, found


def the_leader_is_killed(campaign: Campaign) -> None:
    """Its acked messages exist with every leader."""
    campaign.cluster.kill(campaign.cluster.leader(campaign.any_stream()))
    campaign.start()


def all_nodes_are_killed(campaign: Campaign) -> None:
    campaign.cluster.kill()
    campaign.start()


def a_node_is_stopped_in_good_order(campaign: Campaign) -> None:
    """Another node leads the streams of the stopped node."""
    gone = campaign.chance.choice(NODES)
    campaign.cluster.stop(gone)
    campaign.load.wait_acked(5)
    campaign.start()


def a_follower_hangs(campaign: Campaign) -> None:
    """It hangs for longer than it may lag. It leaves the in-sync set, acks continue, and it
    returns."""
    cluster, stream = campaign.cluster, campaign.any_stream()
    gone = campaign.chance.choice(cluster.followers(stream))
    led = [one for one in campaign.load.settings if cluster.stream(one).leader != gone]
    cluster.pause(gone)
    for one in led:
        cluster.wait_isr(one, set(NODES) - {gone})
    campaign.load.wait_acked(20, led)
    cluster.resume(gone)
    campaign.start()


def the_leader_hangs(campaign: Campaign) -> None:
    """It hangs for longer than its session. Another node leads, and the old leader follows when it
    continues."""
    cluster, stream = campaign.cluster, campaign.any_stream()
    gone = cluster.leader(stream)
    cluster.pause(gone)
    assert cluster.leader(stream) != gone
    campaign.load.wait_acked(5)
    cluster.resume(gone)
    campaign.start()


def a_node_comes_back_empty(campaign: Campaign) -> None:
    """It fetches everything again. Another node leads the streams that it led."""
    cluster, gone = campaign.cluster, campaign.chance.choice(NODES)
    others = [one for one in campaign.load.settings if cluster.stream(one).leader != gone]
    cluster.kill(gone)
    cluster.wipe(gone)
    campaign.load.wait_acked(20, others)
    campaign.start()


def a_follower_is_set_back(campaign: Campaign) -> None:
    """Its directory is an older copy, so the records that it confirmed later are missing. The other
    follower stops before it could catch up, so an ack of the two remaining nodes would be false."""
    cluster, stream = campaign.cluster, campaign.any_stream()
    leader = cluster.leader(stream)
    back, gone = campaign.chance.sample(cluster.followers(stream), 2)
    cluster.kill(back)
    data, copy = cluster.nodes[back].data_dir, campaign.directory / "copy"
    shutil.copytree(data, copy)
    campaign.start(back)
    campaign.load.wait_acked(50)
    cluster.kill(back, gone)
    shutil.rmtree(data)
    copy.rename(data)
    cluster.start(back)
    cluster.wait_isr(stream, {leader, back})
    campaign.load.wait_acked(5, [stream])
    campaign.start(gone)


def the_metadata_are_set_back(campaign: Campaign) -> None:
    """They are set back to their state before a node was killed and returned. The nodes restore the
    changes that they have received, all of them the same, and elect leaders."""
    cluster, gone = campaign.cluster, campaign.chance.choice(NODES)
    old = cluster.stored()
    cluster.kill(gone)
    campaign.start()
    epochs = {name: cluster.stream(name).leader_epoch for name in campaign.load.settings}
    cluster.set_store_back(old)
    for name, epoch in epochs.items():
        until(
            lambda name=name, epoch=epoch: cluster.stream(name).leader_epoch > epoch,  # type: ignore[misc]
            PATIENCE,
            f"{name} is restored",
        )
    campaign.start()


def a_copy_rots(campaign: Campaign) -> None:
    """Many sealed batches of one node rot, leader or not. The node repairs them from other nodes
    when a reader reads them. Readers get all records from every node, and acks continue."""
    cluster, chance, stream = campaign.cluster, campaign.chance, "plain"
    node = chance.choice(NODES)
    for _ in range(_ROT_TRIES):
        began = time.monotonic()
        rotten = _rot(cluster.nodes[node].data_dir / "streams" / stream, chance)
        for name in NODES:
            # On a machine that is too busy to repair it in time a reader may be told of damage
            # first.
            until(
                lambda name=name: not cluster.read(stream, name).damaged,  # type: ignore[misc]
                PATIENCE,
                f"{name} repaired",
            )
        campaign.load.check(cluster, whole=True)
        assert not any(path.exists() for path in rotten), "a damaged file is still in use"
        repaired = cluster.nodes[node].metric("liftlog_repaired_ranges_total", stream=stream)
        if repaired > 0:
            seconds = time.monotonic() - began
            print(f"{len(rotten)} segments rotten, {repaired:.0f} ranges repaired, {seconds:.1f} s")
            return
        # The cleaner had just read these segments, to re-batch them: nothing of the rot was in use.
    raise AssertionError(f"node {node} has repaired nothing")


def _rot(directory: Path, chance: random.Random) -> set[Path]:
    """Flip one bit in the middle of each of some batches in sealed segments. Returns the files,
    without files that the cleaner removes in the meantime."""
    until(lambda: len(list(directory.glob("*.log"))) > 2, PATIENCE, "sealed segments")
    places: list[tuple[Path, int]] = []
    for path in sorted(directory.glob("*.log"))[:-1]:
        with contextlib.suppress(FileNotFoundError):
            places += [(path, at) for at, _ in batch_positions(path)]
    rotten = set()
    for path, position in chance.sample(places, min(len(places), _ROTTEN_BATCHES)):
        with contextlib.suppress(FileNotFoundError):
            flip(path, position + chance.choice([9, 90]))
            rotten.add(path)
    return rotten


def a_clock_jumps(campaign: Campaign) -> None:
    """The clock of any node jumps by an hour, or back to the right time. Another node leads after
    that, or not. A repeated message is detected in all cases."""
    cluster, chance = campaign.cluster, campaign.chance
    campaign.clocks[chance.choice(NODES)].set_ahead(chance.choice([-3600, 3600, 0]))
    campaign.load.wait_acked(20)
    if chance.random() < 0.7:
        cluster.kill(cluster.leader(campaign.any_stream()))
    campaign.start()
    campaign.load.wait_acked(20)


def replicas_go_and_come(campaign: Campaign) -> None:
    """A stream leaves a node and returns to it. A node dies in between or during a move."""
    cluster, chance, stream = campaign.cluster, campaign.chance, campaign.any_stream()
    nodes = list(cluster.stream(stream).replicas)
    fewer = chance.sample(nodes, 2)
    dies = chance.choice(["before", "during", "never"])
    for replicas in (fewer, chance.sample(nodes, 3)):
        done = cluster.command("cluster", "move", stream, "--replicas", ",".join(replicas))
        assert done.returncode == 0, done.stderr
        campaign.load.wait_acked(10, [stream])
        if dies == "before" and replicas is fewer:
            cluster.kill(chance.choice(NODES))
            cluster.start()
            campaign.load.wait_acked(5, [stream])
    if dies == "during":
        words = ("cluster", "move", stream, "--no-wait", "--replicas", ",".join(fewer))
        assert cluster.command(*words).returncode == 0
        cluster.kill(chance.choice(NODES))
        cluster.start()
        done = cluster.command("cluster", "move", stream, "--replicas", ",".join(fewer))
        assert done.returncode == 0, done.stderr
        done = cluster.command("cluster", "move", stream, "--replicas", ",".join(nodes))
        assert done.returncode == 0, done.stderr
    campaign.start()


def nothing_fails(campaign: Campaign) -> None:
    """The checks must succeed without a fault, too."""
    campaign.load.wait_acked(50)


OF_NODES: dict[str, Fault] = {
    "nothing fails": nothing_fails,
    "followers are killed": followers_are_killed,
    "the leader is killed": the_leader_is_killed,
    "all nodes are killed": all_nodes_are_killed,
    "a node is stopped in good order": a_node_is_stopped_in_good_order,
    "a follower hangs": a_follower_hangs,
    "the leader hangs": the_leader_hangs,
    "a node comes back empty": a_node_comes_back_empty,
    "a follower is set back": a_follower_is_set_back,
    "the metadata are set back": the_metadata_are_set_back,
    "a copy rots": a_copy_rots,
    "a clock jumps": a_clock_jumps,
    "replicas go and come": replicas_go_and_come,
}


if not is_torture():
    # `integration/test_metadata_set_back` and `test_moving` are short forms of the first and last.
    for one in ("the metadata are set back", "a clock jumps", "replicas go and come"):
        del OF_NODES[one]


@pytest.mark.parametrize("name", modes(EACH, ANY, *OF_NODES))
def test_nodes_fail(name: str, server: NatsServer, tmp_path: Path) -> None:
    chance = chance_of(f"nodes {name}")
    load = Load(server, f"nodes.{name.replace(' ', '-')}", FEW if name == EACH else STREAMS)
    clocks = {node: ShiftedClock(tmp_path / f"clock-{node}") for node in NODES}
    with Cluster(
        server.url, load.settings, settings=NODE_SETTINGS, cluster=QUICK, clocks=clocks
    ) as cluster:
        run(Campaign(cluster, load, chance, tmp_path, clocks=clocks), OF_NODES, name)


# --- disks ----------------------------------------------------------------------------


def power_is_cut(campaign: Campaign, most_operations: int = 150) -> None:
    """Cut the power of the machine that all nodes share: each disk forgets unsynced data."""
    cluster, disk, reboots = campaign.cluster, campaign.disk, campaign.reboots
    assert disk is not None
    assert reboots is not None
    disk.cut_after(campaign.chance.randint(1, most_operations))
    disk.wait_cut()
    disk.heal()
    seed = campaign.chance.randrange(1 << 30)
    disk.cut("none" if seed % 4 == 0 else "some", seed)
    cluster.kill()
    cluster.put_logs_aside(campaign.directory, str(campaign.rounds))
    reboots.reboot()
    disk.mount()
    campaign.start()


def failing(operation: str, error: int, times: int, *, leads: bool) -> Fault:
    def fault(campaign: Campaign) -> None:
        """A node may leave and return. No ack was false, and acks continue without help."""
        cluster, disk, stream = campaign.cluster, campaign.disk, campaign.any_stream()
        assert disk is not None
        leader, followers = cluster.leader(stream), cluster.followers(stream)
        node = leader if leads else campaign.chance.choice(followers)
        path = f"{node}/streams/{stream}/*.log"
        disk.fail(operation, path=path, error=error, times=times)
        until(lambda: disk.status["hits"], PATIENCE, f"{operation} of {path}")
        disk.heal()
        campaign.start()
        assert disk.status["retried"] == 0, "a file whose fsync failed was synced again"

    return fault


def followers_cannot_sync(campaign: Campaign) -> None:
    """They cannot begin a segment without the lost records either. A confirmation of these records
    would be an ack that only the leader's disk guarantees. The power fails during their
    attempts."""
    cluster, disk, chance = campaign.cluster, campaign.disk, campaign.chance
    assert disk is not None
    stream = campaign.any_stream()
    for follower in cluster.followers(stream):
        path = f"{follower}/streams/{stream}/*.log"
        disk.fail("fsync", path=path, times=chance.randint(1, 3))
        disk.fail("create", path=path, error=errno.EROFS, times=chance.randint(1, 4))
    until(lambda: disk.status["hits"] >= 2, PATIENCE, f"failing syncs of {stream}")
    if chance.random() < 0.8:
        power_is_cut(campaign, most_operations=40)
    disk.heal()
    campaign.start()
    assert disk.status["retried"] == 0, "a file whose fsync failed was synced again"


OF_DISKS: dict[str, Fault] = {
    "power is cut": power_is_cut,
    "followers cannot sync": followers_cannot_sync,
    **{
        f"{what} on a {'leader' if leads else 'follower'}": failing(*how, leads=leads)
        for leads in (True, False)
        for what, how in {
            "writes fail": ("write", errno.EIO, 3),
            "no space": ("write", errno.ENOSPC, 20),
            "an fsync fails": ("fsync", errno.EIO, 1),
            "no segment can be created": ("create", errno.EMFILE, 3),
        }.items()
    },
}


@pytest.mark.long
@pytest.mark.parametrize("name", modes(EACH, ANY, *OF_DISKS))
def test_disks_fail(name: str, server: NatsServer, tmp_path: Path) -> None:
    chance = chance_of(f"disks {name}")
    load = Load(server, f"disks.{name.replace(' ', '-')}", FEW if name == EACH else STREAMS)
    with losefs(tmp_path / "disk") as disk:
        reboots = Reboots(tmp_path)
        place: dict[str, Any] = {
            "directory": tmp_path / "nodes",
            "disks": dict.fromkeys(NODES, disk.path),
            "store": disk.path / "meta",
        }
        with Cluster(
            server.url,
            load.settings,
            settings=NODE_SETTINGS,
            cluster=QUICK_BOOT,
            wrapper=reboots.wrapper,
            boot_id=reboots.boot_id,
            **place,
        ) as cluster:
            campaign = Campaign(cluster, load, chance, tmp_path, disk, reboots)
            run(campaign, OF_DISKS, name)


# --- one disk of three ------------------------------------------------------------------


@pytest.mark.skipif(not rounds(0), reason="a campaign: make cluster-torture")
def test_who_lost_power_makes_a_majority_with_who_was_away(
    server: NatsServer, tmp_path: Path
) -> None:
    """One node hangs and gets nothing. Of the two nodes that ack, one dies, and the disk of the
    other forgets unsynced data. The two nodes that return have all acked records, and continue."""
    chance = chance_of("one disk")
    load = Load(server, "disk.one")
    with ExitStack() as stack:
        disks = {node: stack.enter_context(losefs(tmp_path / f"disk-{node}")) for node in NODES}
        reboots = Reboots(tmp_path)
        cluster = stack.enter_context(
            Cluster(
                server.url,
                load.settings,
                settings=NODE_SETTINGS,
                cluster={**QUICK, "session": "6s"},
                directory=tmp_path / "nodes",
                disks={node: disk.path for node, disk in disks.items()},
                wrapper=reboots.wrapper,
                boot_id=reboots.boot_id,
            )
        )
        campaign = Campaign(cluster, load, chance, tmp_path, reboots=reboots)
        cluster.wait_all_in_sync()
        load.start(cluster)
        for number in range(1, rounds(0) + 1):
            campaign.load_for_a_while()
            stream = campaign.any_stream()
            leader, followers = cluster.leader(stream), cluster.followers(stream)
            forgets, away = chance.sample(followers, 2)
            cluster.pause(away)
            cluster.wait_isr(stream, {leader, forgets})
            load.wait_acked(20, [stream])
            disk = disks[forgets]
            disk.cut_after(chance.randint(1, 60))
            if chance.random() < 0.5:
                cluster.kill(leader)
            disk.wait_cut()
            disk.cut("some", chance.randrange(1 << 30))
            cluster.kill(leader, forgets)
            cluster.put_logs_aside(tmp_path, str(number))
            reboots.reboot()
            disk.mount()
            cluster.resume(away)
            cluster.start(forgets)
            load.wait_acked(5, [stream])
            assert cluster.leader(stream) == forgets
            campaign.start(leader)
            load.check(cluster, whole=is_whole(number), refused_may_be_stored=True)
            print(
                f"round {number}: {leader} is dead, {forgets} forgot, {away} was away", flush=True
            )
        load.finish()
        load.check_all(cluster, refused_may_be_stored=True)
