"""Decides about the active segment of a log without replicas, after an unclean stop.

The decision has four parts:

- the end of the valid bytes
- the damaged ranges to keep, because they may have been acked
- the bytes to cut
- the offset at which the log continues.

F1 to F4 are the facts at the top of `opening.py`. The explanation of interrupted openings there
also applies to this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from liftlog.log.files.acked_end import ACKED_END_NAME, AckedEnd, current_boot_id, read_acked_end
from liftlog.log.files.filesystem import File, FileSystem
from liftlog.log.files.manifest import NOT_SYNCED, SKIPPED, Manifest, QuarantinedRange
from liftlog.log.files.unreadable import is_unreadable
from liftlog.log.recovery.inventory import Inventory
from liftlog.log.segment.resync import Resync
from liftlog.log.segment.tail import ActiveState, Damage, Verdict, judge_tail, resync_behind, scan
from liftlog.records.header import BatchHeader

OnBatch = Callable[[int, BatchHeader], None]

_MAX_OFFSET = 2**63 - 1


class TailJudge(Inventory):
    """Collects the evidence about the end of a log, and decides about its active segment."""

    def __init__(
        self, directory: Path, fs: FileSystem, manifest: Manifest, boot_id: str | None
    ) -> None:
        super().__init__(directory, fs, manifest)
        self.boot_id = boot_id
        self.active_is_missing = False
        self.durable_end = 0  # all below was fsynced, as marker and recovery point show
        self.must_roll = False  # the active file cannot be appended to
        self._slot: AckedEnd | None = None
        self._slot_was_read = False
        self._slot_is_unreadable = False

    def _scan_and_judge(
        self, file: File, state: ActiveState, size: int, on_batch: OnBatch
    ) -> tuple[ActiveState, int]:
        """Scan the active segment of a log without replicas. Returns the state at the end of its
        valid bytes, and the offset at which the log continues."""
        while True:
            state, damage = scan(file, state, size, on_batch)
            log_end = state.next_offset
            if damage is None:
                # All bytes before the zeros are in whole batches, and each batch continues the
                # previous one. Records in these batches that were not acked are kept: their
                # publishers got no answer, so keeping and dropping them are both correct.
                break
            known = self._known_damage(file.path, damage)
            if known is not None and known.position < known.end_position <= max(size, file.size()):
                # The manifest already lists these bytes as bad, with the lost offsets. So no
                # decision is needed: the bytes stay, and the scan continues after them.
                state = replace(state, position=known.end_position, next_offset=known.next_offset)
                continue
            resumed, log_end = self._judge(file, state, damage, size, known)
            if resumed is None:
                break
            state = resumed
        return state, self._behind_lost_end(file.path, state, log_end)

    def _proven_offset(self, state: ActiveState) -> int:
        """Return the offset below which everything was certainly fsynced.

        Records above this offset may never get fsynced: a failed fdatasync leaves their pages in
        the cache, marked clean. Reads return such pages, but another fdatasync does not write them,
        and the next power cut loses them. A reboot drops these pages from the cache, so the case is
        only possible if the machine has not rebooted.
        """
        slot = self._slot_state()
        if slot is None or not slot.exact:
            # After a reboot, readable bytes come from the disk. (Without a boot id or a slot, a
            # reboot cannot be excluded, and recovery does not look for a failed fdatasync.)
            return _MAX_OFFSET
        if self.manifest.acks_before_sync:
            return state.next_offset  # the slot includes acks sent before the fdatasync
        return max(slot.acked_end, state.next_offset)  # by F2 and F3

    def _known_damage(self, path: Path, damage: Damage) -> QuarantinedRange | None:
        """Return the range that an earlier start or a reader recorded for this damage, or None.
        With this range, a second recovery makes the same decision."""
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
        """Handle one damaged place. Returns the state from which the scan continues (None if the
        scan is complete), and the log end."""
        if known is not None and known.is_cut_tail:
            # An earlier start decided about this tail, wrote the verdict into the manifest and
            # stopped before it began a new segment. The verdict stays valid. It cannot be derived
            # again, because that start may have overwritten the slot. The tail is dropped, and its
            # offsets up to the end of the range are not assigned again.
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
        """Cut a tail that was never acked, as `judge_tail` has proved; return the log end."""
        self._keep_tail(file, damage, size)
        if verdict.log_end_offset > damage.offset:
            # After a power cut, the slot may be outdated, even if it shows no ack for the tail. So
            # no offset that the tail may have had is assigned again. With early acks, even offsets
            # past the visible tail may have been acked, up to the last reserved one. The bytes stay
            # until the manifest contains this range. If they were cut first and this start was then
            # interrupted, the file would have a valid end, and the next start would assign these
            # offsets.
            early = self.manifest.acks_before_sync
            end = verdict.log_end_offset
            if early:
                end = max(end, self.manifest.reserved_offset)
            at, reason = damage.position, NOT_SYNCED if early else SKIPPED
            self._quarantine(file.path, damage.offset, end, at, at, reason)
            return end
        # The slot is exact: no record from `damage.offset` on was acked. The bytes belong to a
        # commit group that was rejected or got no answer, so its offsets can be assigned again. If
        # this start is interrupted after the cut, the next start finds a file that ends at the
        # acked end.
        if damage.unreadable:
            # Truncating or writing an unreadable page may fail. So the log continues in a new file,
            # and readers ignore bytes after the end of a sealed file.
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
        """Keep damaged bytes that may have been acked, and quarantine their offsets. Changes no
        byte, because the bytes may become readable or be repaired later."""
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
            # No good batch follows, so the log continues past every offset that may have been
            # acked. That offset is in the range that an earlier start recorded, or in the verdict
            # of `judge_tail`.
            return None, known.next_offset if known else verdict.log_end_offset
        # Good batches follow, and provably continue the log. So only the damaged batch is lost, and
        # the scan continues with the good ones.
        resumed = replace(good, position=resync.position, next_offset=resync.offset)
        return resumed, resync.offset

    def _keep_tail(self, file: File, damage: Damage, size: int) -> None:
        """Copy the bad tail to a separate file, before it is cut off."""
        length, where = self._copy_aside(file, damage.position, size)
        self.report.cut_bytes += length
        self._note(
            f"cut a torn tail of {length} bytes at offset {damage.offset} "
            f"({damage.reason}); {where}"
        )

    def _may_be_unsynced(self, offset: int) -> bool:
        """Return True if the missing records at `offset` may have been acked before an fsync."""
        slot = self._slot_state()
        exact = slot is not None and slot.exact
        return self.manifest.acks_before_sync and not exact and offset >= self.durable_end

    def _slot_state(self) -> AckedEnd | None:
        """Read the slot, once. An unreadable slot is reported once, and then treated like a slot
        after a power cut. Other errors are raised as OSError, because a later start may be able to
        read the slot."""
        if not self._slot_was_read:
            self._slot_was_read = True
            try:
                self._slot = read_acked_end(
                    self.fs, self.directory, self.manifest.lineage, boot_id=self.boot_id
                )
            except OSError as error:
                if not is_unreadable(error):
                    self._slot_was_read = False
                    raise
                self._slot_is_unreadable = True
                self._note(
                    f"the file {ACKED_END_NAME} cannot be read ({error.strerror or error}): how "
                    "far acks went is judged as after a power cut, and the file is rewritten"
                )
        return self._slot

    def _behind_lost_end(self, path: Path, state: ActiveState, log_end: int) -> int:
        """Return the offset at which the log continues, past lost records that may have been acked.

        An acked offset is never assigned again. If the machine has not rebooted since the acks, the
        acked end is known exactly. Otherwise the log continues after every offset that may have
        been assigned.
        """
        # An earlier start may have decided about the tail, cut it, and stopped before its last
        # step. The range that this start wrote to the manifest still shows where the log continued.
        for bad in sorted(self.quarantined, key=lambda one: one.first_offset):
            if bad.first_offset <= log_end < bad.next_offset:
                log_end = bad.next_offset
        slot, manifest = self._slot_state(), self.manifest
        acked = max(
            slot.acked_end if slot else 0,
            self.durable_end,
            manifest.high_watermark,  # as stored by an interrupted start
        )
        exact = slot is not None and slot.exact
        # By F1 the daemon never loses a file. So if the file is missing, somebody removed it, and
        # it may have held any number of acked records. Besides, acks that were sent before the
        # fdatasync may cover any offset that a power cut lost.
        unknown = not exact and (self.active_is_missing or manifest.acks_before_sync)
        if log_end >= acked and not unknown:
            # If the slot is exact, the file contains all acked records. If the slot is not exact,
            # all acked records had been fdatasynced, by F2, into a file that exists. So they
            # survived the power cut. The scan has found them, or has found and handled damage.
            return log_end
        # With an exact slot the acked end is known. Otherwise acked records may be missing and the
        # slot may be outdated, but no offset past the reserved ones was ever assigned.
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
