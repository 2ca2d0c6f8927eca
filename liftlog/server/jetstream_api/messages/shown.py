"""The part of a stream that clients of JetStream see: the messages that JetStream would still have.

Retention deletes whole segments by age, and compaction deletes older records of a subject. Both
happen later than in JetStream. Until then these records are in the log, but are not shown.
"""

from __future__ import annotations

from liftlog.records.decode import Record
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.messages.buckets import Buckets


class Shown:
    """The part of one stream that is shown at the time of each call. Belongs to the event loop."""

    def __init__(self, host: StreamHost, ages: Ages, buckets: Buckets | None) -> None:
        self.host = host
        own = host.settings.jetstream
        self.history = None if own is None else own.max_msgs_per_subject
        """Number of shown records of each subject; None shows all, including tombstones."""
        self._ages, self._buckets = ages, buckets

    @property
    def first_offset(self) -> int:
        """The first offset that is shown."""
        return self._ages.first_offset(self.host)

    async def shows(self, record: Record) -> bool:
        """Return True if JetStream would still have the record. If this cannot be determined,
        return True as long as the record exists."""
        if record.offset < self.first_offset:
            return False
        if self.history is None:
            return True
        if record.value is None:
            return False
        if "\\x" in record.subject:
            return True  # the text may be the escaped form of bytes that are not text
        subject = record.subject.encode()
        table = self.host.sequencer.subjects
        last = None if table is None else table.last_committed(subject)
        if last is not None and (last == record.offset or last == 0 or self.history == 1):
            return record.offset == last
        index = None if self._buckets is None else await self._buckets.index(self.host)
        return index is None or index.shows(subject, record.offset)
