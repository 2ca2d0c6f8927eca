"""One stream inside the daemon: its log, its sequencer, and the commits between them.

Everything here runs on the event loop except the log calls handed to the writer pool. At most one
write is in flight per stream; what arrives meanwhile becomes the next group.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from liftlog.errors import DiskFull, LiftlogError, StreamUnavailable, SyncFailed
from liftlog.log import Log
from liftlog.server.commits.budget import InlineBudget
from liftlog.server.commits.configs import log_config, sequencer_config, window_ns
from liftlog.server.commits.group_writing import GroupWriter
from liftlog.server.commits.observations import StreamObservations
from liftlog.server.commits.own_records import OwnRecords, Told
from liftlog.server.commits.subject_scanning import SubjectUpkeep
from liftlog.server.commits.turns import Maintenance, MaintenanceTurns
from liftlog.server.commits.waiters import WatermarkWaiters
from liftlog.server.commits.writer_pool import CommitJob, WriterPool
from liftlog.settings import StreamSettings
from liftlog.stream import CommitGroup, MessageRun, Sequencer
from liftlog.stream.refusals import (
    DISK_FULL,
    OVERLOADED,
    PAUSED,
    READ_ONLY,
    SHUTTING_DOWN,
    STORE_FAILED,
    Refusal,
)

logger = logging.getLogger("liftlog.server.stream")

SYSTEM = "system"
"""Origin of the streams that the daemon made for itself; nobody else changes them."""

_STALL_SECONDS = 1.0
"""A commit that takes longer no longer keeps the daemon from reading for other streams."""


class Committers(Protocol):
    """What the streams of a daemon share."""

    pool: WriterPool
    inline: InlineBudget
    dirty: dict[StreamHost, None]
    """Who has something to commit at the end of the chunk that is being parsed."""

    def send(self, commands: bytes) -> None: ...
    def mark_dirty(self, host: StreamHost) -> None: ...
    def pending_changed(self) -> None: ...
    def now_ns(self) -> int: ...
    def steady_ns(self) -> int:
        """The wall clock of the start plus the time since: it never steps."""
        ...


class StreamHost:
    """Made by the broker once the log is open."""

    def __init__(
        self,
        name: str,
        settings: StreamSettings,
        log: Log,
        sequencer: Sequencer,
        committers: Committers,
        *,
        origin: str,
    ) -> None:
        self.name = name
        self.settings = settings
        self.log = log
        self.sequencer = sequencer
        self.origin = origin
        self.failure = ""
        self.possible_losses: list[dict[str, Any]] = []
        self.possible_loss_events = 0
        """Since the start; the list keeps only the newest, but over restarts."""
        self.switches: dict[str, list[bool]] = {}
        """Of a stream of the configuration file; see `stream_settings.with_switches`."""
        self.recovery_point_offset = log.log_end_offset
        self.commits = 0
        self.inline_commits = 0
        self.commit_failures = 0
        self.records = 0
        self.received_bytes = 0
        self.observed = StreamObservations()
        self.shown_settings: tuple[StreamSettings, dict[str, Any]] | None = None
        self.rewriting = False
        """A compaction pass reads old segments; retention leaves their files for a while."""
        self._shared = committers
        self._in_flight = False
        self._in_flight_since = 0.0
        self._refuse_with = _standing_refusal(settings)
        self._waiters = WatermarkWaiters()
        self._idle: asyncio.Future[None] | None = None
        self._unsynced = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_overdue = False
        self._maintenance = MaintenanceTurns()
        self._closed = False
        self._own = OwnRecords(name)
        self._observed_syncs = log.fsync_count
        self._writer = GroupWriter(log, settings)
        self.subjects = SubjectUpkeep(self)

    # --- messages in ---

    def receive(self, run: MessageRun) -> None:
        """Messages of this stream's subscription, from the parser. Never raises."""
        self.received_bytes += run.size_bytes
        try:
            if self._refuse_with is not None:
                self._shared.send(self.sequencer.refuse_run(run, self._refuse_with))
                return
            pending = self.sequencer.pending_bytes
            if pending and pending + run.memory_bytes > self.settings.max_pending_bytes:
                self._shared.send(self.sequencer.refuse_run(run, OVERLOADED))
                return
            self.observed.arrived(len(run))
            self.sequencer.judge(run, self._shared.now_ns(), self._shared.steady_ns())
        except Exception as error:  # noqa: BLE001  # a supervisor: one stream must not end the others
            self._fail(f"internal error while judging messages: {error!r}")
            return
        self._shared.dirty[self] = None  # committed at the end of the chunk

    def store(
        self,
        subjects: Sequence[bytes],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        told: Told,
    ) -> None:
        """Commit records that the daemon itself writes; `told` hears on the loop when they are
        committed as the stream's durability says, or that they are not stored. Never raises."""
        refusal = self._refuse_with
        if refusal is not None and refusal not in (PAUSED, READ_ONLY):
            self._own.refused(refusal, told)
            return
        self.observed.arrived(len(values))
        end = self.sequencer.store_own(subjects, keys, values, self._shared.now_ns())
        self._own.wait(end, told)
        self._shared.mark_dirty(self)

    def is_crowded(self) -> bool:
        """Whether half of what may wait for this stream's disk waits, and the disk moves on."""
        if self.sequencer.pending_bytes * 2 < self.settings.max_pending_bytes:
            return False
        return self._in_flight and time.monotonic() - self._in_flight_since < _STALL_SECONDS

    @property
    def in_flight_seconds(self) -> float:
        """How long the disk has had what was given to it last; 0.0 when it has nothing."""
        return time.monotonic() - self._in_flight_since if self._in_flight else 0.0

    def kick(self) -> None:
        """Commit what waits, unless a commit is under way: then its end does it. Never raises."""
        if self._in_flight or self._closed:
            return
        if self._flush_overdue and not self.failure:
            self._flush()
            return
        waiting = self.sequencer.pending_messages > 0 and not self.failure
        if self._maintenance.comes_first(messages_wait=waiting):
            self._start_maintenance()
            return
        if self.failure:
            return
        try:
            self._commit()
        except Exception as error:  # noqa: BLE001  # a supervisor: one stream must not end the others
            self._fail(f"internal error while committing: {error!r}")
        self._start_maintenance()

    def _commit(self) -> None:
        messages = self.sequencer.pending_messages
        if not messages:
            self._settle_idle()
            return
        long = self._writer.takes_long(self.sequencer.pending_bytes)
        if self._shared.inline.allows(messages) and not long:
            self._commit_inline()
        else:
            self._commit_in_thread()

    # --- commits ---

    def _commit_inline(self) -> None:
        group = self.sequencer.take_group()
        if group is None:
            return
        error: Exception | None = None
        started = time.perf_counter()
        if len(group):
            try:
                self._writer.write(self._writer.encode(group))
                # Before the sync, so that after it nothing is left but to send them.
                self.sequencer.prepare_answers(group)
                if self._writer.must_sync(self._unsynced + len(group)):
                    self.log.sync()
            except Exception as caught:  # noqa: BLE001  # `_undo` decides what it means
                error = caught
        self._finish(group, error)
        self.inline_commits += 1
        if len(group):
            self._shared.inline.spent(time.perf_counter() - started)
            self._observe_sync()
        if self.sequencer.pending_messages:
            self._shared.mark_dirty(self)

    def _commit_in_thread(self) -> None:
        group = self.sequencer.take_group()
        if group is None:
            return
        if not len(group):
            self._finish(group, None)
            self.kick()
            return
        try:
            batches = self._writer.encode(group)
        except Exception as error:  # noqa: BLE001  # `_undo` decides what it means
            self._undo(group, error)
            return
        must_sync = self._writer.must_sync(self._unsynced + len(group))
        self._begin_job(
            partial(self._writer.write, batches),
            self.log.sync if must_sync else None,
            partial(self._thread_done, group),
        )
        self.sequencer.prepare_answers(group)  # while the thread writes

    def _begin_job(
        self,
        write: Callable[[], object],
        sync: Callable[[], object] | None,
        done: Callable[[Exception | None], None],
    ) -> None:
        """Have a thread write and sync; `done` hears on the loop how it ended."""
        self._in_flight = True
        self._in_flight_since = time.monotonic()
        loop = asyncio.get_running_loop()
        tell = partial(_call_loop, loop, done)
        self._shared.pool.submit(CommitJob(write=write, sync=sync, done=tell))

    def _thread_done(self, group: CommitGroup, error: Exception | None) -> None:
        self._in_flight = False
        self._observe_sync()
        self._finish(group, error)
        self.kick()

    def _observe_sync(self) -> None:
        """Tell the policy how long the newest sync took; a commit without one says nothing."""
        if self.log.fsync_count != self._observed_syncs:
            self._observed_syncs = self.log.fsync_count
            self._shared.inline.observe(self.log.last_sync_seconds)

    def _finish(self, group: CommitGroup, error: Exception | None) -> None:
        """Answer everyone who waited for this group."""
        if error is not None:
            self._undo(group, error)
            return
        interval = self.settings.durability == "interval"
        if interval:
            self.log.note_acked(self.log.log_end_offset)
        else:
            self.log.advance_high_watermark(self.log.log_end_offset)
        self._shared.send(self.sequencer.committed(group))
        self.observed.answered(group.received, len(group))
        if interval:
            self._after_interval_append(len(group))
        else:
            self._wake_waiters()
        self.commits += 1
        self.records += len(group)
        self._own.committed(group.next_offset)
        self._shared.pending_changed()

    def _committed_up_to(self, offset: int) -> None:
        self.log.advance_high_watermark(offset)
        self._wake_waiters()

    def _undo(self, group: CommitGroup, error: Exception) -> None:
        if not isinstance(error, LiftlogError):
            self._fail(f"internal error while committing: {error!r}", group)
            return
        refusal = DISK_FULL if isinstance(error, DiskFull) else STORE_FAILED
        logger.error("commit-failed stream=%s records=%d error=%s", self.name, len(group), error)
        durable_end = self.log.durable_end_offset
        acked_before_sync = self.settings.durability != "fsync"
        if isinstance(error, SyncFailed):
            try:
                self.log.abandon_tail(keep_offsets=acked_before_sync)
            except LiftlogError as second:
                self._fail(f"storage failed ({error}) and so did starting anew ({second})", group)
                return
        nacks = self.sequencer.failed(group, refusal, next_offset=self.log.log_end_offset)
        if isinstance(error, SyncFailed) and acked_before_sync:
            self.subjects.lost_from(durable_end)
        self.commit_failures += 1
        self.observed.failed()
        self._own.failed(error)
        self._shared.send(nacks)
        self._shared.pending_changed()
        self._wake_waiters()
        if isinstance(error, DiskFull) and self.log.leases.may_be_void and not self._closed:
            # Retention must be able to make room.
            self.run_exclusive(partial(self.log.leases.void, "the disk is full"))

    def _fail(self, reason: str, group: CommitGroup | None = None) -> None:
        """Stop this stream for good; the others go on."""
        self.failure = reason
        self._refuse_with = STORE_FAILED
        self.commit_failures += 1
        self.observed.failed()
        logger.critical("stream-failed stream=%s reason=%s", self.name, reason)
        if group is None:
            group = self.sequencer.take_group()
        if group is not None:
            self._shared.send(self.sequencer.failed(group, STORE_FAILED))
        self._own.failed(reason)
        self._shared.pending_changed()
        self._wake_waiters(all_of_them=True)
        self._settle_idle()

    # --- durability: interval ---

    def _after_interval_append(self, count: int) -> None:
        self._unsynced += count
        if self.log.durable_end_offset == self.log.log_end_offset:
            self._unsynced = 0
            self._stop_flush_timer()
            self._committed_up_to(self.log.log_end_offset)
        elif self._unsynced and self._flush_timer is None and not self._flush_overdue:
            loop = asyncio.get_running_loop()
            delay = self.settings.flush.interval_seconds
            self._flush_timer = loop.call_later(delay, self._flush_due)

    def _stop_flush_timer(self) -> None:
        self._flush_overdue = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def _flush_due(self) -> None:
        self._flush_timer = None
        if self.failure or self._closed:
            return
        if self._in_flight:
            self._flush_overdue = True  # what is under way may be followed by more without a pause
        else:
            self._flush()

    def _flush(self) -> None:
        self._flush_overdue = False
        self._begin_job(lambda: None, self.log.sync, self._flushed)

    def _flushed(self, error: Exception | None) -> None:
        self._in_flight = False
        if error is not None:
            self._undo_waiting(error)
        else:
            self._unsynced = 0
            self._committed_up_to(self.log.durable_end_offset)
        self.kick()

    def _undo_waiting(self, error: Exception) -> None:
        """A sync failed that no group waited for. What it should have made durable was acked by
        `durability: interval` or `os`: the hole is recorded as lost, and what waits is nacked."""
        waiting = self.sequencer.take_group()
        if waiting is None:
            waiting = CommitGroup(self.sequencer.next_offset, self.sequencer.last_message_id)
        self._undo(waiting, error)

    # --- maintenance: log calls that must not meet a commit ---

    def run_exclusive(
        self, call: Callable[[], object], then: Callable[[], None] | None = None
    ) -> asyncio.Future[object]:
        """Run a blocking log call in a writer thread while no commit of the stream is in flight.

        If it succeeds, `then` is called on the event loop before the next commit begins, also when
        nobody waits for the future any more. Refused once the stream is closed: another stream may
        live under its name by then.
        """
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(StreamUnavailable(f"stream {self.name} is closed"))
            return future
        self._maintenance.add(Maintenance(call, then, future))
        if self.failure or not self._in_flight:
            self._start_maintenance()
        return future

    def _start_maintenance(self) -> None:
        work = None if self._in_flight else self._maintenance.take()
        if work is None:
            return
        outcome: list[object] = []
        self._begin_job(
            lambda: outcome.append(work.call()),
            None,
            partial(self._maintenance_done, work, outcome),
        )

    def _maintenance_done(
        self, work: Maintenance, outcome: list[object], error: Exception | None
    ) -> None:
        self._in_flight = False
        self._maintenance.ran()
        if isinstance(error, SyncFailed):
            self._undo_waiting(error)
        elif self.settings.durability == "interval":
            self._after_interval_append(0)  # a roll has synced what waited for the next flush
        if error is None and work.then is not None:
            work.then()
        work.settle(outcome, error)
        self.kick()

    # --- other settings ---

    def adopt(self, settings: StreamSettings) -> None:
        """From the next message on these settings hold.

        Call it while no commit is in flight (`run_exclusive`), and when `durability` changes with
        everything synced. What was judged before keeps what it was promised.
        """
        self.settings = settings
        self._writer = GroupWriter(self.log, settings)
        self.sequencer.configure(
            sequencer_config(self.name, settings), window_ns(settings), settings.dedupe.max_ids
        )
        self.subjects.adopt(settings)
        self.log.config = log_config(settings)
        if self._refuse_with in (None, PAUSED, READ_ONLY):
            self._refuse_with = _standing_refusal(settings)
        if self._flush_timer is not None:  # what waits must not wait longer than is said now
            self._stop_flush_timer()
            self._after_interval_append(0)

    # --- readers ---

    def wait_high_watermark(self, offset: int) -> asyncio.Future[None]:
        """Done as soon as the high watermark is above `offset`, or the stream ends. Cancel to
        give up."""
        if self.log.high_watermark > offset or self.failure or self._closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_result(None)
            return future
        return self._waiters.add(offset)

    def _wake_waiters(self, *, all_of_them: bool = False) -> None:
        self._waiters.wake(self.log.high_watermark, all_of_them=all_of_them)

    # --- the end ---

    def refuse_new(self, refusal: Refusal = SHUTTING_DOWN) -> None:
        """Nack whatever still arrives."""
        if self._refuse_with is None:
            self._refuse_with = refusal

    async def drained(self) -> None:
        """Returns when everything received so far is committed and answered, or has failed."""
        while self._in_flight or (self.sequencer.pending_messages and not self.failure):
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            self.kick()
            if self._in_flight or self.sequencer.pending_messages:
                await asyncio.wait([self._idle], timeout=0.05)

    def _settle_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._in_flight:
            self._idle.set_result(None)

    def close(self) -> None:
        """Readers that wait are let go; the log is closed by the broker, off the loop."""
        self._closed = True
        self.subjects.close()
        self._stop_flush_timer()
        self._maintenance.refuse(StreamUnavailable(f"stream {self.name} is closed"))
        self._own.failed("it is closed")
        self._wake_waiters(all_of_them=True)


def _standing_refusal(settings: StreamSettings) -> Refusal | None:
    if settings.read_only:
        return READ_ONLY
    return PAUSED if settings.paused else None


def _call_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object
) -> None:
    """From a writer thread to the loop; after the loop is gone there is nobody left to tell."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        logger.warning("commit-finished-after-the-loop-closed")
