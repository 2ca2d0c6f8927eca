"""The commits of one stream: groups that its sequencer has judged are written, synced, answered.

This module writes the messages of publishers. It writes at most one group at a time; messages that
arrive during the write form the next group. `rounds` commits groups of several streams together: it
calls `begin_part`, syncs, and calls `end_part`. If a stream commits alone, this module does the
same inside the event loop while syncs are fast; otherwise a writer thread writes and syncs the
group. With `durability: interval` a flush commits many groups at once.

The gate decides when a group that is stored on this node is committed. With one copy it is
committed at once. With several copies the group is *held* until the other nodes have it. The next
group can be written in the meantime.

Code that writes to a stream in another way, such as appending batches from another node, belongs in
another module of this package: it shares the log, its turns and its waiting callers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from liftlog.errors import DiskFull, LiftlogError, SyncFailed
from liftlog.log import Log
from liftlog.sequencing import CommitGroup, Sequencer
from liftlog.sequencing.refusals import DISK_FULL, STORE_FAILED, RefusalReason
from liftlog.server.commits.gate import CommitGate
from liftlog.server.commits.observations import StreamObservations
from liftlog.server.commits.rollups import Rollups
from liftlog.server.commits.subjects import SubjectUpkeep
from liftlog.server.commits.turns import LogTurns
from liftlog.server.commits.waiting import OwnRecords, WatermarkWaiters
from liftlog.server.commits.writing import (
    STALLED_SECONDS,
    GroupWriter,
    InlineBudget,
    WriterPool,
)
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.stream")

FOLLOWED_INLINE_BYTES = 512 * 1024
"""Applies to streams with followers, while syncs are fast. A group of up to this size (in bytes) is
then written inside the event loop, regardless of its number of messages. A write in a thread needs
two handovers: one to wake the followers, and one to report the end. Under load the handovers take
longer than the write."""

ROUND_BYTES = 256 * 1024
"""Maximum size, in bytes, of a group that is part of a round. Compressed groups must be smaller,
because the event loop compresses them."""
_COMPRESSED_ROUND_BYTES = 4 * 1024


class CommitResources(Protocol):
    """Resources that the commits of all streams share."""

    pool: WriterPool
    inline: InlineBudget

    def send(self, commands: bytes) -> None: ...
    def pending_changed(self) -> None:
        """Note that waiting messages have been answered."""

    def rolled_up(self, stream: str) -> None:
        """Note that messages of a stream have erased older ones."""


class GroupCommits:
    """Writes the groups of one stream. Belongs to the event loop.

    `fail` stops the stream. It is called with a reason if the state of the log is unknown.
    `step_down` ends this node's leadership. It is called if followers may hold records that this
    node drops.

    Only `_finish` and `commit_up_to` move the high watermark.
    """

    def __init__(
        self,
        log: Log,
        sequencer: Sequencer,
        settings: StreamSettings,
        gate: CommitGate,
        shared: CommitResources,
        *,
        turns: LogTurns,
        waiters: WatermarkWaiters,
        own_records: OwnRecords,
        subjects: SubjectUpkeep,
        rollups: Rollups,
        observed: StreamObservations,
        fail: Callable[[str], None],
        step_down: Callable[[str], None],
    ) -> None:
        self.flush_is_overdue = False
        """With `durability: interval`: True if a flush became due during a job."""
        self._log = log
        self._sequencer = sequencer
        self._settings = settings
        self._gate = gate
        self._has_followers = gate.has_followers
        self._shared = shared
        self._turns = turns
        self._waiters = waiters
        self._own_records = own_records
        self._subjects = subjects
        self.rollups = rollups
        self._observed = observed
        self._fail = fail
        self._step_down = step_down
        self._writer = GroupWriter(log, settings)
        self._most_in_round = _most_in_round(settings)
        self._has_flushes = self._is_flushed(settings)
        self._is_over = False  # this node no longer leads the stream
        self._unsynced = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._observed_syncs = log.writer.fsync_count
        self._sync_stalls = False
        self._held_since = 0.0

    # --- one group ---

    def commit(self, messages: int) -> bool:
        """Commit the next group of the waiting `messages`, or begin the commit in a thread. Call
        this while no job runs. Returns True if more messages can be committed at once."""
        if self._is_inline(messages):
            return self._commit_inline()
        self._commit_in_thread()
        return False

    @property
    def is_next_inline(self) -> bool:
        """True if the event loop may commit all waiting messages at once."""
        return self._is_inline(self._sequencer.pending_messages)

    def _is_inline(self, messages: int) -> bool:
        """Return True if the event loop may commit the next group of the waiting `messages`."""
        size_bytes = self.waiting_bytes
        if self._has_followers and size_bytes <= FOLLOWED_INLINE_BYTES:
            messages = 1  # so the budget decides as it does for a single message
        is_small = size_bytes <= self._writer.max_inline_bytes
        return is_small and not self.stalls and self._shared.inline.allows(messages)

    def can_join(self) -> bool:
        """Return True if the next group may be part of a round: messages wait, and the event loop
        may append them. Call this while no job runs."""
        size_bytes = self.waiting_bytes
        return (
            0 < size_bytes <= self._most_in_round
            and not self.stalls
            and not self.flush_is_overdue
            and self._writer.only_appends(size_bytes, self._sequencer.next_offset)
        )

    @property
    def waiting_bytes(self) -> int:
        """Size, in bytes, of the waiting messages that are in no group yet."""
        return self._sequencer.pending_bytes - self._sequencer.held_bytes

    @property
    def stalls(self) -> bool:
        """True if the last write or sync was too slow. Then the event loop must not write or sync,
        and the stream must not delay a round."""
        return self._sync_stalls or self._writer.stalls

    def begin_part(self) -> CommitGroup | None:
        """Append the next group and send it to the followers. Call this while no job runs.

        Returns the group if it must be synced: the caller then calls `sync` and `end_part`. The
        answers of the group are ready. Returns None in all other cases, for example if the append
        has failed. All callers are then answered.
        """
        group = self._sequencer.take_group()
        if group is None:
            return None
        error: Exception | None = None
        count = len(group.values)
        if count:
            try:
                self._writer.write(self._writer.encode(group))
                if self._has_followers:
                    self._gate.written(self._writer.written)
                # Prepared before the sync, so that after it the answers only have to be sent.
                self._sequencer.prepare_answers(group)
                if self._unsynced + count >= self._writer.syncs_at:
                    return group
            except Exception as caught:  # noqa: BLE001  # `_take_back` decides what it means
                error = caught
        self._finish(group, error)
        return None

    def sync(self) -> Exception | None:
        """Sync the log, in any thread; only readers may use it meanwhile. Returns the error."""
        try:
            self._log.sync()
        except Exception as error:  # noqa: BLE001  # `_take_back` decides what it means
            return error
        return None

    def end_part(self, group: CommitGroup, error: Exception | None) -> None:
        """Answer the group of `begin_part` after its sync. After an error, take it back."""
        if group is self._sequencer.oldest_out:
            self._finish(group, error)
        elif isinstance(error, SyncFailed):  # no caller waits: the leadership ended
            self._abandon_tail(error, keep_offsets=False)
        self._observe_sync()

    def _commit_inline(self) -> bool:
        started = time.perf_counter()
        group = self.begin_part()
        if group is not None:
            self.end_part(group, self.sync())
        else:  # the log may have been synced by the append, or by an earlier flush
            self._observe_sync()
        self._observed.inline_commits += 1
        self._shared.inline.spent(time.perf_counter() - started)
        return self._sequencer.pending_messages > 0

    def _commit_in_thread(self) -> None:
        group = self._sequencer.take_group()
        if group is None:
            return
        if not len(group):
            self._finish(group, None)
            self._turns.begin_next()
            return
        try:
            batches = self._writer.encode(group)
        except Exception as error:  # noqa: BLE001  # `_take_back` decides what it means
            self._take_back(group, error)
            return
        must_sync = self._unsynced + len(group) >= self._writer.syncs_at
        self._turns.begin(
            partial(self._writer.write, batches),
            self._log.sync if must_sync else None,
            partial(self.end_part, group),
            self._appended if self._has_followers else None,
        )
        self._sequencer.prepare_answers(group)  # runs while the thread writes

    def _appended(self) -> None:
        if self._sequencer.oldest_out is not None:  # else the leadership has ended meanwhile
            self._gate.written(self._writer.written)

    def _observe_sync(self) -> None:
        """Report the duration of the newest sync to the budget, if it is not reported yet."""
        if self._log.writer.fsync_count != self._observed_syncs:
            self._observed_syncs = self._log.writer.fsync_count
            seconds = self._log.writer.last_sync_seconds
            self._sync_stalls = seconds > STALLED_SECONDS
            self._shared.inline.observe(seconds)

    def _finish(self, group: CommitGroup, error: Exception | None) -> None:
        """Answer all callers that waited for this group, or keep the answers until the group is
        committed."""
        if error is not None:
            self._take_back(group, error)
            return
        next_offset = group.next_offset
        interval = self._has_flushes
        if group.rollups:
            self.rollups.stored(group)
        if interval:
            self._log.writer.note_acked(self._log.log_end_offset)
        else:
            log = self._log
            if group.rollups:
                self._hold(group, log.high_watermark)
                self.commit_up_to(self._gate.local(log.log_end_offset))
                return
            high_watermark = self.rollups.commit_up_to(self._gate.local(log.log_end_offset))
            if next_offset > high_watermark or self._sequencer.held_bytes:
                self._hold(group, high_watermark)
                return
        self._shared.send(self._sequencer.committed(group))
        self._observed.answered(group.received, len(group))
        if interval:
            self._after_interval_append(len(group))
        else:
            self._waiters.wake(self._log.high_watermark)
        self._own_records.committed(next_offset)
        self._shared.pending_changed()

    def _hold(self, group: CommitGroup, high_watermark: int) -> None:
        """Hold a group that is stored here, if it or an earlier one is not committed yet."""
        if not self._sequencer.is_holding:
            self._held_since = time.monotonic()
        early = self._sequencer.hold(group)
        if early:
            self._shared.send(early)
        self._release(high_watermark)

    def _release(self, high_watermark: int) -> None:
        """Answer the groups below the new high watermark."""
        released = self._sequencer.release(high_watermark)
        if released is not None:
            self._held_since = time.monotonic()
            self._shared.send(released.answers)
            for group in released.groups:
                self._observed.answered(group.received, group.records)
            self._shared.pending_changed()
        self._waiters.wake(high_watermark)
        self._own_records.committed(high_watermark)

    def commit_up_to(self, offset: int) -> None:
        """Note that records below `offset` are committed, as far as this node has stored them."""
        self._release(self.rollups.commit_up_to(offset))

    @property
    def held_seconds(self) -> float:
        """Time, in seconds, since the last release if a group is held; 0.0 if no group is held."""
        return time.monotonic() - self._held_since if self._sequencer.is_holding else 0.0

    # --- a group that failed ---

    def _take_back(self, group: CommitGroup | None, error: Exception) -> None:
        """Undo everything that was judged from `group` on (see `Tail`), and nack it. If `group` is
        None, undo only messages that are in no group yet. The next offset becomes the present end
        of the log."""
        if not isinstance(error, LiftlogError):
            # This is a defect. Its effect on the log or on memory is unknown, so nothing more is
            # written.
            self._fail(f"internal error while committing: {error!r}")
            return
        logger.error(
            "commit-failed stream=%s records=%d error=%s", self._log.name, len(group or ()), error
        )
        durable_end = self._log.durable_end_offset
        acked_before_sync = self._settings.durability != "fsync"
        if isinstance(error, SyncFailed):
            # If acks were sent before the sync, readers and publishers have seen the offsets of
            # these records. Such offsets are not used again, and the loss is recorded. All other
            # offsets are used again. If a follower may have received their records, a new epoch
            # must begin first.
            if not self._abandon_tail(error, keep_offsets=acked_before_sync):
                return
            if self._has_followers:
                self._step_down(f"a sync failed ({error}) that followers did not wait for")
                return
        # Any other error comes from the append, and the append has been rolled back. The log ends
        # where it ended before the append, and earlier records are intact.
        self._nack(group, error)
        if isinstance(error, SyncFailed) and acked_before_sync:
            self._subjects.lost_from(durable_end)
            self.rollups.lost_from(durable_end)
        if (
            isinstance(error, DiskFull)
            and self._log.leases.may_be_void
            and not self._turns.is_closed
        ):
            # Retention must be able to free disk space.
            self._turns.run_exclusive(partial(self._log.leases.void, "the disk is full"), None)

    def _abandon_tail(self, error: SyncFailed, *, keep_offsets: bool) -> bool:
        """Drop all records that are not durable; returns True if writing can continue in another
        file.

        After a failed sync, the kernel may drop the pages and report success for the next sync. So
        the same file must not be used again.
        """
        try:
            self._log.writer.abandon_tail(keep_offsets=keep_offsets)
        except LiftlogError as second:
            self._fail(f"storage failed ({error}) and so did starting a new segment ({second})")
            return False
        return True

    def _nack(self, group: CommitGroup | None, error: Exception) -> None:
        sequencer = self._sequencer
        first = sequencer.untaken_offset if group is None else group.base_offset
        refusal = DISK_FULL if isinstance(error, DiskFull) else STORE_FAILED
        nacks = sequencer.failed(group, refusal, next_offset=self._log.log_end_offset)
        self._observed.failed(refusal.description, sequencer.held_messages)
        self._own_records.failed(error, first)
        self._shared.send(nacks)
        self._shared.pending_changed()
        self._waiters.wake(self._log.high_watermark)

    def _take_back_waiting(self, error: Exception) -> None:
        """Handle a failed sync of records that were acked before it: record their offsets as lost,
        and nack the waiting messages."""
        self._take_back(None, error)

    def give_up(self, reason: str) -> None:
        """Nack all waiting messages, because the stream has failed for good. Only for a stream
        without followers. A group that a thread is writing is answered when its write ends."""
        out = None if self._turns.is_taken else self._sequencer.oldest_out
        nacks = self._sequencer.failed(out, STORE_FAILED)
        self._observed.failed(reason, self._sequencer.unanswered_messages)
        self._shared.send(nacks)
        self._own_records.failed(reason)
        self._shared.pending_changed()

    def step_down(self, refusal: RefusalReason) -> None:
        """Stop committing, because this node no longer leads the stream.

        Messages that were judged but not written are nacked. Messages that were written get no
        answer: the next leader may commit them, and publishers send them again with the same ids.
        """
        self._is_over = True
        nacks = self._sequencer.step_down(refusal)
        self._observed.unanswered()
        self._shared.send(nacks)
        self._own_records.stepped_down()
        self._shared.pending_changed()

    # --- durability: interval ---

    def _after_interval_append(self, count: int) -> None:
        self._unsynced += count
        if self._log.durable_end_offset == self._log.log_end_offset:
            self._unsynced = 0
            self._stop_flush_timer()
            self._commit_durable()
        elif self._unsynced and self._flush_timer is None and not self.flush_is_overdue:
            loop = asyncio.get_running_loop()
            delay = self._settings.flush.interval_seconds
            self._flush_timer = loop.call_later(delay, self.flush_due)

    def _stop_flush_timer(self) -> None:
        self.flush_is_overdue = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def flush_due(self) -> None:
        """Flush, because the oldest record that is not synced has waited for `flush.interval`. The
        timer may still fire after the stream has failed, but not after the stream was closed."""
        self._flush_timer = None
        # Under load other jobs may follow without a pause, so the flush is made the next job.
        self.flush_is_overdue = True
        self._turns.begin_next()

    def flush(self) -> None:
        """Sync the records that were acked before a sync. Call this while no job runs."""
        self.flush_is_overdue = False
        self._turns.begin(lambda: None, self._log.sync, self._flushed)

    def _flushed(self, error: Exception | None) -> None:
        if error is not None:
            self._take_back_waiting(error)
        else:
            self._unsynced = 0
            self._commit_durable()

    def _commit_durable(self) -> None:
        """Commit durable records that were already acked. While the stream moves to another node,
        they are committed only when the copy on that node also has them."""
        if not self._is_over:
            self.commit_up_to(self._gate.local(self._log.durable_end_offset))

    def _is_flushed(self, settings: StreamSettings) -> bool:
        """Return True if acks are sent after the write, and a flush commits the records later.

        On a node of a cluster records are committed only when they are durable, even with
        `durability: os`. If another node leads, that node decides which records are committed.
        """
        if not self._log.config.replicated:
            return settings.durability == "interval"
        return self._has_followers and settings.durability != "fsync"

    # --- what the host reports ---

    def after_exclusive(self, error: Exception | None) -> None:
        """Continue after an exclusive call, which may have synced."""
        self._observe_sync()
        if isinstance(error, SyncFailed):
            self._take_back_waiting(error)
        elif self._has_flushes:
            self._after_interval_append(0)  # a roll has synced the records that waited for a flush

    def adopt(self, settings: StreamSettings) -> None:
        """Apply new settings; see `StreamHost.adopt`."""
        self._settings = settings
        self._writer = GroupWriter(self._log, settings)
        self._most_in_round = _most_in_round(settings)
        self._has_flushes = self._is_flushed(settings)
        self.rollups.adopt()
        if self._flush_timer is not None:
            # The timer runs by the old interval. Records must not wait longer than the new one.
            self._stop_flush_timer()
            self._after_interval_append(0)

    def close(self) -> None:
        self.rollups.close()
        self._stop_flush_timer()
        self._own_records.failed("it is closed")


def _most_in_round(settings: StreamSettings) -> int:
    """Return the maximum size, in bytes, of a group that is part of a round."""
    if settings.durability != "fsync":
        return 0  # such a group is acked without a sync
    most = ROUND_BYTES if settings.compression == "none" else _COMPRESSED_ROUND_BYTES
    # A stream that waits for a round is not counted as crowded, so it must have room left.
    return min(most, settings.max_pending_bytes // 4)
