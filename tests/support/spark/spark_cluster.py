"""A standalone Spark cluster for tests: a master and two workers as processes, on loopback.

The entry point of the image `liftlog-spark` starts them with free ports and little memory. They end
with the test process, however it ends.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from support.daemons.processes import kill_session
from support.repository import REPOSITORY
from support.spark.session import spark_environment

from liftlog.server.vitals.child_processes import tied_to_parent

ENTRYPOINT = REPOSITORY / "config/spark/entrypoint.sh"
WORKERS = 2
START_TIMEOUT_SECONDS = 200.0

# With these options Spark starts in two thirds of the time. These processes run only for a short
# time.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Done(NamedTuple):
    exit_code: int
    out: str
    err: str


class SparkCluster:
    """Use in `with`. `url` is the URL of the master."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self._web = ""
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    def submit(
        self,
        *command: str | Path,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        files: Sequence[Path] = (),
        timeout: float = 500,
    ) -> Done:
        """Run `spark-submit`, and wait for its end. `command` is the job and its arguments."""
        chosen = {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
            "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
            "spark.python.authenticate.socketTimeout": "200s",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            **(settings or {}),
        }
        options = [part for item in chosen.items() for part in ("--conf", "=".join(item))]
        if files:
            options += ["--files", ",".join(map(str, files))]
        self.directory.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            tied_to_parent(
                [str(ENTRYPOINT), str(spark_home() / "bin/spark-submit"), *options]
                + [str(part) for part in command]
            ),
            cwd=self.directory,
            env={**self._environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            kill_session(process)
        return Done(process.returncode, out.decode(), err.decode())

    def state(self) -> dict[str, Any]:
        """Return the master's description of its workers and applications."""
        with urllib.request.urlopen(f"{self._web}/json/", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- life ---

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        self._spawn("master", "master")
        self.url = self._announced("master", r"Starting Spark master at (spark://\S+)")
        for number in range(WORKERS):
            self._spawn(f"worker-{number}", "worker", self.url)
        self._web = "http://127.0.0.1:" + self._announced(
            "master", r"MasterWebUI.* started at \S+:(\d+)"
        )
        self._await(lambda: self.state()["aliveworkers"] == WORKERS, "lacks its workers")

    def stop(self) -> None:
        """Stop the workers, then the master, and all processes that they have started."""
        for _, process in reversed(self._processes):
            kill_session(process)
        self._processes.clear()

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                tied_to_parent([str(ENTRYPOINT), *arguments]),
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append((name, process))
        weakref.finalize(self, kill_session, process)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **spark_environment(),
            "SPARK_HOME": str(spark_home()),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
            "SPARK_MASTER_HOST": "127.0.0.1",
            "SPARK_MASTER_PORT": "0",
            "SPARK_MASTER_WEBUI_PORT": "0",
            "SPARK_WORKER_HOST": "127.0.0.1",
            "SPARK_WORKER_WEBUI_PORT": "0",
            "SPARK_WORKER_CORES": "1",
            "SPARK_WORKER_MEMORY": "1g",
            "SPARK_WORKER_DIR": str(self.directory / "work"),
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
        }

    def _announced(self, name: str, pattern: str) -> str:
        found: list[str] = []

        def said() -> bool:
            found[:] = re.findall(pattern, self.log(name))
            return bool(found)

        self._await(said, f"did not say {pattern!r}")
        return found[0]

    def _await(self, condition: Any, complaint: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not condition():
            for name, process in self._processes:
                status = process.poll()
                if status is not None:
                    raise RuntimeError(f"{name} ended with {status}:\n{self.log(name)[-4000:]}")
            if time.monotonic() > deadline:
                told = "\n".join(self.log(name)[-2000:] for name, _ in self._processes)
                raise TimeoutError(f"the cluster {complaint}:\n{told}")
            time.sleep(0.02)


def spark_home() -> Path:
    """Return the folder of the pip package."""
    import pyspark

    return Path(pyspark.__file__).parent
