"""A lease while a compacted stream is read in parts.

Compaction keeps the newest record of each key. Between two tasks that newest record could move from
before the end of the read to behind it, and the read would miss the key altogether. A lease taken
when the read is planned forbids that: nothing behind its end counts for compaction. It lasts as
long as some task renews it, and each task makes sure of it once more when it has read everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from liftlog.client import SyncClient
from liftlog.errors import LeaseGone
from liftlog.records.decode import RecordBatch

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._stream = stream
        self._lease_id = lease_id
        self._seconds = seconds
        self._clock = clock
        self._renew_at = clock()

    def over(self, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        """The same batches, read under the lease to the last one. Raises LeaseGone."""
        self._renew()
        for batch in batches:
            yield batch
            del batch  # its buffer is free for the next answer
            if self._clock() >= self._renew_at:
                self._renew()
        self._renew()

    def _renew(self) -> None:
        try:
            self._client.renew_lease(self._stream, self._lease_id, ttl=self._seconds)
        except LeaseGone as error:
            raise LeaseGone(
                f"the lease on {self._stream!r} ended before all of it was read: compaction may "
                "have removed what was to be read",
                hint="read again, with a new DataFrame; with tasks that wait longer than that for "
                f"their turn, raise leaseSeconds (now {self._seconds:g})",
            ) from error
        self._renew_at = self._clock() + self._seconds / 3
