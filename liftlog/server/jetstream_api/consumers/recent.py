"""The newest records of a stream. All consumers of the stream share them, so each batch is decoded
only once."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import NamedTuple

from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.files.manifest import Manifest
from liftlog.log.state import ReadView
from liftlog.protocol.limits import KIB
from liftlog.records.decode import iter_batches
from liftlog.server.jetstream_api.consumers.rows import Row, SharedRow, rows_of
from liftlog.server.reading.tailing import MAX_TAIL_BYTES, TailGroup, inflated_bytes, read_tail

_KEPT_BYTES = 512 * KIB
_ROW_BYTES = 64
"""Number of bytes that are counted for each record in addition to its own bytes. In memory, the
objects of a record take ten times as many bytes."""
IDLE_SECONDS = 10.0
"""Records that no consumer has requested for this time (in seconds) are dropped."""
_READ_BYTES = MAX_TAIL_BYTES
MOST_BYTES = 2 * _READ_BYTES
"""Upper bound of the bytes that one call returns, including headers and other bytes around the
records."""
_NAME = "recent-rows"
_OFFSET = itemgetter(0)
_END, _POSITION = itemgetter(0), itemgetter(1)


class _Part(NamedTuple):
    """Batches that were read together."""

    next_offset: int
    position: int
    """Number of bytes from the first record that was ever kept up to the end of these batches."""


class RecentRows:
    """The records of the last batches, about `_KEPT_BYTES` without compression. They are kept while
    consumers read them. Belongs to the event loop."""

    def __init__(self) -> None:
        self._manifest: Manifest | None = None
        self._erased: ErasedSet | None = None
        """The manifest and the erased records at the time when the records were read. If one of
        them has been replaced by another object, records may have been removed or replaced."""
        self._first = self._next = 0
        self._rows: list[Row] = []
        self._parts: list[_Part] = []
        self._position = self._forgotten_bytes = 0
        self._is_read = self._is_watched = False

    def read(
        self, log: Log, group: TailGroup, view: ReadView, offset: int
    ) -> tuple[list[Row], int] | None:
        """Return the next records from `offset` on, and the offset after them. Returns None if
        there are no such records, if some of them are too large, or if some of them are neither
        kept nor in the page cache. Raises CorruptBatch, CorruptRange, OffsetOutOfRange,
        UnsupportedFormat."""
        if offset >= view.committed.offset:
            return None
        self._is_read = True
        is_same = view.manifest is self._manifest and view.erased is self._erased
        if is_same and offset < self._first:
            return None  # other consumers are ahead
        if not is_same or offset > self._next:
            self._begin(view, offset)
        added = 0
        while self._next < view.committed.offset and added < _READ_BYTES:
            tail = read_tail(log, group, view, self._next, _READ_BYTES)
            if tail is None or (size := inflated_bytes(tail.body)) > _READ_BYTES:
                self._manifest = None
                return None
            rows = [
                row
                for batch in iter_batches(tail.body)
                for row in rows_of(batch, None, keeps_tombstones=True, kind=SharedRow)
            ]
            if rows and rows[0].offset < self._next:
                rows = rows[bisect_left(rows, self._next, key=_OFFSET) :]
            self._rows += rows
            self._next = tail.next_offset
            self._position += size + _ROW_BYTES * len(rows)
            self._parts.append(_Part(self._next, self._position))
            added += size
        found = self._from(offset)
        self._forget_oldest()
        return found

    def _from(self, offset: int) -> tuple[list[Row], int]:
        """Return kept records of about `_READ_BYTES`, and at least the records of one part."""
        parts, end = self._parts, self._next
        if parts and parts[-1].position - self._forgotten_bytes > _READ_BYTES:
            at = bisect_right(parts, offset, key=_END)
            before = parts[at - 1].position if at else self._forgotten_bytes
            last = bisect_right(parts, before + _READ_BYTES, at, key=_POSITION)
            if last < len(parts):
                end = parts[max(last - 1, at)].next_offset
        start = bisect_left(self._rows, offset, key=_OFFSET)
        if end == self._next:
            return self._rows[start:], end
        return self._rows[start : bisect_left(self._rows, end, start, key=_OFFSET)], end

    def _begin(self, view: ReadView, offset: int) -> None:
        self._manifest, self._erased = view.manifest, view.erased
        self._first = self._next = offset
        self._rows, self._parts = [], []
        self._position = self._forgotten_bytes = 0
        if not self._is_watched:
            self._is_watched = True
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._look)

    def _look(self) -> None:
        """Drop the records if no consumer has read since the last look."""
        if self._is_read:
            self._is_read = False
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._look)
        else:
            self._is_watched, self._manifest = False, None
            self._rows, self._parts = [], []

    def _forget_oldest(self) -> None:
        parts, least = self._parts, self._position - _KEPT_BYTES
        if self._forgotten_bytes >= least:
            return
        count = bisect_left(parts, least, key=_POSITION) + 1
        self._first, self._forgotten_bytes = parts[count - 1]
        del parts[:count]
        del self._rows[: bisect_left(self._rows, self._first, key=_OFFSET)]


def recent_rows(group: TailGroup) -> RecentRows:
    """Return the newest records of the stream of this commit group."""
    found: RecentRows | None = group.shared.get(_NAME)
    if found is None:
        found = group.shared[_NAME] = RecentRows()
    return found
