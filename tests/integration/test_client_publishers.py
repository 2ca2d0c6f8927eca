"""nats.go and the client for Node, as they are: what they take for stored is stored, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.clients.client_publishers import (
    Missing,
    Program,
    ProgramPublisher,
    go_program,
    node_program,
)
from support.clients.ingesting import assert_no_traceback, until
from support.daemons.cluster import as_stored
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.worlds.history import History, Reading

from liftlog.client import connect_sync

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "build",
    [pytest.param(go_program, marks=pytest.mark.long), node_program],  # Go compiles it
    ids=["nats.go", "node"],
)
def test_what_is_repeated_until_it_is_acked_is_stored_once(
    build: Callable[[], Program], server: NatsServer
) -> None:
    """The daemon is killed meanwhile. What was under way is published again with its id."""
    try:
        program = build()
    except Missing as why:
        pytest.skip(str(why))
    publisher = ProgramPublisher(program, [server], "clients.a", in_flight=16, pause=0.005)
    with Daemon(server.url, {"streams": {"in": {"subject": "clients.>"}}}) as daemon:
        publisher.start()
        for acked in (50, 100):
            until(lambda acked=acked: publisher.acked >= acked)  # type: ignore[misc]
            failed = publisher.failures.total()
            daemon.kill()
            until(lambda failed=failed: publisher.failures.total() > failed)  # type: ignore[misc]
            daemon.start()
        until(lambda: publisher.acked >= 200)
        publisher.finish()
        assert publisher.failures.total()
        with connect_sync(daemon.pull_address) as client:
            records = [as_stored(record) for record in client.read("in", until="end")]
        assert_no_traceback(daemon)
    history = History()
    publisher.tell(history)
    history.read(Reading("daemon", 1, records[-1].offset + 1, records, is_last=True))
    assert history.acks == publisher.published == len(records)
    assert history.check() == []
