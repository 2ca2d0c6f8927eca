"""Opening a log: trust it after a clean stop, recover it after any other."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

from liftlog.errors import CorruptBatch, CorruptMetadata
from liftlog.log.filesystem import File, FileSystem, storage_errors, write_all
from liftlog.log.index import SparseIndex, read_index
from liftlog.log.log import RESERVE_STEP, Log, LogConfig, LogEnvironment
from liftlog.log.manifest import (
    MANIFEST_NAME,
    Manifest,
    QuarantinedRange,
    SegmentEntry,
    read_manifest,
)
from liftlog.log.recovery import ActiveState, Damage, find_data_end, find_resync, judge_tail, scan
from liftlog.log.segment import Segment, build_index
from liftlog.log.slot import SLOT_NAME, AckedSlot, SlotState
from liftlog.records.header import BatchHeader

logger = logging.getLogger("liftlog.log")

BROKEN_SUFFIX = ".broken"


@dataclass(slots=True)
class RecoveryReport:
    """What opening found; `events` are sentences for the log."""

    clean: bool = True
    scanned_bytes: int = 0
    cut_bytes: int = 0
    events: list[str] = field(default_factory=list)


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
        manifest = read_manifest(environment.fs, directory)
        if manifest is None or not manifest.segments:
            raise CorruptMetadata(f"stream {directory.name} has files but no manifest")
        return _Opening(directory, environment, config, manifest, boot_id).run(
            clean, recovery_point
        )


class _Opening:
    """The state of one opening; used once."""

    def __init__(
        self,
        directory: Path,
        environment: LogEnvironment,
        config: LogConfig,
        manifest: Manifest,
        boot_id: str | None,
    ) -> None:
        self.directory = directory
        self.environment = environment
        self.fs: FileSystem = environment.fs
        self.config = config
        self.manifest = manifest
        self.boot_id = boot_id
        self.report = RecoveryReport()
        self.quarantined: list[QuarantinedRange] = list(manifest.quarantined)

    def run(
        self, clean: ActiveState | None, recovery_point: ActiveState | None
    ) -> tuple[Log, RecoveryReport]:
        self._remove_garbage()
        sealed = [
            Segment(self.directory, entry, sealed=True) for entry in self.manifest.segments[:-1]
        ]
        self._check_sealed(sealed)
        entry = self.manifest.segments[-1]
        path = self.directory / entry.file_name
        if not self.fs.exists(path):
            # Listed but gone: its directory entry was fsynced before the manifest named it, so
            # this is damage from outside. What it held below the recovery point is lost.
            self._note(f"the active segment {entry.file_name} is missing")
            file = self.fs.open(path, create=True)
        else:
            file = self.fs.open(path)
        identity = (self.manifest.incarnation, entry.base_offset)
        if recovery_point and (recovery_point.incarnation, recovery_point.base_offset) != identity:
            recovery_point = None  # of an older segment, or of another stream of this name
        if clean is not None and (clean.incarnation, clean.base_offset, clean.position) == (
            *identity,
            file.size(),
        ):
            return self._finish(sealed, entry, file, clean, self._load_index(path, file, clean))
        self.report.clean = False
        return self._recover(sealed, entry, file, recovery_point)

    # --- pieces ---

    def _note(self, event: str) -> None:
        self.report.events.append(event)
        logger.warning("recovery stream=%s %s", self.directory.name, event)

    def _remove_garbage(self) -> None:
        """Delete what a crash left between two steps: files that the manifest does not list."""
        listed = {entry.file_name for entry in self.manifest.segments}
        stems = {name.removesuffix(".log") for name in listed}
        for name in self.fs.list_directory(self.directory):
            known = (
                name in listed
                or name in (MANIFEST_NAME, SLOT_NAME)
                or name.endswith(BROKEN_SUFFIX)
                or (name.endswith(".index") and name.removesuffix(".index") in stems)
            )
            if not known and name.endswith((".log", ".index", ".tmp")):
                self.fs.unlink(self.directory / name)

    def _check_sealed(self, sealed: list[Segment]) -> None:
        for segment in sealed:
            if not self.fs.exists(segment.path) and not any(
                q.segment == segment.path.name for q in self.quarantined
            ):
                self._note(f"the sealed segment {segment.path.name} is missing")
                self._quarantine(segment.path, segment.base_offset, segment.next_offset, 0, 0, "")

    def _quarantine(
        self, path: Path, first: int, following: int, start: int, end: int, reason: str
    ) -> None:
        reason = reason or "the file is missing"
        self.quarantined.append(QuarantinedRange(first, following, path.name, start, end, reason))
        logger.error(
            "quarantined stream=%s first_offset=%d next_offset=%d reason=%s",
            self.directory.name,
            first,
            following,
            reason,
        )

    def _load_index(self, path: Path, file: File, state: ActiveState) -> SparseIndex:
        index = read_index(self.fs, path, state.base_offset, sealed=False)
        if index is not None:
            index.truncate(state.position)
            if len(index) or not state.position:
                return index
        entry = SegmentEntry(base_offset=state.base_offset, size_bytes=state.position)
        try:
            return build_index(file, Segment(self.directory, entry, sealed=False))
        except CorruptBatch as error:
            self._note(f"the index of {path.name} could not be rebuilt: {error}")
            return SparseIndex(state.base_offset)

    def _recover(
        self,
        sealed: list[Segment],
        entry: SegmentEntry,
        file: File,
        recovery_point: ActiveState | None,
    ) -> tuple[Log, RecoveryReport]:
        state = recovery_point
        if state is None or state.position > file.size():
            state = ActiveState.empty(self.manifest.incarnation, entry.base_offset)
        size = find_data_end(file, state.position)
        self.report.scanned_bytes = size - state.position
        index = self._load_index(file.path, file, state)
        index.truncate(state.position)
        newest = state.max_timestamp_ns

        def on_batch(position: int, header: BatchHeader) -> None:
            nonlocal newest
            newest = max(newest, header.max_timestamp_ns)
            index.maybe_add(header.base_offset, position, newest)

        log_end = state.next_offset
        while True:
            state, damage = scan(file, state, size, on_batch)
            log_end = state.next_offset
            if damage is None:
                break
            resumed, log_end = self._settle(file, state, damage, size, recovery_point)
            if resumed is None:
                break
            state = resumed
        log_end = self._behind_lost_end(file.path, state, log_end, recovery_point)
        # What the scan accepted may be in the page cache only.
        file.fdatasync()
        self.fs.fsync_directory(self.directory)
        return self._finish(sealed, entry, file, state, index, log_end=log_end)

    def _settle(
        self,
        file: File,
        good: ActiveState,
        damage: Damage,
        size: int,
        recovery_point: ActiveState | None,
    ) -> tuple[ActiveState | None, int]:
        """Deal with one damage: (state to scan on from, or None when the scan is over; log end)."""
        resync = find_resync(file, damage, good, size)
        verdict = judge_tail(
            damage,
            resync,
            recovery_point=recovery_point.next_offset if recovery_point else 0,
            slot=self._slot_state(),
            reserved_offset=self.manifest.reserved_offset,
        )
        if verdict.cut:
            self._cut(file, damage, size)
            if verdict.log_end_offset > damage.offset:
                self._quarantine(
                    file.path,
                    damage.offset,
                    verdict.log_end_offset,
                    damage.position,
                    damage.position,
                    "offsets skipped after an unreadable tail that was not acked",
                )
            return None, verdict.log_end_offset
        end_position = resync.position if resync else size
        self._note(f"offsets {damage.offset}..{verdict.quarantine_end - 1} are damaged")
        self._quarantine(
            file.path,
            damage.offset,
            verdict.quarantine_end,
            damage.position,
            end_position,
            damage.reason,
        )
        if resync is None:
            return None, verdict.log_end_offset
        resumed = replace(good, position=resync.position, next_offset=resync.offset)
        return resumed, resync.offset

    def _cut(self, file: File, damage: Damage, size: int) -> None:
        """Copy the bad tail aside, then cut it off."""
        tail = file.pread(size - damage.position, damage.position)
        name = f"{file.path.name}.{damage.position}{BROKEN_SUFFIX}"
        aside = self.fs.open(self.directory / name, create=True)
        try:
            write_all(aside, [tail], 0)
            aside.fdatasync()
        finally:
            aside.close()
        self.fs.fsync_directory(self.directory)
        file.truncate(damage.position)
        self.report.cut_bytes += len(tail)
        self._note(
            f"cut a torn tail of {len(tail)} bytes at offset {damage.offset} "
            f"({damage.reason}); it is kept in {name}"
        )

    def _slot_state(self) -> SlotState | None:
        slot = AckedSlot(self.fs, self.directory, self.manifest.incarnation, boot_id=self.boot_id)
        try:
            return slot.recovered
        finally:
            slot.close()

    def _behind_lost_end(
        self, path: Path, state: ActiveState, log_end: int, recovery_point: ActiveState | None
    ) -> int:
        """A file that is shorter than what was acked lost its end: never hand that out again."""
        slot = self._slot_state()
        acked = max(
            slot.acked_end if slot else 0, recovery_point.next_offset if recovery_point else 0
        )
        if log_end >= acked:
            return log_end
        end = acked if slot is not None and slot.exact else self.manifest.reserved_offset
        end = max(end, acked)
        self._note(f"the log ends at offset {log_end} but {acked - 1} was acked")
        self._quarantine(
            path, log_end, end, state.position, state.position, "the end of the file is missing"
        )
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
                epochs=(*manifest.epochs, (epoch, end)),
                quarantined=tuple(self.quarantined),
                high_watermark=end,
                reserved_offset=max(manifest.reserved_offset, end + RESERVE_STEP),
            )
            manifest.write(self.fs, self.directory)
        log = Log(
            self.directory,
            self.environment,
            self.config,
            manifest,
            [*sealed, active],
            file,
            index,
            commit_group=(state.commit_group + 1) & 0xFFFF,
            boot_id=self.boot_id,
        )
        if end != state.next_offset:
            log.skip_to(end)
        return log, self.report
