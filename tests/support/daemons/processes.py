"""Reads data of processes from /proc, and ends processes with all their children."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TypeAlias

from support.daemons.forks import Forked

Process: TypeAlias = subprocess.Popen[bytes] | Forked


def status_bytes(pid: int, field: str) -> int:
    """A size of /proc/<pid>/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and of its ended and running children; 0 if it
    has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    living = sum(cpu_seconds(child) for child in children_of(pid))
    return ticks / os.sysconf("SC_CLK_TCK") + living


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:  # the thread has just ended
            continue
    return found


def group_of(leader: int) -> dict[int, str]:
    """Return the names of the running processes of a group, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_text()
        except OSError:  # it has just ended
            continue
        state, _, group = stat.rpartition(")")[2].split()[:3]
        if int(group) == leader and state != "Z":
            found[int(path.parent.name)] = stat[stat.index("(") + 1 : stat.rindex(")")]
    return found


def wrapped_pid(pid: int, wrapper: object) -> int:
    """Return the process of the program itself, if `pid` may be a wrapper (strace) that runs it."""
    children = children_of(pid) if wrapper else []
    return children[0] if children else pid


def kill_session(process: Process) -> None:
    """Kill the session that a process leads, including processes that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
