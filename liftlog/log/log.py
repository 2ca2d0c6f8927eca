"""One stream's log: append, make durable, read. Blocking; the daemon calls it from threads.

Threads: one thread at a time appends and syncs (the writer of the moment); any thread may read.
Structure (segments, manifest) changes under a lock and is replaced as a whole, so a reader works
on the snapshot that it took.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import Any

from liftlog.errors import DiskFull, OffsetOutOfRange, SegmentsChanged, StorageError
from liftlog.log.damage import is_covered
from liftlog.log.environment import LogConfig, LogEnvironment
from liftlog.log.extents import Extent, measure
from liftlog.log.filesystem import File, storage_errors
from liftlog.log.index import SparseIndex, write_index
from liftlog.log.manifest import Manifest, SegmentEntry, epoch_before
from liftlog.log.reading import ReadView, find_damage, first_offset_at, read_slice
from liftlog.log.recovery import ActiveState
from liftlog.log.segment import Segment
from liftlog.log.slices import LogSlice
from liftlog.log.truncation import LogTruncation
from liftlog.log.writing import RESERVE_STEP

logger = logging.getLogger("liftlog.log")


class Log(LogTruncation):
    """Made by `create` and by `liftlog.log.opening.open_log`."""

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
            segment = Segment(directory, entry, sealed=False)
            index = SparseIndex(initial_offset)
            file = fs.open(segment.path, create=True)
            try:
                fs.fsync_directory(directory)
                manifest.write(fs, directory)
                return cls(
                    directory, environment, config, manifest, [segment], file, index,
                    boot_id=boot_id,
                )  # fmt: skip
            except BaseException:
                file.close()
                raise

    # --- reading ---

    def read(self, offset: int, max_bytes: int, max_records: int | None = None) -> LogSlice | None:
        """Whole batches from the one that holds `offset` on, at least one, never past HW.

        None when `offset` lies between HW and the log end: nothing to read yet. The slice must be
        released. In a hole it begins with what follows. Raises OffsetOutOfRange, CorruptRange,
        StorageError.
        """
        return self._read_from(offset, max_bytes, max_records)

    def read_stored(self, offset: int, max_bytes: int) -> LogSlice | None:
        """Like `read`, but below the log start too, as far as files are still there.

        For rebuilding state (message ids outlive retention), never for consumers.
        """
        return self._read_from(offset, max_bytes, None, stored=True)

    def _read_from(
        self, offset: int, max_bytes: int, max_records: int | None, *, stored: bool = False
    ) -> LogSlice | None:
        pool, index_of = self.environment.pool, self._index_of
        with storage_errors(f"reading {self.name}"):
            while True:
                view = self._view()
                start = offset
                if stored:
                    start = max(offset, view.segments[0].base_offset)
                else:
                    # It may lie before the first segment: in a loss that retention has reached.
                    self._check_bounds(offset, view)
                try:
                    found = read_slice(view, pool, index_of, start, max_bytes, max_records)
                    if found is not None:
                        found.on_damage = self.quarantine_damage
                    return found
                except FileNotFoundError:
                    # It may have been removed between our snapshot and the open.
                    if view.segments is self._segments:
                        raise

    def is_quarantined(self, first_offset: int, next_offset: int) -> bool:
        """Whether all of these offsets are known to be damaged or lost."""
        return is_covered(first_offset, next_offset, self.quarantined)

    def quarantine_damage(self, first_offset: int, next_offset: int) -> None:
        """Verify what is stored of [first_offset, next_offset), up to the high watermark, and
        quarantine what of it is damaged or cannot be read; durable on return.

        Takes as long as reading it; from any thread. Each range that is found is an ERROR in the
        log. Raises StorageError, DiskFull, UnsupportedFormat.
        """
        pool, index_of = self.environment.pool, self._index_of
        with storage_errors(f"examining {self.name}"):
            view = self._view()
            for segment in view.segments:
                if segment.next_offset <= first_offset or segment.base_offset >= next_offset:
                    continue
                try:
                    found = find_damage(view, pool, index_of, segment, first_offset, next_offset)
                    if found:
                        self.quarantine(segment.path.name, found)
                except (FileNotFoundError, SegmentsChanged):
                    continue  # replaced or removed meanwhile: readers read something else

    def _check_bounds(self, offset: int, view: ReadView) -> None:
        start, end = view.manifest.log_start_offset, self._log_end.offset
        if start <= offset <= max(end, view.committed.offset):
            return
        raise OffsetOutOfRange(
            f"offset {offset} is outside [{start}, {end}] of stream {self.name}",
            hint="start at `earliest` or `latest`, or at an offset inside the range",
            log_start_offset=start,
            log_end_offset=end,
        )

    def _view(self) -> ReadView:
        while True:
            segments = self._segments
            view = ReadView(self._committed, segments, self._manifest)
            # A position in a file that was swapped meanwhile would mean nothing in the new one.
            if segments is self._segments:
                return view

    def _index_of(self, segment: Segment, file: File) -> SparseIndex:
        index = self._index
        if not segment.sealed and index.base_offset == segment.base_offset:
            return index
        return self.environment.indexes.get(segment, file, self._quarantined_in(segment))

    def offset_of_record(self, segment: Segment, number: int) -> int:
        """The offset of record `number` of a segment, from 0 on, across holes; less if damage
        keeps it from being counted. Reads batch headers. Raises StorageError."""
        return self._counts.offset_of(segment, number, self._quarantined_in(segment))

    def load_index(self, segment: Segment) -> None:
        """Have the index of a sealed segment in memory and on disk, made anew if need be. Takes as
        long as reading all headers of the segment. Raises StorageError."""
        pool = self.environment.pool
        with storage_errors(f"indexing {segment.path.name}"):
            pooled = pool.acquire(segment.path)
            try:
                self._index_of(segment, pooled.file)
            finally:
                pool.release(pooled)

    def offset_for_timestamp(self, timestamp_ns: int) -> int:
        """The first offset stamped at or after `timestamp_ns`; HW when there is none."""
        pool, index_of = self.environment.pool, self._index_of
        with storage_errors(f"reading {self.name}"):
            while True:
                view = self._view()
                try:
                    return first_offset_at(view, pool, index_of, timestamp_ns)
                except FileNotFoundError:
                    if view.segments is self._segments:
                        raise

    def extents(self, first_offset: int, step_bytes: int) -> list[Extent]:
        """How the bytes from the segment of `first_offset` to the high watermark lie over the
        offsets, about `step_bytes` a piece. Reads some index entries. Raises StorageError."""
        with storage_errors(f"measuring {self.name}"):
            view = self._view()
            segments = [
                segment
                for segment in view.segments
                if segment.next_offset > first_offset
                and view.readable_end(segment).offset > segment.base_offset
            ]
            fs, index = self.environment.fs, self._index
            return measure(fs, segments, index, view.readable_end, step_bytes)

    def epoch_end(self, epoch: int) -> int:
        """The first offset behind that leader epoch: where the next known one begins.

        The log end for the newest epoch, and for one that this log never saw.
        """
        end = self._log_end.offset
        return next((start for known, start in self._manifest.epochs if known > epoch), end)

    # --- stopping ---

    def active_state(self) -> ActiveState:
        """The active segment up to the durable end, for recovery points and the clean marker."""
        with self._lock:
            active, durable = self._segments[-1], self._durable
            return ActiveState(
                incarnation=self.incarnation,
                base_offset=active.base_offset,
                position=durable.position,
                next_offset=durable.offset,
                record_count=durable.record_count,
                max_timestamp_ns=active.max_timestamp_ns,
                created_ns=active.created_ns,
                leader_epoch=epoch_before(self.epochs, durable.offset),
                commit_group=self._commit_group,
                generation=active.generation,
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
        with self._lock:  # a change of the structure that is under way is the last one
            self._closed = True
        state: ActiveState | None = None
        try:
            self.sync()
            self.advance_high_watermark(self._log_end.offset)
            with storage_errors(f"closing {self.name}"):
                self._trim_allocation(self._segments[-1].size_bytes)
                self._file.fdatasync()
            state = self.checkpoint()
            self._forget_early_acks()
        except (StorageError, DiskFull) as error:
            logger.error("close-failed stream=%s error=%s", self.name, error)  # noqa: TRY400
        finally:
            self._slot.close()
            self._file.close()
        return state

    def _forget_early_acks(self) -> None:
        """All of it is durable: the next process notes anew when acks leave before their sync."""
        if not self._manifest.acks_before_sync:
            return
        manifest = self._manifest.with_changes(acks_before_sync=False)
        try:
            manifest.write(self.environment.fs, self.directory)
        except OSError as error:  # then the next start expects a larger loss than there can be
            logger.warning("early-acks-not-forgotten stream=%s error=%s", self.name, error)
