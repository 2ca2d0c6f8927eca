"""Judging the active segment of a log that is alone, after any stop but a clean one.

How far the segment is good, which damage was acked and stays, what is cut, and where the log
continues. F1 to F4 are the facts at the top of `opening.py`, and what it tells about openings that
are interrupted applies here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from liftlog.log.files.filesystem import File, FileSystem
from liftlog.log.files.manifest import NOT_SYNCED, SKIPPED, Manifest, QuarantinedRange
from liftlog.log.files.slot import SLOT_NAME, SlotState, current_boot_id, read_slot
from liftlog.log.files.unreadable import is_unreadable
from liftlog.log.recovery.inventory import Inventory
from liftlog.log.segment.resync import Resync
from liftlog.log.segment.tail import ActiveState, Damage, Verdict, judge_tail, resync_behind, scan
from liftlog.records.header import BatchHeader

OnBatch = Callable[[int, BatchHeader], None]

_MAX_OFFSET = 2**63 - 1


class TailJudge(Inventory):
    """What is known about the end of a log, and the verdict on what its active segment holds."""

    def __init__(
        self, directory: Path, fs: FileSystem, manifest: Manifest, boot_id: str | None
    ) -> None:
        super().__init__(directory, fs, manifest)
        self.boot_id = boot_id
        self.active_is_missing = False
        self.durable_end = 0  # everything below was fsynced, says a recovery point or clean marker
        self.must_roll = False  # the active file cannot be appended to
        self._slot: SlotState | None = None
        self._slot_was_read = False
        self._slot_is_unreadable = False

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
        """Read once: an unreadable slot is one event, and judged as after a power cut. Raises
        OSError for errors that say nothing about its bytes: what it says is evidence."""
        if not self._slot_was_read:
            self._slot_was_read = True
            try:
                self._slot = read_slot(
                    self.fs, self.directory, self.manifest.lineage, boot_id=self.boot_id
                )
            except OSError as error:
                if not is_unreadable(error):
                    self._slot_was_read = False
                    raise
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
