"""The lease of an export, while the connection to the daemon is lost and restored."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from liftlog.errors import ConnectionLost, LeaseGone
from liftlog.spark.leases import RenewedLease

SHORT = 0.003


class Daemon:
    """The daemon as its clients see it. `failing` is the number of first attempts that fail."""

    def __init__(self, failing: int = 0, gone: bool = False) -> None:
        self.failing = failing
        self.gone = gone
        self.renewed = threading.Event()
        self.released: list[str] = []
        self.closed = 0

    def connect(self) -> Any:
        if self.failing:
            self.failing -= 1
            raise ConnectionLost("not now")
        return self

    def renew_lease(self, stream: str, lease_id: str, *, ttl: float) -> None:
        if self.gone:
            raise LeaseGone("it ended")
        self.renewed.set()

    def release_lease(self, stream: str, lease_id: str) -> None:
        self.released.append(lease_id)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("failing", [0, 3])
def test_it_is_renewed_and_given_back(failing: int) -> None:
    daemon = Daemon(failing)
    with RenewedLease(daemon.connect, "in", "id", SHORT) as lease:
        assert daemon.renewed.wait(10)
    assert (lease.gone, daemon.released, daemon.closed) == (None, ["id"], 1)


def test_it_is_given_back_by_who_has_never_renewed_it() -> None:
    daemon = Daemon()
    with RenewedLease(daemon.connect, "in", "id", 3600):
        pass
    assert (daemon.released, daemon.closed) == (["id"], 1)


def test_it_ends_early() -> None:
    daemon, told = Daemon(gone=True), threading.Event()
    with RenewedLease(daemon.connect, "in", "id", SHORT, told.set) as lease:
        assert told.wait(10)
    assert isinstance(lease.gone, LeaseGone)
    assert (daemon.released, daemon.closed) == ([], 1)
    with pytest.raises(LeaseGone, match="nothing was exported"):
        lease.confirm(daemon.connect())
