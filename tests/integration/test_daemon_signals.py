"""`liftlog reload` and `drain` find the daemon by its data directory, and no other process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.server.life.reloading import OUTCOME_NAME

pytestmark = pytest.mark.integration


def run(command: str, directory: Path, *more: str) -> tuple[int, dict[str, Any]]:
    words = [command, "--data-dir", str(directory), "-o", "json", *more]
    result = CliRunner().invoke(cli, words)
    return result.exit_code, json.loads(result.stdout or result.stderr)


def test_reload_and_drain(server: NatsServer, tmp_path: Path) -> None:
    acl = tmp_path / "acl.yaml"
    acl.write_text((REPOSITORY / "config/acl.yaml").read_text())
    with Daemon(server.url, {"acl": {"file": str(acl)}}) as daemon:
        directory = daemon.data_dir
        for _ in range(2):  # the result of this reload, not of the one before
            code, found = run("reload", directory)
            assert code == 0
            assert found["signal"] == "SIGHUP"
            assert set(found["reloaded"]) >= {"nats", "acl"}
            assert found["problems"] == {}
        assert daemon.metric("liftlog_reloads_total", result="ok") == 2

        acl.write_text("principals: 7\n")
        code, found = run("reload", directory)
        assert code == ExitCode.CONFIG
        assert "acl" not in found["reloaded"]
        assert str(acl) in found["problems"]["acl"]
        shown = CliRunner().invoke(cli, ["reload", "--data-dir", str(directory)])
        assert shown.exit_code == ExitCode.CONFIG
        assert "acl was not reloaded, and the previous one stays in use" in shown.stderr

        code, found = run("drain", directory)
        assert (code, found["ended"]) == (0, True)
        assert daemon.wait(30).exit_code == 0
        assert not (directory / OUTCOME_NAME).exists()
        assert run("drain", directory)[0] == ExitCode.NOT_FOUND


def test_a_reload_without_a_result_is_not_waited_for_for_ever(server: NatsServer) -> None:
    with Daemon(server.url) as daemon:
        pid = int((daemon.data_dir / "lock").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            code, found = run("reload", daemon.data_dir, "--timeout", "0.2")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert code == ExitCode.TRY_AGAIN
        assert "within 0.2 s" in str(found["error"])


def test_a_process_that_does_not_hold_the_lock_gets_no_signal(tmp_path: Path) -> None:
    assert run("reload", tmp_path)[0] == ExitCode.NOT_FOUND
    for text in ("", "x", "0", "-1", "999999999", f"{os.getpid()}\n"):
        (tmp_path / "lock").write_text(text)
        code, found = run("drain", tmp_path, "--timeout", "0")
        assert code == ExitCode.NOT_FOUND
        assert "no daemon" in str(found["error"])
