"""Files in the daemon's working directory are data: nothing there is ever run as code.

In the image the working directory is the data directory, and many units set it to one that others
may write.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.clients.raw_nats import RawNats
from support.daemons.compacted import Compacted
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

# Our own packages, what the child processes import early, and modules of the standard library.
NAMES = ("liftlog", "acl", "compaction", "envelope", "numpy", "json", "ctypes", "runpy", "site")


class InstalledDaemon(Daemon):
    """Started by the installed script, as a unit or an image does: `python -m` would put the
    working directory on the module path of the daemon itself."""

    program = (str(Path(sys.executable).with_name("liftlog")), "serve")


def test_a_pass_of_compaction_imports_nothing_from_the_working_directory(
    server: NatsServer, tmp_path: Path
) -> None:
    marker = tmp_path / "imported"
    trap = f"import os, sys\nopen({str(marker)!r}, 'a').write(__name__ + chr(10))\nos._exit(1)\n"
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(trap)
    stream: dict[str, Any] = {"subject": "users", "compaction": {}, "dedupe_window": "0s"}
    settings = {"streams": {"users": stream}, "cleaner": {"interval": "100ms"}}
    with (
        InstalledDaemon(server.url, settings, directory=tmp_path) as daemon,
        RawNats(server.port) as raw,
        connect_sync(daemon.pull_address) as client,
    ):
        users = Compacted(raw, "users")
        for number in range(30):
            users.put(f"user-{number % 3}", b"%d" % number)
        found = client.compact_stream("users", wait=True).compaction
        assert not marker.exists(), marker.read_text()
        assert found is not None
        users.check(daemon)
