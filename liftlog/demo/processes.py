"""The demo's daemon as a separate process: start, kill, start again, stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.problems import Problem
from liftlog.server.vitals.child_processes import tied_to_parent

_READY_SECONDS = 15.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.01


class DemoDaemon:
    """`liftlog serve` in a process that dies with this one."""

    def __init__(self, config: Path, data_dir: Path) -> None:
        self._config = config
        self._addresses_path = data_dir / "addresses.json"
        self._log_path = config.with_name("daemon.log")
        self._process: asyncio.subprocess.Process | None = None
        self.pull_address = ""

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon is not running"
        return self._process.pid

    async def start(self) -> None:
        """Start the daemon; returns when it is ready. Raises Problem."""
        self._addresses_path.unlink(missing_ok=True)  # a killed daemon leaves its file behind
        command = [sys.executable, "-P", "-m", "liftlog", "serve", "-c", str(self._config)]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("LIFTLOG_")}
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied_to_parent(command),
                cwd=self._config.parent,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await self._is_ready():
                    if self._process.returncode is not None:
                        raise self._failed(f"ended with {self._process.returncode}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._failed(f"is not ready after {_READY_SECONDS:g} s") from None

    def _failed(self, what: str) -> Problem:
        try:
            tail = "\n".join(self._log_path.read_text(errors="replace").splitlines()[-15:])
        except OSError:
            tail = ""
        return Problem(f"the daemon of the demo {what}\n{tail}".rstrip(), ExitCode.FAILED)

    async def _is_ready(self) -> bool:
        try:
            addresses = json.loads(self._addresses_path.read_text())
        except (OSError, ValueError):
            return False
        self.pull_address = str(addresses["pull"][0])
        return await _answers_ready(str(addresses["http"]))

    def kill(self) -> None:
        """SIGKILL: the daemon can neither write anything nor close its connections."""
        self._signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the process to end; returns its exit status."""
        assert self._process is not None, "the daemon is not running"
        return await self._process.wait()

    async def stop(self) -> int | None:
        """SIGTERM, then SIGKILL if it takes too long. None if the daemon is not running."""
        if self._process is None or self._process.returncode is not None:
            return None
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                return await self._process.wait()
        except (TimeoutError, asyncio.CancelledError):
            self.kill()
            await self._process.wait()
            raise

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


async def _answers_ready(address: str) -> bool:
    """Whether `/readyz` answers 200."""
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except (OSError, ValueError):
        return False
    try:
        writer.write(f"GET /readyz HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        status = await reader.readline()
        return status.split()[1:2] == [b"200"]
    except OSError:
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
