"""The active segment: its file, its index, its written and durable ends, and allocated disk space.

This module does not depend on the manifest, on other segments or on the high watermark. Only one
thread at a time, the current writer, uses an `ActiveSegment`. Readers in other threads use only its
`segment` and `index`, and read only up to the high watermark of their view. Segment and index only
grow, except when a sync fails.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from liftlog.log.environment import LogEnvironment
from liftlog.log.files.filesystem import File, write_all
from liftlog.log.files.unreadable import is_unreadable
from liftlog.log.segment.index import SparseIndex, keep_index
from liftlog.log.segment.segment import Segment
from liftlog.records.encode import EncodedBatch

logger = logging.getLogger("liftlog.log")

_MIN_ALLOCATION = 64 * 1024
_MAX_ALLOCATION = 16 * 1024 * 1024
_MAX_BUFFERS = 1000  # Linux takes at most 1024 buffers a call
_SMALL_APPEND = 256 * 1024
"""Size in bytes of an append that counts as small. A disk writes about this number of bytes in the
time of one journal commit of the file system."""
_ZEROED_APPENDS = 64
_MIN_ZEROS = 64 * 1024
_ZEROS = memoryview(bytes(1024 * 1024))
_data_of = attrgetter("data")


class LogEnd(NamedTuple):
    """A batch boundary in the log: its offset, and its position in the file of a segment.

    `segment_base` is the base offset of the segment. `record_count` is the number of its records
    before the boundary.
    """

    offset: int
    segment_base: int
    position: int
    record_count: int = 0

    @classmethod
    def of(cls, segment: Segment) -> LogEnd:
        """Return the end of the valid part of a segment."""
        return cls(
            segment.next_offset, segment.base_offset, segment.size_bytes, segment.record_count
        )


class ActiveSegment:
    """The one writer of a segment file.

    `end` is the end of the written batches. `durable` is the end of the fdatasynced batches.
    `has_leftovers` means that bytes of a failed append follow the end. `must_be_left` means that
    the next append must go to a new segment, because the page at the end of this file is unreadable
    or because a sync failed.
    """

    __slots__ = (
        "_allocated",
        "_sync_failed",
        "_written_to",
        "durable",
        "end",
        "file",
        "has_leftovers",
        "index",
        "must_be_left",
        "segment",
    )

    def __init__(self, segment: Segment, file: File, index: SparseIndex) -> None:
        self.segment = segment
        self.file = file
        self.index = index
        self.end = self.durable = LogEnd.of(segment)
        self.has_leftovers = False
        self.must_be_left = False
        self._allocated = file.size()
        self._written_to = self.end.position
        self._sync_failed = False

    # --- writing ---

    def append(
        self, batches: Sequence[EncodedBatch], size_bytes: int, max_allocation: int
    ) -> LogEnd:
        """Append batches of `size_bytes` in total. On an error, no batch is appended. Returns the
        new end, which becomes durable with the next `sync`. May allocate disk space for later
        appends, up to a file size of `max_allocation` bytes. Raises OSError."""
        position = self.end.position
        end = position + size_bytes
        if end > self._allocated:
            self._allocate(end, max_allocation)
        buffers = list(map(_data_of, batches))
        if end > self._written_to:
            zeros = self._zeros_after(end, size_bytes)
            if zeros:
                buffers.append(zeros)
            self._written_to = end + len(zeros)
        try:
            for i in range(0, len(buffers), _MAX_BUFFERS):
                position += write_all(self.file, buffers[i : i + _MAX_BUFFERS], position)
        except OSError as error:
            self.must_be_left = is_unreadable(error)
            self._roll_back()
            raise
        return self._account(batches)

    def _allocate(self, needed: int, limit: int) -> None:
        """Extend the file ahead of the written bytes, in growing steps.

        A sync in allocated space does not have to commit a new file size to the journal of the file
        system. Such a commit would be a third of the cost of the sync. The zeros after the last
        batch are not data: recovery and readers stop at them.
        """
        step = min(max(needed, _MIN_ALLOCATION), _MAX_ALLOCATION)
        allocated = max(min(needed + step, limit), needed)
        try:
            self.file.allocate(allocated)
        except OSError as error:  # only an optimization: the write reports a full disk
            logger.debug("allocation-failed path=%s error=%s", self.file.path, error)
            allocated = needed
        self._allocated = allocated

    def _zeros_after(self, end: int, size_bytes: int) -> memoryview:
        """Return the zeros to write after an append of `size_bytes` that ends at `end`.

        The first write into allocated space changes the extents of the file, and the next sync has
        to commit the extents to the journal of the file system. So a small append also writes zeros
        to the space of about the next 64 appends. A large append writes no zeros, because writing
        its bytes twice would take longer than the commit of the journal.
        """
        if size_bytes > _SMALL_APPEND:
            return _ZEROS[:0]
        length = min(max(_ZEROED_APPENDS * size_bytes, _MIN_ZEROS), self._allocated - end)
        return _ZEROS[: max(length, 0)]

    def _account(self, batches: Sequence[EncodedBatch]) -> LogEnd:
        segment = self.segment
        position, count = segment.size_bytes, segment.record_count
        newest = segment.max_timestamp_ns
        next_offset = batches[-1].next_offset
        # The offset changes before the record count. A thread may decide on retention between the
        # two changes, and subtract the records past the high watermark from the count. In this
        # order it gets a count that is too low rather than too high, so retention keeps too much
        # rather than too little.
        segment.next_offset = next_offset
        add = self.index.maybe_add
        for data, base_offset, _, records, _, stamp in batches:
            if stamp > newest:
                newest = stamp
            add(base_offset, position, newest)
            position += len(data)
            count += records
        segment.record_count = count
        segment.max_timestamp_ns = newest
        segment.created_ns = segment.created_ns or batches[0].base_timestamp_ns
        segment.size_bytes = position
        # This runs once per append. The constructor of the NamedTuple would take twice as long.
        self.end = end = tuple.__new__(LogEnd, (next_offset, segment.base_offset, position, count))
        return end

    def _roll_back(self) -> None:
        self.has_leftovers = True
        try:
            self._cut_leftovers()
        except OSError as error:
            # The next append retries the truncation before it writes. Without the truncation, the
            # bytes of this commit group would stay in the file. After a shorter group, recovery
            # could take them for a part of that group.
            logger.warning(
                "append-rollback-failed stream=%s position=%d error=%s",
                self.file.path.parent.name,
                self.end.position,
                error,
            )

    def _cut_leftovers(self) -> None:
        self.file.truncate(self.end.position)
        self._allocated = self._written_to = self.end.position
        self.has_leftovers = False

    def remove_leftovers(self) -> None:
        """Truncate the bytes of a failed append. Raises OSError; after that, no append is
        allowed."""
        if not self.has_leftovers:
            return
        try:
            self._cut_leftovers()
        except OSError as error:
            # Truncation failed because the file system has to read the last page for it. The log
            # continues in another file, and readers ignore bytes after the end of a sealed file.
            if not is_unreadable(error):
                raise
            self.must_be_left = True

    def sync(self) -> None:
        """Make all written batches durable. After an OSError, bytes beyond `durable` may be missing
        on the disk, even if a read of the file or another sync succeeds."""
        end = self.end
        if self._sync_failed:
            raise OSError(errno.EIO, "an earlier sync of this file has failed")
        try:
            self.file.fdatasync()
        except OSError:
            self._sync_failed = True
            raise
        self.durable = end

    def give_up_tail(self) -> None:
        """Move `end` back to `durable`, in memory only. The caller must not write to this file
        again: the bytes after `durable` stay in the file, and after a shorter append they could
        look like batches that continue the log."""
        self.must_be_left = True
        end, segment = self.durable, self.segment
        segment.next_offset, segment.record_count = end.offset, end.record_count
        segment.size_bytes = end.position
        index = self.index.copy()  # readers may be using the old index
        index.truncate(end.position)
        self.index, self.end = index, end

    # --- sealing and closing ---

    def seal(
        self, at: LogEnd, environment: LogEnvironment, incarnation: str, *, trim: bool = True
    ) -> Segment:
        """Return the part up to `at` as a sealed segment.

        Puts the index of the sealed segment into the cache, and stores it on disk if the disk has
        space. Does not change the state that readers and the writer use: if a later step of the
        caller fails, the active segment stays in use, and the index on disk is as valid as an index
        that `store_index` has written. Without `trim` the file keeps the bytes after `at`. Raises
        OSError.
        """
        if trim:
            try:
                self._trim(at.position)
            except OSError as error:
                # The file system has to read the last page to truncate it. Readers ignore the bytes
                # that stay after `at`.
                if not is_unreadable(error):
                    raise
                logger.warning("allocation-kept path=%s error=%s", self.file.path, error)
        segment = self.segment
        sealed = segment.sealed_at(at.position, at.offset, at.record_count)
        index = self.index
        if at.position < self.end.position:
            index = index.copy()  # readers may be using the old index
            index.truncate(at.position)
        keep_index(environment.fs, segment.path, index, sealed, incarnation)
        # The index is put into the cache before any reader can find out that the segment is sealed.
        environment.indexes.put(sealed, index)
        return sealed

    def store_index(self, environment: LogEnvironment, incarnation: str) -> None:
        """Write the current index to disk, for the next start. Any thread may call it. Raises
        OSError when the disk is full."""
        segment = self.segment.entry()  # copied first, so the index covers all of it
        index = self.index.copy()
        keep_index(environment.fs, self.segment.path, index, segment, incarnation)

    def finish(self) -> None:
        """Release the allocated space after the last batch. Durable on return. Raises OSError."""
        self._trim(self.end.position)
        self.file.fdatasync()

    def _trim(self, size: int) -> None:
        if self._allocated > size:
            self.file.truncate(size)
            self._allocated = self._written_to = size
