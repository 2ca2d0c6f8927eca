"""Real daemons whose wall clock is wrong: ahead at the start, set right, ahead later on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish, records_of, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.shifted_clock import ShiftedClock

from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

HOUR = 3600.0
SMALL = {"segment": {"max_bytes": "4KiB", "max_age": "500ms"}}
STREAMS = {
    "aged": {"subject": "aged", "retention": {"max_age": "2s"}, "dedupe_window": "1s", **SMALL},
    "sized": {"subject": "sized", "retention": {"max_bytes": "8KiB"}, **SMALL},
    "counted": {"subject": "counted", "retention": {"max_messages": 5}, **SMALL},
    "kept": {"subject": "kept", "retention": {"max_age": "1h"}, **SMALL},
    "keyed": {"subject": "keyed", "compaction": {}, **SMALL},
}
SETTINGS = {
    "streams": {name: one | {"dedupe_window": "1s"} for name, one in STREAMS.items()},
    "log": {"retention_interval": "100ms"},
}
COUNT = 20


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedClock:
    return ShiftedClock(tmp_path / "clock")


def fill(raw: RawNats, *names: str) -> None:
    for name in names:
        for _ in range(COUNT):
            assert publish(raw, name, b"x" * 1000, Liftlog_Key="k")


def oldest_file(daemon: Daemon, name: str) -> int:
    """The first offset in the files of a stream."""
    logs = (daemon.data_dir / "streams" / name).glob("*.log")
    return min(int(path.name.partition(".")[0]) for path in logs)


def run_cli(daemon: Daemon, *words: str) -> None:
    environment = {**os.environ, "LIFTLOG_SERVER": daemon.pull_address}
    subprocess.run([sys.executable, "-m", "liftlog", *words], env=environment, check=True)


def clock_warning(daemon: Daemon) -> str:
    _, text = daemon.get("/readyz")
    found = json.loads(text)["warnings"]
    return "; ".join(found[name] for name in ("clock", "stamps_ahead") if name in found)


def test_stamps_of_a_clock_that_was_ahead_block_nothing(
    server: NatsServer, tmp_path: Path, clock: ShiftedClock
) -> None:
    """The machine boots with a clock 2 h ahead; it is set right, and the daemon starts again."""
    clock.set_ahead(2 * HOUR)
    with (
        Daemon(server.url, SETTINGS, directory=tmp_path / "d", clock=clock.path) as daemon,
        RawNats(server.port) as raw,
    ):
        fill(raw, "aged", "sized", "counted", "kept", "keyed")
        clock.set_ahead(0)
        until(lambda: "ahead" in clock_warning(daemon), what="the stamps are reported")
        assert any("2 h ahead" in one for one in describe(daemon, "sized").warnings)
        daemon.restart()  # of this start's records no process knows the age any more
        (daemon.data_dir / "clock").unlink()
        daemon.kill()
        daemon.restart()
        fill(raw, "aged", "sized", "counted", "kept")
        for name in ("aged", "sized", "counted"):
            until(
                lambda name=name: oldest_file(daemon, name) > COUNT,
                what=f"the old files of {name} are deleted",
            )
        until(lambda: describe(daemon, "aged").log_start_offset > COUNT)
        assert len(records_of(daemon, "counted")) == 5
        assert len(records_of(daemon, "kept")) == 2 * COUNT
        now = datetime.now(UTC)
        publish(raw, "kept", b"newest")
        with connect_sync(daemon.pull_address) as client:
            found = [record.offset for record in client.read("kept", start=now, until="end")]
            client.compact_stream("keyed", wait=True)
        assert found == [2 * COUNT + 1], "those with later stamps were stored before"
        assert len(records_of(daemon, "keyed")) == 1
        assert "kept" in clock_warning(daemon)
        run_cli(daemon, "stream", "truncate", "kept", f"@{now.isoformat()}", "--yes")
        assert describe(daemon, "kept").log_start_offset == 2 * COUNT + 1
        assert_no_traceback(daemon)


def test_a_clock_far_ahead_empties_no_stream(
    server: NatsServer, tmp_path: Path, clock: ShiftedClock
) -> None:
    """While the daemon runs, and across restarts. An operator can say that the clock is right."""
    with (
        Daemon(server.url, SETTINGS, directory=tmp_path / "d", clock=clock.path) as daemon,
        RawNats(server.port) as raw,
    ):
        fill(raw, "kept")
        daemon.restart()
        clock.set_ahead(48 * HOUR)
        until(lambda: "stepped ahead by 2 d" in clock_warning(daemon))
        daemon.restart()
        until(lambda: "stepped ahead by 2 d" in clock_warning(daemon))
        clock.set_ahead(72 * HOUR)
        daemon.kill()
        daemon.restart()
        until(lambda: "stepped ahead by 3 d" in clock_warning(daemon))
        assert len(records_of(daemon, "kept")) == COUNT
        daemon.arguments.append("--yes")  # which confirms what limits delete
        daemon.restart()
        until(lambda: "stepped ahead by 3 d" in clock_warning(daemon))
        daemon.arguments[-1] = "--believe-clock"
        daemon.restart()
        until(  # a read that is under way meanwhile would lose its place
            lambda: describe(daemon, "kept").log_start_offset > COUNT, what="what is old is deleted"
        )
        assert records_of(daemon, "kept") == []
        assert clock_warning(daemon) == ""
        assert_no_traceback(daemon)
