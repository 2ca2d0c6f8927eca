"""`kill -9` under load, repeatedly, while all background work runs."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from support.clients.ingesting import assert_no_traceback, describe, until
from support.daemons.daemon import Daemon
from support.daemons.fleet import STREAMS, Fleet
from support.daemons.nats_server import NatsServer
from support.rounds import modes, rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def rewritten(daemon: Daemon, stream: str) -> bool:
    """Return True if a compacted or re-batched segment is in use: its name contains a
    generation."""
    return any((daemon.data_dir / "streams" / stream).glob("*.*.log"))


@pytest.mark.parametrize("durability", modes("fsync", "interval", "os"))
def test_kill_under_load_with_everything_on(durability: str, server: NatsServer) -> None:
    """A kill of the process loses nothing, with every durability."""
    chance = random.Random(f"kill {durability}")
    fleet = Fleet(server.port, f"kill.{durability}", durability)
    with Daemon(server.url, fleet.settings) as daemon:
        fleet.start()
        count = rounds(3)
        for _ in range(count):
            fleet.wait_acked(chance.randint(100, 1500))
            daemon.kill()
            fleet.wait_settled()
            acked = fleet.acked()
            daemon.start()
            fleet.check(daemon, acked)
        fleet.wait_acked(100)
        fleet.finish(daemon)
        fleet.check(daemon)
        for name in STREAMS:
            assert describe(daemon, name).leader_epoch == 1 + count
            assert describe(daemon, name).quarantined == []
        until(lambda: rewritten(daemon, "keyed"), what="a compaction")
        until(lambda: rewritten(daemon, "plain"), what="a re-batching")
        assert describe(daemon, "short").log_start_offset > 1
        fleet.check(daemon)
        assert_no_traceback(daemon)
