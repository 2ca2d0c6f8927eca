"""Leases protect a stream while it is read in parts.

Compaction keeps the newest record of each key. Suppose that between two tasks a key gets a new
record after the end of the read, and compaction deletes the older record inside the range of the
read. Without a lease, the read would then miss the key. While a lease lasts, compaction ignores all
records from the end of the lease on, and keeps the tombstones in its range; retention deletes no
records in its range. So reading the range in parts, any number of times, gives the same result as
reading it at once.

For a read by Spark, the lease lasts as long as a task renews it (`TaskLease`). Each task renews it
once more after its last record, and reports that its part is finished; after the last part the
daemon ends the lease. A task that stops early, for example because of `limit`, reports its end,
too. (A task in Python cannot report its end, because Spark kills its process.) If there is a second
action on the same plan, or if Spark repeats a stage, a task can also run after the lease has ended.
Such a task needs no lease as long as compaction and retention have changed nothing in the range
(`may_go_on`).

For an export, a thread of the driver renews the lease during the whole run (`RenewedLease`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Self

from liftlog.client import SyncClient
from liftlog.errors import LeaseGone, LiftlogError
from liftlog.records.columns.positions import Batches

logger = logging.getLogger("liftlog.spark.export")

HOLDER = "spark"

REPORT_SECONDS = 5.0
"""Interval, in seconds, at which a task renews its lease. If a stream has no lease left, the daemon
ends leases that no reader has renewed for three times this interval."""


class TaskLease:
    """The share of one task in a lease. While the task reads, a thread renews the lease over a
    separate connection."""

    def __init__(
        self,
        client: SyncClient,
        connect: Callable[[], SyncClient],
        stream: str,
        lease_id: str,
        seconds: float,
        *,
        part: tuple[int, int] | None = None,
        may_go_on: Callable[[], bool] = lambda: False,
    ) -> None:
        """Each renewal extends the lease to `seconds` from the renewal. After the end of this task,
        other tasks can wait for an executor for this time."""
        self._client = client
        self._stream = stream
        self._lease_id = lease_id
        self._seconds = seconds
        self._part = part
        self._may_go_on = may_go_on
        self._is_gone = False
        self._is_read = False
        self._thread: RenewedLease | None = None
        self._renewed = partial(
            RenewedLease, connect, stream, lease_id, seconds, every=REPORT_SECONDS, releases=False
        )

    def over(self, batches: Iterator[Batches]) -> Iterator[Batches]:
        """Yield `batches` unchanged. Raises LeaseGone if the lease ends before the last batch, and
        `may_go_on` returns False: the read may then be incomplete."""
        self._is_read = False
        begun = None if self._part is None else self._part[0]
        self._renew(begun=begun)
        self._thread = renewed = self._renewed()
        renewed.start()
        for batch in batches:
            yield batch
            del batch  # frees the buffer for the next answer
            if renewed.gone is not None and not self._is_gone:
                self._lost(renewed.gone)
        renewed.end()
        self._renew(finished=self._part)
        self._is_read = True

    def end(self, *, stopped: bool) -> None:
        """Stop renewing, and report the end of this part to the daemon. Raises LiftlogError.

        `stopped` reports that this part needs no more records although the part was not read to its
        end. The daemon may then end the lease if no other part uses it.
        """
        if self._thread is not None:
            self._thread.end()
        if not stopped or self._is_read or self._is_gone or self._part is None:
            return
        with suppress(LeaseGone):
            self._client.renew_lease(
                self._stream,
                self._lease_id,
                ttl=self._seconds,
                finished=self._part,
                stopped=True,
            )

    def _renew(self, *, finished: tuple[int, int] | None = None, begun: int | None = None) -> None:
        if self._is_gone:
            self._lost(None)
            return
        try:
            self._client.renew_lease(
                self._stream, self._lease_id, ttl=self._seconds, finished=finished, begun=begun
            )
        except LeaseGone as error:
            self._lost(error)

    def _lost(self, gone: LeaseGone | None) -> None:
        """Raise LeaseGone, unless the read is still complete without the lease."""
        self._is_gone = True
        if not self._may_go_on():
            raise LeaseGone(
                f"the lease on {self._stream!r} ended before everything was read: compaction may "
                "have removed records that the read needs",
                hint="read again, with a new DataFrame; if tasks wait longer than that for an "
                f"executor, raise leaseSeconds (now {self._seconds:g})",
            ) from gone


class RenewedLease:
    """Renews a lease until the `with` block ends, and then releases it if `releases` is true.

    A thread renews the lease over a connection that `connect` opens. If the lease ends early, the
    thread sets `gone` and calls `on_lost`, so that the run can stop. While the daemon cannot be
    reached, the thread retries.
    """

    def __init__(
        self,
        connect: Callable[[], SyncClient],
        stream: str,
        lease_id: str,
        seconds: float,
        on_lost: Callable[[], None] = lambda: None,
        *,
        every: float | None = None,
        releases: bool = True,
    ) -> None:
        self._connect = connect
        self._stream = stream
        self._lease_id = lease_id
        self._seconds = seconds
        self._on_lost = on_lost
        self._every = seconds / 3 if every is None else min(every, seconds / 3)
        self._releases = releases
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self.gone: LeaseGone | None = None

    def confirm(self, client: SyncClient) -> None:
        """Check that the lease has lasted without a break. Raises LeaseGone otherwise."""
        if self.gone is not None:
            raise self.gone
        try:
            client.renew_lease(self._stream, self._lease_id, ttl=self._seconds)
        except LeaseGone as error:
            raise self.explained() from error

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop renewing, and wait until the lease is released. Returns at once if `releases` is
        false."""
        self._stop.set()
        if self._releases:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _run(self) -> None:
        with ExitStack() as opened:
            try:
                self._renew_until_stopped(opened)
            except LeaseGone:
                self.gone = self.explained()
                self._on_lost()
            except LiftlogError as error:
                # The lease expires by itself. If the run still needed it, `confirm` fails.
                logger.warning("lease-left stream=%s error=%s", self._stream, error)

    def _renew_until_stopped(self, opened: ExitStack) -> None:
        client: SyncClient | None = None
        while True:
            stopping = self._stop.wait(self._every)
            if stopping and not self._releases:
                return
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
                # The daemon may be reachable again before the lease expires.
                logger.warning("lease-not-renewed stream=%s error=%s", self._stream, error)

    def explained(self) -> LeaseGone:
        return LeaseGone(
            f"the lease on {self._stream!r} ended before the export had read everything: "
            "compaction or retention may have removed records of it; nothing was exported",
            hint="run it again; a lease ends early when the daemon's disk is full, or when the "
            "daemon could not be reached for as long as the lease lasts (--lease)",
        )
