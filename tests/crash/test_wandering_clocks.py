"""The wall clocks of a cluster's nodes are wrong, one at a time, under load.

A clock jumps by minutes, hours or years in either direction, stays there or is set right, while
nodes are killed, paused, elected and asked to stop. No record that is younger than `max_age` by the
true time is deleted on any replica, no message is stored twice, and once all clocks are right,
retention deletes what is old. `make clock-torture` runs as many rounds as it is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from support.clients.ingesting import until
from support.daemons.cluster import NODES, PATIENCE, Cluster, RetryingPublisher, assert_kept
from support.daemons.nats_server import NatsServer
from support.daemons.shifted_clock import ShiftedClock
from support.rounds import chance_of, rounds

from liftlog.client import connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(36000)]

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
JUMPS = [-40 * DAY, -5 * HOUR, -HOUR, -MINUTE, 0.0, MINUTE, HOUR, 5 * HOUR, 40 * DAY, 3650 * DAY]
SMALL = {"segment": {"max_bytes": "16KiB", "max_age": "500ms"}}
STREAMS = {
    "kept": {"subject": "kept.>", "replicas": 3, "retention": {"max_age": "6h"}, **SMALL},
    "alone": {"subject": "alone.>", "replicas": 1, "retention": {"max_age": "6h"}, **SMALL},
    "aged": {
        "subject": "aged.>",
        "replicas": 3,
        "retention": {"max_age": "2s"},
        "dedupe_window": "2m",
        **SMALL,
    },
}
SETTINGS = {"log": {"retention_interval": "100ms"}, "nats": {"reconnect_wait": "50ms"}}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@dataclass
class Campaign:
    cluster: Cluster
    clocks: dict[str, ShiftedClock]
    chance: Random
    publishers: list[RetryingPublisher]

    def wait_acked(self, more: int = 5) -> None:
        """Wait until each stream has acked so many messages more."""
        wanted = {one: len(one.acked) + more for one in self.publishers}
        until(
            lambda: all(len(one.acked) >= wanted[one] for one in self.publishers),
            PATIENCE,
            f"{more} more acks of each stream",
        )


def nothing_else(campaign: Campaign, node: str) -> None:
    """Only the clock is wrong."""


def is_killed(campaign: Campaign, node: str) -> None:
    """The next process has only the timestamps."""
    campaign.cluster.kill(node)
    campaign.cluster.start(node)


def is_restarted(campaign: Campaign, node: str) -> None:
    campaign.cluster.stop(node)
    campaign.cluster.start(node)


def hangs(campaign: Campaign, node: str) -> None:
    campaign.cluster.pause(node)
    time.sleep(campaign.chance.random())
    campaign.cluster.resume(node)


def another_is_killed(campaign: Campaign, node: str) -> None:
    other = campaign.chance.choice([one for one in NODES if one != node])
    is_killed(campaign, other)


FAULTS: list[Callable[[Campaign, str], None]] = [
    is_killed,
    nothing_else,
    hangs,
    another_is_killed,
    is_restarted,
]


def run_round(campaign: Campaign, number: int) -> None:
    """One node's clock is wrong for a while, during which the node leads the replicated streams."""
    cluster, chance = campaign.cluster, campaign.chance
    node, ahead = chance.choice(NODES), chance.choice(JUMPS)
    fault = FAULTS[number] if number < len(FAULTS) else chance.choice(FAULTS)
    is_early = chance.random() < 0.5
    print(f"{number}: {node} by {ahead:+.0f} s, {fault.__name__}, {is_early=}", flush=True)
    if is_early:
        campaign.clocks[node].set_ahead(ahead)
    for stream in ("kept", "aged"):
        cluster.wait_isr(stream)
        if cluster.leader(stream) != node:
            cluster.command("cluster", "elect", stream, "--node", node)
    campaign.clocks[node].set_ahead(ahead)
    fault(campaign, node)
    campaign.wait_acked()
    time.sleep(chance.random())
    campaign.clocks[node].set_ahead(0)
    if chance.random() < 0.3:
        is_killed(campaign, node)
    campaign.wait_acked()


def test_no_wrong_clock_deletes_or_doubles_a_record(server: NatsServer, tmp_path: Path) -> None:
    clocks = {name: ShiftedClock(tmp_path / f"clock-{name}") for name in NODES}
    more = {"session": "3s", "name": "wandering-clocks", "balance_interval": "1h"}
    with Cluster(server.url, STREAMS, settings=SETTINGS, cluster=more, clocks=clocks) as cluster:
        for name in ("kept", "aged"):
            cluster.wait_isr(name)
        kept = [
            RetryingPublisher(server.port, f"{name}.x", rate=200.0) for name in ("kept", "alone")
        ]
        aged = RetryingPublisher(server.port, "aged.x", rate=200.0)
        campaign = Campaign(cluster, clocks, chance_of("clocks"), kept)
        for publisher in [*kept, aged]:
            publisher.start()
        try:
            for number in range(rounds(3)):
                run_round(campaign, number)
        except BaseException:
            for publisher in [*kept, aged]:
                publisher.give_up()
            raise
        for publisher in [*kept, aged]:
            publisher.finish()
        for publisher in kept:
            name = publisher.subject.partition(".")[0]
            nodes = NODES if name == "kept" else [cluster.leader(name)]
            assert_kept([publisher], cluster.read_all(name, nodes))
        until(lambda: is_empty(cluster, "aged"), PATIENCE, "retention deletes what is old")
        cluster.assert_sound()
        print(f"{sum(len(one.acked) for one in [*kept, aged])} acked")


def is_empty(cluster: Cluster, stream: str) -> bool:
    """Return True if retention has deleted each record. The files stay while message ids are
    needed."""
    with connect_sync(cluster.nodes[cluster.leader(stream)].pull_address) as client:
        return client.describe_stream(stream).record_count == 0
