"""The runbook of a full disk, carried out as it is written, for a stream of the configuration."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from integration.test_full_disk import VALUE, fill, readiness, small_disk
from support.clients.ingesting import assert_no_traceback, describe, publish, records_of, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.cli.root import cli

pytestmark = pytest.mark.integration

__all__ = ["small_disk"]
OPERATE = REPOSITORY / "docs/how-to/operate.md"


def commands_of(section: str) -> list[list[str]]:
    """The commands below the heading, without their comments."""
    _, _, rest = OPERATE.read_text().partition(f"\n### {section}\n")
    block = re.search(r"```console\n(.*?)```", rest.partition("\n### ")[0], re.DOTALL)
    assert block is not None, section
    lines = [line.removeprefix("$ ") for line in block[1].splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_a_full_disk(server: NatsServer, small_disk: Path) -> None:
    large = {"subject": "in.>", "segment": {"max_bytes": "512KiB"}, "dedupe_window": "0s"}
    settings: dict[str, Any] = {
        "streams": {"in": large},
        "data_dir": str(small_disk / "data"),
        "log": {"retention_interval": "100ms"},
    }
    daemon = Daemon(server.url, settings, directory=small_disk.parent)
    daemon.data_dir = small_disk / "data"
    with daemon, RawNats(server.port) as raw:
        acked, _ = fill(raw, "in.x")
        health, listed, preview, update, again = commands_of("LiftlogDiskFull")

        def run(words: list[str]) -> Any:
            values = {"NAME": "in", "retention.max_bytes=SIZE": "retention.max_bytes=2MiB"}
            words = [values.get(one, one) for one in words]
            return CliRunner().invoke(cli, [*words, "--server", daemon.pull_address])

        assert "no space left" in run(health).output
        assert "in" in run(listed).stdout
        shown = run(preview)
        assert shown.exit_code == 0, shown.output
        assert "retention deletes up to" in shown.stdout
        assert describe(daemon, "in").overrides == {}
        done = run(update)
        assert done.exit_code == 0, done.output
        assert "comes from the configuration file" in " ".join(done.stderr.split())
        override = {"retention.max_bytes": {"file": None, "value": "2MiB"}}
        until(lambda: publish(raw, "in.x", VALUE).get("seq") == len(acked) + 1, 30)
        until(lambda: readiness(daemon)["problems"] == {})
        ended = run(again)
        assert (ended.exit_code, "refuses" in ended.stdout) == (0, False), ended.output
        assert len(records_of(daemon, "in")) < len(acked)
        check_shown(daemon, override)
        daemon.restart()
        check_shown(daemon, override)
        # What the file says counts again as soon as it says something else.
        daemon.settings["streams"]["in"]["retention"] = {"max_bytes": "4MiB"}
        daemon.restart()
        assert describe(daemon, "in").settings["retention"]["max_bytes"] == "4MiB"
        check_shown(daemon, {})
        assert_no_traceback(daemon)


def check_shown(daemon: Daemon, override: dict[str, Any]) -> None:
    assert describe(daemon, "in").overrides == override
    info = CliRunner().invoke(cli, ["stream", "info", "in", "--server", daemon.pull_address])
    shown = "retention.max_bytes: 2MiB, in the configuration file null"
    assert (shown in info.stdout) is bool(override)
    assert ("Overrides" in daemon.get("/ui/streams/in")[1]) is bool(override)
    assert json.loads(daemon.get("/ui/streams/in.json")[1])["overrides"] == override


def test_other_settings_are_the_files(server: NatsServer) -> None:
    with Daemon(server.url, {"streams": {"in": {"subject": "in.>"}}}) as daemon:
        words = ["stream", "update", "in", "--server", daemon.pull_address, "--yes", "--set"]
        refused = CliRunner().invoke(cli, [*words, "durability=os"])
        assert refused.exit_code != 0
        assert "comes from the configuration file" in refused.output
        assert "you can override the retention" in " ".join(refused.output.split())
        for value in ("7d", "null"):
            done = CliRunner().invoke(cli, [*words, f"retention.max_age={value}"])
            assert done.exit_code == 0, done.output
            assert bool(describe(daemon, "in").overrides) is (value == "7d")


def test_a_pass_that_cannot_do_anything(server: NatsServer) -> None:
    """Said at once, and without `--wait`."""
    streams = {
        "fresh": {"subject": "fresh", "compaction": {}, "dedupe_window": "1h"},
        "ready": {"subject": "ready", "compaction": {}, "dedupe_window": "0s"},
    }
    with Daemon(server.url, {"streams": streams}) as daemon, RawNats(server.port) as raw:
        said = {}
        for name in streams:
            for number in range(2):
                publish(raw, name, b"%d" % number, Liftlog_Key="k")
            words = ["stream", "compact", name, "--server", daemon.pull_address]
            said[name] = CliRunner().invoke(cli, words).stdout
        assert "fresh cannot be compacted now" in said["fresh"]
        assert "younger than dedupe_window, 3600 s" in said["fresh"]
        assert "ready will be compacted next" in said["ready"]
        until(lambda: describe(daemon, "ready").compaction["passes"] == 1)
        assert_no_traceback(daemon)
