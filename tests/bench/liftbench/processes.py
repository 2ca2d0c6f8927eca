"""Worker processes of the benchmark, and measurements of the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.repository import REPOSITORY

from liftlog.server.vitals.child_processes import tied_to_parent

TESTS = REPOSITORY / "tests"
_NOT_A_DISK = {"tmpfs", "ramfs", "devtmpfs"}


class WorkerFailed(Exception):
    """A publisher or reader failed, so its figures are invalid."""


@contextmanager
def worker(
    module: str,
    spec: Mapping[str, Any],
    *,
    python: str = sys.executable,
    stdin: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[str]]:
    """Run `python -m bench.liftbench.<module> <spec as JSON>` until the block ends."""
    command = [python, "-m", f"bench.liftbench.{module}", json.dumps(spec)]
    path = os.pathsep.join((str(TESTS), str(REPOSITORY)))
    process = subprocess.Popen(
        tied_to_parent(command),
        env={**os.environ, "PYTHONPATH": path},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the main process, which ends the others in order
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_worker(module: str, spec: Mapping[str, Any], *, timeout: float = 600) -> dict[str, Any]:
    """Return the JSON that the worker printed."""
    with worker(module, spec) as process:
        output, errors = process.communicate(timeout=timeout)
        if process.returncode:
            raise WorkerFailed(errors.strip() or f"{module} ended with {process.returncode}")
        result: dict[str, Any] = json.loads(output)
        return result


def file_system_of(path: Path) -> str:
    """Return the type of the file system of `path`, as in /proc/mounts."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        mount, type_ = line.split()[1:3]
        inside = path.resolve().is_relative_to(mount)
        if inside and len(mount) >= len(best):
            best, kind = mount, type_
    return kind


def is_real_disk(path: Path) -> bool:
    return file_system_of(path) not in _NOT_A_DISK


def settle_disk() -> None:
    """Write the dirty pages of earlier runs to the disk, so that they do not delay the next run."""
    os.sync()


def fdatasync_us(directory: Path, count: int = 200) -> float:
    """Return the median time of an fdatasync after an append of 4 KiB to a file."""
    path = directory / "fdatasync-probe"
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(bytes(4096))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    path.unlink()
    return sorted(times)[count // 2] * 1e6
