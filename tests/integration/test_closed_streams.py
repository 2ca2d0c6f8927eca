"""Started with standard streams closed, as some supervisors do and `<&-` does in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.clients.ingesting import publish, values_of
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import one_in

pytestmark = pytest.mark.integration

CLOSED = ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("closed", CLOSED)
def test_the_daemon(server: NatsServer, closed: str) -> None:
    wrapper = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh"]
    settings = {"streams": {"orders": {"subject": "orders"}}}
    with Daemon(server.url, settings, wrapper=wrapper) as daemon, RawNats(server.port) as raw:
        assert publish(raw, "orders", b"x")["seq"] == 1
        assert values_of(daemon, "orders") == [b"x"]
        for number in range(3):  # nothing of the daemon's own took the place
            target = os.readlink(f"/proc/{daemon.pid}/fd/{number}")
            assert target == "/dev/null" or target == str(daemon.log_path), target
        assert daemon.stop().exit_code == 0


COMMANDS = (("errors ls", 0), ("--help", 0), ("nonsense", 2), ("log verify .", 5))


@pytest.mark.parametrize("closed", CLOSED)
def test_commands(closed: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    for command, code in one_in(1, COMMANDS, closed):
        line = f"{sys.executable} -m liftlog {command} >{said} 2>&1 {closed}"
        done = subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, timeout=60)
        assert done.returncode == code, said.read_text()
        assert "defect of liftlog" not in said.read_text()
