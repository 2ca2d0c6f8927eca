"""Counts the fsyncs of a server from outside. This is never done while speed is measured."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_CALL = re.compile(r"^\d+ +(\d+\.\d+) (?:fsync|fdatasync|sync_file_range|msync)\(", re.MULTILINE)


class FsyncTrace:
    """Run a server with `wrapper` before its command. Count after it has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def wrapper(self) -> list[str]:
        strace = shutil.which("strace")
        assert strace is not None
        # Only the traced calls stop the program, so it runs at nearly full speed.
        options = ["-f", "--seccomp-bpf", "-qq", "-ttt"]
        calls = ["-e", "trace=fsync,fdatasync,sync_file_range,msync", "-e", "signal=none"]
        return [strace, *options, *calls, "-o", str(self._path)]

    def count(self, since: float, until: float) -> int:
        """Return the number of calls that began in this span of `time.time()`."""
        times = map(float, _CALL.findall(self._path.read_text()))
        return sum(since <= time <= until for time in times)


def can_trace() -> bool:
    strace = shutil.which("strace")
    if strace is None:
        return False
    command = [strace, "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync", "-o", "/dev/null", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
