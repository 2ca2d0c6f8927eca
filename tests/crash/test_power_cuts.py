"""Power cuts under the real daemon: a file system that forgets what was not fsynced.

The power fails before a random operation of the daemon, under load: during an append, a roll, a
checkpoint, a retention, or the recovery after the previous cut. Then the machine has another boot
id, and all promises are checked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish
from support.clients.raw_nats import RawNats
from support.clients.readback import read_back
from support.daemons.fleet import Fleet
from support.daemons.machine import Machine
from support.daemons.nats_server import NatsServer
from support.disks.losefs import losefs
from support.rounds import rounds

from liftlog.log.files.manifest import LEAST_RESERVED

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
def test_power_cuts_under_load(durability: str, server: NatsServer, tmp_path: Path) -> None:
    chance = random.Random(f"power {durability}")
    fleet = Fleet(server.port, f"power.{durability}", durability)
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, fleet.settings)
        daemon = machine.daemon.start()
        fleet.start()
        for _ in range(rounds({"fsync": 2, "interval": 2, "os": 1}[durability])):
            fleet.wait_acked(chance.randint(100, 1000))
            committed = fleet.high_watermarks(daemon)
            disk.cut_after(chance.randint(1, 60))
            disk.wait_cut()
            machine.lose_power(chance.randrange(1 << 30))
            fleet.wait_settled()
            acked = fleet.acked()
            machine.start(chance)
            # What readers were allowed to see stays, in `os` nothing is promised.
            losable = {"fsync": None, "interval": committed, "os": dict.fromkeys(committed, 1)}
            fleet.check(daemon, acked, may_lose_from=losable[durability], disk_died=True)
        fleet.wait_acked(100)
        fleet.finish(daemon)
        fleet.check(daemon, disk_died=True)
        assert_no_traceback(daemon)
        daemon.stop()


@pytest.mark.parametrize("reboot", [True, False])
@pytest.mark.parametrize("durability", ["os", "interval"])
def test_what_is_lost_before_its_fsync_is_told(
    durability: str, reboot: bool, server: NatsServer, tmp_path: Path
) -> None:
    """This test proves that the power cuts are real: with a lower durability, records are lost and
    reported. Also if only the volume failed, and the boot id is the same."""
    stream = {
        "subject": "weak",
        "durability": durability,
        "flush": {"interval": "1h", "messages": 1000},
    }
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, {"streams": {"in": stream}})
        daemon = machine.daemon.start()
        with RawNats(server.port) as raw:
            acked = [publish(raw, "weak", b"%d" % i)["seq"] for i in range(20)]
            machine.lose_power(0, reboot=reboot)
            daemon.start()
            assert read_back(daemon, "in") == ([], [(1, 1 + LEAST_RESERVED)])
            [lost] = describe(daemon, "in").quarantined
            assert "not yet fsynced" in lost["reason"]
            assert "not yet fsynced" in daemon.log
            assert lost["first_offset"] <= acked[0]
            assert lost["next_offset"] > acked[-1]
            found = daemon.metric("liftlog_quarantined_ranges", stream="in")
            assert found == 1
            assert publish(raw, "weak", b"next")["seq"] >= lost["next_offset"]
        daemon.stop()
