"""The log of one stream: append, sync, read. Blocking; the daemon calls it from threads.

Only one thread at a time, the current writer, appends, syncs and truncates. As an exception, one
thread may append while another thread syncs, unless the append begins another segment
(`must_roll`). Any thread may read, and may change the structure by retention, swaps and quarantine.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from liftlog.errors import StorageError
from liftlog.log.active_segment import LogEnd
from liftlog.log.environment import LogConfig, LogEnvironment
from liftlog.log.files.acked_end import AckedEndFile
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.leases import Leases
from liftlog.log.files.manifest import (
    end_of_epoch,
    epoch_before,
    sync_copy,
)
from liftlog.log.read import reading
from liftlog.log.read.arrivals import Arrivals
from liftlog.log.read.by_subject import SubjectRuns, index_at, read_by_subject
from liftlog.log.read.measuring import Extent, RecordCounts, Wanted, find_matching, measure
from liftlog.log.read.partial import PartialPiece, read_partially
from liftlog.log.read.reading import Gap
from liftlog.log.read.slices import LogSlice
from liftlog.log.read.sparse import SparsePiece, read_sparsely
from liftlog.log.segment.segment import Segment
from liftlog.log.segment.sketch import Probe
from liftlog.log.segment.subject_index import SubjectIndex
from liftlog.log.segment.tail import ActiveState
from liftlog.log.segment.walk import is_covered
from liftlog.log.state import LogState, ReadView
from liftlog.log.structure import LogStructure
from liftlog.log.truncation import (
    leave_active_segment,
    start_over,
    truncate_prefix,
    truncate_suffix,
)
from liftlog.log.writing import LogWriter
from liftlog.records.columns.heads import WantedSubjects

logger = logging.getLogger("liftlog.log")


class Log:
    """One stream's log, made by `create` or by `liftlog.log.recovery.opening.open_log`.

    `view` is the newest state that readers may see. `writer` appends to the end of the log, and
    `structure` changes its segments and metadata. The methods of this class read, truncate and
    close.
    """

    def __init__(
        self,
        state: LogState,
        *,
        commit_group: int = 0,
        boot_id: str | None = None,
        appended: Sequence[LogEnd] = (),
    ) -> None:
        """Make a log from its `state`. `appended` are the ends of the batches between the high
        watermark and the log end."""
        self.directory = state.directory
        self.name = state.name
        self.environment = environment = state.environment
        self._state = state
        lineage = state.view.manifest.lineage
        slot = AckedEndFile(environment.fs, state.directory, lineage, boot_id=boot_id)
        self.writer = writer = LogWriter(state, slot, commit_group=commit_group, appended=appended)
        # Publishers wait for these three calls, so they are called without a wrapping method, which
        # would take time.
        self.append = writer.append
        self.sync = writer.sync
        self.commit_up_to = writer.commit_up_to
        self.structure = LogStructure(state)
        self._counts = RecordCounts(environment.pool)
        self.leases = Leases(environment.fs, state.directory)
        self.arrivals = Arrivals()
        """The arrival times of records. In a replicated log, the appending code records them."""
        now_ns = environment.clock.monotonic_ns()
        for segment in state.view.segments:
            segment.held_since_ns = segment.listed_since_ns = now_ns
        try:
            self.leases.load()
        except StorageError as error:  # no retention or compaction until the leases can be read
            logger.warning("leases-not-read stream=%s error=%s", self.name, error)

    @classmethod
    def create(
        cls,
        directory: Path,
        environment: LogEnvironment,
        config: LogConfig,
        *,
        initial_offset: int = 1,
        metadata: dict[str, Any] | None = None,
        incarnation: str | None = None,
        boot_id: str | None = None,
        sync_parent: Callable[[], None] | None = None,
    ) -> Log:
        """Create an empty log. Durable on return. All replicas of a stream have the same
        `incarnation`; if it is None, a random one is used. `sync_parent` replaces the sync of the
        directory that contains `directory`. Raises StorageError, DiskFull."""
        state = LogState.create(
            directory, environment, config, initial_offset, metadata or {}, incarnation, sync_parent
        )
        try:
            with storage_errors(f"creating {directory.name}"):
                return cls(state, boot_id=boot_id)
        except BaseException:
            state.active.file.close()
            raise

    # --- state ---

    @property
    def config(self) -> LogConfig:
        """The settings of the log. They may be replaced at any time; the next append uses the new
        settings."""
        return self._state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._state.config = config

    @property
    def view(self) -> ReadView:
        """The newest state that readers may see. All values of one view belong to the same
        moment."""
        return self._state.view

    @property
    def log_start_offset(self) -> int:
        return self._state.view.manifest.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to assign."""
        return self._state.active.end.offset

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are committed. Readers get no records from this offset
        on."""
        return self._state.view.committed.offset

    @property
    def durable_end_offset(self) -> int:
        """The offset below which all records were fsynced."""
        return self._state.active.durable.offset

    @property
    def incarnation(self) -> str:
        return self._state.view.manifest.incarnation

    @property
    def leader_epoch(self) -> int:
        return self._state.view.manifest.leader_epoch

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record; 0 if the log never had a record."""
        return epoch_before(self.view.manifest.epochs, self.log_end_offset)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The current segments, oldest first; the last one is active."""
        return self._state.view.segments

    @property
    def segment_count(self) -> int:
        return len(self._state.view.segments)

    # --- writing: by the current writer ---

    def arrived_now(self, offset: int, stamp_ns: int) -> None:
        """Record that all records from `offset` (the former log end) on have just arrived, the
        first record with the timestamp `stamp_ns`. Call it after `append_raw`, which cannot
        distinguish new records from old ones."""
        now_ns = self.environment.clock.monotonic_ns()
        self.arrivals.note(offset, stamp_ns, now_ns)
        self._state.active.segment.is_timed = True

    def truncate_suffix(self, offset: int, *, below_high_watermark: bool = False) -> int:
        """Cut off everything from `offset` on; returns the new log end. Durable on return.

        Cuts at the batch boundary at or below `offset`, so a batch that contains `offset` is
        removed as a whole. Does nothing if `offset` is at or past the log end. The next append
        assigns the removed offsets again, in a new segment and under a new `lineage`. So recovery
        points, acks and checkpoints of the old tail do not apply to the new tail. The high
        watermark and the log start move down to the cut if they are beyond it. Leader epochs that
        began past the cut are dropped: call `begin_epoch` before the next `append`. (`append_raw`
        stores the epochs of its batches itself.)

        Raises ValueError for a cut below the high watermark of a replicated log, because the leader
        has the same committed records. After an unclean recovery, `below_high_watermark` allows
        such a cut. Raises OffsetOutOfRange below the first stored offset, SyncFailed, StorageError,
        DiskFull.
        """
        state = self._state
        if offset < self.high_watermark and state.config.replicated and not below_high_watermark:
            raise ValueError(
                f"a replica of {self.name} would be cut at {offset}, below its high watermark "
                f"{self.high_watermark}"
            )
        return truncate_suffix(self.writer, offset)

    def leave_active_segment(self) -> None:
        """Begin a new segment and lineage at the log end.

        Call this method if bytes after the log end are damaged, or if the log lacks records that it
        had confirmed. With the new lineage, recovery points and acks that refer to these records no
        longer apply. Durable on return; a stop before that changes nothing. Raises StorageError,
        DiskFull.
        """
        leave_active_segment(self.writer)

    def truncate_prefix(self, offset: int) -> None:
        """Make `offset` the log start and drop every segment below it. Durable on return.

        Does nothing if `offset` is at or below the log start. If `offset` is at or below the high
        watermark, the rest of the log stays as it is. If `offset` is at or past the log end, no
        record remains, and the next append must begin at `offset`. Raises ValueError for an
        `offset` between the high watermark and the log end, because the log does not record where
        the batches of its uncommitted tail begin. Raises StorageError, DiskFull.
        """
        truncate_prefix(self.writer, offset)

    def start_over(
        self, offset: int, *, epoch_before: int = 0, tombstones_removed_below: int = 0
    ) -> None:
        """Empty the log and let it continue at `offset`, to copy another replica from that offset
        on.

        `epoch_before` is the leader epoch of the other replica's record before `offset`
        (`manifest.epoch_before`). If this node leads later, a follower whose log ends at `offset`
        compares its own last epoch with `epoch_before`. The other replica may have removed
        tombstones below `tombstones_removed_below`.

        Durable on return; a stop before that leaves the log unchanged. The log gets a new lineage,
        because its offsets are assigned again. Raises StorageError, DiskFull; after an error the
        log is unchanged.
        """
        start_over(self.writer, offset, epoch_before, tombstones_removed_below)

    # --- reading: by any thread ---

    def read(
        self, offset: int, max_bytes: int, max_records: int | None = None, *, masked: bool = False
    ) -> LogSlice | None:
        """Return one or more whole batches below the HW (high watermark), beginning with the batch
        that holds `offset`.

        Returns None if `offset` lies between HW and the log end, because no committed record is
        there yet. If `offset` lies in a hole, the slice begins after the hole. The caller must
        release the slice. With `masked`, the slice still contains erased records, and the caller
        must leave out the records in its `erased`. Without it, the slice does not contain them.
        Raises OffsetOutOfRange, CorruptRange, StorageError.
        """
        return reading.read_from(
            self._state, offset, max_bytes, max_records, self.quarantine_damage, masked=masked
        )

    def read_stored(self, offset: int, max_bytes: int) -> LogSlice | None:
        """Like `read`, but also return records below the log start whose files still exist, and
        erased records whose bytes still exist.

        Used to rebuild the dedupe state, because message ids outlive retention. Consumers never get
        these records.
        """
        return reading.read_from(
            self._state, offset, max_bytes, None, self.quarantine_damage, stored=True
        )

    def read_replica(self, offset: int, max_bytes: int) -> LogSlice | Gap | None:
        """Return whole batches from `offset` on, for another replica to append.

        Returns at least one batch, beginning with the batch that holds `offset`. Also returns
        batches without records. `offset` lies between the first stored offset and the log end. The
        first stored offset may be below the log start. The log end may not be committed or durable
        yet.

        Returns a `Gap` if `offset` was lost or skipped, so that no batch will ever hold it, and
        None at the log end. The caller must release the slice. Raises OffsetOutOfRange;
        CorruptRange for damage that is not recorded yet (`quarantine_damage` turns it into a gap);
        StorageError.
        """
        return reading.read_replica(self._state, offset, max_bytes, self.quarantine_damage)

    def offset_for_timestamp(self, timestamp_ns: int) -> int:
        """Return the offset of the first record stamped at or after `timestamp_ns`; the high
        watermark if there is no such record."""
        return reading.offset_for_timestamp(self._state, timestamp_ns)

    def is_quarantined(self, first_offset: int, next_offset: int) -> bool:
        """Return True if all of these offsets are recorded as damaged or lost."""
        return is_covered(first_offset, next_offset, self.view.manifest.quarantined)

    def quarantine_damage(self, first_offset: int, next_offset: int) -> None:
        """Verify the stored bytes of [first_offset, next_offset) and quarantine the damaged parts.

        The end of the range is limited to the high watermark, or in a replica to the log end.
        Unreadable bytes count as damaged. Durable on return. Takes as long as reading the range;
        any thread may call it. Logs each range that it finds as an ERROR. Raises StorageError,
        DiskFull, UnsupportedFormat.
        """
        reading.quarantine_damage(self._state, first_offset, next_offset)

    def offset_of_record(self, segment: Segment, number: int) -> int:
        """Return the offset of record `number` (from 0) of a segment. Offsets without a record, and
        erased records, do not count. If damage prevents an exact count, the result is a lower
        offset. Reads batch headers. Raises StorageError."""
        view = self._state.view
        return self._counts.offset_of(segment, number, view.damaged(segment), view.erased)

    def load_index(self, segment: Segment) -> None:
        """Load the index of a sealed segment into memory, and rebuild and store it if necessary.
        Takes up to as long as reading all headers of the segment. Raises StorageError."""
        pool, view = self.environment.pool, self._state.view
        with storage_errors(f"indexing {segment.path.name}"):
            pooled = pool.acquire(segment.path)
            try:
                view.index_of(segment, pooled.file, self.environment.indexes)
            finally:
                pool.release(pooled)

    def extents(
        self, first_offset: int, step_bytes: int, probe: Probe | None = None
    ) -> list[Extent]:
        """Divide the log into pieces of about `step_bytes`; return the size and the offsets of each
        piece.

        The pieces cover the log from the segment of `first_offset` to the high watermark. Reads a
        few index entries. Raises StorageError.

        With `probe`, a piece gets the size 0 if it cannot hold a matching record, and the pieces
        may end before the high watermark. In this case call again with the end of the last piece.
        Reads the segments' sketches.
        """
        with storage_errors(f"measuring {self.name}"):
            view = self._state.view
            segments = [
                segment
                for segment in view.segments
                if segment.next_offset > first_offset
                and view.readable_end(segment).offset > segment.base_offset
            ]
            about = (
                self.environment.fs,
                view.manifest.incarnation,
                segments,
                view.active_index,
                view.readable_end,
                step_bytes,
            )
            if probe is None:
                return measure(*about)
            wanted = Wanted(first_offset, probe, view.manifest.lineage, view.damaged_files)
            return find_matching(*about, wanted)

    def read_partially(self, piece: LogSlice, *, load: bool) -> PartialPiece | None:
        """Return the heads of the batches of a slice. Returns None if the segment has no valid
        sketch, which a partial read needs, or if `load` is False and the sketch is not in memory.
        Keep the slice while the result is in use. Raises StorageError."""
        return read_partially(self._state, piece, load=load)

    def is_sealed_at(self, offset: int) -> bool:
        """Return True if a sealed segment holds this offset."""
        segments = self._state.view.segments
        at = bisect_right(segments, offset, key=lambda one: one.base_offset) - 1
        return at >= 0 and bool(segments[at].sealed) and offset < segments[at].next_offset

    def subject_index(self, offset: int) -> SubjectIndex | None:
        """Return the subject index of the sealed segment that holds `offset`, for
        `read_by_subject`; None if the segment has no valid index. Raises StorageError."""
        return index_at(self._state, offset)

    def read_by_subject(
        self,
        index: SubjectIndex,
        piece: LogSlice,
        wanted: WantedSubjects,
        within: tuple[int, int],
        max_bytes: int,
        *,
        values: bool,
    ) -> SubjectRuns | None:
        """Return the records of a slice on the wanted subjects, as batches of one subject each.

        Returns about `max_bytes` of records with offsets in `within`, and possibly a few records
        before and after them. Without `values` the bytes of the values are zeros. Returns None if
        the segment does not match its index, or if this read is not efficient (too many subjects or
        records, too few offsets). Raises StorageError.
        """
        return read_by_subject(self._state, index, piece, wanted, within, max_bytes, values=values)

    def read_sparsely(self, piece: LogSlice, *, values: bool) -> SparsePiece | None:
        """Return the heads of the batches of a slice, for a reader that needs only few records of
        the slice or, with `values` False, no values.

        Returns None if the sketch is missing or lacks checksums that such a reader needs, or if the
        heads contain a batch that only a complete read can handle. Keep the slice while the result
        is in use. Raises StorageError.
        """
        return read_sparsely(self._state, piece, values=values)

    def epoch_end(self, epoch: int) -> int:
        """Return the end of a leader epoch, which is the first offset of the next recorded epoch.

        Returns the log end for the newest epoch, and for an epoch that this log never had.
        """
        end = self.log_end_offset
        return next((start for known, start in self.view.manifest.epochs if known > epoch), end)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the newest recorded leader epoch up to `epoch`, and the first offset after it.

        If two logs of a stream return the same epoch, the logs are equal up to the lower of the two
        ends. If the log has no epoch up to `epoch`, returns 0 and the first offset of the oldest
        recorded epoch.
        """
        return end_of_epoch(self._state.view.manifest, epoch, self.log_end_offset)

    # --- stopping ---

    def active_state(self) -> ActiveState:
        """Return the state of the active segment up to its durable end, for recovery points and the
        clean marker."""
        with self._state.lock:
            segment, durable = self._state.active.segment, self._state.active.durable
            return ActiveState(
                incarnation=self.incarnation,
                base_offset=segment.base_offset,
                position=durable.position,
                next_offset=durable.offset,
                record_count=durable.record_count,
                max_timestamp_ns=segment.max_timestamp_ns,
                created_ns=segment.created_ns,
                leader_epoch=epoch_before(self.view.manifest.epochs, durable.offset),
                commit_group=self.writer.commit_group,
                generation=segment.generation,
                high_watermark=self.high_watermark if self.config.replicated else 0,
            )

    def checkpoint(self) -> ActiveState:
        """Store the active index and return the state that a recovery point may record."""
        with self._state.lock, storage_errors(f"checkpoint of {self.name}"):
            state = self.active_state()
            self._state.active.store_index(self.environment, self.incarnation)
            return state

    def close(self) -> ActiveState | None:
        """Sync, store the active index, close the files. Returns None if the sync failed."""
        if self._state.closed:
            return None
        with self._state.lock:  # a running change of the structure ends first
            self._state.closed = True
        state: ActiveState | None = None
        try:
            self.sync()
            if not self.config.replicated:
                self.commit_up_to(self.log_end_offset)
            with storage_errors(f"closing {self.name}"):
                self._state.active.finish()
                if self._state.copy_in_doubt:
                    sync_copy(self.environment.fs, self.directory)
            state = self.checkpoint()
            self._forget_early_acks()
        except StorageError as error:
            logger.error("close-failed stream=%s error=%s", self.name, error)  # noqa: TRY400
        finally:
            self.close_files()
        return state

    def close_files(self) -> None:
        """Close the files without syncing, as at the end of a killed process."""
        self.writer.slot.close()
        self._state.active.file.close()

    def _forget_early_acks(self) -> None:
        """Clear the mark that acks may have been sent before the sync, because all records are now
        durable. The next process may set the mark again."""
        manifest = self._state.view.manifest
        if not manifest.acks_before_sync:
            return
        manifest = manifest.with_changes(acks_before_sync=False)
        try:
            manifest.write(self.environment.fs, self.directory)
        except OSError as error:  # after a power cut the next start then assumes too many losses
            logger.warning("early-acks-not-forgotten stream=%s error=%s", self.name, error)
