"""Compaction in a real daemon: what stays, what goes, and that everything else goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.clients.ingesting import assert_no_traceback, describe, publish, records_of, until
from support.clients.raw_nats import RawNats
from support.daemons.compacted import Compacted, segment_files, stream_files
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.processes import children_of

from envelope import encode
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.errors import CorruptRange, InvalidArgument
from liftlog.server.cleaning.pace import BUSY_RATE_BYTES

pytestmark = pytest.mark.integration

COMPACTED: dict[str, Any] = {"compaction": {}, "dedupe_window": "0s"}
QUICK: dict[str, Any] = {
    "cleaner": {"interval": "100ms"},
    "log": {"retention_interval": "100ms"},
}
# Passes only when they are asked for, and slow enough to be met in the middle.
ON_DEMAND = {"min_dirty_ratio": 1.0, "min_lag": "0s"}


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        yield client


def run_compact(daemon: Daemon, *arguments: str) -> str:
    """What the command prints."""
    return subprocess.run(
        [sys.executable, "-m", "liftlog", "stream", "compact", *arguments],
        env={**os.environ, "LIFTLOG_SERVER": daemon.pull_address},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def compact(daemon: Daemon, stream: str) -> Any:
    """Ask for a pass and wait for it; what the daemon says then."""
    with connect_sync(daemon.pull_address) as client:
        return client.compact_stream(stream, wait=True).compaction


def worker_pid(daemon: Daemon) -> int | None:
    for pid in children_of(daemon.pid):
        if b"cleaning.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


# --- what stays ---


@pytest.mark.long
def test_keys_of_envelopes_and_headers_and_tombstones(server: NatsServer, raw: RawNats) -> None:
    streams = {"users": {"subject": "users", **COMPACTED}, "plain": {"subject": "plain"}}
    with Daemon(server.url, {"streams": streams, **QUICK}) as daemon:
        users = Compacted(raw, "users")
        for number in range(30):
            users.put(f"header-{number % 3}", b"%d" % number)
            key, value = f"envelope-{number % 3}", b"e%d" % number
            users.put_envelope(key, value, encode(value, key=key))
        users.delete("header-0")
        users.put_envelope("envelope-0", None, encode(None, key="envelope-0"))
        users.put("header-1", b"shared")
        users.put_envelope("header-1", b"by envelope", encode(b"by envelope", key="header-1"))
        assert publish(raw, "users", b"without a key")["seq"] == 65
        done = compact(daemon, "users")
        assert (done["last_pass"]["records_in"], done["last_pass"]["records_out"]) == (65, 7)
        assert (done["state"], done["cleaned_below"], done["dirty_bytes"]) == ("idle", 66, 0)
        users.newest[b""] = (65, b"without a key")
        users.check(daemon)
        # Nothing is left to do; offsets go on; a stream without compaction says so.
        shown = run_compact(daemon, "users", "--wait")
        assert shown.startswith("users was not compacted: no record that may be compacted is dirty")
        assert "the last pass: 58 records of 65 removed" in shown
        again = describe(daemon, "users").compaction
        assert (again["passes"], again["finished"]) == (done["passes"], 2)
        users.next_offset = 66
        # A record that is gone is told, and not printed as nothing.
        gone = CliRunner(env={"LIFTLOG_SERVER": daemon.pull_address}).invoke(
            cli, ["get", "users", "1"]
        )
        assert gone.exit_code == ExitCode.NOT_FOUND
        assert "users has no record at offset 1: compaction has removed it" in gone.stderr
        # Who asks is told why it is not done; the dirty ratio does not count then.
        with connect_sync(daemon.pull_address) as client:
            client.acquire_lease("users", "earliest", ttl=600)
        users.put("header-2", b"new")
        assert "was not compacted: a lease of" in run_compact(daemon, "users", "--wait")
        assert "users cannot be compacted now: a lease of" in run_compact(daemon, "users")
        users.check(daemon, compacted=False)
        with connect_sync(daemon.pull_address) as client, pytest.raises(InvalidArgument):
            client.compact_stream("plain")
        assert daemon.metric("liftlog_compaction_records_removed_total", stream="users") == 58
        daemon.restart()
        users.check(daemon, compacted=False)
        assert describe(daemon, "users").compaction["cleaned_below"] == 66
        assert_no_traceback(daemon)


def test_tombstones_of_a_quiet_stream_go(server: NatsServer, raw: RawNats) -> None:
    """By themselves: the active segment rolls, the pass is due, and later their time is over."""
    stream = {
        "subject": "quiet",
        "segment": {"max_age": "200ms"},
        "dedupe_window": "0s",
        "compaction": {"tombstone_retention": "4s"},
    }
    with Daemon(server.url, {"streams": {"quiet": stream}, **QUICK}) as daemon:
        quiet = Compacted(raw, "quiet")
        for number in range(6):
            quiet.put(f"key-{number % 3}", b"%d" % number)
        last = quiet.delete("key-0")
        until(lambda: describe(daemon, "quiet").compaction["cleaned_below"] == last + 1)
        quiet.check(daemon)
        assert describe(daemon, "quiet").compaction["tombstones_removed_below"] == 0
        until(lambda: describe(daemon, "quiet").compaction["tombstones_removed_below"] == last + 1)
        until(lambda: len(records_of(daemon, "quiet")) == 2)
        quiet.check(daemon, tombstones=False)
        assert_no_traceback(daemon)


def test_retention_and_compaction_of_one_stream(server: NatsServer, raw: RawNats) -> None:
    stream = {
        "subject": "both",
        "segment": {"max_bytes": "16KiB"},
        "retention": {"max_messages": 3000},
        **COMPACTED,
    }
    with Daemon(server.url, {"streams": {"both": stream}, **QUICK}) as daemon:
        both = Compacted(raw, "both")
        for _ in range(20):
            both.put_many((f"key-{number % 50}" for number in range(400)), pad=50)
        both.put_many(f"unique-{number}" for number in range(500))
        compact(daemon, "both")
        until(lambda: describe(daemon, "both").compaction["state"] == "idle")
        info = describe(daemon, "both")
        assert info.compaction["passes"] >= 1
        start = info.log_start_offset
        both.newest = {key: entry for key, entry in both.newest.items() if entry[0] >= start}
        assert len(both.newest) >= 500
        both.check(daemon)
        assert daemon.metric("liftlog_cleaning_failures_total", stream="both") == 0
        daemon.kill()
        daemon.restart()
        both.check(daemon)
        assert_no_traceback(daemon)


# --- in the middle of a pass ---


SLOW = {
    "subject": "slow",
    "segment": {"max_bytes": "64KiB"},
    "dedupe_window": "0s",
    "compaction": {"max_rate": "512KiB", **ON_DEMAND},
}
KEYS = [f"key-{number % 500}" for number in range(2_000)]


def start_pass(daemon: Daemon, stream: str) -> None:
    """Returns once a pass over most of the stream writes. The first segment alone is dirty enough
    for a pass of its own, which may run before."""
    with connect_sync(daemon.pull_address) as client:
        client.compact_stream(stream)

        def is_writing() -> bool:
            found = client.describe_stream(stream)
            progress = found.compaction["progress"] or {"phase": "", "total_bytes": 0}
            return progress["phase"] == "rewrite" and progress["total_bytes"] > found.size_bytes / 2

        until(is_writing, timeout=60)


def lone_files(daemon: Daemon, stream: str) -> list[str]:
    """Segment files that the manifest does not list."""
    manifest = (daemon.data_dir / "streams" / stream / "manifest").read_text()
    listed = {entry["file"] for entry in json.loads(manifest.partition("\n")[2])["segments"]}
    return [path.name for path in segment_files(daemon, stream) if path.name not in listed]


def test_progress_is_visible_and_publishing_goes_on(server: NatsServer, raw: RawNats) -> None:
    slower = SLOW | {"compaction": {"max_rate": "128KiB", **ON_DEMAND}}  # than four requests
    with Daemon(server.url, {"streams": {"slow": slower}, **QUICK}) as daemon:
        slow = Compacted(raw, "slow")
        slow.put_many(KEYS, pad=300)
        start_pass(daemon, "slow")
        found = describe(daemon, "slow").compaction
        assert found["state"] == "running"
        assert 0 < found["progress"]["done_bytes"] <= found["progress"]["total_bytes"]
        assert daemon.metric("liftlog_compaction_running", stream="slow") == 1
        assert 0 < daemon.metric("liftlog_compaction_progress_ratio", stream="slow") <= 1
        slow.put("key-1", b"meanwhile")
        pid = worker_pid(daemon)
        assert pid is not None
        daemon.stop(timeout=10)
        assert not Path(f"/proc/{pid}").exists()
        daemon.start()
        assert lone_files(daemon, "slow") == []
        slow.check(daemon, compacted=False)


@pytest.mark.long
def test_the_worker_is_killed(server: NatsServer, raw: RawNats) -> None:
    slower = SLOW | {"compaction": {"max_rate": "128KiB", **ON_DEMAND}}  # than a busy machine
    with Daemon(server.url, {"streams": {"slow": slower}, **QUICK}) as daemon:
        slow = Compacted(raw, "slow")
        slow.put_many(KEYS, pad=300)
        start_pass(daemon, "slow")
        pid = worker_pid(daemon)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: daemon.metric("liftlog_cleaning_failures_total", stream="slow") == 1)
        slow.put("key-0", b"meanwhile")
        # It is tried again by itself, with another process.
        until(lambda: describe(daemon, "slow").compaction["finished"] == 1)
        assert worker_pid(daemon) not in (None, pid)
        assert lone_files(daemon, "slow") == []
        compact(daemon, "slow")
        slow.check(daemon)
        assert_no_traceback(daemon)


@pytest.mark.long
def test_the_daemon_is_killed_during_a_pass(server: NatsServer, raw: RawNats) -> None:
    with Daemon(server.url, {"streams": {"slow": SLOW}, **QUICK}) as daemon:
        slow = Compacted(raw, "slow")
        slow.put_many(KEYS, pad=300)
        start_pass(daemon, "slow")
        pid = worker_pid(daemon)
        os.kill(daemon.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists(), what="the worker dies too")
        daemon.kill()
        daemon.settings["streams"]["slow"]["compaction"] = {"max_rate": None, **ON_DEMAND}
        daemon.start()
        assert lone_files(daemon, "slow") == []
        slow.check(daemon, compacted=False)
        slow.put("key-7", b"after the crash")
        compact(daemon, "slow")
        slow.check(daemon)


def test_a_stream_is_deleted_during_its_pass(server: NatsServer, raw: RawNats) -> None:
    with Daemon(server.url, QUICK) as daemon, connect_sync(daemon.pull_address) as client:
        client.create_stream("slow", **SLOW)
        Compacted(raw, "slow").put_many(KEYS, pad=300)
        start_pass(daemon, "slow")
        client.delete_stream("slow")
        assert not (daemon.data_dir / "streams" / "slow").exists()
        client.create_stream("slow", **SLOW)
        recreated = Compacted(raw, "slow")
        recreated.put_many(KEYS[:100])
        compact(daemon, "slow")
        recreated.check(daemon)
        assert len(stream_files(daemon, "slow")) < 10
        assert_no_traceback(daemon)


# --- how fast ---


def long_stream(raw: RawNats, daemon: Daemon, name: str) -> float:
    """Returns how many seconds a pass over it takes at the rate that holds beside load."""
    stream = Compacted(raw, name)
    stream.put_many((f"key-{number % 500}" for number in range(40_000)), pad=1000)
    return 2 * describe(daemon, name).size_bytes / BUSY_RATE_BYTES  # it is read twice


LONG = {
    "subject": "long",
    "segment": {"max_bytes": "8MiB"},
    "dedupe_window": "0s",
    "compaction": ON_DEMAND,
}


def test_a_pass_beside_an_idle_daemon_is_not_slowed(server: NatsServer, raw: RawNats) -> None:
    with Daemon(server.url, {"streams": {"long": LONG}, **QUICK}) as daemon:
        limit_seconds = long_stream(raw, daemon, "long")
        assert compact(daemon, "long")["last_pass"]["seconds"] < 0.8 * limit_seconds
        assert daemon.metric("liftlog_cleaning_at_idle_rate") == 0  # nothing runs any more
        assert_no_traceback(daemon)


@pytest.mark.long
@pytest.mark.parametrize("max_rate", ["auto", "32MiB"])
def test_a_pass_is_held_back_beside_load(max_rate: str, server: NatsServer, raw: RawNats) -> None:
    settings = {
        "streams": {"long": LONG, "other": {"subject": "other"}},
        **QUICK,
        "cleaner": {"interval": "100ms", "max_rate": max_rate},
    }
    with Daemon(server.url, settings) as daemon, RawNats(server.port) as other:
        limit_seconds = long_stream(raw, daemon, "long")
        ended = threading.Event()

        def publish_often() -> None:
            """Wait for no ack: on a busy machine the daemon would be idle between two of them."""
            while not ended.wait(0.01):
                other.pub("other", b"load")

        load = threading.Thread(target=publish_often)
        load.start()
        began = time.monotonic()
        try:
            compact(daemon, "long")  # a short second pass may follow
        finally:
            ended.set()
            load.join()
        assert time.monotonic() - began > 0.9 * limit_seconds
        assert_no_traceback(daemon)


# --- damage ---


def flip_a_byte(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_a_damaged_segment_is_left_alone_and_told(server: NatsServer, raw: RawNats) -> None:
    stream = SLOW | {"subject": "hurt", "compaction": ON_DEMAND}
    with Daemon(server.url, {"streams": {"hurt": stream}, **QUICK}) as daemon:
        hurt = Compacted(raw, "hurt")
        hurt.put_many(KEYS, pad=300)
        files = segment_files(daemon, "hurt")
        # Under load each chunk of 500 may be one batch, larger than a segment: four files then.
        assert len(files) > 3
        damaged = files[2]
        flip_a_byte(damaged, damaged.stat().st_size // 2)
        before = damaged.read_bytes()
        with connect_sync(daemon.pull_address) as client:
            client.compact_stream("hurt")
        until(lambda: describe(daemon, "hurt").quarantined, what="the damage is quarantined")
        [bad] = describe(daemon, "hurt").quarantined
        assert bad["segment"] == damaged.name
        assert 0 < bad["next_offset"] - bad["first_offset"] <= 500
        assert daemon.metric("liftlog_quarantined_ranges", stream="hurt") == 1
        assert daemon.metric("liftlog_cleaning_failures_total", stream="hurt") >= 1
        assert '"event": "damage-found"' in daemon.log
        # The pass is tried again around the damaged segment, which stays as it is.
        until(lambda: describe(daemon, "hurt").compaction["finished"] == 1)
        assert damaged.read_bytes() == before
        with connect_sync(daemon.pull_address) as client, pytest.raises(CorruptRange) as raised:
            list(client.read("hurt", until="end"))
        assert raised.value.next_offset == bad["next_offset"]
        hurt.put("key-1", b"goes on")
        found = records_of(daemon, "hurt", start=bad["next_offset"])
        assert {record.key for record in found} == hurt.newest.keys()
        for key, entry in hurt.newest.items():
            newest = [(r.offset, r.value) for r in found if r.key == key][-1]
            assert newest == entry
        assert len(found) < 1500
        assert_no_traceback(daemon)
