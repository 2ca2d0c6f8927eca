"""Opens a log: trusts its files after a clean stop, and recovers them after an unclean stop.

The comments here and in `judging.py` prove, branch by branch, that an opening loses no acked
record, assigns no acked offset again, and keeps no refused record. The proofs use four facts about
the writers:

F1. Everything that a manifest lists was on disk before the manifest was written: sealed segments
    with all their bytes, and the directory entry of the active segment.
F2. A commit group is written only after the fdatasync of the group before it. With durability
    `fsync`, the acks of a group are sent after its own fdatasync and after the update of the slot.
    With a lower durability, the manifest contains `acks_before_sync` before the first ack is sent.
F3. Recovery points and the clean marker cover only bytes for which an fdatasync has returned.
F4. The clean marker is removed, durably, before anything in the directory is changed.

An opening may be interrupted at any point and then runs again. It changes files in this order:
first the tail of the active segment (copied, cut, or written again as it is), then the manifest, in
one write, then the slot and a new segment. So after an interruption, there are two cases. Either
the next start finds the old manifest, and judges the same damage by the same evidence. Or it finds
the verdict in the manifest.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from liftlog.errors import CorruptMetadata
from liftlog.log.active_segment import ActiveSegment
from liftlog.log.environment import LogConfig, LogEnvironment, build_index
from liftlog.log.erased import ErasedSet, clip
from liftlog.log.files.acked_end import ACKED_END_NAME
from liftlog.log.files.filesystem import File, storage_errors, write_all
from liftlog.log.files.manifest import (
    MOST_RESERVED,
    Manifest,
    SegmentEntry,
    epochs_below,
    epochs_from,
    find_manifest,
    ranges_below,
)
from liftlog.log.files.unreadable import read_around
from liftlog.log.log import Log
from liftlog.log.recovery.inventory import RecoveryReport
from liftlog.log.recovery.judging import OnBatch, TailJudge
from liftlog.log.recovery.replica_recovery import ends_from, what_is_missing
from liftlog.log.segment.index import SparseIndex, read_index
from liftlog.log.segment.segment import Segment
from liftlog.log.segment.tail import ActiveState, find_data_end, scan
from liftlog.log.state import LogState
from liftlog.records.header import BatchHeader

_WRITE_BYTES = 4 * 1024 * 1024


def open_log(
    directory: Path,
    environment: LogEnvironment,
    config: LogConfig,
    *,
    clean: ActiveState | None = None,
    recovery_point: ActiveState | None = None,
    boot_id: str | None = None,
) -> tuple[Log, RecoveryReport]:
    """Open an existing log, and recover it if it was not closed cleanly.

    `clean` is the stream's entry in the clean marker, None after an unclean stop. All records below
    the high watermark are durable on return. Raises CorruptMetadata, without changing a file, if
    the directory has files but no readable manifest. Raises StorageError, UnsupportedFormat.
    """
    with storage_errors(f"opening {directory.name}"):
        found = find_manifest(environment.fs, directory)
        manifest = found.manifest
        if manifest is None or not manifest.segments:
            raise CorruptMetadata(f"stream {directory.name} has files but no manifest")
        opening = _Opening(directory, environment, config, manifest, boot_id)
        opening.write_missing_copy(found)
        return opening.run(clean, recovery_point)


class _Opening(TailJudge):
    """The state of one opening; each object is used once."""

    def __init__(
        self,
        directory: Path,
        environment: LogEnvironment,
        config: LogConfig,
        manifest: Manifest,
        boot_id: str | None,
    ) -> None:
        super().__init__(directory, environment.fs, manifest, boot_id)
        self.environment = environment
        self.config = config
        self.high_watermark = 0  # as stored by a replica
        self.erased: ErasedSet | None = None

    def run(
        self, clean: ActiveState | None, recovery_point: ActiveState | None
    ) -> tuple[Log, RecoveryReport]:
        sealed = [
            Segment(self.directory, entry, sealed=True) for entry in self.manifest.segments[:-1]
        ]
        self.erased = self.read_erased()
        known_ranges = len(self.quarantined)
        self._check_sealed(sealed)
        if len(self.quarantined) > known_ranges:
            self._confirmed_is_missing("a sealed segment is shorter than it was, or missing")
        entry = self.manifest.segments[-1]
        path = self.directory / entry.file_name
        # A state that belongs to an older segment, to an earlier stream of this name, or to a
        # truncated tail does not apply to this file.
        known = [
            state
            for state in (clean, recovery_point)
            if state is not None and state.is_of(self.manifest.incarnation, entry)
        ]
        # If something outside of liftlog cut or extended the file, the clean marker does not match
        # the file. By F3 the marker still shows up to where the file was durable.
        furthest = max(known, key=lambda state: state.next_offset, default=None)
        self.durable_end = furthest.next_offset if furthest else 0
        watermarks = [state.high_watermark for state in known]
        self.high_watermark = max([self.manifest.high_watermark, *watermarks])
        if clean not in known:
            clean = None
        self.active_is_missing = not self.fs.exists(path)
        if self.active_is_missing:
            self._note(f"the active segment {entry.file_name} is missing")
            if clean is None or clean.position:
                self._confirmed_is_missing("the active segment is missing")
                if not self.config.replicated:
                    self._note_lost_file(path, entry)
        file = self.fs.open(path, create=self.active_is_missing)
        try:
            if clean is not None and clean.position == file.size():
                # A clean stop: `close` synced and committed the whole file and released the space
                # allocated ahead, so the data ends at its size. By F4 nothing was appended since.
                # The file cannot hold a torn write. Reads detect bit rot in it.
                index = self._load_index(path, file, clean)
                return self._finish(sealed, entry, file, clean, index)
            self.report.clean = False
            return self._recover(sealed, entry, file, furthest)
        except BaseException:
            file.close()
            raise

    # --- pieces ---

    def _confirmed_is_missing(self, reason: str) -> None:
        """Record the loss. A log without replicas needs only the lost ranges. A replica also stores
        the reason durably, until it has reported the loss to the other replicas."""
        if not self.config.replicated:
            return
        if not self.manifest.incomplete:
            self._note(f"this replica may miss what it had confirmed: {reason}")
            self.manifest = self.manifest.with_changes(incomplete=reason)
            self.manifest.write(self.fs, self.directory)

    def _note_lost_file(self, path: Path, entry: SegmentEntry) -> None:
        """Record that the file of the active segment is missing, with any acked records in it.

        By F1 no stop of the daemon causes this loss; something else removed the file. The loss is
        recorded before an empty file replaces the missing one. Without this order, the active
        segment would look empty from the beginning after a stop between the two steps.
        """
        empty = ActiveState.empty(self.manifest.incarnation, entry.base_offset, entry.generation)
        known = len(self.quarantined)
        self._behind_lost_end(path, empty, entry.base_offset)
        if len(self.quarantined) > known:
            self.manifest = self.manifest.with_changes(quarantined=tuple(self.quarantined))
            self.manifest.write(self.fs, self.directory)

    def _load_index(self, path: Path, file: File, state: ActiveState) -> SparseIndex:
        """Load the index entries up to `state`."""
        entry = SegmentEntry(
            base_offset=state.base_offset,
            generation=state.generation,
            next_offset=state.next_offset,
            size_bytes=state.position,
        )
        index = read_index(self.fs, file, entry, self.manifest.incarnation)
        if index is None:
            segment = Segment(self.directory, entry, sealed=False)
            index = build_index(file, segment, self._quarantined_in(path))
        return index

    def _recover(
        self,
        sealed: list[Segment],
        entry: SegmentEntry,
        file: File,
        recovery_point: ActiveState | None,
    ) -> tuple[Log, RecoveryReport]:
        state = recovery_point
        if state is None or state.position > file.size():
            # There is no recovery point, or the file ends before it and so has lost durable bytes.
            # Every remaining batch is examined, and `durable_end` still shows that more records
            # were acked.
            state = ActiveState.empty(
                self.manifest.incarnation, entry.base_offset, entry.generation
            )
        size = find_data_end(file, state.position)
        self.report.scanned_bytes = size - state.position
        index = self._load_index(file.path, file, state)
        newest, proven = state.max_timestamp_ns, state.position
        proven_offset = self._proven_offset(state)

        def on_batch(position: int, header: BatchHeader) -> None:
            nonlocal newest, proven
            newest = max(newest, header.max_timestamp_ns)
            index.maybe_add(header.base_offset, position, newest)
            if header.next_offset <= proven_offset:
                proven = position + header.length

        if self.config.replicated:
            state = self._scan_and_cut(file, state, size, on_batch)
            log_end = state.next_offset
        else:
            state, log_end = self._scan_and_judge(file, state, size, on_batch)
        # The accepted batches may be in the page cache only. They must be on disk before `_finish`
        # commits them by its high watermark, or before this replica confirms them.
        self._write_again(file, proven, state.position)
        file.fdatasync()
        self.fs.fsync_directory(self.directory)
        return self._finish(sealed, entry, file, state, index, log_end=log_end)

    def _scan_and_cut(
        self, file: File, state: ActiveState, size: int, on_batch: OnBatch
    ) -> ActiveState:
        """Scan the active segment of a replica, and drop everything from the first damage on.

        Batches of an earlier failed sync may follow the log end in the file, if the disk was not
        able to store a new segment. If a leader epoch has later begun at that end, `scan` detects
        by the epochs in the manifest that these batches do not belong to the log."""
        state, damage = scan(file, state, size, on_batch, epochs=self.manifest.epochs)
        reason = what_is_missing(
            state.next_offset,
            slot=self._slot_state(),
            durable_end=self.durable_end,
            high_watermark=self.high_watermark,
        )
        if not reason and self._slot_is_unreadable:
            reason = f"the file {ACKED_END_NAME} cannot be read, which says how far it confirmed"
        if reason:
            self._confirmed_is_missing(reason)
            self.must_roll = True
        if damage is not None:
            self._keep_tail(file, damage, size)
            if damage.unreadable:  # as in `_give_up_tail`
                self.must_roll = True
            elif not self.must_roll:
                # The tail contains no confirmed record. If the process stops after the truncation,
                # the file has a valid end.
                file.truncate(damage.position)
        return state

    def _write_again(self, file: File, start: int, end: int) -> None:
        """Make the pages dirty again, so that the next fdatasync writes them.

        Unreadable pages are skipped: zeros would destroy their content for good. And these pages
        need no write, because the failed read shows that they are not in the cache. Each byte is
        written to the place where it already is, so a stop in between does no harm.
        """
        for position in range(start, end, _WRITE_BYTES):
            raw, holes = read_around(file, min(_WRITE_BYTES, end - position), position)
            at = position
            for hole in (*holes, range(position + len(raw), position + len(raw))):
                if hole.start > at:
                    write_all(file, [raw[at - position : hole.start - position]], at)
                at = hole.stop

    def _finish(
        self,
        sealed: list[Segment],
        entry: SegmentEntry,
        file: File,
        state: ActiveState,
        index: SparseIndex,
        *,
        log_end: int | None = None,
    ) -> tuple[Log, RecoveryReport]:
        active = Segment(self.directory, entry, sealed=False)
        active.size_bytes = state.position
        active.next_offset = state.next_offset
        active.record_count = state.record_count
        active.max_timestamp_ns = state.max_timestamp_ns
        active.created_ns = state.created_ns
        end = state.next_offset if log_end is None else log_end
        replicated = self.config.replicated
        writing = ActiveSegment(active, file, index)
        ends = [writing.end]
        if replicated:
            high = min(self.high_watermark, end)
            about = self.manifest.incarnation, self.quarantined
            ends = ends_from(self.environment, *about, sealed, writing, high)
        self._store_manifest(state, ends[0].offset if replicated else end, end)
        # The following steps write the slot. The new value is never below the old one.
        log_state = LogState(
            self.directory,
            self.environment,
            self.config,
            self.manifest,
            sealed,
            writing,
            committed=ends[0],
            erased=self.erased,
        )
        group = (state.commit_group + 1) & 0xFFFF
        log = Log(log_state, commit_group=group, boot_id=self.boot_id, appended=ends[1:])
        if replicated:
            if self.must_roll:
                log.leave_active_segment()
        elif end != state.next_offset or self.must_roll:
            # The file lacks the records up to `end`, or cannot be appended to. So it is sealed at
            # the end of its good bytes. If a stop prevents that, the manifest already contains the
            # range up to `end`, and the next start does the same.
            log.writer.skip_to(end)
        self.report.incomplete = log.view.manifest.incomplete
        return log, self.report

    def _store_manifest(self, state: ActiveState, high_watermark: int, end: int) -> None:
        """Store all decisions of this recovery in one write, so that no start finds only some of
        them."""
        manifest = self.manifest
        epoch = max(manifest.leader_epoch, state.leader_epoch)
        quarantined, epochs = tuple(self.quarantined), manifest.epochs
        replicated = self.config.replicated
        if self.report.clean:
            settled = replace(manifest, quarantined=quarantined, replicated=replicated)
            if settled != manifest:  # a sealed file may be missing
                self.manifest = settled.with_changes()
                self.manifest.write(self.fs, self.directory)
            return
        if replicated:
            # A replica gets new epochs from the stream's metadata. Records from `end` on will be
            # fetched again, so their damage and their epochs are removed from the manifest.
            epochs = epochs_below(epochs, end)
            quarantined = ranges_below(quarantined, end)
        else:
            # A new epoch begins, and is durable before the first append: a reader that has read
            # records which did not survive gets DIVERGED. The remaining records were just
            # fdatasynced, so they count as committed, and no ack is ahead of them.
            epoch += 1
            epochs = epochs_from((*epochs, (epoch, end)), manifest.log_start_offset)
        # Offsets from `end` on will be assigned to new records, which are not erased.
        listed, self.erased = clip(manifest.erased, self.erased, 0, end)
        self.manifest = manifest.with_changes(
            erased=listed,
            leader_epoch=epoch,
            epochs=epochs,
            quarantined=quarantined,
            high_watermark=high_watermark,
            reserved_offset=max(manifest.reserved_offset, end + MOST_RESERVED),
            acks_before_sync=False,
            replicated=replicated,
        )
        self.manifest.write(self.fs, self.directory)
