"""Writes at the end of a log: append, sync, acks, and the roll to a new segment."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from compaction.ages import TOLERANCE_NS
from liftlog.errors import SyncFailed
from liftlog.log.active_segment import LogEnd
from liftlog.log.copied_batches import continuing_batches
from liftlog.log.erased import ErasedSet
from liftlog.log.files.acked_end import AckedEndFile
from liftlog.log.files.filesystem import Buffer, storage_error, storage_errors
from liftlog.log.files.manifest import (
    LEAST_RESERVED,
    MOST_RESERVED,
    SKIPPED,
    QuarantinedRange,
    epochs_below,
    ranges_below,
)
from liftlog.log.segment.segment import MAX_POSITION, Segment
from liftlog.log.state import LogState
from liftlog.records.encode import EncodedBatch
from liftlog.records.place import Epochs

MAX_NOTED_ENDS = 4096
"""Maximum number of noted ends of uncommitted appends; above it, every second end is dropped."""

_RESERVED_NS = 60_000_000_000
"""In a mode that acks before the sync, one reservation should last 1 to 10 times this time (ns)."""


class LogWriter:
    """The writer of one log. One thread at a time calls it: the current writer. But `append` may
    run during `sync` while `must_roll` is False. `commit_group` is the group number for the batches
    of the next append.
    """

    def __init__(
        self,
        state: LogState,
        slot: AckedEndFile,
        *,
        commit_group: int,
        appended: Sequence[LogEnd] = (),
    ) -> None:
        self.state = state
        self.slot = slot
        self.commit_group = commit_group
        self.fsync_count = 0
        self.last_sync_seconds = 0.0
        self._reserve_step = LEAST_RESERVED
        self._reserved_ns = state.environment.clock.monotonic_ns()
        # The ends of uncommitted appends; the high watermark can move to each of them.
        self._appended: deque[LogEnd] = deque(appended)
        self._forget_ends()
        # Not below the acked end in the slot, because the machine may stop again before `skip_to`.
        recovered = slot.recovered
        end = state.active.end.offset
        self._acked_end = max(end, recovered.acked_end if recovered is not None else 0)
        slot.update(self._acked_end)

    def append(self, batches: Sequence[EncodedBatch]) -> None:
        """Write batches at the end. On an error, no batch is written.

        The batches are durable after `sync`. Raises DiskFull, StorageError.
        """
        state = self.state
        active = state.active
        if batches[0].base_offset != active.end.offset:
            raise ValueError(
                f"batch at offset {batches[0].base_offset}, the log ends at {active.end.offset}"
            )
        next_offset = batches[-1].next_offset
        size = 0
        for batch in batches:
            size += len(batch.data)
        try:
            if state.manifest_in_doubt or active.has_leftovers or self.slot.in_doubt:
                self._resolve_doubts()
            if self.must_roll(size, next_offset):
                self._roll()
                active = state.active
            if next_offset > state.view.manifest.reserved_offset:
                self._reserve(next_offset)
            end = active.append(batches, size, state.config.segment_max_bytes)
        except OSError as error:
            raise storage_error(f"appending to {state.name}", error) from error
        segment = active.segment
        segment.held_since_ns, segment.is_timed = state.environment.clock.monotonic_ns(), True
        self._appended.append(end)
        if len(self._appended) > MAX_NOTED_ENDS and not state.config.rolls_up:
            self._forget_ends()

    def _forget_ends(self) -> None:
        while len(self._appended) > MAX_NOTED_ENDS:
            # Followers may be far behind. The newest end stays, so all can still be committed. If a
            # concurrent commit removes ends that this line puts back, a later commit skips them.
            self._appended = deque(list(self._appended)[::-2][::-1])

    def _resolve_doubts(self) -> None:
        """Make the disk match the state in memory after a failed operation. Raises OSError."""
        self.state.confirm_manifest()
        self.state.active.remove_leftovers()
        self.slot.write_pending()

    def _reserve(self, next_offset: int) -> None:
        """Store, durably, the limit of the offsets that this log may assign. Raises OSError."""
        state = self.state
        with state.lock:
            manifest = state.view.manifest
            # If acks are sent after the sync, the file shows all acked offsets.
            step = self._next_step() if manifest.acks_before_sync else MOST_RESERVED
            state.store(manifest.with_changes(reserved_offset=next_offset + step))

    def _next_step(self) -> int:
        """Return how many offsets to reserve, by the duration of the previous reservation."""
        now = self.state.environment.clock.monotonic_ns()
        elapsed, self._reserved_ns = now - self._reserved_ns, now
        if elapsed < _RESERVED_NS:
            self._reserve_step = min(4 * self._reserve_step, MOST_RESERVED)
        elif elapsed > 10 * _RESERVED_NS:
            self._reserve_step = max(self._reserve_step // 4, LEAST_RESERVED)
        return self._reserve_step

    def append_raw(self, data: Buffer) -> None:
        """Append whole batches of another log without changing their bytes.

        Only the first batch may begin below the log end, because the other log may have joined
        batches. In this case only its records from the log end on are appended, as a new batch.

        First checks that each batch is complete, has correct checksums and continues the offsets,
        and that no leader epoch is older than the previous one. Appends all or none; durable after
        `sync`. An epoch that is new to this log is stored durably before its first batch is
        written.

        The commit groups in the batches are those of the other log. So after a power cut, recovery
        may quarantine a torn tail that was never synced; `truncate_suffix` removes this tail, and
        the replica can fetch it again.

        Raises CorruptBatch, UnsupportedFormat, ValueError if the batches do not continue the log,
        DiskFull, StorageError.
        """
        manifest, end = self.state.view.manifest, self.state.active.end.offset
        epochs = [*epochs_below(manifest.epochs, end)]
        batches, group = continuing_batches(memoryview(data), end, epochs)
        if not batches:
            return
        if tuple(epochs) != manifest.epochs:
            self.note_epochs(tuple(epochs))
        self.append(batches)
        self.state.active.segment.is_timed = False  # the other log may have stored them long ago
        # The next commit group encoded here must differ from the one before it.
        self.commit_group = (group + 1) & 0xFFFF

    def note_epochs(self, epochs: Epochs) -> None:
        """If `epochs` differ from the epochs of the log, store them durably. The newest one becomes
        the leader epoch if it is higher. Raises StorageError, DiskFull."""
        state = self.state
        with state.lock, storage_errors(f"noting an epoch of {state.name}"):
            manifest = state.view.manifest
            if epochs != manifest.epochs:
                newest = max(manifest.leader_epoch, epochs[-1][0])
                high = state.view.committed.offset
                state.store(
                    manifest.with_changes(epochs=epochs, leader_epoch=newest, high_watermark=high)
                )

    def begin_epoch(self, epoch: int) -> None:
        """Record that leader epoch `epoch` begins at the log end, before its first append.

        Durable on return; does nothing if the epoch is already recorded. Raises ValueError if the
        log has a later epoch, StorageError, DiskFull.
        """
        state = self.state
        with state.lock:
            manifest, end = state.view.manifest, state.active.end.offset
            if epoch < manifest.leader_epoch:
                raise ValueError(f"epoch {epoch} is older than {manifest.leader_epoch}")
            if not manifest.epochs or manifest.epochs[-1][0] != epoch:
                self.note_epochs((*epochs_below(manifest.epochs, end), (epoch, end)))

    def sync(self) -> int:
        """Make all appended records durable; returns the durable end offset.

        After a failed fdatasync, all bytes after the last successful fdatasync are uncertain: the
        caller must nack the waiting messages and call `abandon_tail`. A replica that later starts
        with a log end below the returned offset is `incomplete`. Raises SyncFailed.
        """
        active = self.state.active
        end = active.end.offset
        if end == active.durable.offset:
            return end
        started = time.perf_counter()
        try:
            active.sync()
        except OSError as error:
            reason = error.strerror or error
            raise SyncFailed(f"fdatasync of {self.state.name}: {reason}") from error
        self.last_sync_seconds = time.perf_counter() - started
        self.state.environment.synced(self.last_sync_seconds)
        self.fsync_count += 1
        self.commit_group = (self.commit_group + 1) & 0xFFFF
        if self.state.config.replicated:
            # The caller reports this end to other replicas, which rely on it from then on.
            self.note_acked(end)
        return end

    # --- commits and acks ---

    def commit_up_to(self, offset: int, hidden: ErasedSet | None = None) -> int:
        """Mark all records below `offset` as committed and readable. Returns the new HW.

        `hidden` are older records that the new ones hide in the same moment. `offset` may be any
        offset: the high watermark moves to the last end of an append at or below it, and never
        moves back. The caller decides which records are committed: on a single node the fsynced
        ones; with replicas those that all replicas in sync have, up to the durable end of this log.
        With more than 4,096 uncommitted appends, a log that does not `rolls_up` drops some ends,
        but never its end, and the high watermark may be lower. One thread at a time calls it, also
        during an append. Raises StorageError, DiskFull unchanged if `admit_early_acks` fails."""
        state = self.state
        committed = state.view.committed
        appended = self._appended
        if not appended or appended[0].offset > offset:
            return committed.offset
        replicated, durable = state.config.replicated, state.active.durable.offset
        if offset > durable:
            if replicated:
                offset = durable
            else:
                self.admit_early_acks()
        while appended and appended[0].offset <= offset:
            end = appended.popleft()
            if end.offset > committed.offset:  # an append may have put back older ends
                committed = end
        state.move_high_watermark(committed, hidden)
        reached = committed.offset
        if reached > self._acked_end and not replicated:  # the sync of a replica has stored it
            self._acked_end = reached
            self.slot.update(reached)
        return reached

    def note_acked(self, offset: int) -> None:
        """Store `offset` as the acked end in the slot. The slot survives a kill of the process.

        With a durability below fsync, acks are sent before their records are durable. The manifest
        records this before the first such ack, because after a power cut the acked end is unknown.
        As long as this write fails, no ack may be sent. Raises StorageError, DiskFull.
        """
        if offset > self.state.active.durable.offset:
            self.admit_early_acks()
        if offset > self._acked_end:
            self._acked_end = offset
            self.slot.update(offset)

    def admit_early_acks(self) -> None:
        """Record, durably, that acks may be sent before their records are durable.

        With a durability below fsync, call this method before each append. Does nothing if the
        manifest already contains this mark. Raises StorageError, DiskFull.
        """
        state = self.state
        if state.view.manifest.acks_before_sync:
            return
        with state.lock, storage_errors(f"noting early acks of {state.name}"):
            # The slot is written first: when the manifest allows early acks, no start may take an
            # older entry of the slot as the exact end.
            self.slot.sync_as_lower_bound()
            # A smaller reservation means that after a power cut fewer offsets are in doubt.
            reserved = max(state.active.end.offset, self._acked_end) + self._reserve_step
            manifest = state.view.manifest.with_changes(acks_before_sync=True)
            if reserved < manifest.reserved_offset:
                manifest = replace(manifest, reserved_offset=reserved)
            state.store(manifest)
            self._reserved_ns = state.environment.clock.monotonic_ns()

    # --- the next segment ---

    def must_roll(self, size_bytes: int, next_offset: int) -> bool:
        """Return True if an append of this size, up to this offset, needs a new segment."""
        active = self.state.active
        if active.must_be_left:  # even if empty: bytes of a failed append may follow
            return True
        position = active.end.position
        if position == 0:
            return False
        return (
            position + size_bytes > self.state.config.segment_max_bytes
            or position + size_bytes > MAX_POSITION
            or next_offset - active.segment.base_offset > 0xFFFF_FFFF
            or self._is_too_old(active.segment)
        )

    def _is_too_old(self, active: Segment) -> bool:
        limit = self.state.config.segment_max_age_ns
        if limit is None or not active.created_ns:
            return False
        now_ns = self.state.environment.clock.now_ns()
        if active.created_ns > now_ns + TOLERANCE_NS:  # the clock was ahead at creation
            active.created_ns = now_ns
        return now_ns - active.created_ns >= limit

    def is_roll_due(self) -> bool:
        """Return True if the age of the active segment exceeds the limit."""
        active = self.state.active
        return active.end.position > 0 and self._is_too_old(active.segment)

    def roll(self) -> bool:
        """Seal the active segment; return False if it is empty.

        Syncs first. Raises SyncFailed, StorageError, DiskFull.
        """
        if self.state.active.end.position == 0:
            return False
        with storage_errors(f"rolling {self.state.name}"):
            self._roll()
        return True

    def roll_if_due(self) -> bool:
        """Roll the active segment if its age exceeds the limit. Raises the errors of `roll`."""
        return self.is_roll_due() and self.roll()

    def _roll(self) -> None:
        """Seal the active segment and begin the next one. Raises OSError without a change."""
        with self.state.lock:
            group = self.commit_group
            self.sync()  # the next start trusts sealed segments
            # The batches to append were encoded before this sync, with this group number. The new
            # segment has no synced batch of the group, so the number still distinguishes groups.
            self.commit_group = group
            end = self.state.active.end
            self._seal_and_begin(end, end.offset)

    def skip_to(self, offset: int) -> None:
        """Continue at a later offset in a new segment; all records below it count as committed. The
        manifest must already contain the reason. Raises StorageError, DiskFull."""
        state = self.state
        with state.lock, storage_errors(f"continuing {state.name}"):
            self._seal_and_begin(state.active.end, offset, is_committed=True)
            self.note_acked(offset)

    def abandon_tail(self, *, keep_offsets: bool) -> None:
        """Continue in a new segment from the last durable position, after a failed sync.

        With `keep_offsets` the abandoned offsets were acked (durability below fsync); they are
        recorded as lost and never assigned again. Raises StorageError, DiskFull if the new segment
        cannot be created. With `keep_offsets`, such an error changes nothing, and the caller may
        retry; without it, the next append retries from the last durable position.
        """
        state, active = self.state, self.state.active
        durable, end = active.durable, active.end
        with state.lock, storage_errors(f"abandoning the tail of {state.name}"):
            quarantined = state.view.manifest.quarantined
            if keep_offsets and end.offset > durable.offset:
                # These records were acked. One write of the manifest both skips them and records
                # the loss, so no start finds one without the other.
                reason = "fdatasync failed before these records were durable"
                quarantined = (*quarantined, self._without_bytes(durable, end.offset, reason))
            elif not keep_offsets:
                self._give_up_tail()
            # With kept offsets, no record below the new end can still become committed, so the high
            # watermark moves to it. Otherwise no abandoned record was acked, and their offsets are
            # assigned again. Both cases need a new file: bytes that an fdatasync failed to write
            # may be readable from the page cache and lost after a power cut. So the old file is
            # sealed at the last durable position, and readers ignore the bytes after it.
            base_offset = end.offset if keep_offsets else durable.offset
            self._seal_and_begin(
                durable, base_offset, quarantined=quarantined, is_committed=keep_offsets
            )
            if keep_offsets:
                self._appended = deque()
                self.note_acked(base_offset)

    def _give_up_tail(self) -> None:
        """Drop the tail after the last durable position, in memory. So the log ends there even if
        the new segment cannot be created; the next append retries."""
        state, durable = self.state, self.state.active.durable
        state.active.give_up_tail()
        # Records that an earlier sync made durable can still become committed.
        self._appended = deque([one for one in self._appended if one.offset <= durable.offset])
        last = self._appended[-1].offset if self._appended else 0
        if max(state.view.committed.offset, last) < durable.offset:
            self._appended.append(durable)

    def _seal_and_begin(
        self,
        at: LogEnd,
        base_offset: int,
        *,
        quarantined: tuple[QuarantinedRange, ...] | None = None,
        is_committed: bool = False,
    ) -> None:
        """Seal the active segment at `at`, begin one at `base_offset`. Raises OSError."""
        state = self.state
        view, active = state.view, state.active
        if quarantined is None:
            quarantined = view.manifest.quarantined
        damaged = [bad for bad in quarantined if bad.segment == active.segment.path.name]
        if at.position == 0 and not damaged:
            # An empty segment is replaced, because it has no batch and no recorded loss.
            kept = view.segments[:-1]
        else:
            # Damaged bytes after the end stay in the file: somebody may repair them by hand.
            trim = not any(bad.end_position > at.position for bad in damaged)
            incarnation = view.manifest.incarnation
            sealed = active.seal(at, state.environment, incarnation, trim=trim)
            kept = (*view.segments[:-1], sealed)
        state.begin_segment(kept, base_offset, is_committed=is_committed, quarantined=quarantined)

    def append_gap(
        self, next_offset: int, reason: str, *, is_loss: bool, epochs: Epochs = ()
    ) -> None:
        """Continue at `next_offset`, after a `Gap` in the log that this log copies.

        `epochs` are the epochs of the other log that begin in the gap: (leader epoch, first
        offset). Durable on return, and committed like an append. Raises ValueError unless
        `next_offset` lies past the log end, SyncFailed, StorageError, DiskFull.
        """
        state = self.state
        with state.lock, storage_errors(f"noting a gap of {state.name}"):
            end = state.active.end
            if next_offset <= end.offset:
                raise ValueError(f"a gap up to {next_offset}, and the log ends at {end.offset}")
            known = epochs_below(state.view.manifest.epochs, end.offset)
            newest = known[-1][0] if known else 0
            newer = [one for one in epochs if one[0] > newest and end.offset <= one[1]]
            if newer:
                # Epochs first: a stop in between leaves only epochs without a record.
                self.note_epochs((*known, *newer))
            self.sync()  # the next start trusts sealed segments
            gap = self._without_bytes(end, next_offset, reason if is_loss else SKIPPED)
            # One write of the manifest stores both, so no start finds one without the other.
            quarantined = (*state.view.manifest.quarantined, gap)
            self._seal_and_begin(end, next_offset, quarantined=quarantined)
            self._appended.append(state.active.end)
            self.note_acked(next_offset)

    def _without_bytes(self, at: LogEnd, next_offset: int, reason: str) -> QuarantinedRange:
        """Return the range of the offsets from `at`, in the active segment, to `next_offset`."""
        name = self.state.active.segment.path.name
        return QuarantinedRange(at.offset, next_offset, name, at.position, at.position, reason)

    def begin_lineage(self, place: LogEnd, kept: tuple[Segment, ...], **changes: Any) -> None:
        """Continue at `place`, the end of `kept`, under a new lineage: the offsets after `place`
        are assigned again. All of `kept` is durable. `changes` are further changes of the manifest.
        The caller holds `lock`. Raises OSError without a change."""
        state = self.state
        view, end = state.view, place.offset
        manifest = view.manifest
        if view.committed.offset > end:
            # This happens before the manifest changes. Otherwise a reader could get a record past
            # `end` afterwards, and could not detect that it belongs to the old lineage.
            state.move_high_watermark(place)
        fields = {
            "generation": manifest.unclaimed_generation,
            "log_start_offset": min(manifest.log_start_offset, end),
            "epochs": epochs_below(manifest.epochs, end),
            "quarantined": ranges_below(manifest.quarantined, end),
            "cleaned_below": min(manifest.cleaned_below, end),
            "tombstones_removed_below": min(manifest.tombstones_removed_below, end),
            "acks_before_sync": False,  # the remaining records are durable
        }
        try:
            state.begin_segment(kept, end, is_committed=not kept, **(fields | changes))
        except BaseException:
            # The old manifest is still valid, or is written again before the next append.
            state.move_high_watermark(view.committed)
            raise
        high = state.view.committed.offset
        self._appended = deque([one for one in self._appended if high < one.offset < end])
        if high < end:
            self._appended.append(state.active.end)
        # A slot entry names its lineage. A stop before this update leaves an entry of the old
        # lineage, which the next start ignores. That start then recovers as after a power cut, and
        # loses no record: all segments in `kept` are sealed, and the active segment is empty.
        self._acked_end = end
        self.slot.begin_lineage(state.view.manifest.lineage)
        self.slot.update(end)

    def begin_at(self, offset: int, epochs: Epochs) -> None:
        """Drop all records and continue at `offset`, at or past the log end. The caller holds
        `lock`. Raises OSError without a change."""
        self.state.begin_segment(
            (),
            offset,
            is_committed=True,
            log_start_offset=offset,
            high_watermark=offset,
            quarantined=(),
            epochs=epochs,
            acks_before_sync=False,
        )
        self._appended.clear()
        self.note_acked(offset)
