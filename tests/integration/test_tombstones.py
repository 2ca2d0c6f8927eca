"""A tombstone deletes the earlier records of its key in a compacted stream, and nowhere else: each
place where one is published or shown says which it is, and what it says is true."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from support.clients.ingesting import assert_no_traceback, publish, records_of, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.cli.root import cli
from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

STREAMS = {
    "kept": {"subject": "kept"},
    "compacted": {"subject": "compacted", "compaction": {}, "dedupe_window": "0s"},
}


@pytest.fixture
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS}) as found, RawNats(server.port) as raw:
        for name in STREAMS:
            publish(raw, name, b"a name and an address", Liftlog_Key="person-7")
        yield found
        assert_no_traceback(found)


def tombstone(daemon: Daemon, server: NatsServer, name: str) -> str:
    words = ["pub", name, "--key", "person-7", "--tombstone", "--nats", server.url]
    result = CliRunner().invoke(cli, [*words, "--server", daemon.pull_address])
    assert result.exit_code == 0, result.output
    assert f"{name} 2" in result.stdout
    return re.sub(r"\s+", " ", result.stderr)


def test_without_compaction_nothing_is_deleted(daemon: Daemon, server: NatsServer) -> None:
    told = tombstone(daemon, server, "kept")
    assert "warning: kept is not compacted: the earlier records of the key stay there" in told
    form, page = (daemon.get(f"/ui/streams/kept/{one}")[1] for one in ("publish", "records/2"))
    assert "This stream is not compacted" in form
    assert "so the earlier records of the key stay" in page
    with connect_sync(daemon.pull_address) as client:
        for _ in range(3):
            client.list_streams()
    assert [one.value for one in records_of(daemon, "kept")] == [b"a name and an address", None]


def test_with_compaction_they_are(daemon: Daemon, server: NatsServer) -> None:
    told = tombstone(daemon, server, "compacted")
    assert "warning" not in told
    form, page = (daemon.get(f"/ui/streams/compacted/{one}")[1] for one in ("publish", "records/2"))
    assert "A later compaction deletes the earlier records of its key" in form
    assert "are deleted by compaction" in page
    with connect_sync(daemon.pull_address) as client:
        client.compact_stream("compacted")
        until(lambda: client.describe_stream("compacted").compaction["passes"] == 1, 60)
    assert [one.value for one in records_of(daemon, "compacted")] == [None]


def test_where_the_daemon_cannot_be_asked(server: NatsServer, daemon: Daemon) -> None:
    words = ["pub", "kept", "--key", "person-7", "--tombstone", "--nats", server.url]
    result = CliRunner().invoke(cli, [*words, "--server", "tcp://127.0.0.1:1"])
    assert result.exit_code == 0, result.output
    assert "only in a compacted stream" in re.sub(r"\s+", " ", result.stderr)
