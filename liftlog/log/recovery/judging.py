"""Judges the active segment of a log without replicas, after an unclean stop.

Decides up to where the segment is valid, which damage was acked and stays, what is cut, and where
the log continues. F1 to F4 are the facts at the top of `opening.py`; its explanation of interrupted
openings applies here, too.
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
        self.durable_end = 0  # all below was fsynced, by recovery point or clean marker
        self.must_roll = False  # the active file cannot be appended to
        self._slot: AckedEnd | None = None
        self._slot_was_read = False
        self._slot_is_unreadable = False

    def _scan_and_judge(
        self, file: File, state: ActiveState, size: int, on_batch: OnBatch
    ) -> tuple[ActiveState, int]:
        """Return, for a log without replicas, its valid end and the offset where it continues."""
        while True:
            state, damage = scan(file, state, size, on_batch)
            log_end = state.next_offset
            if damage is None:
                # Every byte up to the zeros is in a whole batch that continues the one before.
                # Records among them that were not acked are kept: their publishers got no answer,
                # so both outcomes are correct.
                break
            known = self._known_damage(file.path, damage)
            if known is not None and known.position < known.end_position <= max(size, file.size()):
                # The manifest already lists these bytes as bad, with the lost offsets. So there is
                # nothing to judge: the scan continues after them. The bytes stay.
                state = replace(state, position=known.end_position, next_offset=known.next_offset)
                continue
            resumed, log_end = self._judge(file, state, damage, size, known)
            if resumed is None:
                break
            state = resumed
        return state, self._behind_lost_end(file.path, state, log_end)

    def _proven_offset(self, state: ActiveState) -> int:
        """Return the offset below which everything was certainly fsynced.

        Later records may never get fsynced: a failed fdatasync leaves pages in the cache that are
        marked clean. They are readable, another fdatasync skips them, and the next power cut loses
        them. A reboot removes such pages, so this matters only if there was none since.
        """
        slot = self._slot_state()
        if slot is None or not slot.exact:
            # After a reboot, readable bytes come from the disk. (Without a boot id or a slot this
            # cannot be decided, and a stop after a failed fdatasync is not looked for.)
            return _MAX_OFFSET
        if self.manifest.acks_before_sync:
            return state.next_offset  # the slot counts acks that were sent before the fdatasync
        return max(slot.acked_end, state.next_offset)  # by F2 and F3

    def _known_damage(self, path: Path, damage: Damage) -> QuarantinedRange | None:
        """Return the range that an earlier start or a reader recorded for this damage, so that
        recovering twice changes nothing."""
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
        """Handle one damage. Returns the state from which the scan continues, or None if it is
        over, and the log end."""
        if known is not None and known.is_cut_tail:
            # An earlier start judged this tail, wrote the verdict into the manifest and stopped
            # before it began a new segment. The verdict stands: that start may have written the
            # slot, which is then no evidence any more. The tail is dropped, and its offsets up to
            # the end of the range are not assigned again.
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
            # A power cut: no ack for the tail is recorded, but the slot may be outdated, so no
            # offset that the tail may have had is assigned again. With early acks, even offsets
            # past the visible tail may have been acked, up to the reserved ones. The bytes stay
            # until the manifest records this. If they were cut first, a start that is interrupted
            # here would leave a file with a valid end, and the next start would assign these
            # offsets.
            early = self.manifest.acks_before_sync
            end = verdict.log_end_offset
            if early:
                end = max(end, self.manifest.reserved_offset)
            at, reason = damage.position, NOT_SYNCED if early else SKIPPED
            self._quarantine(file.path, damage.offset, end, at, at, reason)
            return end
        # The slot is exact: acks went no further than `damage.offset`. The bytes belong to a group
        # that was refused or not answered, so its offsets are free. If this start is interrupted
        # after the cut, the next one finds a file that ends where acks ended.
        if damage.unreadable:
            # Cutting or writing an unreadable page may fail. So the log continues in a new file,
            # and readers ignore bytes after the end of a sealed one.
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
        """Keep unreadable bytes that were, or may have been, acked, and quarantine their offsets.
        Changes no byte: they may become readable or be repaired later."""
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
            # Nothing good follows: the log continues past every offset that may have been acked. An
            # earlier start has determined that offset, or `judge_tail` does now.
            return None, known.next_offset if known else verdict.log_end_offset
        # Good batches that provably continue the log follow. Only the damaged batch is lost, and
        # the scan continues with the good ones.
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
        """True if the missing records at `offset` may have been acked before their fsync."""
        slot = self._slot_state()
        exact = slot is not None and slot.exact
        return self.manifest.acks_before_sync and not exact and offset >= self.durable_end

    def _slot_state(self) -> AckedEnd | None:
        """Read the slot, once. An unreadable slot is one event, and judged as after a power cut.
        Its bytes are evidence, so errors that say nothing about them raise OSError."""
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
        """Return where the log continues if more was, or may have been, acked than the file holds.

        An acked offset is never assigned again. Without a reboot since, the acked end is known
        exactly; else the log continues where no offset was ever assigned.
        """
        # An earlier start may have judged the tail and stopped before it was done, and the tail may
        # have been cut since. Its range in the manifest still records where the log continued.
        for bad in sorted(self.quarantined, key=lambda one: one.first_offset):
            if bad.first_offset <= log_end < bad.next_offset:
                log_end = bad.next_offset
        slot, manifest = self._slot_state(), self.manifest
        acked = max(
            slot.acked_end if slot else 0,
            self.durable_end,
            manifest.high_watermark,  # an interrupted start had got this far
        )
        exact = slot is not None and slot.exact
        # By F1 something else removed a missing file, and any number of acked records with it. And
        # acks that were sent before the fdatasync may cover any offset that a power cut lost.
        unknown = not exact and (self.active_is_missing or manifest.acks_before_sync)
        if log_end >= acked and not unknown:
            # Either the slot is exact, and all acked records are there. Or it is not, and by F2 all
            # acked records had been fdatasynced into a file that is there, so they survived the
            # power cut; the scan found them, or found damage and handled that.
            return log_end
        # With an exact slot the end is known. Otherwise acked records are (or may be) missing, and
        # the slot may be outdated; no offset past the reserved ones was assigned.
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
