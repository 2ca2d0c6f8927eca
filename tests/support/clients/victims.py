"""Clients that another client tries to delay. Each measures the time that it waits."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType

import pytest
from support.clients.priced_victims import processor_seconds
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon

from liftlog.client import SyncClient, connect_sync

_PAUSE_SECONDS = 0.002


class Victim(threading.Thread, ABC):
    """Performs one action repeatedly, one at a time, until the end of the `with` block."""

    def __init__(self, pid: int | None = None) -> None:
        """`pid` is the process id of the daemon, for `prices`."""
        super().__init__(name=type(self).__name__)
        self.waits: list[float] = []
        """Waits in seconds, in the order in which they began."""
        self.prices: list[float] = []
        """Seconds of the daemon's processor time for each action. Other work of the machine, and a
        victim without a processor, hardly change these times."""
        self._pid = pid
        self.error: BaseException | None = None
        self._leave = threading.Event()

    @abstractmethod
    def do(self) -> None:
        """Perform one action, whose duration is measured."""

    @abstractmethod
    def close(self) -> None:
        """Called after the last action."""

    def run(self) -> None:
        try:
            while not self._leave.wait(_PAUSE_SECONDS):
                began, before = time.monotonic(), self._spent()
                self.do()
                self.waits.append(time.monotonic() - began)
                self.prices.append(self._spent() - before)
        except BaseException as error:
            self.error = error

    def _spent(self) -> float:
        return 0.0 if self._pid is None else processor_seconds(self._pid)

    @property
    def worst(self) -> float:
        return max(self.waits)

    def __enter__(self) -> Victim:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave.set()
        self.join(60)
        assert not self.is_alive()
        self.close()
        if error is None and self.error is not None:
            raise self.error


class AckVictim(Victim):
    """Publishes, and waits for the ack."""

    def __init__(self, nats_port: int, subject: str, pid: int | None = None) -> None:
        super().__init__(pid)
        self._nats = RawNats(nats_port, timeout=30)
        self._subject = subject

    def do(self) -> None:
        assert "error" not in self._nats.request(self._subject, b"from the victim").json()

    def close(self) -> None:
        self._nats.close()


class CallVictim(Victim):
    """Sends a request to the daemon over the pull API."""

    def __init__(
        self, daemon: Daemon, call: Callable[[SyncClient], object], token: str | None = None
    ) -> None:
        super().__init__()
        self._client = connect_sync(daemon.pull_address, token=token)
        self._call = call

    def do(self) -> None:
        self._call(self._client)

    def close(self) -> None:
        self._client.close()


def worst_waits(victims: Callable[[], list[Victim]], attack: Callable[[], None]) -> list[float]:
    """Return the longest wait of each victim during `attack`, in seconds."""
    suffering = victims()
    with contextlib.ExitStack() as stack:
        for one in suffering:
            stack.enter_context(one)
        attack()
    return [one.worst for one in suffering]


def assert_nobody_waits(
    victims: Callable[[], list[Victim]],
    attack: Callable[[], None],
    *,
    bound_seconds: float,
    attempts: int = 3,
) -> None:
    """Make several attempts with new victims. On a busy machine a single attempt may be slow, but a
    successful attack delays every attempt."""
    seen = []
    for _ in range(attempts):
        seen.append(worst_waits(victims, attack))
        if max(seen[-1]) < bound_seconds:
            return
    pytest.fail(f"waited for longer than {bound_seconds} s in each attempt: {seen}")
