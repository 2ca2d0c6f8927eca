"""What Linux knows of this process, under the names that every Prometheus client gives it."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from pathlib import Path

_PROC = Path("/proc/self")


def _start_time() -> float:
    """Seconds since 1970; 0.0 where there is no /proc. A hardened unit hides /proc/stat, which
    would tell when the machine was booted."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        started = float(_stat_fields()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    return 0.0


def _stat_fields() -> list[str]:
    """Of /proc/self/stat, behind the name, which may hold blanks and brackets."""
    return (_PROC / "stat").read_text().rpartition(")")[2].split()


_STARTED = _start_time()


def process_values() -> dict[str, float]:
    """By name; what the system does not tell is left out."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    values: dict[str, float] = {
        "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "liftlog_max_resident_bytes": usage.ru_maxrss * 1024,
    }
    if _STARTED:
        values["process_start_time_seconds"] = _STARTED
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = _stat_fields()
        values["process_threads"] = int(fields[17])
        values["process_virtual_memory_bytes"] = int(fields[20])
        values["process_resident_memory_bytes"] = int(fields[21]) * resource.getpagesize()
    with contextlib.suppress(OSError):
        # Without the one that this look itself opens.
        values["process_open_fds"] = sum(1 for _ in (_PROC / "fd").iterdir()) - 1
    return values
