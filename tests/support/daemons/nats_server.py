"""A real nats-server for tests, on loopback and a free port. It ends with the test process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from support.daemons.forks import Forked, can_fork
from support.daemons.ports import free_port
from support.daemons.processes import Process, wrapped_pid

from liftlog.server.life.embedded import announced_port, find_nats_server, write_config
from liftlog.server.vitals.child_processes import tied_to_parent

START_TIMEOUT_SECONDS = 20.0
_RELOADED = "Reloaded server configuration"


class NatsServer:
    """Use as a context manager, or `start()` and `stop()`.

    `restart()` uses the same port and the same store; no other process takes the port while the
    server is down. With `jetstream=True` its files are below `directory`, and with
    `sync_always=True` it fsyncs each message.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        jetstream: bool = False,
        sync_always: bool = False,
        max_payload: int | None = None,
        wrapper: Sequence[str] = (),
        host: str = "127.0.0.1",
        network: Path | None = None,
        **config: Any,
    ) -> None:
        """`wrapper` is put before the command (strace and its options, beginning with an absolute
        path). `host` is the address at which the server listens, `network` the file of its network
        namespace."""
        self._temporary = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="nats-server-")
            directory = Path(self._temporary.name)
        self.directory = directory.absolute()
        self.host = host
        self._network = network
        self._wrapper = list(wrapper)
        self._config = config
        if jetstream:
            store: dict[str, Any] = {"store_dir": str(self.directory / "jetstream")}
            if sync_always:
                store["sync_interval"] = "always"
            self._config["jetstream"] = store
        if max_payload is not None:
            self._config["max_payload"] = max_payload
            self._config["max_pending"] = max(64 << 20, max_payload)
        self._process: Process | None = None
        self._port: int | None = None
        self._started_on: int | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def port(self) -> int:
        assert self._port is not None, "not started"
        return self._port

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return wrapped_pid(self._process.pid, self._wrapper)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        path = self.directory / "nats-server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> NatsServer:
        """Start the server. Returns when the server has greeted a connection."""
        assert self._process is None, "already started"
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._port is None and "listen" not in self._config:
            self._port = free_port()
        self._started_on = self._port
        config = self._write_config()
        command = [str(find_nats_server()), "-c", str(config)]
        if self._wrapper:  # if the wrapper is killed, the server must end, too
            command = [*self._wrapper, *tied_to_parent(command, parent=0)]
        process = _spawn(command, self._network)
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            port = announced_port(self.directory, self.pid)
            if port is not None and _greets(self.host, port):
                self._port = port
                return self
            if process.poll() is not None or time.monotonic() > deadline:
                status = process.poll()
                self.kill()
                raise RuntimeError(f"nats-server did not start (status {status}):\n{self.log}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Send SIGTERM and wait. Does nothing if the server is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, like a crash of the server."""
        self._end(signal.SIGKILL)

    def restart(self) -> NatsServer:
        """Stop the server if it is running, and start it on the same port."""
        self.stop()
        return self.start()

    def configure(self, **config: Any) -> None:
        """Change the configuration for the next start."""
        self._config |= config

    def reload(self, **config: Any) -> None:
        """Change the configuration of the running server by SIGHUP, as an operator does. Returns
        when the server has read it."""
        self._config |= config
        before = self.log.count(_RELOADED)
        self._write_config()
        os.kill(self.pid, signal.SIGHUP)
        self._await_log(lambda log: log.count(_RELOADED) > before, "did not reload")

    def lame_duck(self) -> None:
        """Enter lame duck mode, like `nats-server --signal ldm`. The server accepts no new
        connections. It notifies existing clients, and closes their connections after
        `lame_duck_grace_period`, in `lame_duck_duration`."""
        os.kill(self.pid, signal.SIGUSR2)
        self._await_log(lambda log: "Entering lame duck mode" in log, "has no lame duck mode")

    def connections(self) -> int:
        """Return the number of connected clients. The configuration needs `http`."""
        with self._monitor("varz") as answer:
            return int(json.load(answer)["connections"])

    def subjects(self) -> set[str]:
        """Return the subjects to which its clients are subscribed. Needs `http`, too."""
        with self._monitor("connz?subs=1") as answer:
            found = json.load(answer)["connections"]
        return {subject for one in found for subject in one.get("subscriptions_list", ())}

    def is_healthy(self) -> bool:
        """Return True if the server has all JetStream data that it should have. Needs `http`,
        too."""
        try:
            with self._monitor("healthz"):
                return True
        except OSError:  # also for an answer with status 503
            return False

    def _monitor(self, page: str) -> Any:
        port = self._config["http"].rpartition(":")[2]
        return urllib.request.urlopen(f"http://{self.host}:{port}/{page}", timeout=5)

    def wait_ended(self, timeout: float = 60.0) -> None:
        """Wait until the server has ended by itself."""
        assert self._process is not None
        self._process.wait(timeout)
        self.stop()

    def _write_config(self) -> Path:
        extra = {
            "listen": f"{self.host}:{self._started_on or -1}",
            "log_file": str(self.directory / "nats-server.log"),
            **self._config,
        }
        return write_config(self.directory, port=self._started_on, extra=extra)

    def _await_log(self, condition: Callable[[str], bool], complaint: str) -> None:
        deadline = time.monotonic() + 10
        while not condition(self.log):
            if time.monotonic() > deadline:
                raise AssertionError(f"nats-server {complaint}:\n{self.log}")
            time.sleep(0.01)

    def pause(self) -> None:
        """Stop the server by SIGSTOP. Connections stay open, and the server does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not _is_stopped(self._process.pid):  # each of its threads has to stop
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        pid, process, self._process = self.pid, self._process, None
        if self._finalizer is not None:
            self._finalizer.detach()
        _end(process, number, pid)

    def __enter__(self) -> NatsServer:
        return self if self._process is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()


def _spawn(command: list[str], network: Path | None) -> Process:
    if can_fork():
        with open(os.devnull, "wb") as nothing:
            return Forked(
                command[1:], program=Path(command[0]), output=nothing.fileno(), network=network
            )
    assert network is None, "only a forked server can run in another network"
    return subprocess.Popen(
        tied_to_parent(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end(
    process: Process,
    number: signal.Signals = signal.SIGKILL,
    pid: int | None = None,
) -> None:
    """End a process. `pid` is the process to signal if it is not `process` itself."""
    if process.poll() is None:
        os.kill(pid or process.pid, signal.SIGCONT)  # a stopped process does not handle SIGTERM
        os.kill(pid or process.pid, number)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _greets(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            with connection.makefile("rb") as lines:
                greeting = lines.readline()
            return greeting.startswith(b"INFO ") and "port" in json.loads(greeting[5:])
    except (OSError, ValueError):
        return False


def _is_stopped(pid: int) -> bool:
    states = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states == {"T"}
