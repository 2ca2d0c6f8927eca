"""A lease while a stream is read in parts.

Compaction keeps the newest record of each key. Between two tasks that newest record could move from
before the end of the read to behind it, and the read would miss the key altogether. A lease taken
when the read is planned forbids that: nothing behind its end counts for compaction. It also keeps
retention from removing what was planned. It lasts as long as some task renews it; each task makes
sure of it when it has read everything, and says that its part is done. After the last part the
daemon ends the lease.

A task may run later than that: a second action on the same plan, or a stage that Spark repeats. It
can do without the lease as long as what the lease was for has not happened (`may_go_on`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from liftlog.client import SyncClient
from liftlog.errors import LeaseGone
from liftlog.records.positions import Batches

HOLDER = "spark"


class TaskLease:
    """One task's share in a lease."""

    def __init__(
        self,
        client: SyncClient,
        stream: str,
        lease_id: str,
        seconds: float,
        *,
        part: tuple[int, int] | None = None,
        may_go_on: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._stream = stream
        self._lease_id = lease_id
        self._seconds = seconds
        self._part = part
        self._may_go_on = may_go_on
        self._is_gone = False
        self._clock = clock
        self._renew_at = clock()

    def over(self, batches: Iterator[Batches]) -> Iterator[Batches]:
        """The same batches, read under the lease to the last one or as if it had lived. Raises
        LeaseGone."""
        self._renew()
        for batch in batches:
            yield batch
            del batch  # its buffer is free for the next answer
            if self._clock() >= self._renew_at:
                self._renew()
        self._renew(finished=self._part)

    def _renew(self, finished: tuple[int, int] | None = None) -> None:
        self._renew_at = self._clock() + self._seconds / 3
        try:
            if not self._is_gone:
                self._client.renew_lease(
                    self._stream, self._lease_id, ttl=self._seconds, finished=finished
                )
                return
            gone: LeaseGone | None = None
        except LeaseGone as error:
            self._is_gone, gone = True, error
        if not self._may_go_on():
            raise LeaseGone(
                f"the lease on {self._stream!r} ended before all of it was read: compaction may "
                "have removed what was to be read",
                hint="read again, with a new DataFrame; with tasks that wait longer than that for "
                f"their turn, raise leaseSeconds (now {self._seconds:g})",
            ) from gone
