"""A network of machines on this machine. Each has its own network namespace, and the lines between
them can be cut in one or both directions.

A cut line loses packets silently, like a broken switch: neither end gets an error, and TCP sends
its data again when the line is repaired. For a cut line, the sender gets a hardware address of the
receiver that no machine has. Only iproute2 is needed. The process of the tests is connected to
every machine, and its lines are never cut.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from types import TracebackType

import pytest
from support.daemons.forks import enter_network

from liftlog.server.vitals.child_processes import tied_to_parent

_NO_MACHINE = "02:00:00:00:00:fe"
_SWITCH = "switch"
_numbers = itertools.count()


class Network:
    """Use as a context manager. Skips the test if namespaces cannot be created."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        number = (os.getpid() * 8 + next(_numbers)) % (1 << 16)
        # Addresses reserved for network tests, 198.18.0.0/15.
        self._prefix = f"198.{18 + number % 2}.{number // 2 % 256}"
        self._device = f"net{number}"
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._cut: set[tuple[str, str]] = set()
        self._stack = ExitStack()

    def host(self, name: str) -> str:
        """Return the address of a machine."""
        return f"{self._prefix}.{self.names.index(name) + 1}"

    @property
    def tests_host(self) -> str:
        """Return the address of the process of the tests in this network."""
        return f"{self._prefix}.254"

    def place(self, name: str) -> Path:
        """Return the namespace of a machine, for `Forked`."""
        return Path(f"/proc/{self._holders[name].pid}/ns/net")

    def socket(self, name: str, kind: socket.SocketKind) -> socket.socket:
        """Return a socket of this machine."""
        made: list[socket.socket] = []

        def make() -> None:
            enter_network(self.place(name))  # only this thread
            made.append(socket.socket(socket.AF_INET, kind))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    # --- lines ---

    def cut(self, sender: str, receiver: str) -> None:
        """Lose all packets from `sender` to `receiver`."""
        self._cut.add((sender, receiver))
        neighbour = (self.host(receiver), "lladdr", _NO_MACHINE, "dev", "eth0", "nud", "permanent")
        self._ip(sender, "neigh", "replace", *neighbour)

    def isolate(self, name: str, *, hears: bool = False, is_heard: bool = False) -> None:
        """Isolate a machine. With `hears` it still receives packets, and with `is_heard` others
        still receive its packets."""
        for sender, receiver in permutations(self.names, 2):
            if (sender == name and not is_heard) or (receiver == name and not hears):
                self.cut(sender, receiver)

    def separate(self, one: str, other: str) -> None:
        """Cut the line between two machines. Both still reach the other machines."""
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        for sender, receiver in self._cut:
            self._ip(sender, "neigh", "del", self.host(receiver), "dev", "eth0")
        self._cut.clear()

    # --- life ---

    def __enter__(self) -> Network:
        tools = [shutil.which(tool) for tool in ("ip", "nsenter", "unshare")]
        if os.geteuid() != 0 or None in tools:
            pytest.skip("networks need root, iproute2 and util-linux")
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            self._end()
            pytest.skip(f"cannot make network namespaces: {error}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _make(self) -> None:
        for name in (_SWITCH, *self.names):
            self._holders[name] = _hold_namespace()
        self._ip(_SWITCH, "link", "add", "bridge", "type", "bridge")
        self._ip(_SWITCH, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            self._connect(f"port{number}", "eth0", name)
            self._ip(name, "addr", "add", f"{self.host(name)}/24", "dev", "eth0")
            self._ip(name, "link", "set", "lo", "up")
            self._ip(name, "link", "set", "eth0", "up")
        self._connect("tests", self._device, None)
        _run("ip", "addr", "add", f"{self.tests_host}/24", "dev", self._device)
        _run("ip", "link", "set", self._device, "up")

    def _connect(self, port: str, device: str, name: str | None) -> None:
        """Create a line from the switch to a machine, or to the tests."""
        pid = os.getpid() if name is None else self._holders[name].pid
        peer = ("peer", "name", device, "netns", str(pid))
        self._ip(_SWITCH, "link", "add", port, "type", "veth", *peer)
        self._ip(_SWITCH, "link", "set", port, "master", "bridge", "up")

    def _end(self) -> None:
        # A device is removed with the namespace of its other end, when no process uses this
        # namespace.
        for holder in self._holders.values():
            holder.kill()
        for holder in self._holders.values():
            holder.wait()

    def _ip(self, name: str, *words: str) -> None:
        _run("nsenter", f"--net={self.place(name)}", "ip", *words)


def _hold_namespace() -> subprocess.Popen[bytes]:
    """Start a process with a new network namespace. Both end with this thread."""
    unshare = shutil.which("unshare")
    assert unshare is not None
    holder = subprocess.Popen(tied_to_parent([unshare, "--net", "sleep", "infinity"]))
    ours, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + 20
    while os.readlink(f"/proc/{holder.pid}/ns/net") == ours:
        if holder.poll() is not None or time.monotonic() > deadline:
            holder.kill()
            holder.wait()
            raise OSError("unshare made no network namespace")
        time.sleep(0.005)
    return holder


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
