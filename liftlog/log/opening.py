"""Opening a log: trust it after a clean stop, recover it after any other."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from liftlog.errors import CorruptMetadata
from liftlog.log.active_segment import ActiveSegment
from liftlog.log.environment import LogConfig, LogEnvironment
from liftlog.log.filesystem import File, storage_errors, write_all
from liftlog.log.index import SparseIndex, read_index
from liftlog.log.index_cache import build_index
from liftlog.log.inventory import BROKEN_SUFFIX, Inventory, RecoveryReport
from liftlog.log.log import Log
from liftlog.log.manifest import (
    NOT_SYNCED,
    RESERVE_STEP,
    SKIPPED,
    Manifest,
    QuarantinedRange,
    SegmentEntry,
    epochs_from,
    find_manifest,
)
from liftlog.log.recovery import ActiveState, Damage, find_data_end, judge_tail, resync_behind, scan
from liftlog.log.segment import Segment
from liftlog.log.slot import SLOT_NAME, SlotState, current_boot_id, read_slot
from liftlog.log.state import LogState
from liftlog.log.unreadable import read_around, read_zeroed
from liftlog.records.header import BatchHeader

logger = logging.getLogger("liftlog.log")

_COPY_BYTES = 4 * 1024 * 1024
_MAX_TAIL_BYTES = 64 * 1024 * 1024
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
    no readable manifest: such a stream is left alone. Raises StorageError, UnsupportedFormat.
    """
    with storage_errors(f"opening {directory.name}"):
        found = find_manifest(environment.fs, directory)
        manifest = found.manifest
        if manifest is None or not manifest.segments:
            raise CorruptMetadata(f"stream {directory.name} has files but no manifest")
        opening = _Opening(directory, environment, config, manifest, boot_id)
        opening.settle_copies(found)
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
        self._slot: SlotState | None = None
        self._slot_was_read = False
        self.must_roll = False  # the active file cannot be appended to

    def run(
        self, clean: ActiveState | None, recovery_point: ActiveState | None
    ) -> tuple[Log, RecoveryReport]:
        sealed = [
            Segment(self.directory, entry, sealed=True) for entry in self.manifest.segments[:-1]
        ]
        self._check_sealed(sealed)
        entry = self.manifest.segments[-1]
        path = self.directory / entry.file_name
        self.active_is_missing = not self.fs.exists(path)
        if self.active_is_missing:
            self._note(f"the active segment {entry.file_name} is missing")
        file = self.fs.open(path, create=self.active_is_missing)
        try:
            # A state may be of an older segment, of another stream of this name, or of what was
            # truncated.
            known = [
                state
                for state in (clean, recovery_point)
                if state is not None and state.is_of(self.manifest.incarnation, entry)
            ]
            if clean in known and clean is not None and clean.position == file.size():
                index = self._load_index(path, file, clean)
                return self._finish(sealed, entry, file, clean, index)
            self.report.clean = False
            # A clean marker that does not fit the file still says how far it was durable.
            furthest = max(known, key=lambda state: state.next_offset, default=None)
            return self._recover(sealed, entry, file, furthest)
        except BaseException:
            file.close()
            raise

    # --- pieces ---

    def _load_index(self, path: Path, file: File, state: ActiveState) -> SparseIndex:
        """Entries below `state`; what the file lacks behind the last checkpoint only costs time."""
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

        log_end = state.next_offset
        while True:
            state, damage = scan(file, state, size, on_batch)
            log_end = state.next_offset
            if damage is None:
                break
            known = self._known_damage(file.path, damage)
            if known is not None and known.position < known.end_position <= max(size, file.size()):
                state = replace(state, position=known.end_position, next_offset=known.next_offset)
                continue
            resumed, log_end = self._settle(file, state, damage, size, recovery_point)
            if resumed is None:
                break
            state = resumed
        log_end = self._behind_lost_end(file.path, state, log_end, recovery_point)
        # What the scan accepted may be in the page cache only.
        self._write_again(file, proven, state.position)
        file.fdatasync()
        self.fs.fsync_directory(self.directory)
        return self._finish(sealed, entry, file, state, index, log_end=log_end)

    def _proven_offset(self, state: ActiveState) -> int:
        """Everything below it was fsynced, as far as is known; what lies behind may never be.

        An fdatasync that failed leaves pages in the cache that are taken for clean: they read well,
        another fdatasync passes them over, and they are gone with the next power cut. A reboot
        leaves none of them, so this matters only if none lies between.
        """
        slot = self._slot_state()
        if slot is None or not slot.exact:
            return _MAX_OFFSET
        if self.manifest.acks_before_sync:
            return state.next_offset
        return max(slot.acked_end, state.next_offset)

    def _write_again(self, file: File, start: int, end: int) -> None:
        """Make the pages dirty again, so that the fdatasync to come writes them.

        But for what cannot be read: a page that came from the disk needs no writing, and zeros in
        its place would end all hope for it.
        """
        for position in range(start, end, _COPY_BYTES):
            raw, holes = read_around(file, min(_COPY_BYTES, end - position), position)
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

    def _settle(
        self,
        file: File,
        good: ActiveState,
        damage: Damage,
        size: int,
        recovery_point: ActiveState | None,
    ) -> tuple[ActiveState | None, int]:
        """Deal with one damage: (state to scan on from, or None when the scan is over; log end)."""
        resync = resync_behind(file, damage, good, size)
        verdict = judge_tail(
            damage,
            resync,
            recovery_point=recovery_point.next_offset if recovery_point else 0,
            slot=self._slot_state(),
            reserved_offset=self.manifest.reserved_offset,
        )
        known = self._known_damage(file.path, damage)
        if known is not None and known.is_cut_tail:
            # An earlier start judged it already, and stopped before it was done.
            self._copy_tail(file, damage, size)
            return None, known.next_offset
        if verdict.cut:
            self._copy_tail(file, damage, size)
            if verdict.log_end_offset == damage.offset and damage.unreadable:
                # Neither cutting nor writing is sure to work in a page that cannot be read.
                self.must_roll = True
            elif verdict.log_end_offset == damage.offset:
                file.truncate(damage.position)
            else:
                # The tail stays until the manifest says that these offsets are passed over: a start
                # that is interrupted must find again why.
                early = self.manifest.acks_before_sync
                end = verdict.log_end_offset
                if early:  # acks may have left for more than the tail
                    end = max(end, self.manifest.reserved_offset)
                self._quarantine(
                    file.path,
                    damage.offset,
                    end,
                    damage.position,
                    damage.position,
                    NOT_SYNCED if early else SKIPPED,
                )
                return None, end
            return None, verdict.log_end_offset
        end_position = resync.position if resync else max(size, damage.position)
        if known is None:
            self._note(f"offsets {damage.offset}..{verdict.quarantine_end - 1} are damaged")
            durable = recovery_point.next_offset if recovery_point else 0
            reason = damage.reason
            if self._may_be_unsynced(damage.offset, durable):
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
            return None, known.next_offset if known else verdict.log_end_offset
        resumed = replace(good, position=resync.position, next_offset=resync.offset)
        return resumed, resync.offset

    def _copy_tail(self, file: File, damage: Damage, size: int) -> None:
        """Copy the bad tail aside, before it is cut off."""
        length = max(min(size, file.size()) - damage.position, 0)
        name = f"{file.path.name}.{damage.position}{BROKEN_SUFFIX}"
        try:
            kept = min(length, _MAX_TAIL_BYTES)
            self._copy_aside(file, damage.position, kept, self.directory / name)
            where = f"{'it is' if kept == length else f'{kept} of them are'} kept in {name}"
        except OSError as error:
            # Nobody was promised these bytes; a full disk must not keep the stream from starting.
            where = f"it could not be kept: {error.strerror or error}"
        self.report.cut_bytes += length
        self._note(
            f"cut a torn tail of {length} bytes at offset {damage.offset} "
            f"({damage.reason}); {where}"
        )

    def _copy_aside(self, file: File, position: int, length: int, target: Path) -> None:
        aside = self.fs.open(target, create=True)
        try:
            for done in range(0, length, _COPY_BYTES):
                piece = read_zeroed(file, min(_COPY_BYTES, length - done), position + done)
                write_all(aside, [piece], done)
            aside.fdatasync()
        finally:
            aside.close()
        self.fs.fsync_directory(self.directory)

    def _may_be_unsynced(self, offset: int, durable: int) -> bool:
        """Whether what is missing at `offset` may have been acked and not fsynced yet."""
        slot = self._slot_state()
        exact = slot is not None and slot.exact
        return self.manifest.acks_before_sync and not exact and offset >= durable

    def _slot_state(self) -> SlotState | None:
        """Read once: an unreadable slot is one event, and judged as after a power cut."""
        if not self._slot_was_read:
            self._slot_was_read = True
            try:
                self._slot = read_slot(
                    self.fs, self.directory, self.manifest.lineage, boot_id=self.boot_id
                )
            except OSError as error:
                self._note(
                    f"the file {SLOT_NAME} cannot be read ({error.strerror or error}): how far "
                    "acks went is judged as after a power cut, and the file is made again"
                )
        return self._slot

    def _behind_lost_end(
        self, path: Path, state: ActiveState, log_end: int, recovery_point: ActiveState | None
    ) -> int:
        """Where the log goes on when more was acked, or may have been, than the file holds.

        What was acked is never handed out again. How much that was is known exactly when no reboot
        lies between; else the log goes on where no offset was ever handed out.
        """
        # An earlier start may have judged the tail and stopped before it was done, and what it saw
        # of the tail may be gone since.
        for bad in sorted(self.quarantined, key=lambda one: one.first_offset):
            if bad.first_offset <= log_end < bad.next_offset:
                log_end = bad.next_offset
        slot, manifest = self._slot_state(), self.manifest
        durable = recovery_point.next_offset if recovery_point else 0
        acked = max(
            slot.acked_end if slot else 0,
            durable,
            manifest.high_watermark,  # a start that was interrupted had got this far
        )
        exact = slot is not None and slot.exact
        # The directory entry of the active segment was durable before the manifest named it, so a
        # file that is gone was taken away; and acks that left before the fdatasync may stand for
        # any offset that a power cut took.
        unknown = not exact and (self.active_is_missing or manifest.acks_before_sync)
        if log_end >= acked and not unknown:
            return log_end
        end = acked if exact else max(manifest.reserved_offset, acked)
        if end <= log_end:
            return log_end
        note = f"the log ends at offset {log_end}, but up to {end - 1} may have been acked"
        if not exact and not (current_boot_id() if self.boot_id is None else self.boot_id):
            note += "; the boot id is unknown, so a killed process looks like a power cut"
        self._note(note)
        reason = "the end of the file is missing"
        if self._may_be_unsynced(log_end, durable):
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
        manifest = self.manifest
        if not self.report.clean:
            epoch = max(manifest.leader_epoch, state.leader_epoch) + 1
            manifest = manifest.with_changes(
                leader_epoch=epoch,
                epochs=epochs_from((*manifest.epochs, (epoch, end)), manifest.log_start_offset),
                quarantined=tuple(self.quarantined),
                high_watermark=end,
                reserved_offset=max(manifest.reserved_offset, end + RESERVE_STEP),
                acks_before_sync=False,
            )
        if manifest != self.manifest or len(self.quarantined) > len(manifest.quarantined):
            manifest = manifest.with_changes(quarantined=tuple(self.quarantined))
            manifest.write(self.fs, self.directory)
        log_state = LogState(
            self.directory,
            self.environment,
            self.config,
            manifest,
            sealed,
            ActiveSegment(active, file, index),
        )
        group = (state.commit_group + 1) & 0xFFFF
        log = Log(log_state, commit_group=group, boot_id=self.boot_id)
        if end != state.next_offset or self.must_roll:
            log.skip_to(end)
        return log, self.report
