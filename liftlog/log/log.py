"""One stream's log: append, make durable, read. Blocking; the daemon calls it from threads.

Threads: one thread at a time appends and syncs (the writer of the moment); any thread may read.
Structure (segments, manifest) changes under a lock and is replaced as a whole, so a reader works
on the snapshot that it took.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from liftlog.errors import DiskFull, OffsetOutOfRange, StorageError, SyncFailed
from liftlog.log.environment import EncodedBatch, LogConfig, LogEnvironment
from liftlog.log.filesystem import File, storage_errors, write_all
from liftlog.log.index import SparseIndex, index_path, write_index
from liftlog.log.manifest import Manifest, QuarantinedRange, SegmentEntry
from liftlog.log.reader import LogSlice
from liftlog.log.reading import LogEnd, ReadView, first_offset_at, read_slice
from liftlog.log.recovery import ActiveState
from liftlog.log.segment import MAX_POSITION, Segment
from liftlog.log.slot import AckedSlot

logger = logging.getLogger("liftlog.log")

RESERVE_STEP = 1_000_000
"""How many offsets are reserved ahead with one manifest write."""

_MIN_ALLOCATION = 64 * 1024
_MAX_ALLOCATION = 16 * 1024 * 1024
_MAX_BUFFERS = 1000  # Linux takes at most 1024 buffers a call


class Log:
    """Made by `create` and by `liftlog.log.opening.open_log`."""

    def __init__(
        self,
        directory: Path,
        environment: LogEnvironment,
        config: LogConfig,
        manifest: Manifest,
        segments: Sequence[Segment],
        active_file: File,
        active_index: SparseIndex,
        *,
        commit_group: int = 0,
        boot_id: str | None = None,
    ) -> None:
        self.directory = directory
        self.name = directory.name
        self.environment = environment
        self.config = config
        self._manifest = manifest
        self._segments = tuple(segments)
        self._file = active_file
        self._index = active_index
        self._allocated = active_file.size()
        self._lock = threading.RLock()
        self._commit_group = commit_group
        self.fsync_count = 0
        self.last_sync_seconds = 0.0
        active = self._segments[-1]
        end = LogEnd(active.next_offset, active.base_offset, active.size_bytes)
        self._log_end = end
        self._durable = end
        self._committed = end
        self._appended: list[LogEnd] = []
        self._slot = AckedSlot(environment.fs, directory, manifest.incarnation, boot_id=boot_id)
        # Never lower than what it said: between here and `skip_to` the machine may stop again.
        recovered = self._slot.recovered
        self._acked_end = max(end.offset, recovered.acked_end if recovered is not None else 0)
        self._slot.update(self._acked_end)
        self._manifest_in_doubt = False
        self._leftover_bytes = False
        self._closed = False

    @classmethod
    def create(
        cls,
        directory: Path,
        environment: LogEnvironment,
        config: LogConfig,
        *,
        initial_offset: int = 1,
        metadata: dict[str, Any] | None = None,
        boot_id: str | None = None,
    ) -> Log:
        """Make a new, empty log. Durable on return. Raises StorageError, DiskFull."""
        fs = environment.fs
        with storage_errors(f"creating {directory.name}"):
            fs.make_directory(directory)
            fs.fsync_directory(directory.parent)
            entry = SegmentEntry(base_offset=initial_offset, next_offset=initial_offset)
            file = fs.open(directory / entry.file_name, create=True)
            manifest = Manifest(
                incarnation=uuid.uuid4().hex,
                leader_epoch=1,
                log_start_offset=initial_offset,
                reserved_offset=initial_offset + RESERVE_STEP,
                high_watermark=initial_offset,
                segments=(entry,),
                epochs=((1, initial_offset),),
                metadata=metadata or {},
            )
            manifest.write(fs, directory)
            segment = Segment(directory, entry, sealed=False)
            index = SparseIndex(initial_offset)
            return cls(
                directory, environment, config, manifest, [segment], file, index, boot_id=boot_id
            )

    # --- what is known ---

    @property
    def log_start_offset(self) -> int:
        return self._manifest.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to assign."""
        return self._log_end.offset

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed; readers never see more."""
        return self._committed.offset

    @property
    def durable_end_offset(self) -> int:
        """Everything below it was fsynced."""
        return self._durable.offset

    @property
    def leader_epoch(self) -> int:
        return self._manifest.leader_epoch

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, its first offset), ascending."""
        return self._manifest.epochs

    @property
    def incarnation(self) -> str:
        return self._manifest.incarnation

    @property
    def metadata(self) -> dict[str, Any]:
        return self._manifest.metadata

    @property
    def quarantined(self) -> tuple[QuarantinedRange, ...]:
        return self._manifest.quarantined

    @property
    def segments(self) -> tuple[Segment, ...]:
        """A snapshot, oldest first; the last one is active."""
        return self._segments

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def commit_group(self) -> int:
        """The number that batches encoded for the next append must carry."""
        return self._commit_group

    @property
    def max_timestamp_ns(self) -> int:
        return max(segment.max_timestamp_ns for segment in self._segments)

    # --- writing ---

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
            if self._manifest_in_doubt or self._leftover_bytes:
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
            except OSError:
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
        self._log_end = LogEnd(active.next_offset, active.base_offset, position)
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

    def _write_manifest(self, manifest: Manifest) -> None:
        """Make it the manifest, on disk first. Raises OSError; then nothing changed in memory.

        A failure may come after the rename, so the disk may already say otherwise: no append may
        follow before it has been told again what is true, or a segment that it takes for sealed
        would grow behind its back.
        """
        try:
            manifest.write(self.environment.fs, self.directory)
        except OSError:
            self._manifest_in_doubt = True
            raise
        self._manifest_in_doubt = False
        self._manifest = manifest

    def _settle_doubts(self) -> None:
        """After a failed operation: bring the disk back to what is known here. Raises OSError."""
        if self._manifest_in_doubt:
            with self._lock:
                self._write_manifest(self._manifest)
        if self._leftover_bytes:
            self._remove_leftovers()

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
            self.fsync_count += 1
            self._durable = end
            self._commit_group = (self._commit_group + 1) & 0xFFFF
        return end.offset

    def advance_high_watermark(self, offset: int) -> None:
        """Declare everything below `offset` committed: readers see it, acks may leave.

        `offset` is the end of an append. Who decides it lies outside the log: on one node its
        own fsync, later the replicas.
        """
        if offset <= self._committed.offset:
            return
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
        self.note_acked(self._committed.offset)

    def note_acked(self, offset: int) -> None:
        """Remember, across a killed process, that everything below `offset` may have been acked.

        With durability below fsync acks leave before they are durable; the manifest is told so
        before the first of them, since after a power cut nobody knows how far they went.
        """
        if offset > self._durable.offset and not self._manifest.acks_before_sync:
            self._admit_early_acks()
        if offset > self._acked_end:
            self._acked_end = offset
            self._slot.update(offset)

    def _admit_early_acks(self) -> None:
        try:
            with self._lock:
                self._write_manifest(self._manifest.with_changes(acks_before_sync=True))
        except OSError as error:
            logger.warning("early-acks-not-noted stream=%s error=%s", self.name, error)

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
            # The record count below the durable end is the count minus what came after it; what
            # came after it was appended by this process, one record for each offset.
            active.record_count -= active.next_offset - durable.offset
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

    def _must_roll(self, size: int, next_offset: int) -> bool:
        active = self._segments[-1]
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

    def roll_if_due(self) -> bool:
        """Roll an idle active segment whose age is over the limit. Called by the writer."""
        if not self.is_roll_due():
            return False
        with storage_errors(f"rolling {self.name}"):
            self._roll()
        return True

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
        """New active segment; the manifest write inside is what makes it so.

        If the machine stops before the rename, the new file is garbage and the old segment is
        still active; after it, the index and the data that it lists are on disk.
        """
        fs = self.environment.fs
        old = self._segments[-1]
        entry = SegmentEntry(base_offset=base_offset, next_offset=base_offset)
        damaged = self._quarantined_in(old)
        replaced = old.size_bytes == 0 and not damaged
        if replaced:  # an empty segment is replaced, not kept
            kept = self._segments[:-1]
            entry = SegmentEntry(
                base_offset=base_offset,
                next_offset=base_offset,
                generation=old.generation + 1 if base_offset == old.base_offset else 0,
            )
        else:
            kept = self._segments
            if not any(bad.end_position > old.size_bytes for bad in damaged):
                self._trim_allocation(old.size_bytes)
            write_index(fs, old.path, self._index)
        file = fs.open(self.directory / entry.file_name, create=True)
        manifest = self._manifest.with_changes(
            segments=(*(segment.entry() for segment in kept), entry),
            high_watermark=self._committed.offset,
            reserved_offset=max(self._manifest.reserved_offset, base_offset + RESERVE_STEP),
        )
        try:
            self._write_manifest(manifest)
        except OSError:
            file.close()
            raise
        if not replaced:
            old.sealed = True
            self.environment.indexes.put(old, self._index)
        self._leftover_bytes = False
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
        if replaced:
            self._remove_files(old)

    def _remove_files(self, segment: Segment) -> int:
        """Unlink what the manifest no longer lists; what cannot go now goes at the next start."""
        self.environment.indexes.drop(segment.path)
        for path in (segment.path, index_path(segment.path)):
            try:
                self.environment.pool.remove(path)
            except OSError as error:
                logger.warning("file-not-removed path=%s error=%s", path, error)
        return segment.size_bytes

    def _quarantined_in(self, segment: Segment) -> list[QuarantinedRange]:
        name = segment.path.name
        return [bad for bad in self._manifest.quarantined if bad.segment == name]

    def _reserve(self, next_offset: int) -> None:
        with self._lock:
            reserved = next_offset + RESERVE_STEP
            self._write_manifest(self._manifest.with_changes(reserved_offset=reserved))

    # --- reading ---

    def read(self, offset: int, max_bytes: int, max_records: int | None = None) -> LogSlice | None:
        """Whole batches from the one that holds `offset` on, at least one, never past HW.

        None when `offset` lies between HW and the log end: nothing to read yet. The slice must be
        released. In a hole it begins with what follows. Raises OffsetOutOfRange, CorruptRange,
        StorageError.
        """
        committed, manifest = self._committed, self._manifest
        if offset < manifest.log_start_offset or offset > max(
            self._log_end.offset, committed.offset
        ):
            raise OffsetOutOfRange(
                f"offset {offset} is outside [{manifest.log_start_offset}, "
                f"{self._log_end.offset}] of stream {self.name}",
                hint="start at `earliest` or `latest`, or at an offset inside the range",
                log_start_offset=manifest.log_start_offset,
                log_end_offset=self._log_end.offset,
            )
        return self._read_from(offset, max_bytes, max_records)

    def read_stored(self, offset: int, max_bytes: int) -> LogSlice | None:
        """Like `read`, but below the log start too, as far as files are still there.

        For rebuilding state (message ids outlive retention), never for consumers.
        """
        return self._read_from(max(offset, self._segments[0].base_offset), max_bytes, None)

    def _read_from(self, offset: int, max_bytes: int, max_records: int | None) -> LogSlice | None:
        view = self._view()
        try:
            with storage_errors(f"reading {self.name}"):
                return read_slice(
                    view, self.environment.pool, self._index_of, offset, max_bytes, max_records
                )
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError) and view.manifest != self._manifest:
                # Retention removed the file between our snapshot and the open.
                return self.read(offset, max_bytes, max_records)
            raise

    def _view(self) -> ReadView:
        # In this order: the segments are at least as new as what is committed in them.
        return ReadView(self._committed, self._segments, self._manifest)

    def _index_of(self, segment: Segment, file: File) -> SparseIndex:
        index = self._index
        if not segment.sealed and index.base_offset == segment.base_offset:
            return index
        return self.environment.indexes.get(segment, file, self._quarantined_in(segment))

    def offset_for_timestamp(self, timestamp_ns: int) -> int:
        """The first offset stamped at or after `timestamp_ns`; HW when there is none."""
        with storage_errors(f"reading {self.name}"):
            return first_offset_at(
                self._view(), self.environment.pool, self._index_of, timestamp_ns
            )

    # --- structure ---

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace what the layer above keeps in the manifest; durable on return."""
        with self._lock, storage_errors(f"updating {self.name}"):
            self._write_manifest(self._manifest.with_changes(metadata=metadata))

    def remove_before(self, log_start_offset: int, delete_segments: int) -> int:
        """Move the log start and drop the oldest sealed segments; returns the bytes freed.

        The manifest comes first: a crash in between leaves files that nothing lists, and the next
        start removes them. Whoever reads a removed file keeps it until the answer is sent.
        """
        with self._lock, storage_errors(f"retention of {self.name}"):
            gone = self._segments[:delete_segments]
            kept = self._segments[delete_segments:]
            if not kept or any(not segment.sealed for segment in gone):
                raise ValueError("the active segment cannot be deleted")
            start = max(log_start_offset, self._manifest.log_start_offset)
            if start > self._committed.offset:
                raise ValueError("the log start cannot pass the high watermark")
            manifest = self._manifest.with_changes(
                log_start_offset=start,
                high_watermark=self._committed.offset,
                segments=tuple(segment.entry() for segment in kept),
                quarantined=tuple(q for q in self._manifest.quarantined if q.next_offset > start),
            )
            self._write_manifest(manifest)
            self._segments = kept
            return sum([self._remove_files(segment) for segment in gone])

    def active_state(self) -> ActiveState:
        """The active segment up to the durable end, for recovery points and the clean marker."""
        with self._lock:
            active, durable = self._segments[-1], self._durable
            behind = self._log_end.offset - durable.offset
            return ActiveState(
                incarnation=self.incarnation,
                base_offset=active.base_offset,
                position=durable.position,
                next_offset=durable.offset,
                record_count=active.record_count - behind,
                max_timestamp_ns=active.max_timestamp_ns,
                created_ns=active.created_ns,
                leader_epoch=self.leader_epoch,
                commit_group=self._commit_group,
            )

    def checkpoint(self) -> ActiveState:
        """Store the active index and return the state that a recovery point may claim."""
        with self._lock, storage_errors(f"checkpoint of {self.name}"):
            state = self.active_state()
            write_index(self.environment.fs, self._segments[-1].path, self._index.copy())
            return state

    def close(self) -> ActiveState | None:
        """Sync, store the active index, close the files. None when the sync failed."""
        if self._closed:
            return None
        self._closed = True
        state: ActiveState | None = None
        try:
            self.sync()
            self.advance_high_watermark(self._log_end.offset)
            with storage_errors(f"closing {self.name}"):
                self._trim_allocation(self._segments[-1].size_bytes)
                self._file.fdatasync()
            state = self.checkpoint()
        except (StorageError, DiskFull) as error:
            logger.error("close-failed stream=%s error=%s", self.name, error)  # noqa: TRY400
        finally:
            self._slot.close()
            self._file.close()
        return state
