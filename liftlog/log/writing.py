"""Writing at the end of a log: append, sync, acks, and the roll to a new segment."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from liftlog.errors import SyncFailed
from liftlog.log.environment import EncodedBatch
from liftlog.log.filesystem import storage_errors, write_all
from liftlog.log.index import SparseIndex, write_index
from liftlog.log.manifest import QuarantinedRange, SegmentEntry
from liftlog.log.reading import LogEnd
from liftlog.log.segment import MAX_POSITION, Segment
from liftlog.log.state import LogState
from liftlog.log.unreadable import is_unreadable

logger = logging.getLogger("liftlog.log")

RESERVE_STEP = 1_000_000
"""How many offsets are reserved ahead with one manifest write."""

_MIN_ALLOCATION = 64 * 1024
_MAX_ALLOCATION = 16 * 1024 * 1024
_MAX_BUFFERS = 1000  # Linux takes at most 1024 buffers a call


class LogWriting(LogState):
    """One thread at a time calls what stands here: the writer of the moment."""

    def append(self, batches: Sequence[EncodedBatch]) -> None:
        """Write batches at the end: all of them or, on an error, none.

        Not durable before `sync`. Raises DiskFull, StorageError.
        """
        if batches[0].base_offset != self._log_end.offset:
            raise ValueError(
                f"batch at offset {batches[0].base_offset}, the log ends at {self._log_end.offset}"
            )
        size = sum([len(batch.data) for batch in batches])
        with storage_errors(f"appending to {self.name}"):
            if self._manifest_in_doubt or self._leftover_bytes or self._slot.in_doubt:
                self._settle_doubts()
            if self._must_roll(size, batches[-1].next_offset):
                self._roll()
            if batches[-1].next_offset > self._manifest.reserved_offset:
                self._reserve(batches[-1].next_offset)
            position = self._segments[-1].size_bytes
            if position + size > self._allocated:
                self._allocate(position + size)
            try:
                for i in range(0, len(batches), _MAX_BUFFERS):
                    buffers = [batch.data for batch in batches[i : i + _MAX_BUFFERS]]
                    position += write_all(self._file, buffers, position)
            except OSError as error:
                self._must_leave_file = is_unreadable(error)
                self._roll_back_append()
                raise
        self._account(batches)

    def _allocate(self, needed: int) -> None:
        """Extend the active file ahead of what is written, in growing steps.

        A sync then need not commit a new file size to the file system's journal, which is a third
        of its cost. The zeros behind the last batch are no data: recovery and readers stop there.
        """
        step = min(max(needed, _MIN_ALLOCATION), _MAX_ALLOCATION)
        self._allocated = max(min(needed + step, self.config.segment_max_bytes), needed)
        try:
            self._file.allocate(self._allocated)
        except OSError as error:  # it only was to save time; the write itself will tell
            logger.debug("allocation-failed stream=%s error=%s", self.name, error)

    def _trim_allocation(self, size: int) -> None:
        """Give back what was allocated past `size`. Raises OSError."""
        if self._allocated > size:
            self._file.truncate(size)
            self._allocated = size

    def _trim_sealed(self, size: int) -> None:
        """Give back what lies behind the end of what is about to be sealed. Raises OSError."""
        try:
            self._trim_allocation(size)
        except OSError as error:
            # The file system has to read the page that it cuts. What lies behind is ignored.
            if not is_unreadable(error):
                raise
            logger.warning("allocation-kept stream=%s error=%s", self.name, error)

    def _account(self, batches: Sequence[EncodedBatch]) -> None:
        active = self._segments[-1]
        position = active.size_bytes
        newest = active.max_timestamp_ns
        # Before the record count: whoever decides on retention meanwhile subtracts what lies past
        # the high watermark, and counting too few keeps too much rather than too little.
        active.next_offset = batches[-1].next_offset
        add = self._index.maybe_add
        for data, base_offset, _, count, _, stamp in batches:
            if stamp > newest:
                newest = stamp
            add(base_offset, position, newest)
            position += len(data)
            active.record_count += count
        active.max_timestamp_ns = newest
        active.created_ns = active.created_ns or batches[0].base_timestamp_ns
        active.size_bytes = position
        count = active.record_count
        self._log_end = LogEnd(active.next_offset, active.base_offset, position, count)
        self._appended.append(self._log_end)

    def _roll_back_append(self) -> None:
        size = self._segments[-1].size_bytes
        self._leftover_bytes = True
        try:
            self._remove_leftovers()
        except OSError as error:
            # The next append tries again before it writes: behind a shorter group the rest of
            # this one might look like batches that continue it.
            logger.warning(
                "append-rollback-failed stream=%s position=%d error=%s",
                self.name,
                size,
                error,
            )

    def _remove_leftovers(self) -> None:
        size = self._segments[-1].size_bytes
        self._file.truncate(size)
        self._allocated = size
        self._leftover_bytes = False

    def _settle_doubts(self) -> None:
        """After a failed operation: bring the disk back to what is known here. Raises OSError."""
        if self._manifest_in_doubt:
            with self._lock:
                self._write_manifest(self._manifest)
        if self._leftover_bytes:
            try:
                self._remove_leftovers()
            except OSError as error:
                if not is_unreadable(error):
                    raise
                self._must_leave_file = True  # what lies behind the end of a sealed file is ignored
        self._slot.settle()

    def sync(self) -> int:
        """Make everything appended durable; returns the durable end offset.

        When fdatasync fails, nothing past the last successful one can be trusted: the caller
        must nack what waited for it and call `abandon_tail`. Raises SyncFailed.
        """
        end = self._log_end
        if end.offset != self._durable.offset:
            started = time.perf_counter()
            try:
                self._file.fdatasync()
            except OSError as error:
                raise SyncFailed(f"fdatasync of {self.name}: {error.strerror or error}") from error
            self.last_sync_seconds = time.perf_counter() - started
            self.environment.synced(self.last_sync_seconds)
            self.fsync_count += 1
            self._durable = end
            self._commit_group = (self._commit_group + 1) & 0xFFFF
        return end.offset

    def advance_high_watermark(self, offset: int) -> None:
        """Declare everything below `offset` committed: readers see it, acks may leave.

        `offset` is the end of an append. Who decides it lies outside the log: on one node its
        own fsync, later the replicas. Raises StorageError, DiskFull, and then nothing changed, when
        the first early ack cannot be admitted.
        """
        if offset <= self._committed.offset:
            return
        if offset > self._durable.offset and not self._manifest.acks_before_sync:
            self.admit_early_acks()
        appended = self._appended
        if len(appended) == 1 and appended[0].offset <= offset:
            self._committed = appended.pop()
        else:
            kept = []
            for end in appended:
                if end.offset <= offset:
                    self._committed = end
                else:
                    kept.append(end)
            self._appended = kept
        committed = self._committed.offset
        if committed > self._acked_end:  # as in `note_acked`
            self._acked_end = committed
            self._slot.update(committed)

    def note_acked(self, offset: int) -> None:
        """Remember, across a killed process, that everything below `offset` may have been acked.

        With durability below fsync acks leave before they are durable; the manifest is told so
        before the first of them, since after a power cut nobody knows how far they went. While
        that fails no ack may leave. Raises StorageError, DiskFull.
        """
        if offset > self._durable.offset and not self._manifest.acks_before_sync:
            self.admit_early_acks()
        if offset > self._acked_end:
            self._acked_end = offset
            self._slot.update(offset)

    def admit_early_acks(self) -> None:
        """Note, durably, that acks may leave before what they answer is durable.

        With durability below fsync, call it before an append: when it fails nothing was written
        yet. Costs nothing once it was noted. Raises StorageError, DiskFull.
        """
        if self._manifest.acks_before_sync:
            return
        with self._lock, storage_errors(f"noting early acks of {self.name}"):
            self._slot.sync_as_lower_bound()
            self._write_manifest(self._manifest.with_changes(acks_before_sync=True))

    def abandon_tail(self, *, keep_offsets: bool) -> None:
        """After a failed sync: go on in a new segment from the last durable position.

        With `keep_offsets` the abandoned offsets had been acked (durability below fsync); they
        are recorded as lost and never used again. Raises StorageError when that fails too.
        """
        durable, end = self._durable, self._log_end
        with self._lock, storage_errors(f"abandoning the tail of {self.name}"):
            active = self._segments[-1]
            manifest = self._manifest
            base_offset = end.offset if keep_offsets else durable.offset
            if keep_offsets and end.offset > durable.offset:
                lost = QuarantinedRange(
                    durable.offset,
                    end.offset,
                    active.path.name,
                    durable.position,
                    durable.position,
                    "fdatasync failed before these records were durable",
                )
                if lost not in manifest.quarantined:
                    manifest = manifest.with_changes(quarantined=(*manifest.quarantined, lost))
            index = self._index.copy()  # readers may be looking into the other
            index.truncate(durable.position)
            self._index = index
            active.record_count = durable.record_count
            active.size_bytes = durable.position
            active.next_offset = durable.offset
            self._manifest = manifest
            # Groups that an earlier roll had synced can still be committed.
            self._appended = [one for one in self._appended if one.offset <= durable.offset]
            self._start_segment(base_offset)
            if keep_offsets:
                # What was lost is known to be lost: nothing that could still be committed lies
                # below the new end.
                self._committed = self._log_end
                self.note_acked(base_offset)

    def skip_to(self, offset: int) -> None:
        """Go on at a later offset in a new segment; the manifest must already say why."""
        with self._lock, storage_errors(f"continuing {self.name}"):
            self._start_segment(offset)
            self._committed = self._log_end
            self.note_acked(offset)

    # --- the next segment ---

    def _must_roll(self, size: int, next_offset: int) -> bool:
        active = self._segments[-1]
        if self._must_leave_file:  # also an empty one: what was refused may lie behind its end
            return True
        if active.size_bytes == 0:
            return False
        return (
            active.size_bytes + size > self.config.segment_max_bytes
            or active.size_bytes + size > MAX_POSITION
            or next_offset - active.base_offset > 0xFFFF_FFFF
            or self._is_too_old(active)
        )

    def _is_too_old(self, active: Segment) -> bool:
        limit = self.config.segment_max_age_ns
        if limit is None or not active.created_ns:
            return False
        return self.environment.clock.now_ns() - active.created_ns >= limit

    def is_roll_due(self) -> bool:
        """Whether the age of the active segment is over the limit."""
        active = self._segments[-1]
        return active.size_bytes > 0 and self._is_too_old(active)

    def roll(self) -> bool:
        """Seal the active segment, unless it is empty; returns whether it did.

        Syncs first. Called by the writer. Raises SyncFailed, StorageError, DiskFull.
        """
        if self._segments[-1].size_bytes == 0:
            return False
        with storage_errors(f"rolling {self.name}"):
            self._roll()
        return True

    def roll_if_due(self) -> bool:
        """Roll an idle active segment whose age is over the limit. Called by the writer."""
        if not self.is_roll_due():
            return False
        return self.roll()

    def _roll(self) -> None:
        """Seal the active segment and begin the next one. Raises OSError; then nothing changed."""
        with self._lock:
            group = self._commit_group
            self.sync()
            # What is about to be appended was encoded before this sync. In the new segment nothing
            # of this group was synced yet, so the number still tells groups apart.
            self._commit_group = group
            self._start_segment(self._log_end.offset)

    def _start_segment(self, base_offset: int) -> None:
        """Seal the active segment and begin one at `base_offset`. Raises OSError; then nothing
        changed."""
        old = self._segments[-1]
        damaged = self._quarantined_in(old)
        if old.size_bytes == 0 and not damaged:  # an empty segment is replaced, not kept
            self._switch_active(self._segments[:-1], base_offset)
            return
        if not any(bad.end_position > old.size_bytes for bad in damaged):
            self._trim_sealed(old.size_bytes)
        index = self._index
        write_index(self.environment.fs, old.path, index)
        # Before readers see that it is sealed.
        self.environment.indexes.put(old, index)
        self._switch_active(self._segments, base_offset)

    def _switch_active(self, kept: tuple[Segment, ...], base_offset: int, **changes: Any) -> None:
        """A log of the sealed segments `kept` and a new active one. Raises OSError.

        The manifest write inside is what makes it so, together with `changes` of other fields. If
        the machine stops before the rename, the new file is garbage and all is as before; after
        it, what the manifest lists is on disk: the directory is fsynced before, since a power cut
        may keep the rename and lose the new file's name.
        """
        old = self._segments[-1]
        generation: int = changes.get("generation", self._manifest.generation)
        if base_offset == old.base_offset:
            generation = max(generation, old.generation + 1)
        entry = SegmentEntry(base_offset, generation, next_offset=base_offset)
        file = self.environment.fs.open(self.directory / entry.file_name, create=True)
        fields = {
            "segments": (*(segment.entry() for segment in kept), entry),
            "high_watermark": self._committed.offset,
            "reserved_offset": max(self._manifest.reserved_offset, base_offset + RESERVE_STEP),
        }
        try:
            self.environment.fs.fsync_directory(self.directory)
            self._write_manifest(self._manifest.with_changes(**(fields | changes)))
        except OSError:
            file.close()
            raise
        for segment in kept:
            segment.sealed = True
        listed = {segment.path for segment in kept}
        gone = [segment for segment in self._segments if segment.path not in listed]
        self._leftover_bytes = False
        self._must_leave_file = False
        self._file.close()
        self._file = file
        self._allocated = 0
        self._index = SparseIndex(base_offset)
        self._segments = (*kept, Segment(self.directory, entry, sealed=False))
        end = LogEnd(base_offset, base_offset, 0)
        self._log_end = end
        self._durable = end
        if self._committed.offset == base_offset:
            self._committed = end
        for segment in gone:
            self._remove_files(segment)

    def _reserve(self, next_offset: int) -> None:
        with self._lock:
            reserved = next_offset + RESERVE_STEP
            self._write_manifest(self._manifest.with_changes(reserved_offset=reserved))
