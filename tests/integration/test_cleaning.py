"""Re-batching, scrubbing and the cost of doing nothing, in a real daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish, records_of, until
from support.clients.raw_nats import RawNats
from support.daemons.compacted import segment_files
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync
from liftlog.errors import CorruptRange
from liftlog.records import iter_batches

pytestmark = pytest.mark.integration


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        yield client


def batch_count(path: Path) -> int:
    return sum(1 for _ in iter_batches(path.read_bytes()))


def test_small_batches_become_larger_ones(server: NatsServer, raw: RawNats) -> None:
    stream = {
        "subject": "tiny",
        "segment": {"max_bytes": "32KiB"},
        "rebatch": {"min_age": "0s"},
        "dedupe_window": "0s",
    }
    settings = {"streams": {"tiny": stream}, "cleaner": {"interval": "100ms"}}
    with Daemon(server.url, settings) as daemon:
        for number in range(500):
            assert publish(raw, "tiny", b"%d" % number + b"." * 100)["seq"] == number + 1
        before = describe(daemon, "tiny")
        sealed = before.segment_count - 1
        assert sealed >= 2
        until(lambda: daemon.metric("liftlog_rebatched_segments_total", stream="tiny") == sealed)
        files = segment_files(daemon, "tiny")
        assert [path.name.count(".") for path in files] == [2] * sealed + [1]
        assert all(batch_count(path) <= 2 for path in files[:-1])
        records = records_of(daemon, "tiny")
        assert [record.offset for record in records] == list(range(1, 501))
        assert all(int(r.value.split(b".")[0]) == r.offset - 1 for r in records if r.value)
        daemon.kill()
        daemon.start()
        assert records_of(daemon, "tiny") == records
        assert_no_traceback(daemon)


def test_the_scrubber_finds_rot_before_any_reader(server: NatsServer, raw: RawNats) -> None:
    stream = {"subject": "rot", "segment": {"max_bytes": "8KiB"}}
    settings = {
        "streams": {"rot": stream},
        "cleaner": {"interval": "100ms", "scrub_interval": "300ms"},
    }
    with Daemon(server.url, settings) as daemon:
        for number in range(60):
            publish(raw, "rot", b"%d" % number + b"x" * 500)
        until(lambda: daemon.metric("liftlog_scrubbed_segments_total", stream="rot") > 3)
        assert describe(daemon, "rot").quarantined == []
        hurt = segment_files(daemon, "rot")[1]
        with hurt.open("r+b") as file:
            file.seek(1000)
            file.write(b"\xff" * 8)
        until(lambda: describe(daemon, "rot").quarantined, what="the scrubber finds it")
        [bad] = describe(daemon, "rot").quarantined
        assert bad["segment"] == hurt.name
        assert daemon.metric("liftlog_quarantined_ranges", stream="rot") == 1
        assert '"event": "damage-found"' in daemon.log
        with connect_sync(daemon.pull_address) as client, pytest.raises(CorruptRange) as raised:
            list(client.read("rot", until="end"))
        assert raised.value.first_offset == bad["first_offset"]
        assert len(records_of(daemon, "rot", start=bad["next_offset"])) == 61 - bad["next_offset"]
        daemon.restart()
        assert describe(daemon, "rot").quarantined == [bad]
        assert_no_traceback(daemon)


@pytest.mark.long
def test_hundreds_of_idle_streams_cost_next_to_nothing(server: NatsServer) -> None:
    """Looked at fifteen times as often as by default, in less than a tenth of a core."""
    streams = {
        f"idle-{number}": {"subject": f"idle.{number}", "compaction": {}} for number in range(200)
    }
    settings = {"streams": streams, "cleaner": {"interval": "1s"}}
    with Daemon(server.url, settings) as daemon:
        cpu, started = daemon.cpu_seconds, time.monotonic()
        until(lambda: time.monotonic() - started > 3)
        used = (daemon.cpu_seconds - cpu) / (time.monotonic() - started)
        assert used < 0.1, f"{used:.1%} of a core"
        assert daemon.rss_bytes < 200 * 2**20
