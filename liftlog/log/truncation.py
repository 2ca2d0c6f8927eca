"""Cutting a log at either end, and feeding it with batches of another log.

A follower does this: what its leader does not have it cuts off, what its leader no longer has it
drops, and what it fetches it stores byte for byte. One node alone needs none of it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import replace

from liftlog.errors import OffsetOutOfRange
from liftlog.log.environment import EncodedBatch
from liftlog.log.filesystem import Buffer, storage_errors
from liftlog.log.index import IndexEntry, write_index
from liftlog.log.manifest import SegmentEntry, epoch_before, epochs_from
from liftlog.log.reading import LogEnd
from liftlog.log.segment import Segment, walk_batches
from liftlog.log.structure import LogStructure
from liftlog.records.header import parse_header, verify_body

logger = logging.getLogger("liftlog.log")


class LogTruncation(LogStructure):
    """One thread at a time calls what stands here: the writer of the moment."""

    def append_raw(self, data: Buffer) -> None:
        """Append whole batches as another log stores them; their bytes stay as they are.

        Checked first: each batch is whole, its checksums are right, it continues the offsets, and
        no leader epoch is older than the one before. All of them or none; durable after `sync`.
        An epoch that is new here is noted, durably, before the first of its batches is written.

        What was committed together is another matter here than where the batches came from, so
        after a power cut a torn tail may be quarantined that was never synced; `truncate_suffix`
        removes it, and it can be fetched anew.

        Raises CorruptBatch, UnsupportedFormat, ValueError when they do not continue the log,
        DiskFull, StorageError.
        """
        view = memoryview(data)
        batches: list[EncodedBatch] = []
        epochs = [entry for entry in self._manifest.epochs if entry[1] < self._log_end.offset]
        offset, position, group = self._log_end.offset, 0, 0
        while position < len(view):
            header = parse_header(view, position)
            piece = view[position : position + header.length]
            verify_body(piece, header)
            if header.base_offset != offset:
                raise ValueError(f"batch at offset {header.base_offset}, expected {offset}")
            last = epochs[-1][0] if epochs else 0
            if header.leader_epoch < last:
                raise ValueError(f"batch of leader epoch {header.leader_epoch} behind {last}")
            if header.leader_epoch > last:
                epochs.append((header.leader_epoch, offset))
            batches.append(
                EncodedBatch(
                    piece,
                    offset,
                    header.next_offset,
                    header.record_count,
                    header.base_timestamp_ns,
                    header.max_timestamp_ns,
                )
            )
            offset, position, group = (
                header.next_offset,
                position + header.length,
                header.commit_group,
            )
        if not batches:
            return
        self._note_epochs(tuple(epochs))
        self.append(batches)
        # The next group that is encoded here must differ from the one that it follows.
        self._commit_group = (group + 1) & 0xFFFF

    def _note_epochs(self, epochs: tuple[tuple[int, int], ...]) -> None:
        with self._lock, storage_errors(f"noting an epoch of {self.name}"):
            manifest = self._manifest
            if epochs == manifest.epochs:
                return
            newest = max(manifest.leader_epoch, epochs[-1][0])
            self._write_manifest(manifest.with_changes(epochs=epochs, leader_epoch=newest))

    # --- the end ---

    def truncate_suffix(self, offset: int) -> int:
        """Cut off everything from `offset` on; returns the new log end. Durable on return.

        Cuts at the batch boundary at or below `offset`, so a batch that holds it goes as a whole;
        at or past the log end it does nothing. The offsets are assigned again by what is appended
        next, in a new segment and another `lineage`: nothing that was noted of the old tail
        (recovery points, acks, checkpoints of readers) counts for the new one. The high watermark
        and the log start follow if they lie behind.

        Raises OffsetOutOfRange below the first stored offset, SyncFailed, StorageError, DiskFull.
        """
        with self._lock, storage_errors(f"truncating {self.name}"):
            if offset >= self._log_end.offset:
                return self._log_end.offset
            segments = self._segments
            if offset < segments[0].base_offset:
                raise OffsetOutOfRange(
                    f"stream {self.name} begins at {segments[0].base_offset}, after {offset}",
                    log_start_offset=self.log_start_offset,
                    log_end_offset=self._log_end.offset,
                )
            self.sync()  # what becomes sealed here is trusted by the next start
            at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
            old = segments[at]
            rest = self._shortened(old, offset)
            if rest is None:
                return self._begin_again_at(LogEnd(old.base_offset, 0, 0), segments[:at])
            if not old.sealed:  # a sealed segment has its index on disk before it is one
                index = self._index.copy()
                index.truncate(rest.size_bytes)
                write_index(self.environment.fs, rest.path, index)
                self.environment.indexes.put(rest, index)
            end = LogEnd(rest.next_offset, rest.base_offset, rest.size_bytes, rest.record_count)
            self._begin_again_at(end, (*segments[:at], rest))
            if rest is not old:
                self._cut_file(rest)
            return end.offset

    def _begin_again_at(self, place: LogEnd, kept: tuple[Segment, ...]) -> int:
        """Go on at `place`, the end of `kept`, as a new lineage; returns its offset."""
        manifest, committed, end = self._manifest, self._committed, place.offset
        epochs = tuple(entry for entry in manifest.epochs if entry[1] < end)
        if epoch_before(epochs, end) < manifest.leader_epoch:
            epochs = (*epochs, (manifest.leader_epoch, end))
        if committed.offset > end:
            self._committed = place  # readers go no further from here on
        try:
            self._switch_active(
                kept,
                end,
                generation=manifest.unclaimed_generation,
                log_start_offset=min(manifest.log_start_offset, end),
                epochs=epochs,
                quarantined=tuple(
                    replace(bad, next_offset=min(bad.next_offset, end))
                    for bad in manifest.quarantined
                    if bad.first_offset < end
                ),
                cleaned_below=min(manifest.cleaned_below, end),
                tombstones_removed_below=min(manifest.tombstones_removed_below, end),
                acks_before_sync=False,  # what is left is durable
            )
        except BaseException:
            self._committed = committed
            raise
        self._appended = [one for one in self._appended if one.offset < end]
        if self._committed.offset < end:
            self._appended.append(self._log_end)
        self._acked_end = end
        self._slot.begin_lineage(self._manifest.lineage)
        self._slot.update(end)
        return end

    def _shortened(self, segment: Segment, offset: int) -> Segment | None:
        """The part of `segment` before `offset`, sealed; None when nothing of it remains."""
        quarantined = self._quarantined_in(segment)
        if segment.sealed and offset >= segment.next_offset:  # in a hole behind it
            return segment if segment.size_bytes else None
        reached, count, newest = IndexEntry(segment.base_offset, 0), 0, 0
        if not any(
            bad.first_offset <= segment.base_offset and bad.next_offset > offset
            for bad in quarantined
        ):
            end = IndexEntry(segment.next_offset, segment.size_bytes)
            file = self.environment.fs.open(segment.path, writable=False)
            try:
                for position, header in walk_batches(file, reached, end, quarantined=quarantined):
                    if header.base_offset <= offset:
                        reached = IndexEntry(header.base_offset, position)
                    if header.next_offset > offset:
                        break
                    reached = IndexEntry(header.next_offset, position + header.length)
                    count += header.record_count
                    newest = max(newest, header.max_timestamp_ns)
            finally:
                file.close()
        if not reached.position:
            return None
        entry = SegmentEntry(
            segment.base_offset,
            segment.generation,
            reached.position,
            reached.offset,
            count,
            newest,
            segment.delete_horizon_ns,
        )
        return Segment(self.directory, entry, sealed=True)

    def _cut_file(self, segment: Segment) -> None:
        """Drop the bytes and index entries past its end. They mean nothing any more, so a failure
        only costs their space."""
        environment = self.environment
        try:
            file = environment.fs.open(segment.path)
            try:
                index = environment.indexes.get(segment, file, self._quarantined_in(segment)).copy()
                index.truncate(segment.size_bytes)
                environment.indexes.put(segment, index)
                write_index(environment.fs, segment.path, index)
                file.truncate(segment.size_bytes)
            finally:
                file.close()
        except OSError as error:
            logger.warning("file-not-cut path=%s error=%s", segment.path, error)

    # --- the beginning ---

    def truncate_prefix(self, offset: int) -> None:
        """Make `offset` the log start and drop every segment below it. Durable on return.

        Up to the high watermark the log goes on as it is. From the log end on nothing of it is
        left, and the next append is to come at `offset`. In between there is no telling where a
        batch of the uncommitted tail begins: ValueError. Up to the log start it does nothing.
        Raises StorageError, DiskFull.
        """
        if offset <= self.log_start_offset:
            return
        if offset < self._log_end.offset:
            if offset > self._committed.offset:
                raise ValueError("the log start cannot lie in an uncommitted tail")
            self.remove_before(offset, len(self._segments))
            return
        with self._lock, storage_errors(f"truncating {self.name}"):
            manifest = self._manifest
            self._switch_active(
                (),
                offset,
                log_start_offset=offset,
                high_watermark=offset,
                quarantined=(),
                epochs=epochs_from(manifest.epochs, offset),
                acks_before_sync=False,
            )
            self._appended = []
            self._committed = self._log_end
            self.note_acked(offset)
