"""Runs commands against a daemon of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.cli.root import cli

COMMAND = [sys.executable, "-m", "liftlog"]


class Cli:
    """Runs commands against one daemon, in this process or in a process of their own."""

    def __init__(self, daemon: Daemon, nats: NatsServer) -> None:
        self.daemon = daemon
        self.environ = {"LIFTLOG_SERVER": daemon.pull_address, "NATS_URL": nats.url}

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> Result:
        return CliRunner(env=self.environ).invoke(cli, arguments, input=stdin)

    def ok(self, *arguments: str, stdin: bytes | None = None) -> str:
        result = self(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ok(*arguments, "-o", "jsonl").splitlines()]

    def spawn(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **self.environ},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
