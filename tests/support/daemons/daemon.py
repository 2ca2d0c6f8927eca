"""Runs the real daemon in its own process, for tests and the benchmark."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, NamedTuple

import yaml
from support.daemons.forks import Forked, can_fork
from support.daemons.processes import Process, cpu_seconds, kill_session, status_bytes, wrapped_pid
from support.repository import REPOSITORY

from liftlog.server.vitals.child_processes import tied_to_parent

READY_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 30.0


class Stopped(NamedTuple):
    exit_code: int
    """Negative if a signal ended the process: minus the number of the signal."""
    seconds: float


class Daemon:
    """`liftlog serve` on free loopback ports, its files below `directory`.

    `settings` is merged over a default configuration (mappings merge, other values replace). After
    `stop` or `kill` it can be started again with the same data.

        with Daemon(nats_url, {"streams": {"orders": {"subject": "orders.>"}}}) as daemon:
            client = connect_sync(daemon.pull_address)
    """

    program: ClassVar[Sequence[str]] = (sys.executable, "-m", "liftlog", "serve")

    def __init__(
        self,
        nats_url: str | None,
        settings: Mapping[str, Any] | None = None,
        *,
        directory: Path | None = None,
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        boot_id: Path | None = None,
        network: Path | None = None,
        clock: Path | None = None,
        fresh: bool = False,
    ) -> None:
        """`wrapper` is put before the command (strace and its options, beginning with an absolute
        path). If a wrapper would only replace the boot id by the file `boot_id`, no wrapper is
        needed for forked daemons. `network` is the file of the network namespace in which the
        daemon runs. `clock` is the file of its `ShiftedClock`. With `fresh`, the daemon always runs
        in a new Python process instead of a fork."""
        self._temporary = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="liftlog-daemon-")
            directory = Path(self._temporary.name)
        self.directory = directory.absolute()
        self.data_dir = self.directory / "data"
        self.config_path = self.directory / "liftlog.yaml"
        self.log_path = self.directory / "daemon.log"
        self.arguments = list(arguments)
        self.environ = dict(environ or {})
        self.wrapper = list(wrapper)
        self._boot_id = boot_id
        self._network = network
        self._clock = clock
        self._fresh = fresh
        self._tree: Path | None = None
        self.settings: dict[str, Any] = {
            "data_dir": str(self.data_dir),
            "pull": {"listen": ["tcp://127.0.0.1:0"]},
            "http": {"listen": "127.0.0.1:0"},
        }
        if nats_url is not None:
            self.settings["nats"] = {"servers": [nats_url]}
        _merge(self.settings, settings or {})
        self._process: Process | None = None
        self.addresses: dict[str, Any] = {}
        self._finalizer: weakref.finalize[Any, Any] | None = None

    # --- life -----------------------------------------------------------------

    def use_version(self, tree: Path | None) -> None:
        """Run the code of another checkout of the project from the next start on; None for this
        checkout."""
        self._tree = tree

    def spawn(self) -> Daemon:
        """Start the process without waiting."""
        assert self._process is None, "already started"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config_path.write_text(yaml.safe_dump(self.settings, sort_keys=False))
        self.addresses_path.unlink(missing_ok=True)
        self.addresses = {}
        tree = self._tree or REPOSITORY
        python_path = os.pathsep.join(filter(None, (str(tree), os.getenv("PYTHONPATH"))))
        environ = {**os.environ, "PYTHONPATH": python_path, **self.environ}
        with self.log_path.open("ab") as log:
            process = self._spawn(environ, log)
        self._process = process
        self._finalizer = weakref.finalize(self, kill_session, process)
        return self

    def _spawn(self, environ: dict[str, str], log: IO[bytes]) -> Process:
        arguments = ["-c", str(self.config_path), *self.arguments]
        is_wrapped = bool(self.wrapper) and self._boot_id is None
        is_special = self._fresh or self._tree or is_wrapped or self.program is not Daemon.program
        if not is_special and can_fork(environ):
            return Forked(
                ["serve", *arguments],
                output=log.fileno(),
                cwd=self.directory,
                environ=environ,
                boot_id=self._boot_id,
                network=self._network,
                clock=self._clock,
            )
        assert self._network is None, "only a forked daemon can run in another network"
        assert self._clock is None, "only a forked daemon can have another clock"
        command = [*self.program, *arguments]
        if self.wrapper:  # if the wrapper is killed, the daemon must end, too
            command = [*self.wrapper, *tied_to_parent(command, parent=0)]
        return subprocess.Popen(
            tied_to_parent(command),
            cwd=self.directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def start(self, timeout: float = READY_TIMEOUT_SECONDS) -> Daemon:
        """Start the daemon. Returns when `/readyz` answers 200."""
        self.spawn()
        try:
            self.wait_ready(timeout)
        except BaseException:
            self.kill()
            raise
        return self

    def wait_listening(self, timeout: float = READY_TIMEOUT_SECONDS) -> None:
        """Wait until the daemon has written its addresses, ready or not."""
        self._await(self.read_addresses, timeout, "wrote no addresses.json")

    def wait_ready(self, timeout: float = READY_TIMEOUT_SECONDS) -> None:
        deadline = time.monotonic() + timeout
        self.wait_listening(timeout)
        self._await(lambda: self.ready, deadline - time.monotonic(), "is not ready")

    def stop(self, timeout: float = STOP_TIMEOUT_SECONDS) -> Stopped:
        """Send SIGTERM. If the stop takes longer than `timeout`, kills the daemon and raises
        AssertionError."""
        return self.signal_and_wait(signal.SIGTERM, timeout)

    def kill(self) -> Stopped:
        """Send SIGKILL, like a crash. Does nothing if the daemon has ended already."""
        return self.signal_and_wait(signal.SIGKILL, STOP_TIMEOUT_SECONDS)

    def signal_and_wait(self, number: signal.Signals, timeout: float) -> Stopped:
        process = self.process
        started = time.monotonic()
        if process.poll() is None:
            # With a wrapper, the daemon is a child of the wrapper.
            os.kill(self.pid, number)
        return self.wait(timeout, started)

    def wait(self, timeout: float, started: float | None = None) -> Stopped:
        """Wait until the process has ended by itself, or by a signal that was sent before."""
        process = self.process
        started = time.monotonic() if started is None else started
        try:
            status = process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the daemon still runs after {timeout} s:\n{self.log_tail()}"
            ) from None
        finally:
            if self._finalizer is not None:
                self._finalizer.detach()
            kill_session(process)
            self._process = None
        return Stopped(status, time.monotonic() - started)

    def restart(self) -> Daemon:
        if self._process is not None:
            self.stop()
        return self.start()

    def __enter__(self) -> Daemon:
        return self if self._process is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._process is not None:
                self.kill() if error is not None else self.stop()
        finally:
            if error is not None:
                sys.stderr.write(f"--- {self.log_path}\n{self.log_tail()}\n")
            if self._temporary is not None:
                self._temporary.cleanup()

    # --- what it says -----------------------------------------------------------

    @property
    def process(self) -> Process:
        assert self._process is not None, "the daemon is not running"
        return self._process

    @property
    def pid(self) -> int:
        """Return the process id of the daemon itself, even with a wrapper."""
        process = self.process
        return (
            process.pid if isinstance(process, Forked) else wrapped_pid(process.pid, self.wrapper)
        )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def addresses_path(self) -> Path:
        return self.data_dir / "addresses.json"

    @property
    def pull_address(self) -> str:
        return str(self.addresses["pull"][0])

    @property
    def pull_port(self) -> int:
        port = urllib.parse.urlsplit(self.pull_address).port
        assert port is not None, self.pull_address
        return port

    @property
    def http_address(self) -> str:
        """host:port"""
        return str(self.addresses["http"]).removeprefix("http://").rstrip("/")

    @property
    def ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.splitlines()[-lines:])

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of an HTTP GET."""
        connection = http.client.HTTPConnection(self.http_address, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of `name` with these labels. Raises KeyError if there is no
        such sample."""
        values = []
        for line in self.get("/metrics")[1].splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(
                f'{label}="{wanted}"' in series for label, wanted in labels.items()
            ):
                values.append(float(value))
        if not values:
            raise KeyError(f"no metric {name} with {labels}")
        return sum(values)

    # --- what it costs ------------------------------------------------------------

    @property
    def rss_bytes(self) -> int:
        return status_bytes(self.pid, "VmRSS")

    @property
    def peak_rss_bytes(self) -> int:
        """Return the largest memory size since the start, or since `reset_peak_rss`."""
        return status_bytes(self.pid, "VmHWM")

    def reset_peak_rss(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def cpu_seconds(self) -> float:
        """Return the user and system time, including worker processes."""
        return cpu_seconds(self.pid)

    # --- inner ----------------------------------------------------------------------

    def read_addresses(self) -> bool:
        try:
            self.addresses = json.loads(self.addresses_path.read_text())
        except (OSError, ValueError):
            return False
        return True

    def _await(self, condition: Any, timeout: float, complaint: str) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            status = self.process.poll()
            if status is not None:
                raise RuntimeError(f"the daemon ended with {status}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the daemon {complaint} in {timeout} s:\n{self.log_tail()}")
            time.sleep(0.01)


def _merge(into: dict[str, Any], settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
