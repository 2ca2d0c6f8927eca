"""Ports for servers of tests, each given to one process only.

If the kernel has chosen a port, another connection can take this port when its server restarts. And
if a test has found a free port, another test can find the same port before the server listens on
it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

_LOWEST = 2048
_kept: dict[int, int] = {}
"""The ports of this process, each with the descriptor of its lock."""


def lasting_ports(count: int) -> list[int]:
    """Return free ports that no outgoing connection uses while their server is down.

    They are below the range from which the kernel chooses ports. A lock on a file for each port,
    held until this process ends, prevents that other processes of tests use the port. No port is
    returned twice.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    span = first - _LOWEST
    begin = os.getpid() * 61  # processes begin with different ports
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
