"""Opening a log: trust it after a clean stop, recover it after any other.

The comments below prove, branch by branch, that an opening loses nothing that was acked, assigns no
acked offset again, and keeps nothing that was refused. They rest on four facts about what writes:

F1. What the manifest lists was on disk before it: sealed segments with all their bytes, and the
    directory entry of the active segment.
F2. A group is written only after the fdatasync of the one before. With durability `fsync` its acks
    leave after its own fdatasync and after the slot said so; below that, the manifest said
    `acks_before_sync` before the first of them left.
F3. Recovery points and the clean marker tell of what an fdatasync has returned for.
F4. The clean marker is removed, durably, before anything of the directory is changed.

An opening may be interrupted at any point and runs again. It changes files in this order: bytes of
the active segment that were judged (copied, cut, or written again as they are), then one write of
the manifest, then the slot and a new segment. So until the manifest is written the next start
judges the same damage by the same witnesses, and afterwards it finds the verdict in the manifest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from liftlog.errors import CorruptMetadata
from liftlog.log.active_segment import ActiveSegment
from liftlog.log.environment import LogConfig, LogEnvironment, build_index
from liftlog.log.filesystem import File, storage_errors, write_all
from liftlog.log.index import SparseIndex, read_index
from liftlog.log.inventory import Inventory, RecoveryReport
from liftlog.log.log import Log
from liftlog.log.manifest import (
    NOT_SYNCED,
    RESERVE_STEP,
    SKIPPED,
    Manifest,
    QuarantinedRange,
    SegmentEntry,
    epochs_below,
    epochs_from,
    find_manifest,
    ranges_below,
)
from liftlog.log.recovery import (
    ActiveState,
    Damage,
    Verdict,
    find_data_end,
    judge_tail,
    resync_behind,
    scan,
)
from liftlog.log.replica_recovery import ends_from, what_is_missing
from liftlog.log.resync import Resync
from liftlog.log.segment import Segment
from liftlog.log.slot import SLOT_NAME, SlotState, current_boot_id, read_slot
from liftlog.log.state import LogState
from liftlog.log.unreadable import read_around
from liftlog.records.header import BatchHeader

logger = logging.getLogger("liftlog.log")

OnBatch = Callable[[int, BatchHeader], None]

_WRITE_BYTES = 4 * 1024 * 1024
_MAX_OFFSET = 2**63 - 1


def open_log(
    directory: Path,
    environment: LogEnvironment,
    config: LogConfig,
    *,
    clean: ActiveState | None = None,
    recovery_point: ActiveState | None = None,
    boot_id: str | None = None,
) -> tuple[Log, RecoveryReport]:
    """Open an existing log.

    `clean` is the stream's entry in the clean marker, None after an unclean stop. Returns when
    everything below the high watermark is durable. Raises CorruptMetadata when there is data but
    no readable manifest: such a stream stays as it is. Raises StorageError, UnsupportedFormat.
    """
    with storage_errors(f"opening {directory.name}"):
        found = find_manifest(environment.fs, directory)
        manifest = found.manifest
        if manifest is None or not manifest.segments:
            raise CorruptMetadata(f"stream {directory.name} has files but no manifest")
        opening = _Opening(directory, environment, config, manifest, boot_id)
        opening.write_missing_copy(found)
        return opening.run(clean, recovery_point)


class _Opening(Inventory):
    """The state of one opening; used once."""

    def __init__(
        self,
        directory: Path,
        environment: LogEnvironment,
        config: LogConfig,
        manifest: Manifest,
        boot_id: str | None,
    ) -> None:
        super().__init__(directory, environment.fs, manifest)
        self.environment = environment
        self.config = config
        self.boot_id = boot_id
        self.active_is_missing = False
        self.durable_end = 0  # everything below was fsynced, says a recovery point or clean marker
        self.high_watermark = 0  # what a replica knows of it
        self.must_roll = False  # the active file cannot be appended to
        self._slot: SlotState | None = None
        self._slot_was_read = False
        self._slot_is_unreadable = False

    def run(
        self, clean: ActiveState | None, recovery_point: ActiveState | None
    ) -> tuple[Log, RecoveryReport]:
        sealed = [
            Segment(self.directory, entry, sealed=True) for entry in self.manifest.segments[:-1]
        ]
        known_ranges = len(self.quarantined)
        self._check_sealed(sealed)
        if len(self.quarantined) > known_ranges:
            self._confirmed_is_missing("a sealed segment is shorter than it was, or missing")
        entry = self.manifest.segments[-1]
        path = self.directory / entry.file_name
        # A state may be of an older segment, of an earlier stream of this name, or of what was
        # truncated: it says nothing about this file.
        known = [
            state
            for state in (clean, recovery_point)
            if state is not None and state.is_of(self.manifest.incarnation, entry)
        ]
        # A clean marker that does not fit the file (it was cut or extended outside of liftlog)
        # still says, by F3, how far the file was durable.
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
                # A clean stop: `close` synced and committed all of the file and gave back what was
                # allocated ahead, so its size is where the data ends. By F4 nothing was appended
                # since. Rot in it is found when it is read; it cannot be a write that was torn.
                index = self._load_index(path, file, clean)
                return self._finish(sealed, entry, file, clean, index)
            self.report.clean = False
            return self._recover(sealed, entry, file, furthest)
        except BaseException:
            file.close()
            raise

    # --- pieces ---

    def _confirmed_is_missing(self, reason: str) -> None:
        """Alone, the ranges that are gone say all of it. The other replicas have to be told, so
        that is noted, durably, until they were."""
        if not self.config.replicated:
            return
        if not self.manifest.incomplete:
            self._note(f"this replica may miss what it had confirmed: {reason}")
            self.manifest = self.manifest.with_changes(incomplete=reason)
            self.manifest.write(self.fs, self.directory)

    def _note_lost_file(self, path: Path, entry: SegmentEntry) -> None:
        """By F1 no stop leaves the active segment without its file, so something else removed it,
        and took along whatever was acked. That is noted before an empty file takes its place: a
        stop after that leaves a log that looks as if its active segment had been empty."""
        empty = ActiveState.empty(self.manifest.incarnation, entry.base_offset, entry.generation)
        known = len(self.quarantined)
        self._behind_lost_end(path, empty, entry.base_offset)
        if len(self.quarantined) > known:
            self.manifest = self.manifest.with_changes(quarantined=tuple(self.quarantined))
            self.manifest.write(self.fs, self.directory)

    def _load_index(self, path: Path, file: File, state: ActiveState) -> SparseIndex:
        """Entries below `state`; what the file lacks after the last checkpoint only costs time."""
        index = read_index(self.fs, path, state.base_offset)
        if index is None:
            entry = SegmentEntry(
                base_offset=state.base_offset,
                next_offset=state.next_offset,
                size_bytes=state.position,
            )
            segment = Segment(self.directory, entry, sealed=False)
            index = build_index(file, segment, self._quarantined_in(path))
        index.truncate(state.position)
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
            # Nothing to begin from, or the file ends before the point: it lost bytes that were
            # durable. Every batch that is left is looked at, and `durable_end` still tells that
            # more was acked.
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
        # What the scan accepted may be in the page cache only. It has to be on disk before the high
        # watermark of `_finish` declares it committed, or this replica confirms it.
        self._write_again(file, proven, state.position)
        file.fdatasync()
        self.fs.fsync_directory(self.directory)
        return self._finish(sealed, entry, file, state, index, log_end=log_end)

    def _scan_and_cut(
        self, file: File, state: ActiveState, size: int, on_batch: OnBatch
    ) -> ActiveState:
        """For a replica: give up everything from the first damage on."""
        state, damage = scan(file, state, size, on_batch)
        reason = what_is_missing(
            state.next_offset,
            slot=self._slot_state(),
            durable_end=self.durable_end,
            high_watermark=self.high_watermark,
        )
        if not reason and self._slot_is_unreadable:
            reason = f"the file {SLOT_NAME} cannot be read, which says how far it had confirmed"
        if reason:
            self._confirmed_is_missing(reason)
            self.must_roll = True
        if damage is not None:
            self._keep_tail(file, damage, size)
            if damage.unreadable:  # as in `_give_up_tail`
                self.must_roll = True
            elif not self.must_roll:
                # Nothing confirmed is in it. A stop after this leaves a file that ends well.
                file.truncate(damage.position)
        return state

    def _scan_and_judge(
        self, file: File, state: ActiveState, size: int, on_batch: OnBatch
    ) -> tuple[ActiveState, int]:
        """For a log that is alone: how far it is good, and where it continues."""
        while True:
            state, damage = scan(file, state, size, on_batch)
            log_end = state.next_offset
            if damage is None:
                # Every byte up to the zeros is a whole batch that continues the one before. Records
                # among them that were written and not acked are kept: their publishers were told
                # nothing, so both outcomes are right.
                break
            known = self._known_damage(file.path, damage)
            if known is not None and known.position < known.end_position <= max(size, file.size()):
                # The manifest tells already that these bytes are bad and which offsets they cost,
                # so there is nothing to judge: the scan continues after them. The bytes stay.
                state = replace(state, position=known.end_position, next_offset=known.next_offset)
                continue
            resumed, log_end = self._judge(file, state, damage, size, known)
            if resumed is None:
                break
            state = resumed
        return state, self._behind_lost_end(file.path, state, log_end)

    def _proven_offset(self, state: ActiveState) -> int:
        """Everything below it was fsynced, as far as is known; what follows may never be.

        An fdatasync that failed leaves pages in the cache that are taken for clean: they read well,
        another fdatasync skips them, and they are gone with the next power cut. A reboot leaves
        none of them, so this matters only if none lies between.
        """
        slot = self._slot_state()
        if slot is None or not slot.exact:
            # A reboot lies between: what can be read now was read from the disk. (Without a boot id
            # or a slot that is not known, and a stop after a failed fdatasync is not looked for.)
            return _MAX_OFFSET
        if self.manifest.acks_before_sync:
            return state.next_offset  # the slot tells of acks, and these left before the fdatasync
        return max(slot.acked_end, state.next_offset)  # by F2 and F3

    def _write_again(self, file: File, start: int, end: int) -> None:
        """Make the pages dirty again, so that the fdatasync to come writes them.

        But for what cannot be read: a page that came from the disk needs no writing, and zeros in
        its place would end all hope for it. The same bytes go to the same place, so a stop in
        between leaves what was there.
        """
        for position in range(start, end, _WRITE_BYTES):
            raw, holes = read_around(file, min(_WRITE_BYTES, end - position), position)
            at = position
            for hole in (*holes, range(position + len(raw), position + len(raw))):
                if hole.start > at:
                    write_all(file, [raw[at - position : hole.start - position]], at)
                at = hole.stop

    def _known_damage(self, path: Path, damage: Damage) -> QuarantinedRange | None:
        """The range that an earlier start, or a reader, made of this damage: recovering twice
        changes nothing."""
        for bad in self._quarantined_in(path):
            if (bad.position, bad.first_offset) == (damage.position, damage.offset) or (
                bad.position <= damage.position < bad.end_position
                and bad.first_offset <= damage.offset < bad.next_offset
            ):
                return bad
        return None

    def _judge(
        self,
        file: File,
        good: ActiveState,
        damage: Damage,
        size: int,
        known: QuarantinedRange | None,
    ) -> tuple[ActiveState | None, int]:
        """Deal with one damage: (state to scan on from, or None when the scan is over; log end)."""
        if known is not None and known.is_cut_tail:
            # An earlier start judged this tail, wrote the verdict into the manifest and stopped
            # before it began a new segment. The verdict holds: by now the slot may say something
            # else, since that start may have written it. The tail is given up, and its offsets up
            # to the end of the range are not assigned again.
            self._keep_tail(file, damage, size)
            return None, known.next_offset
        resync = resync_behind(file, damage, good, size)
        verdict = judge_tail(
            damage,
            resync,
            recovery_point=self.durable_end,
            slot=self._slot_state(),
            reserved_offset=self.manifest.reserved_offset,
        )
        if verdict.cut:
            return None, self._give_up_tail(file, damage, verdict, size)
        return self._keep_damage(file, good, damage, verdict, resync, size, known)

    def _give_up_tail(self, file: File, damage: Damage, verdict: Verdict, size: int) -> int:
        """Cut a tail that `judge_tail` has proved was never acked; returns the log end."""
        self._keep_tail(file, damage, size)
        if verdict.log_end_offset > damage.offset:
            # A power cut: no ack for the tail is known, but the slot may be behind the truth, so no
            # offset that the tail may have had is assigned again. With early acks, acks may have
            # left for more than what is seen of the tail: up to what was reserved. The bytes stay
            # until the manifest says so. If they were cut first, a start that is interrupted here
            # would leave a file that ends well, and the next one would assign these offsets.
            early = self.manifest.acks_before_sync
            end = verdict.log_end_offset
            if early:
                end = max(end, self.manifest.reserved_offset)
            at, reason = damage.position, NOT_SYNCED if early else SKIPPED
            self._quarantine(file.path, damage.offset, end, at, at, reason)
            return end
        # The slot is exact: acks went no further than `damage.offset`. The bytes are those of a
        # group that was refused or not answered, and its offsets are free. If this start is
        # interrupted after the cut, the next one finds a file that ends where acks ended.
        if damage.unreadable:
            # Neither cutting nor writing is sure to work in a page that cannot be read. The log
            # continues in a new file, and what follows the end of a sealed one is ignored.
            self.must_roll = True
        else:
            file.truncate(damage.position)
        return damage.offset

    def _keep_damage(
        self,
        file: File,
        good: ActiveState,
        damage: Damage,
        verdict: Verdict,
        resync: Resync | None,
        size: int,
        known: QuarantinedRange | None,
    ) -> tuple[ActiveState | None, int]:
        """Keep what was acked, or may have been, and cannot be read. No byte is changed: the bytes
        may be read or mended later. Readers are told which offsets are lost."""
        if known is None:
            end_position = resync.position if resync else max(size, damage.position)
            self._note(f"offsets {damage.offset}..{verdict.quarantine_end - 1} are damaged")
            reason = damage.reason
            if self._may_be_unsynced(damage.offset):
                reason = f"{NOT_SYNCED} ({reason})"
            self._quarantine(
                file.path,
                damage.offset,
                verdict.quarantine_end,
                damage.position,
                end_position,
                reason,
            )
        if resync is None:
            # Nothing good follows: the log continues past every offset that may have been acked,
            # as an earlier start determined it, or as `judge_tail` does now.
            return None, known.next_offset if known else verdict.log_end_offset
        # Good batches that provably continue the log follow. One damaged batch costs itself
        # alone, and they are scanned like all others.
        resumed = replace(good, position=resync.position, next_offset=resync.offset)
        return resumed, resync.offset

    def _keep_tail(self, file: File, damage: Damage, size: int) -> None:
        """Copy the bad tail aside, before it is cut off."""
        length, where = self._copy_aside(file, damage.position, size)
        self.report.cut_bytes += length
        self._note(
            f"cut a torn tail of {length} bytes at offset {damage.offset} "
            f"({damage.reason}); {where}"
        )

    def _may_be_unsynced(self, offset: int) -> bool:
        """Whether what is missing at `offset` may have been acked and not fsynced yet."""
        slot = self._slot_state()
        exact = slot is not None and slot.exact
        return self.manifest.acks_before_sync and not exact and offset >= self.durable_end

    def _slot_state(self) -> SlotState | None:
        """Read once: an unreadable slot is one event, and judged as after a power cut."""
        if not self._slot_was_read:
            self._slot_was_read = True
            try:
                self._slot = read_slot(
                    self.fs, self.directory, self.manifest.lineage, boot_id=self.boot_id
                )
            except OSError as error:
                self._slot_is_unreadable = True
                self._note(
                    f"the file {SLOT_NAME} cannot be read ({error.strerror or error}): how far "
                    "acks went is judged as after a power cut, and the file is rewritten"
                )
        return self._slot

    def _behind_lost_end(self, path: Path, state: ActiveState, log_end: int) -> int:
        """Where the log continues when more was acked, or may have been, than the file holds.

        What was acked is never assigned again. How much that was is known exactly when no reboot
        lies between; else the log continues where no offset was ever assigned.
        """
        # An earlier start may have judged the tail and stopped before it was done, and what it saw
        # of the tail may be gone since. Its range in the manifest still says where it continued.
        for bad in sorted(self.quarantined, key=lambda one: one.first_offset):
            if bad.first_offset <= log_end < bad.next_offset:
                log_end = bad.next_offset
        slot, manifest = self._slot_state(), self.manifest
        acked = max(
            slot.acked_end if slot else 0,
            self.durable_end,
            manifest.high_watermark,  # a start that was interrupted had got this far
        )
        exact = slot is not None and slot.exact
        # By F1 a file that is gone was removed by something else, and took any number of acked
        # records along; and acks that left before the fdatasync may stand for any offset that a
        # power cut took.
        unknown = not exact and (self.active_is_missing or manifest.acks_before_sync)
        if log_end >= acked and not unknown:
            # Either the slot is exact, and all that was acked is there. Or it is not, and by F2 all
            # that was acked had been fdatasynced into a file that is there, so it survived the
            # power cut; the scan found it, or found damage and dealt with that.
            return log_end
        # With an exact slot the end is known. Otherwise something acked is missing (or may be), and
        # the slot may be behind the truth; no offset was assigned past what was reserved.
        end = acked if exact else max(manifest.reserved_offset, acked)
        if end <= log_end:
            return log_end
        note = f"the log ends at offset {log_end}, but up to {end - 1} may have been acked"
        if not exact and not (current_boot_id() if self.boot_id is None else self.boot_id):
            note += "; the boot id is unknown, so a killed process looks like a power cut"
        self._note(note)
        reason = "the end of the file is missing"
        if self._may_be_unsynced(log_end):
            reason = NOT_SYNCED
        self._quarantine(path, log_end, end, state.position, state.position, reason)
        return end

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
            ends = ends_from(self.environment, self.quarantined, sealed, writing, high)
        self._store_manifest(state, ends[0].offset if replicated else end, end)
        # From here on the slot is written, with no less than it said before.
        log_state = LogState(
            self.directory,
            self.environment,
            self.config,
            self.manifest,
            sealed,
            writing,
            committed=ends[0],
        )
        group = (state.commit_group + 1) & 0xFFFF
        log = Log(log_state, commit_group=group, boot_id=self.boot_id, appended=ends[1:])
        if replicated:
            if self.must_roll:
                log.leave_active_segment()
        elif end != state.next_offset or self.must_roll:
            # The file holds nothing for the offsets up to `end`, or cannot be appended to: it is
            # sealed where its good bytes end. A stop before that: the manifest has the range from
            # there to `end`, and the next start comes to the same place.
            log.skip_to(end)
        self.report.incomplete = log.incomplete
        return log, self.report

    def _store_manifest(self, state: ActiveState, high_watermark: int, end: int) -> None:
        """One write says all that this recovery decided, so no start ever finds a part of it."""
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
            # The epochs come from the record of the stream, and what is fetched again of the
            # offsets from `end` on is neither damaged nor of an epoch that is known yet.
            epochs = epochs_below(epochs, end)
            quarantined = ranges_below(quarantined, end)
        else:
            # A new epoch, durable before the first append: a reader that saw more of the old log
            # than survived is told that it diverged. All that is left was just fdatasynced, so it
            # counts as committed, and no ack is ahead of it.
            epoch += 1
            epochs = epochs_from((*epochs, (epoch, end)), manifest.log_start_offset)
        self.manifest = manifest.with_changes(
            leader_epoch=epoch,
            epochs=epochs,
            quarantined=quarantined,
            high_watermark=high_watermark,
            reserved_offset=max(manifest.reserved_offset, end + RESERVE_STEP),
            acks_before_sync=False,
            replicated=replicated,
        )
        self.manifest.write(self.fs, self.directory)
