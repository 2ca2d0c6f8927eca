"""Problems of streams that are served all the same are reported wherever an operator looks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.clients.ingesting import assert_no_traceback, describe, until
from support.clients.raw_nats import RawNats
from support.daemons.compacted import Compacted, segment_files
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.processes import children_of
from support.disks.stored_logs import flip

from liftlog.cli.root import cli
from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

KEYS = [f"key-{number}" for number in range(200)] * 10
SMALL: dict[str, Any] = {
    "segment": {"max_bytes": "64KiB"},
    "dedupe_window": "0s",
    "compaction": {"min_dirty_ratio": 1.0, "max_rate": "64KiB"},
}


def seen(daemon: Daemon) -> dict[str, str]:
    """The warnings as each way of looking shows them, which are all the same words."""
    status, text = daemon.get("/readyz")
    assert status == 200, "a warning is no reason to send clients elsewhere"
    found: dict[str, str] = json.loads(text)["warnings"]
    page = json.loads(daemon.get("/ui/health.json")[1])
    assert page["warnings"] == found
    with connect_sync(daemon.pull_address) as client:
        assert client.metadata().warnings == found
    for address in (["--server", daemon.pull_address], ["--http", daemon.http_address]):
        result = CliRunner().invoke(cli, ["health", *address])
        assert result.exit_code == 0, result.output
        for words in found.values():
            assert words in result.stdout
    return found


def test_lost_records(server: NatsServer) -> None:
    streams = {
        "hurt": {**SMALL, "subject": "hurt", "compaction": None},
        "well": {"subject": "well"},
    }
    settings = {"streams": streams, "cleaner": {"interval": "100ms", "scrub_interval": "1s"}}
    with Daemon(server.url, settings) as daemon:
        with RawNats(server.port) as raw:
            Compacted(raw, "hurt").put_many(KEYS, pad=300)
        assert seen(daemon) == {}
        damaged = segment_files(daemon, "hurt")[1]
        flip(damaged, damaged.stat().st_size // 2)
        until(lambda: describe(daemon, "hurt").quarantined, 60)
        [bad] = describe(daemon, "hurt").quarantined
        first, following = bad["first_offset"], bad["next_offset"]
        assert seen(daemon) == {
            "lost_records": f"hurt: {following - first:,} offsets cannot be read: "
            f"[{first:,}, {following:,}) {bad['reason']}"
        }
        assert daemon.metric("liftlog_quarantined_offsets", stream="hurt") == following - first
        badge = '<a class="state state-failed" href="#damage">damage</a>'
        assert badge in daemon.get("/ui/streams/hurt")[1]
        assert badge not in daemon.get("/ui/streams/well")[1]
        with connect_sync(daemon.pull_address) as client:
            client.truncate_prefix("hurt", following)
        assert seen(daemon) == {}, "the stream no longer reaches back to it"
        assert_no_traceback(daemon)


def test_a_cleaner_that_fails(server: NatsServer) -> None:
    settings = {"streams": {"slow": {**SMALL, "subject": "slow"}}, "cleaner": {"interval": "1h"}}
    with Daemon(server.url, settings) as daemon:
        with RawNats(server.port) as raw:
            Compacted(raw, "slow").put_many(KEYS, pad=300)
        assert daemon.metric("liftlog_cleaning_failing", stream="slow") == 0
        with connect_sync(daemon.pull_address) as client:
            client.compact_stream("slow")
            until(lambda: client.describe_stream("slow").compaction["progress"], 60)
        for pid in children_of(daemon.pid):
            if b"cleaning.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        until(lambda: daemon.metric("liftlog_cleaning_failing", stream="slow") == 1)
        # On a busy machine the list of conditions is up to a second old.
        words = until(lambda: json.loads(daemon.get("/readyz")[1])["warnings"].get("cleaning"))
        assert words.startswith("slow: compact failed once, is tried again in ")
        assert "the cleaning process ended with status -9" in words
        result = CliRunner().invoke(cli, ["health", "--server", daemon.pull_address])
        assert result.exit_code == 0
        assert "compact failed once" in result.stdout
        assert "compact failed once" in daemon.get("/ui/health")[1]


def test_why_compaction_is_idle(server: NatsServer) -> None:
    eager = {**SMALL, "compaction": {"min_dirty_ratio": 0.3, "min_lag": "1h"}}
    streams = {
        "held": {**SMALL, "subject": "held", "compaction": {"min_dirty_ratio": 0.5}},
        "young": {**eager, "subject": "young"},
        "fresh": {**SMALL, "subject": "fresh", "dedupe_window": "1h"},
    }
    # So late that nothing is compacted before everything was looked at.
    settings = {"streams": streams, "cleaner": {"interval": "1h"}}
    with Daemon(server.url, settings) as daemon:
        with connect_sync(daemon.pull_address) as client:
            lease = client.acquire_lease("held", holder="a long read", ttl=600)
        with RawNats(server.port) as raw:
            for name in streams:
                Compacted(raw, name).put_many(KEYS, pad=300)
        why = {name: describe(daemon, name).compaction for name in streams}
        assert why["held"]["dirty_ratio"] == 1
        assert why["held"]["reason"].startswith(
            f"a lease of a long read holds the records from offset {lease.high:,} on, for "
        )
        assert (
            why["young"]["reason"]
            == "the dirty records are younger than compaction.min_lag, 3600 s"
        )
        assert why["fresh"]["reason"] == "the dirty records are younger than dedupe_window, 3600 s"
        assert {one["state"] for one in why.values()} == {"idle"}
        assert "a lease of a long read holds" in daemon.get("/ui/streams/held")[1]
        shown = CliRunner().invoke(cli, ["stream", "info", "held", "--server", daemon.pull_address])
        assert "idle, 100 % dirty" in shown.stdout
        assert "a lease of a long read holds" in shown.stdout
        with connect_sync(daemon.pull_address) as client:
            client.release_lease("held", lease.lease_id)
        assert describe(daemon, "held").compaction["reason"] == ""
