"""Ports for servers of tests, each given to one process only.

A port that the kernel chose can be taken by another connection as soon as the server that listens
on it restarts, and a port that was found free can be found free again before its server listens.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

_LOWEST = 2048
_kept: dict[int, int] = {}
"""The ports that this process holds, each with the descriptor of its lock."""


def lasting_ports(count: int) -> list[int]:
    """Return free ports that no outgoing connection takes while their server is down.

    They are below the range of the kernel. A lock on a file of each port's name, held as long as
    this process runs, keeps all other processes of tests away from it, and it is not returned
    again.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    span = first - _LOWEST
    begin = os.getpid() * 61  # two processes look at other ports first
    found: list[int] = []
    for step in range(span):
        if len(found) == count:
            return found
        port = _LOWEST + (begin + step) % span
        if port not in _kept and _take(port):
            found.append(port)
    raise AssertionError(f"no {count} free ports from {_LOWEST} to {first}")


def free_port() -> int:
    return lasting_ports(1)[0]


def _take(port: int) -> bool:
    directory = Path(tempfile.gettempdir()) / f"liftlog-test-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    lock = os.open(directory / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        os.close(lock)
        return False
    _kept[port] = lock
    return True
