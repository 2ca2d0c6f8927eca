"""A daemon with few file descriptors: more streams than it may open files, and none are lost."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest
from support.clients.ingesting import assert_no_traceback, publish
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import SyncClient, connect_sync
from liftlog.errors import LimitExceeded

pytestmark = pytest.mark.integration

LIMIT = 256
STREAMS = int(os.environ.get("STREAMS", "150"))
"""Each has two files that are written; `make descriptors` runs this with thousands."""


def limited(limit: int) -> type[Daemon]:
    script = (
        "import os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'liftlog', 'serve', *sys.argv[1:]])\n"
    )
    return type("Limited", (Daemon,), {"program": (sys.executable, "-c", script)})


def open_files(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))


def publish_to_all(raw: RawNats, round_number: int, every: int = 1) -> None:
    for number in range(0, STREAMS, every):
        answer = publish(raw, f"s{number}.x", b"%d" % round_number)
        assert answer["seq"] == round_number, answer


def values_of(client: SyncClient, number: int) -> list[bytes | None]:
    return [one.value for one in client.read(f"s{number}", start=1, until="end")]


@pytest.mark.long
def test_more_streams_than_descriptors(server: NatsServer) -> None:
    """Written, read, killed, started and written again, while some descriptors stay free."""
    streams = {f"s{number}": {"subject": f"s{number}.>"} for number in range(STREAMS)}
    daemon = limited(LIMIT)(server.url, {"streams": streams})
    with daemon, RawNats(server.port) as raw:
        with connect_sync(daemon.pull_address) as client:
            client.create_stream("more", subject="more.>")
            client.delete_stream("more")
            publish_to_all(raw, 1)
            for number in range(0, STREAMS, 7):
                assert values_of(client, number) == [b"1"]
            assert client.metadata().conditions == []
            assert client.metadata().limits["max_connections"] == (LIMIT - 64) // 3
        assert open_files(daemon) < LIMIT - 16
        daemon.kill()
        daemon.start()
        assert open_files(daemon) < LIMIT - 16
        publish_to_all(raw, 2, every=3)
        with connect_sync(daemon.pull_address) as client:
            assert len(client.list_streams()) == STREAMS
            for number in range(0, STREAMS, 6):
                assert values_of(client, number) == [b"1", b"2"]
            assert [one.state for one in client.list_streams() if one.state != "attached"] == []
        daemon.restart()
        with connect_sync(daemon.pull_address) as client:
            assert {one.high_watermark for one in client.list_streams()} == {2, 3}
        assert_no_traceback(daemon)


def test_when_none_is_left(server: NatsServer) -> None:
    """Creation is refused in words, and what is there is served."""
    settings = {"streams": {"in": {"subject": "in.>"}}}
    with limited(LIMIT)(server.url, settings) as daemon, RawNats(server.port) as raw:
        assert publish(raw, "in.x", b"1")["seq"] == 1
        with connect_sync(daemon.pull_address) as client:
            limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(
                daemon.pid, resource.RLIMIT_NOFILE, (open_files(daemon) + 2, limits[1])
            )
            with pytest.raises(LimitExceeded, match="file descriptors left") as refused:
                client.create_stream("more", subject="more.>")
            assert "LimitNOFILE" in refused.value.hint
            assert [one["name"] for one in client.metadata().conditions] == ["descriptors"]
            assert publish(raw, "in.x", b"2")["seq"] == 2
            assert [one.value for one in client.read("in", start=1, until="end")] == [b"1", b"2"]
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
            client.create_stream("more", subject="more.>")
        assert_no_traceback(daemon)


def test_too_few_to_start(server: NatsServer, tmp_path: Path) -> None:
    daemon = limited(100)(server.url, directory=tmp_path).spawn()
    with pytest.raises(RuntimeError, match="ended with 3"):
        daemon.wait_listening()
    assert "may open 100 files, and needs 256" in daemon.log_tail()
