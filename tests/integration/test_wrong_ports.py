"""A client that dials a port of something else is told what that port speaks."""

from __future__ import annotations

import pytest
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync
from liftlog.errors import ProtocolViolation

pytestmark = pytest.mark.integration


def test_the_ports_next_to_the_pull_port(server: NatsServer) -> None:
    with Daemon(server.url) as daemon:
        for address, name in (
            (f"tcp://{daemon.http_address}", "HTTP"),
            (f"tcp://127.0.0.1:{server.port}", "NATS"),
        ):
            with pytest.raises(ProtocolViolation, match=f"look like {name}") as raised:
                connect_sync(address)
            assert "pull port" in raised.value.hint
        status, _ = daemon.get("/livez")
        assert status == 200
