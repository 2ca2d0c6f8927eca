"""One stream's log: append, make durable, read. Blocking; the daemon calls it from threads.

Threads: one thread at a time appends, syncs and truncates (the writer of the moment). Any thread
may read, and change the structure: retention, swaps, quarantine.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from liftlog.errors import StorageError
from liftlog.log import structure, truncation
from liftlog.log.active_segment import LogEnd
from liftlog.log.environment import LogConfig, LogEnvironment
from liftlog.log.files.filesystem import Buffer, storage_errors
from liftlog.log.files.leases import Leases
from liftlog.log.files.manifest import (
    QuarantinedRange,
    SegmentEntry,
    end_of_epoch,
    epoch_before,
)
from liftlog.log.files.slot import AckedSlot
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
from liftlog.log.writing import LogWriter
from liftlog.records.columns.heads import WantedSubjects

logger = logging.getLogger("liftlog.log")


class Log:
    """Made by `create` and by `liftlog.log.recovery.opening.open_log`.

    This class is what others see. What a log is made of stands in `state.py` (the view that readers
    take, and how it changes), `writing.py` (the end of the log), `structure.py`, `truncation.py`
    and `reading.py`.
    """

    def __init__(
        self,
        state: LogState,
        *,
        commit_group: int = 0,
        boot_id: str | None = None,
        appended: Sequence[LogEnd] = (),
    ) -> None:
        """`appended` are batch ends past the high watermark, up to the log end."""
        self.directory = state.directory
        self.name = state.name
        self.environment = environment = state.environment
        self._state = state
        lineage = state.view.manifest.lineage
        slot = AckedSlot(environment.fs, state.directory, lineage, boot_id=boot_id)
        self._writer = writer = LogWriter(state, slot, commit_group=commit_group, appended=appended)
        # See `LogWriter`. Publishers wait for these three, so they are not wrapped as the others.
        self.append = writer.append
        self.sync = writer.sync
        self.commit_up_to = writer.commit_up_to
        self._counts = RecordCounts(environment.pool)
        self.leases = Leases(environment.fs, state.directory)
        self.arrivals = Arrivals()
        """Of a replicated log, noted by who appends."""
        now_ns = environment.clock.monotonic_ns()
        for segment in state.view.segments:
            segment.held_since_ns = segment.listed_since_ns = now_ns
        try:
            self.leases.load()
        except StorageError as error:  # until they can be read nothing is removed or compacted
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
    ) -> Log:
        """Make a new, empty log. Durable on return. All replicas of a stream have one
        `incarnation`; without it, a new one is drawn. Raises StorageError, DiskFull."""
        state = LogState.create(
            directory, environment, config, initial_offset, metadata or {}, incarnation
        )
        try:
            with storage_errors(f"creating {directory.name}"):
                return cls(state, boot_id=boot_id)
        except BaseException:
            state.active.file.close()
            raise

    # --- what is known of it ---

    @property
    def config(self) -> LogConfig:
        """May be replaced at any time; holds from the next append on."""
        return self._state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._state.config = config

    @property
    def view(self) -> ReadView:
        """The newest state that readers may see; any number of questions to one view have answers
        that fit together."""
        return self._state.view

    @property
    def log_start_offset(self) -> int:
        return self._state.view.manifest.log_start_offset

    @property
    def first_stored_offset(self) -> int:
        """Where the oldest segment begins, or the gap before it: at or below the log start."""
        view = self._state.view
        return min(view.segments[0].base_offset, view.manifest.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        """The next offset to assign."""
        return self._state.active.end.offset

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed; readers never see more."""
        return self._state.view.committed.offset

    @property
    def durable_end_offset(self) -> int:
        """Everything below it was fsynced."""
        return self._state.active.durable.offset

    @property
    def leader_epoch(self) -> int:
        return self._state.view.manifest.leader_epoch

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, its first offset), ascending."""
        return self._state.view.manifest.epochs

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record; 0 when there was none yet."""
        return self.epoch_before(self.log_end_offset)

    @property
    def incarnation(self) -> str:
        return self._state.view.manifest.incarnation

    @property
    def lineage(self) -> str:
        """Changes when truncation lets offsets be assigned again, and with the incarnation."""
        return self._state.view.manifest.lineage

    @property
    def incomplete(self) -> str:
        """Why records may be missing that this replica had confirmed; empty when none are. Stays
        until `note_complete`, over any number of starts."""
        return self._state.view.manifest.incomplete

    @property
    def metadata(self) -> dict[str, Any]:
        return self._state.view.manifest.metadata

    @property
    def quarantined(self) -> tuple[QuarantinedRange, ...]:
        return self._state.view.manifest.quarantined

    @property
    def damaged_files(self) -> frozenset[str]:
        """Names of segment files that hold quarantined bytes; they are never rewritten."""
        return self._state.view.damaged_files

    @property
    def cleaned_below(self) -> int:
        """Compaction has looked at everything below this offset."""
        return self._state.view.manifest.cleaned_below

    @property
    def tombstones_removed_below(self) -> int:
        """Compaction may have removed tombstones below this offset."""
        return self._state.view.manifest.tombstones_removed_below

    @property
    def segments(self) -> tuple[Segment, ...]:
        """A snapshot, oldest first; the last one is active."""
        return self._state.view.segments

    @property
    def segment_count(self) -> int:
        return len(self._state.view.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._state.view.segments)

    @property
    def record_count(self) -> int:
        """Records that can be read; an upper bound where damage or the log start cut a segment
        that was compacted."""
        return self._state.view.record_count

    @property
    def max_timestamp_ns(self) -> int:
        return max(segment.max_timestamp_ns for segment in self._state.view.segments)

    @property
    def commit_group(self) -> int:
        """The number that batches encoded for the next append must carry."""
        return self._writer.commit_group

    @property
    def fsync_count(self) -> int:
        return self._writer.fsync_count

    @property
    def last_sync_seconds(self) -> float:
        return self._writer.last_sync_seconds

    # --- writing: by the writer of the moment ---

    def append_raw(self, data: Buffer) -> None:
        """Append whole batches as another log stores them; their bytes stay as they are.

        Only the first one may begin below the log end, since the other log may have put batches
        together: of it, the records from the log end on are appended as a batch of their own.

        Checked first: each batch is whole, its checksums are right, it continues the offsets, and
        no leader epoch is older than the one before. All of them or none; durable after `sync`.
        An epoch that is new here is noted, durably, before the first of its batches is written.

        The commit groups of another log say what was committed together there and not here, so
        after a power cut a torn tail may be quarantined that was never synced; `truncate_suffix`
        removes it, and it can be fetched again.

        Raises CorruptBatch, UnsupportedFormat, ValueError when they do not continue the log,
        DiskFull, StorageError.
        """
        self._writer.append_raw(data)

    def arrived_now(self, offset: int, stamp_ns: int) -> None:
        """Note that the records from `offset` on, the former log end, are new: their first stamp is
        `stamp_ns`. Called after `append_raw`, which can append old records as well."""
        now_ns = self.environment.clock.monotonic_ns()
        self.arrivals.note(offset, stamp_ns, now_ns)
        self._state.active.segment.is_timed = True

    def begin_epoch(self, epoch: int) -> None:
        """Note that leader epoch `epoch` begins at the log end; call it before the first append of
        that epoch. Durable on return; nothing is written when it was noted already.

        Raises ValueError when the log knows of a later epoch, StorageError, DiskFull.
        """
        self._writer.begin_epoch(epoch)

    def advance_high_watermark(self, offset: int) -> None:
        """`commit_up_to` under its former name."""
        self._writer.commit_up_to(offset)

    def note_acked(self, offset: int) -> None:
        """Remember, across a killed process, that everything below `offset` may have been acked.

        With durability below fsync acks leave before they are durable; the manifest says so before
        the first of them leaves, since after a power cut it is not known how far they went. While
        that fails no ack may leave. Raises StorageError, DiskFull.
        """
        self._writer.note_acked(offset)

    def admit_early_acks(self) -> None:
        """Note, durably, that acks may leave before what they answer is durable.

        With durability below fsync, call it before an append: when it fails nothing was written
        yet. Costs nothing once it was noted. Raises StorageError, DiskFull.
        """
        self._writer.admit_early_acks()

    def skip_to(self, offset: int) -> None:
        """Continue at a later offset in a new segment; the manifest must already say why.
        Everything below counts as committed. Raises StorageError, DiskFull."""
        self._writer.skip_to(offset)

    def append_gap(
        self,
        next_offset: int,
        reason: str,
        *,
        is_loss: bool,
        epochs: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Continue at `next_offset`, as the log that this one copies has a gap up to there (`Gap`).

        `epochs` are those of that log that begin in the gap: (leader epoch, first offset).
        Durable on return, and committed like an append. Raises ValueError unless `next_offset` lies
        past the log end, SyncFailed, StorageError, DiskFull.
        """
        self._writer.append_gap(next_offset, reason, is_loss=is_loss, epochs=epochs)

    def abandon_tail(self, *, keep_offsets: bool) -> None:
        """After a failed sync: continue in a new segment from the last durable position.

        With `keep_offsets` the abandoned offsets had been acked (durability below fsync); they
        are recorded as lost and never used again. Raises StorageError, DiskFull when the new
        segment fails too. Then nothing changed, and it may be tried again; but without
        `keep_offsets` the log ends at the last durable position all the same, and the next append
        tries again.
        """
        self._writer.abandon_tail(keep_offsets=keep_offsets)

    def is_roll_due(self) -> bool:
        """Whether the age of the active segment is over the limit."""
        return self._writer.is_roll_due()

    def roll(self) -> bool:
        """Seal the active segment, unless it is empty; returns whether it did.

        Syncs first. Raises SyncFailed, StorageError, DiskFull.
        """
        return self._writer.roll()

    def roll_if_due(self) -> bool:
        """Roll an idle active segment whose age is over the limit. Raises as `roll`."""
        return self._writer.is_roll_due() and self._writer.roll()

    def truncate_suffix(self, offset: int, *, below_high_watermark: bool = False) -> int:
        """Cut off everything from `offset` on; returns the new log end. Durable on return.

        Cuts at the batch boundary at or below `offset`, so a batch that holds it is cut as a whole;
        at or past the log end it does nothing. The offsets are assigned again by what is appended
        next, in a new segment and another `lineage`: nothing that was noted of the old tail
        (recovery points, acks, checkpoints of readers) counts for the new one. The high watermark
        and the log start follow if past the cut. Leader epochs that began there are forgotten:
        the next append follows `begin_epoch`, or brings its epoch along (`append_raw`).

        A replicated log is cut below its high watermark only with `below_high_watermark`, after an
        unclean recovery: what was committed is on the leader as it is here. Otherwise ValueError.
        Raises OffsetOutOfRange below the first stored offset, SyncFailed, StorageError, DiskFull.
        """
        state = self._state
        if offset < self.high_watermark and state.config.replicated and not below_high_watermark:
            raise ValueError(
                f"a replica of {self.name} would be cut at {offset}, below its high watermark "
                f"{self.high_watermark}"
            )
        return truncation.truncate_suffix(self._writer, offset)

    def leave_active_segment(self) -> None:
        """Continue in a new segment and lineage at the log end, after which the file is damaged or
        confirmed records are missing: marks that tell of them no longer count.

        Durable on return; a stop before that changes nothing. Raises StorageError, DiskFull.
        """
        truncation.leave_active_segment(self._writer)

    def truncate_prefix(self, offset: int) -> None:
        """Make `offset` the log start and drop every segment below it. Durable on return.

        Up to the high watermark the log continues as it is. From the log end on nothing is left
        of it, and the next append must begin at `offset`. In between it is not known where a batch
        of the uncommitted tail begins: ValueError. Up to the log start it does nothing. Raises
        StorageError, DiskFull.
        """
        truncation.truncate_prefix(self._writer, offset)

    def start_over(
        self, offset: int, *, epoch_before: int = 0, tombstones_removed_below: int = 0
    ) -> None:
        """Drop everything and continue, empty, at `offset`, to copy another replica from there.

        The replica tells the leader epoch of its record before `offset` (`Log.epoch_before`): if
        this log leads later on, it can be compared with one that ends there. And it may have
        removed tombstones below `tombstones_removed_below`.

        Durable on return; a stop before that leaves the log as it was. The offsets are assigned
        again, so it is another lineage. Raises StorageError, DiskFull; then nothing changed.
        """
        truncation.start_over(self._writer, offset, epoch_before, tombstones_removed_below)

    # --- structure: by any thread, beside the writer ---

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace what the layer above keeps in the manifest; durable on return."""
        structure.set_metadata(self._state, metadata)

    def note_incomplete(self, reason: str) -> None:
        """Note that this copy is not to be counted on, as after a loss. Durable on return. Raises
        StorageError, DiskFull."""
        structure.note_incomplete(self._state, reason)

    def note_complete(self) -> None:
        """Forget that the log was incomplete: the other replicas know of it, and no longer count on
        what this one had confirmed. Durable on return. Raises StorageError, DiskFull."""
        structure.note_complete(self._state)

    def remove_before(
        self, log_start_offset: int, delete_segments: int, *, delete_below: int | None = None
    ) -> int:
        """Move the log start and drop the oldest sealed segments; returns the bytes freed.

        At most `delete_segments` go, and only what ends at or below the new log start and
        `delete_below`: the caller may have counted before segments were merged. A reader of a
        removed file keeps it until the answer is sent. Raises StorageError, DiskFull.
        """
        return structure.remove_before(self._state, log_start_offset, delete_segments, delete_below)

    def replace_segments(
        self,
        old_files: Sequence[str],
        new: Sequence[SegmentEntry],
        *,
        horizons: Mapping[str, int | None] | None = None,
        cleaned_below: int | None = None,
        tombstones_removed_below: int | None = None,
        lineage: str | None = None,
    ) -> int:
        """Put rewritten segments in the place of others; returns the bytes freed. Durable.

        `old_files` are consecutive sealed segments. `new` tiles the same offsets in files of a
        higher generation, which are on disk, fsynced with their indexes and the directory.
        With `lineage` nothing is done in another one: a job that outlived a truncation.
        `horizons` sets or clears the delete horizon of sealed segments that stay; names that are
        no longer listed are ignored. Both offsets only ever rise. Without files, only these are
        stored. One write of the manifest does all of it.

        Raises SegmentsChanged when the files are not listed like this (any more), hold quarantined
        bytes, or records that are not committed yet: then nothing happened and the new files are
        to be discarded, with `discard_files`. After StorageError or DiskFull too: `discard_files`
        knows what is safe. Raises ValueError when `new` cannot stand in for the old ones.
        """
        return structure.replace_segments(
            self._state,
            old_files,
            new,
            horizons=horizons or {},
            cleaned_below=cleaned_below or 0,
            tombstones_removed_below=tombstones_removed_below or 0,
            lineage=lineage,
        )

    def mend_segment(
        self, old_file: str, new: Sequence[SegmentEntry], *, lineage: str | None = None
    ) -> int:
        """Put a segment that was written again from another replica in the place of a damaged one;
        returns how many damaged ranges end with that. Durable.

        `new` as for `replace_segments`, and verified to its end: whatever was quarantined in the
        old file is readable. Compaction looks again at the offsets from there on, since the other
        replica may have kept what was removed here.

        Raises SegmentsChanged when the file is not listed any more or holds what is not committed:
        discard the new files. Raises ValueError when `new` cannot stand in for it, StorageError,
        DiskFull.
        """
        return structure.mend_segment(self._state, old_file, new, lineage=lineage)

    def discard_files(self, names: Sequence[str]) -> None:
        """Unlink segment files, and their indexes, that a job wrote and the manifest does not list.

        After a failed `replace_segments` the disk may list them, whatever the view says: then the
        manifest is written again first, and while that fails nothing is removed. Raises
        StorageError, DiskFull; what stays is removed by the next start.
        """
        structure.discard_files(self._state, names)

    def quarantine(self, file_name: str, ranges: Sequence[QuarantinedRange]) -> None:
        """Note damaged ranges of a segment; readers pass over them from now on. Durable. In the
        active segment they lie below the high watermark.

        What is known already changes nothing; a range that overlaps a known one widens it. Raises
        SegmentsChanged when the segment is gone, StorageError, DiskFull.
        """
        structure.quarantine(self._state, file_name, ranges)

    def lift_quarantine(
        self,
        file_name: str,
        lifted: Sequence[QuarantinedRange],
        still: Sequence[QuarantinedRange] = (),
    ) -> int:
        """Let readers have what was quarantined in a segment and reads well, as a walk over all of
        it has shown (`readable_again`); `still` is what of it is damaged. Returns how many of these
        ranges there were. Durable. Raises StorageError, DiskFull.
        """
        return structure.lift_quarantine(self._state, file_name, lifted, still)

    # --- reading: by any thread ---

    def read(self, offset: int, max_bytes: int, max_records: int | None = None) -> LogSlice | None:
        """Whole batches from the one that holds `offset` on, at least one, never past HW.

        None when `offset` lies between HW and the log end: nothing to read yet. The slice must be
        released. In a hole it begins with what follows. Raises OffsetOutOfRange, CorruptRange,
        StorageError.
        """
        return reading.read_from(
            self._state, offset, max_bytes, max_records, self.quarantine_damage
        )

    def read_stored(self, offset: int, max_bytes: int) -> LogSlice | None:
        """Like `read`, but below the log start too, as far as files are still there.

        For rebuilding state (message ids outlive retention), never for consumers.
        """
        return reading.read_from(
            self._state, offset, max_bytes, None, self.quarantine_damage, stored=True
        )

    def read_replica(self, offset: int, max_bytes: int) -> LogSlice | Gap | None:
        """What another replica is to append next: whole batches from the one that holds `offset`
        on, at least one, batches without records too; from the first stored one, which may lie
        below the log start, to the log end, which may not be committed or durable yet.

        A `Gap` when no batch holds `offset` and none ever will; None at the log end. The slice must
        be released. Raises OffsetOutOfRange; CorruptRange at damage that is not known yet, which
        `quarantine_damage` makes a gap; StorageError.
        """
        return reading.read_replica(self._state, offset, max_bytes, self.quarantine_damage)

    def offset_for_timestamp(self, timestamp_ns: int) -> int:
        """The first offset stamped at or after `timestamp_ns`; HW when there is none."""
        return reading.offset_for_timestamp(self._state, timestamp_ns)

    def is_quarantined(self, first_offset: int, next_offset: int) -> bool:
        """Whether all of these offsets are known to be damaged or lost."""
        return is_covered(first_offset, next_offset, self.quarantined)

    def quarantine_damage(self, first_offset: int, next_offset: int) -> None:
        """Verify what is stored of [first_offset, next_offset), up to the high watermark (of a
        replica, up to the log end), and quarantine what of it is damaged or cannot be read;
        durable on return.

        Takes as long as reading it; from any thread. Each range that is found is an ERROR in the
        log. Raises StorageError, DiskFull, UnsupportedFormat.
        """
        reading.quarantine_damage(self._state, first_offset, next_offset)

    def offset_of_record(self, segment: Segment, number: int) -> int:
        """The offset of record `number` of a segment, from 0 on, across holes; less if damage
        keeps it from being counted. Reads batch headers. Raises StorageError."""
        return self._counts.offset_of(segment, number, self._state.view.damaged(segment))

    def load_index(self, segment: Segment) -> None:
        """Have the index of a sealed segment in memory and on disk, rebuilt if need be. Takes as
        long as reading all headers of the segment. Raises StorageError."""
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
        """How the bytes from the segment of `first_offset` to the high watermark lie over the
        offsets, about `step_bytes` a piece. Reads some index entries. Raises StorageError.

        With `probe`, pieces in which no such record can be have the size 0; and the pieces may end
        earlier, at a place from which on to ask again. Reads the sketches of segments.
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
        """The heads of the batches of a slice; None if there is no good sketch that would let one
        read less than the whole, or none in memory unless `load`. Keep the slice until it is no
        longer used. Raises StorageError."""
        return read_partially(self._state, piece, load=load)

    def is_sealed_at(self, offset: int) -> bool:
        """Whether a sealed segment holds this offset."""
        segments = self._state.view.segments
        at = bisect_right(segments, offset, key=lambda one: one.base_offset) - 1
        return at >= 0 and bool(segments[at].sealed) and offset < segments[at].next_offset

    def subject_index(self, offset: int) -> SubjectIndex | None:
        """That of the sealed segment which holds `offset`, for `read_by_subject`; None if there is
        no good one. Raises StorageError."""
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
        """The records of a slice on the subjects that are wanted, in these offsets, about
        `max_bytes` of them, in batches of one subject each; without `values` all bytes of these are
        zeros. Some records before and behind can be with them. None if the subjects or their
        records are many, if the offsets are few, or if not all is as the index says. Raises
        StorageError."""
        return read_by_subject(self._state, index, piece, wanted, within, max_bytes, values=values)

    def read_sparsely(self, piece: LogSlice, *, values: bool) -> SparsePiece | None:
        """The heads of the batches of a slice, for who wants few of its records, or with `values`
        False no values; None if there is no good sketch with checksums of all that such a reader
        needs, or if anything in the heads is unusual. Keep the slice until it is no longer used.
        Raises StorageError."""
        return read_sparsely(self._state, piece, values=values)

    def epoch_end(self, epoch: int) -> int:
        """The first offset after that leader epoch: where the next known one begins.

        The log end for the newest epoch, and for one that this log never saw.
        """
        end = self.log_end_offset
        return next((start for known, start in self.epochs if known > epoch), end)

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before `offset`; 0 where there is none, or none known."""
        return epoch_before(self.epochs, offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The newest known leader epoch up to `epoch`, and the first offset after it.

        Two logs of a stream are equal up to the lower of the two ends that both name for one epoch.
        Without such an epoch: 0, and where the oldest known one begins.
        """
        return end_of_epoch(self._state.view.manifest, epoch, self.log_end_offset)

    # --- stopping ---

    def active_state(self) -> ActiveState:
        """The active segment up to the durable end, for recovery points and the clean marker."""
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
                leader_epoch=epoch_before(self.epochs, durable.offset),
                commit_group=self._writer.commit_group,
                generation=segment.generation,
                high_watermark=self.high_watermark if self.config.replicated else 0,
            )

    def checkpoint(self) -> ActiveState:
        """Store the active index and return the state that a recovery point may claim."""
        with self._state.lock, storage_errors(f"checkpoint of {self.name}"):
            state = self.active_state()
            self._state.active.store_index(self.environment, self.incarnation)
            return state

    def close(self) -> ActiveState | None:
        """Sync, store the active index, close the files. None when the sync failed."""
        if self._state.closed:
            return None
        with self._state.lock:  # a change of the structure that is under way is the last one
            self._state.closed = True
        state: ActiveState | None = None
        try:
            self.sync()
            if not self.config.replicated:
                self.commit_up_to(self.log_end_offset)
            with storage_errors(f"closing {self.name}"):
                self._state.active.finish()
            state = self.checkpoint()
            self._forget_early_acks()
        except StorageError as error:
            logger.error("close-failed stream=%s error=%s", self.name, error)  # noqa: TRY400
        finally:
            self.close_files()
        return state

    def close_files(self) -> None:
        """Let go of the files as they are, as the end of the process does."""
        self._writer.slot.close()
        self._state.active.file.close()

    def _forget_early_acks(self) -> None:
        """All of it is durable: the next process notes again when acks leave before their sync."""
        manifest = self._state.view.manifest
        if not manifest.acks_before_sync:
            return
        manifest = manifest.with_changes(acks_before_sync=False)
        try:
            manifest.write(self.environment.fs, self.directory)
        except OSError as error:  # then the next start expects a larger loss than there can be
            logger.warning("early-acks-not-forgotten stream=%s error=%s", self.name, error)
