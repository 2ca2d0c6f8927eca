"""The lease under which a range is exported, renewed in a thread of its own.

While it lives, retention leaves the range alone, compaction drops no tombstone of it and counts
nothing behind its end; so reading it in parts, as often as need be, is like reading it at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from liftlog.client import SyncClient
from liftlog.errors import LeaseGone, LiftlogError

logger = logging.getLogger("liftlog.spark.export")


class RenewedLease:
    """In `with`: renews until the end, then gives the lease back.

    `connect` makes a connection for the thread. When the lease ends early, `gone` is set and
    `on_lost` called there, so that work in vain can be stopped. While the daemon cannot be reached
    it goes on trying.
    """

    def __init__(
        self,
        connect: Callable[[], SyncClient],
        stream: str,
        lease_id: str,
        seconds: float,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect = connect
        self._stream = stream
        self._lease_id = lease_id
        self._seconds = seconds
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self.gone: LeaseGone | None = None

    def confirm(self, client: SyncClient) -> None:
        """Returns if the lease has lived all the while. Raises LeaseGone."""
        if self.gone is not None:
            raise self.gone
        try:
            client.renew_lease(self._stream, self._lease_id, ttl=self._seconds)
        except LeaseGone as error:
            raise self.explained() from error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with ExitStack() as opened:
            try:
                self._renew_until_stopped(opened)
            except LeaseGone:
                self.gone = self.explained()
                self._on_lost()
            except LiftlogError as error:
                # It ends by itself; and if it was needed, `confirm` tells.
                logger.warning("lease-left stream=%s error=%s", self._stream, error)

    def _renew_until_stopped(self, opened: ExitStack) -> None:
        client: SyncClient | None = None
        while True:
            stopping = self._stop.wait(self._seconds / 3)
            try:
                if client is None:
                    client = self._connect()
                    opened.callback(client.close)
                if stopping:
                    client.release_lease(self._stream, self._lease_id)
                    return
                client.renew_lease(self._stream, self._lease_id, ttl=self._seconds)
            except LeaseGone:
                raise
            except LiftlogError as error:
                if stopping:
                    raise
                # The lease may outlive the trouble.
                logger.warning("lease-not-renewed stream=%s error=%s", self._stream, error)

    def explained(self) -> LeaseGone:
        return LeaseGone(
            f"the lease on {self._stream!r} ended before the export had read everything: "
            "compaction or retention may have removed what was to be read; nothing was exported",
            hint="run it again; a lease ends early when the daemon's disk is full, or when the "
            "daemon could not be reached for as long as the lease lasts (--lease)",
        )
