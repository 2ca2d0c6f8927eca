"""Members of a consumer group join, leave, are killed and stopped, and so is the daemon,
repeatedly, while messages arrive. The records of each key are read in order, by one owner at a
time. No record is skipped, and only uncommitted records are read again. `make group-torture`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.group_campaign import (
    STREAM,
    Campaign,
    Publisher,
    described_at,
    slots_of_stream,
)
from support.clients.ingesting import assert_no_traceback, until
from support.daemons.cluster import Cluster
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.ports import free_port
from support.rounds import is_torture, rounds

from liftlog.client import connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(36000)]

SLOW_SECONDS = 20.0
"""Additional time for a busy machine."""


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def test_members_and_a_daemon_fail(server: NatsServer, tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    settings = {
        "streams": {STREAM: {"subject": "orders.>"}},
        "pull": {"listen": [address]},
        "nats": {"reconnect_wait": "50ms"},
    }
    with Daemon(server.url, settings) as daemon:
        campaign = Campaign([address], tmp_path, "daemon", session=1.0)

        def kill_daemon() -> None:
            daemon.kill()
            daemon.start()

        publisher = Publisher(server.port, 150)
        publisher.start()
        try:
            campaign.join()
            campaign.join()
            campaign.wait_until_they_work()
            for _ in range(rounds(4)):
                campaign.round([("daemon", kill_daemon)])
            publisher.end()
            with connect_sync(address) as client:
                slots = slots_of_stream(client)
                campaign.finish(lambda: described_at([address]), len(slots) + 1)
        finally:
            publisher.end()
            campaign.close()
        print(f"\n{campaign.check(slots)}")
        assert_no_traceback(daemon)
        assert max(campaign.took, default=0.0) < campaign.session + SLOW_SECONDS


@pytest.mark.skipif(not is_torture(), reason="takes minutes: make group-torture")
def test_members_and_the_nodes_of_a_cluster_fail(server: NatsServer, tmp_path: Path) -> None:
    """Another coordinator takes over, and no slot moves because of that."""
    streams = {STREAM: {"subject": "orders.>", "replicas": 3, "min_isr": 2}}
    settings = {"nats": {"reconnect_wait": "50ms"}}
    with Cluster(server.url, streams, settings=settings, directory=tmp_path / "nodes") as cluster:
        cluster.wait_isr(STREAM)
        cluster.wait_isr("_offsets")
        addresses = [node.pull_address for node in cluster.nodes.values()]
        session = 8.0
        campaign = Campaign(addresses, tmp_path, "cluster", session=session, most=4)
        moved: list[str] = []
        failovers: list[float] = []

        def fail_over() -> None:
            """Kill the coordinator. If nothing else happens to the members, they keep all slots."""
            campaign.resume()
            old = cluster.leader("_offsets")
            campaign.wait_until_they_are_members(lambda: described_at(addresses))
            before = described_at(addresses)
            began = time.monotonic()
            cluster.kill(old)
            until(lambda: cluster.stream("_offsets").leader not in (None, old), 60)
            until(lambda: described_at(addresses).generation > 0, 60, "it answers")
            took = time.monotonic() - began
            time.sleep(1.0)
            after = described_at(addresses)
            if took < session / 2 and after.generation not in (0, before.generation):
                moved.append(f"{before.generation} -> {after.generation} after {took:.1f} s")
            failovers.append(took)
            cluster.start(old)
            cluster.wait_isr("_offsets", timeout=120)

        publisher = Publisher(server.port, 200)
        publisher.start()
        try:
            campaign.join()
            campaign.join()
            campaign.wait_until_they_work()
            fail_over()
            for _ in range(rounds(1)):
                campaign.round([("failover", fail_over)])
            publisher.end()
            end = cluster.wait_settled(STREAM)
            with connect_sync(",".join(addresses)) as client:
                slots = slots_of_stream(client)
                assert len(slots) + 1 == end
                campaign.finish(lambda: described_at(addresses), end)
        finally:
            publisher.end()
            campaign.close()
        print(f"\n{campaign.check(slots)}; failovers, most: {max(failovers):.2f} s")
        cluster.assert_sound()
        assert not moved
