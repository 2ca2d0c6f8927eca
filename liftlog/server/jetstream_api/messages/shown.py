"""What of a stream the clients of JetStream are shown: what JetStream would still have.

Whole segments are deleted by age, and older records of a subject by compaction, both later than
JetStream does it. Until then these records are in the log, and not shown.
"""

from __future__ import annotations

from liftlog.records.decode import Record
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.messages.buckets import Buckets


class Shown:
    """Of one stream, at the moment of each call. Belongs to the event loop."""

    def __init__(self, host: StreamHost, ages: Ages, buckets: Buckets | None) -> None:
        self.host = host
        own = host.settings.jetstream
        self.history = None if own is None else own.max_msgs_per_subject
        """How many records of each subject are shown; None: all, and a tombstone is one of them."""
        self._ages, self._buckets = ages, buckets

    @property
    def first_offset(self) -> int:
        """Nothing below it is shown."""
        return self._ages.first_offset(self.host)

    async def shows(self, record: Record) -> bool:
        """Whether JetStream would still have it. Where it cannot be told, it is shown for as long
        as it is there."""
        if record.offset < self.first_offset:
            return False
        if self.history is None:
            return True
        if record.value is None:
            return False
        if "\\x" in record.subject:
            return True  # it may be the escape of bytes that are no text
        subject = record.subject.encode()
        table = self.host.sequencer.subjects
        last = None if table is None else table.last_committed(subject)
        if last is not None and (last == record.offset or last == 0 or self.history == 1):
            return record.offset == last
        index = None if self._buckets is None else await self._buckets.index(self.host)
        return index is None or index.shows(subject, record.offset)
