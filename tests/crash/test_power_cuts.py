"""Power cuts under the real daemon: a file system that forgets what was not fsynced.

The cut comes before a randomly chosen operation of the daemon, under load: it may lie inside an
append, a roll, a checkpoint, a retention or the recovery from the cut before. Then the machine
has another boot id, and everything that was promised is looked for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon import Daemon
from support.ingesting import AckedPublisher, assert_no_traceback, describe, publish, until
from support.ledger import Ledger
from support.losefs import LoseFsHandle, Reboots, losefs
from support.nats_server import NatsServer
from support.raw_nats import RawNats
from support.readback import read_back
from support.rounds import rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

IN_FLIGHT = 60
PATIENCE = 60.0
FLUSH_MESSAGES = 200


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


class Machine:
    """A daemon whose data lie on the forgetful disk; it can lose power and come up again."""

    def __init__(self, server: NatsServer, disk: LoseFsHandle, stream: dict[str, Any]) -> None:
        self.disk = disk
        self.reboots = Reboots(disk.path.parent)
        data_dir = disk.path / "data"
        settings = {
            "data_dir": str(data_dir),
            "log": {"recovery_checkpoint_interval": "100ms", "retention_interval": "100ms"},
            "nats": {"reconnect_wait": "50ms"},
            "streams": {"in": {"subject": "in.>", "segment": {"max_bytes": "64KiB"}, **stream}},
        }
        self.daemon = Daemon(
            server.url, settings, directory=disk.path.parent, wrapper=self.reboots.wrapper
        )
        self.daemon.data_dir = data_dir

    def lose_power(self, seed: int) -> None:
        """It may have gone already, by `cut_after`."""
        self.disk.cut("none" if seed % 4 == 0 else "some", seed)
        self.daemon.kill()
        self.reboots.reboot()
        self.disk.mount()

    def start(self, chance: random.Random) -> None:
        """Now and then the power goes again before the recovery is over."""
        if chance.random() < 0.4:
            self.daemon.spawn()
            self.disk.cut_after(chance.randint(1, 40))
            until(lambda: not self.disk.mounted or not self.daemon.running or self.ready, PATIENCE)
            if not self.disk.mounted:
                self.lose_power(chance.randrange(1 << 30))
                self.daemon.start()
        else:
            self.daemon.start()

    @property
    def ready(self) -> bool:
        try:
            return self.daemon._read_addresses() and self.daemon.ready
        except KeyError:  # not of this life of it: nothing was read yet
            return False


def everything_is_committed(daemon: Daemon) -> bool:
    info = describe(daemon, "in")
    return bool(info.high_watermark == info.log_end_offset)


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
def test_power_cuts_under_load(durability: str, server: NatsServer, tmp_path: Path) -> None:
    chance = random.Random(f"power {durability}")
    stream = {"durability": durability, "flush": {"messages": FLUSH_MESSAGES, "interval": "1s"}}
    subjects = [f"in.{durability}.{i}" for i in range(3)]
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, {**stream, "subject": f"in.{durability}.>"})
        daemon = machine.daemon.start()
        publishers = [
            AckedPublisher(server.port, subject, in_flight=IN_FLIGHT, pad=100)
            for subject in subjects
        ]
        ledger = Ledger(publishers)
        ledger.start()
        lost: set[int] = set()
        for _ in range(rounds(4 if durability == "fsync" else 2)):
            ledger.wait_acked(chance.randint(300, 2000))
            committed = describe(daemon, "in").high_watermark
            disk.cut_after(chance.randint(1, 60))
            disk.wait_cut()
            machine.lose_power(chance.randrange(1 << 30))
            ledger.wait_settled()
            acked = set(ledger.acked())
            machine.start(chance)
            committed = {"fsync": None, "interval": committed, "os": 1}[durability]
            gone = ledger.check(
                read_back(daemon, "in").records,
                acked=acked - lost,
                may_lose_from=committed,
                refused_may_be_stored=True,
            )
            if durability == "interval":
                assert len(gone) <= FLUSH_MESSAGES + 3 * IN_FLIGHT
            lost.update(gone)
        ledger.wait_acked(100)
        ledger.finish()
        until(lambda: everything_is_committed(daemon))
        ledger.check(
            read_back(daemon, "in").records,
            acked=set(ledger.acked()) - lost,
            refused_may_be_stored=True,
        )
        if durability == "fsync":
            assert not lost
            assert describe(daemon, "in").quarantined == []
        assert_no_traceback(daemon)
        daemon.stop()


def test_what_os_durability_loses_is_not_zero(server: NatsServer, tmp_path: Path) -> None:
    """The proof that the power cuts are real: the weakest mode does lose, and says so."""
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, {"subject": "weak", "durability": "os"})
        daemon = machine.daemon.start()
        with RawNats(server.port) as raw:
            acked = [publish(raw, "weak", b"%d" % i)["seq"] for i in range(20)]
            machine.lose_power(0)
            daemon.start()
            assert read_back(daemon, "in").records == []
            [lost] = describe(daemon, "in").quarantined
            assert lost["first_offset"] <= acked[0]
            assert lost["next_offset"] > acked[-1]
            assert publish(raw, "weak", b"next")["seq"] >= lost["next_offset"]
        daemon.stop()
