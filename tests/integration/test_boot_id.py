"""Where the system hides its boot id a killed process looks like a power cut: that is told."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.clients.ingesting import describe, publish, records_of
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import modes

pytestmark = pytest.mark.integration

# What systemd makes of ProcSubset=pid.
_HIDE = 'mount --make-rprivate / && mount -t proc -o subset=pid proc /proc && exec "$@"'


def hidden() -> list[str]:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    wrapper = [unshare, "--mount", "sh", "-c", _HIDE, "sh"]
    shown = [*wrapper, "cat", "/proc/sys/kernel/random/boot_id"]
    tried = subprocess.run([*wrapper, "true"], capture_output=True)
    if tried.returncode != 0:
        pytest.skip("no right to mount")
    assert subprocess.run(shown, capture_output=True).returncode != 0
    return wrapper


@pytest.mark.parametrize("durability", modes("os", "interval", "fsync"))
def test_with_the_boot_id_a_kill_costs_no_offset(
    server: NatsServer, tmp_path: Path, durability: str
) -> None:
    stream = {"subject": "orders", "durability": durability}
    with Daemon(server.url, {"streams": {"orders": stream}}, directory=tmp_path) as daemon:
        with RawNats(server.port) as raw:
            for number in range(20):
                publish(raw, "orders", b"%d" % number)
            daemon.kill()
            daemon.start()
            assert "boot-id-unknown" not in daemon.log
            assert describe(daemon, "orders").quarantined == []
            assert publish(raw, "orders", b"20")["seq"] == 21


@pytest.mark.long
@pytest.mark.parametrize("durability", modes("os", "interval", "fsync"))
def test_without_it_the_daemon_says_why_offsets_are_passed_over(
    server: NatsServer, tmp_path: Path, durability: str
) -> None:
    stream = {"subject": "orders", "durability": durability}
    settings = {"streams": {"orders": stream}}
    with Daemon(server.url, settings, directory=tmp_path, wrapper=hidden()) as daemon:
        assert "boot-id-unknown" in daemon.log
        with RawNats(server.port) as raw:
            values = [b"%d" % number for number in range(20)]
            for value in values:
                publish(raw, "orders", value)
            daemon.kill()
            daemon.start()
            readable = records_of(daemon, "orders", on_corrupt="skip")
            assert [record.value for record in readable] == values
            ranges = describe(daemon, "orders").quarantined
            assert publish(raw, "orders", b"20")["seq"] == (
                ranges[0]["next_offset"] if ranges else 21
            )
            # Acks that came after fsync are on disk whatever stopped the daemon.
            assert bool(ranges) == (durability != "fsync")
            if ranges:
                assert "the boot id is unknown" in daemon.log
