"""`liftlog reload` and `drain` find the daemon by its data directory, and no other process."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.daemon import Daemon
from support.nats_server import NatsServer

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.root import cli

pytestmark = pytest.mark.integration


def run(command: str, directory: Path, *more: str) -> tuple[int, dict[str, object]]:
    words = [command, "--data-dir", str(directory), "-o", "json", *more]
    result = CliRunner().invoke(cli, words)
    return result.exit_code, json.loads(result.stdout or result.stderr)


def test_reload_and_drain(server: NatsServer) -> None:
    with Daemon(server.url) as daemon:
        directory = daemon.data_dir
        code, found = run("reload", directory)
        assert (code, found["signal"]) == (0, "SIGHUP")
        deadline = time.monotonic() + 30
        while "reloaded" not in daemon.log:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        code, found = run("drain", directory)
        assert (code, found["ended"]) == (0, True)
        assert daemon.wait(30).exit_code == 0
        assert run("drain", directory)[0] == ExitCode.NOT_FOUND


def test_a_process_that_does_not_hold_the_lock_gets_no_signal(tmp_path: Path) -> None:
    assert run("reload", tmp_path)[0] == ExitCode.NOT_FOUND
    for text in ("", "x", "0", "-1", "999999999", f"{os.getpid()}\n"):
        (tmp_path / "lock").write_text(text)
        code, found = run("drain", tmp_path, "--timeout", "0")
        assert code == ExitCode.NOT_FOUND
        assert "no daemon" in str(found["error"])
