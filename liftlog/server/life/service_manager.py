"""Notifies systemd, or another manager that sets NOTIFY_SOCKET: one datagram per change.

The protocol is sd_notify(3). A failed notification never stops the daemon: it is logged once.
While the manager's queue is full, notifications wait, and are sent before the next one. Without a
socket, every call does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import MutableMapping

logger = logging.getLogger("liftlog.server")

_MICROSECONDS = 1_000_000
_PINGS_PER_DEADLINE = 3
_PING = "WATCHDOG=1"
_MOST_UNSENT = 16
_CLOSING_SECONDS = 20.0
"""Time, in seconds, for the work after the drain: the daemon sends the last answers, closes files
and stops the embedded nats-server."""


class ServiceManager:
    """Sends the notifications. Belongs to the event loop; datagrams never block it."""

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        """`address` is a path. If it begins with `@`, it is a name of Linux's abstract sockets."""
        self.watchdog_seconds = watchdog_seconds
        self._address = address
        self._socket: socket.socket | None = None
        self._complained = False
        self._unsent: deque[str] = deque(maxlen=_MOST_UNSENT)
        """Notifications that wait for room in the manager's queue. If there are too many, the
        oldest are dropped."""
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> ServiceManager:
        """Create a manager from the environment variables. Remove these variables, so that no child
        process can send notifications in the name of the daemon."""
        address = environ.pop("NOTIFY_SOCKET", None)
        micros, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watchdog = None
        if micros.isdecimal() and int(micros) and pid in ("", str(os.getpid())):
            watchdog = int(micros) / _MICROSECONDS
        if address and address[0] not in "/@":
            logger.warning("notify-socket-ignored address=%s", address)
            address = None
        return cls(address, watchdog)

    def status(self, text: str) -> None:
        """Send one line for `systemctl status`."""
        self._tell(f"STATUS={_one_line(text)}")

    def ready(self, text: str) -> None:
        """Report that the start or a reload is complete."""
        self._tell(f"READY=1\nSTATUS={_one_line(text)}")

    def reloading(self) -> None:
        # `systemctl reload` of a Type=notify-reload unit uses this time to wait for the next
        # READY=1.
        micros = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading")

    def stopping(self, drain_seconds: float) -> None:
        """Report that the daemon is stopping, and the time that the settings allow for the drain.
        Otherwise systemd would kill the daemon after the unit's TimeoutStopSec."""
        micros = round((drain_seconds + _CLOSING_SECONDS) * _MICROSECONDS)
        status = "committing and acking what has arrived"
        self._tell(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS={status}")

    async def keep_watchdog(self) -> None:
        """Report regularly, until cancelled, that the event loop runs. Cancel this call last,
        because the watchdog also covers the drain. Returns at once if systemd has not requested a
        watchdog."""
        if self.watchdog_seconds is None:
            return
        while True:
            self._tell(_PING)
            await asyncio.sleep(self.watchdog_seconds / _PINGS_PER_DEADLINE)

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _tell(self, message: str) -> None:
        if self._socket is None or self._address is None:
            return
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        self._unsent.append(message)
        try:
            while self._unsent:
                self._socket.sendto(self._unsent[0].encode(), address)
                self._unsent.popleft()
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                self._unsent.clear()
            elif message == _PING:
                self._unsent.pop()
            if not self._complained:
                logger.warning("service-manager-not-told error=%s", error.strerror or error)
            self._complained = True


def _one_line(text: str) -> str:
    return " ".join(text.split())
