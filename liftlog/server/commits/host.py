"""One stream inside the daemon: its log, its settings, its writers and its waiting callers.

All code runs on the event loop, except for the log calls that `turns` passes to the writer pool.
`committing` writes messages. This module accepts or refuses messages, changes settings, begins
jobs, and ends the stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from liftlog.errors import DiskFull
from liftlog.log import Log
from liftlog.log.files.leases import MAX_POSSIBLE_LOSSES
from liftlog.sequencing import Destinations, MessageRun, Sequencer
from liftlog.sequencing.refusals import (
    NOT_LEADING,
    OVERLOADED,
    PAUSED,
    READ_ONLY,
    SHUTTING_DOWN,
    STORE_FAILED,
    RefusalReason,
)
from liftlog.server.commits.committing import CommitResources, GroupCommits
from liftlog.server.commits.configs import (
    NewestBytes,
    log_config,
    room_of,
    sequencer_config,
    standing_refusal,
    window_ns,
)
from liftlog.server.commits.gate import CommitGate, LocalGate
from liftlog.server.commits.observations import StreamObservations
from liftlog.server.commits.rollups import Rollups
from liftlog.server.commits.subjects import SubjectUpkeep
from liftlog.server.commits.turns import LogTurns
from liftlog.server.commits.waiting import OwnRecords, Told, WatermarkWaiters
from liftlog.server.vitals.disk import DiskReserve
from liftlog.settings import StreamSettings
from liftlog.settings.stored import stored_form

logger = logging.getLogger("liftlog.server.stream")

SYSTEM = "system"
"""Origin of the streams that the daemon has created for itself. No client may change them."""

_STALL_SECONDS = 1.0
"""If a commit takes longer than this, the daemon reads messages of other streams in the
meantime."""
_LOOK_AGAIN_SECONDS = 0.05

Overrides = dict[str, list[Any]]
"""Settings of a stream of the configuration file that the API has overridden. Maps each setting to
[the file's value, the value in effect], both in the form that YAML shows."""

_T = TypeVar("_T")


class Committers(CommitResources, Protocol):
    """Resources that the streams of a daemon share."""

    dirty: dict[StreamHost, None]
    """The streams with messages to commit when the chunk that is being parsed ends."""

    @property
    def rounds_are_out(self) -> bool: ...
    def mark_dirty(self, host: StreamHost) -> None: ...
    def now_ns(self) -> int: ...
    def steady_ns(self) -> int:
        """Return the time in ns by a clock that never jumps: the wall clock at the start, plus the
        monotonic time since then."""
        ...


class StreamHost:
    """One stream of the daemon. Created when the log of the stream is open."""

    def __init__(
        self,
        name: str,
        settings: StreamSettings,
        log: Log,
        sequencer: Sequencer,
        committers: Committers,
        *,
        origin: str,
        overrides: Overrides | None = None,
        gate: CommitGate | None = None,
        is_leading: bool = True,
    ) -> None:
        """If `gate` is None, this node has the only copy. If `is_leading` is False, the host copies
        a stream that another node leads: it accepts no messages, and other code appends to its
        log."""
        self.name = name
        self.settings = settings
        self.log = log
        self.sequencer = sequencer
        self.origin = origin
        self.overrides = overrides or {}
        self.failure = ""
        self._own_losses: list[dict[str, Any]] = list(
            log.view.manifest.metadata.get("possible_losses", [])
        )
        self.possible_loss_events = 0
        """Number of possible losses since the start."""
        self.recovery_point_offset = log.log_end_offset
        self.rewriting = False
        """True while a compaction pass reads old segments; during this time retention does not
        delete the files of these segments."""
        self.observed = StreamObservations()
        self.turns = LogTurns(
            name, committers.pool, begin_next=self._next, after_exclusive=self._after_exclusive
        )
        self._shared = committers
        self.newest = NewestBytes(log)
        sequencer.room = room_of(settings, log, self.newest)
        self._refuse_with = standing_refusal(settings) if is_leading else NOT_LEADING
        self._waiters = WatermarkWaiters()
        self.subjects = SubjectUpkeep(log, sequencer, self._waiters, is_leading=is_leading)
        self._own_records = OwnRecords(name)
        self._gate: CommitGate = gate or LocalGate()
        self.is_leading = is_leading
        self._gate.bind(self)
        self.commits = GroupCommits(
            log,
            sequencer,
            settings,
            self._gate,
            committers,
            turns=self.turns,
            waiters=self._waiters,
            own_records=self._own_records,
            subjects=self.subjects,
            rollups=Rollups(log, sequencer, self.commit_up_to, committers.rolled_up),
            observed=self.observed,
            fail=self.fail,
            step_down=self.step_down,
        )
        self._idle: asyncio.Future[None] | None = None
        self._shown_settings: dict[str, Any] | None = None

    # --- messages in ---

    def receive(self, run: MessageRun) -> None:
        """Judge messages of this stream's subscription. The parser calls this. Never raises."""
        self.observed.received_bytes += run.size_bytes
        try:
            if self._refuse_with is not None:
                self._shared.send(self.sequencer.refuse_run(run, self._refuse_with))
                return
            pending = self.sequencer.pending_bytes
            if pending and pending + run.memory_bytes > self.settings.max_pending_bytes:
                self._shared.send(self.sequencer.refuse_run(run, OVERLOADED))
                return
            self.observed.arrived(len(run.payloads))
            if self._gate.has_followers:
                self.sequencer.too_few_copies = self._gate.refuses
            self.sequencer.judge(run, self._shared.now_ns(), self._shared.steady_ns)
        except Exception as error:  # noqa: BLE001  # a supervisor: one stream must not end the others
            self.fail(f"internal error while judging messages: {error!r}")
            return
        self._shared.dirty[self] = None  # they are committed at the end of the chunk

    def store(
        self,
        subjects: Sequence[bytes],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        told: Told,
    ) -> None:
        """Commit records that the daemon itself writes. `told` is called on the loop: with None
        when the records are committed with the stream's durability, or with the error if they are
        not stored. Never raises."""
        refusal = self._refuse_with
        if refusal is not None and refusal not in (PAUSED, READ_ONLY):
            self._own_records.refused(refusal, told)
            return
        self.observed.arrived(len(values))
        end = self.sequencer.store_own(subjects, keys, values, self._shared.now_ns())
        self._own_records.wait(end, told)
        self._shared.mark_dirty(self)

    def is_crowded(self) -> bool:
        """Return True if the waiting messages of this stream have reached half of their limit in
        bytes. Returns False if the disk or another node is stuck."""
        if self.sequencer.pending_bytes * 2 < self.settings.max_pending_bytes:
            return False
        if self.turns.is_taken:
            return self.turns.taken_seconds < _STALL_SECONDS
        return self.sequencer.is_holding and self.commits.held_seconds < _STALL_SECONDS

    # --- whose turn it is ---

    def can_join(self) -> bool:
        """Return True if the stream may commit in a round now: messages wait, and no other job
        waits."""
        return self.turns.are_free and not self.failure and self.commits.can_join()

    def _next(self) -> None:
        """Begin the next job after a job of this stream."""
        if (self._shared.dirty or self._shared.rounds_are_out) and self.can_join():
            self._shared.mark_dirty(self)
        else:
            self.kick()

    def kick(self) -> None:
        """Begin the next job, or let it begin when the running job ends. Never raises."""
        turns = self.turns
        if turns.is_taken or turns.is_closed:
            return
        if self.commits.flush_is_overdue and not self.failure:
            self.commits.flush()
            return
        messages = 0 if self.failure else self.sequencer.pending_messages
        if messages and turns.begin_before_commit():
            return
        if turns.exclusive_comes_first(messages_wait=messages > 0):
            turns.begin_exclusive()
            return
        if self.failure:
            return
        if messages:
            try:
                if self.commits.commit(messages):
                    self._shared.mark_dirty(self)
            except Exception as error:  # noqa: BLE001  # a supervisor, as above
                self.fail(f"internal error while committing: {error!r}")
        else:
            self._note_idle()
        turns.begin_exclusive()

    def fail(self, reason: str) -> None:
        """Stop this stream for good. Other streams continue.

        Every judged message is nacked. Some of them may be on disk, but none was acked. If the
        stream has followers, messages are treated as in `step_down`.
        """
        self.failure = reason
        self._refuse_with = STORE_FAILED
        logger.critical("stream-failed stream=%s reason=%s", self.name, reason)
        if self._gate.has_followers:
            self.commits.step_down(STORE_FAILED)
            self._gate.stepped_down(reason)
        else:
            self.commits.give_up(reason)
        self._waiters.end()
        self._note_idle()

    # --- calls of the gate ---

    def commit_up_to(self, offset: int) -> None:
        """Note that records below `offset` that this node has are committed. Never raises."""
        try:
            self.commits.commit_up_to(offset)
        except Exception as error:  # noqa: BLE001  # a supervisor, as above
            self.fail(f"internal error while committing: {error!r}")
        if not self.sequencer.is_holding:
            self._note_idle()

    def step_down(self, reason: str) -> None:
        """Stop leading this stream.

        Messages that were judged but not written are nacked. Messages that were written but not
        committed get no answer: the next leader may commit them. A write in progress completes, and
        its messages get no answer either.
        """
        logger.warning("stepped-down stream=%s reason=%s", self.name, reason)
        self._refuse_with = STORE_FAILED if self.failure else NOT_LEADING
        self.commits.step_down(NOT_LEADING)
        self._gate.stepped_down(reason)
        self._note_idle()

    # --- exclusive calls: log calls that must not run beside a commit ---

    def run_exclusive(
        self, call: Callable[[], object], then: Callable[[], None] | None = None
    ) -> asyncio.Future[object]:
        """Run a blocking log call in a writer thread while no commit of the stream runs.

        If the call succeeds, `then` is called on the event loop before the next commit begins, even
        if the future has been cancelled. A closed stream refuses the call, because another stream
        may already have its name.
        """
        return self.turns.run_exclusive(call, then)

    def run_inline(self, call: Callable[[], object]) -> bool:
        """Run a log call that appends and syncs a little data inside the event loop, without a
        thread, if syncs are fast and no other job of the log runs.

        Returns True if the call ran, and raises its error. Returns False if the call did not run.
        """
        inline = self._shared.inline
        began = time.perf_counter()
        if not inline.allows(1) or not self.turns.run_inline(call):
            return False
        inline.spent(time.perf_counter() - began)
        # The next turn of the loop gets its own budget, whether messages come from NATS or not.
        asyncio.get_running_loop().call_soon(inline.begin_chunk)
        return True

    async def exclusively(
        self,
        call: Callable[[], _T],
        then: Callable[[], None] | None = None,
        *,
        reserve: DiskReserve | None = None,
    ) -> _T:
        """Like `run_exclusive`, for a caller that may be cancelled, and for a disk that may be
        full.

        Pass a `reserve` if the call frees disk space or helps to free it. If such a call fails
        because the disk is full, it is retried once in the space of the reserve. If the caller is
        cancelled, this method first waits for the end of the call, unless the disk stalls.
        """
        try:
            return await self.turns.uninterrupted(call, then)
        except DiskFull:
            if reserve is None:
                raise
        async with reserve.lent():
            return await self.turns.uninterrupted(call, then)

    def _after_exclusive(self, error: Exception | None) -> None:
        self.commits.after_exclusive(error)

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Mark the stream as compacting until the context ends. A compaction pass reads the old
        segments inside this context."""
        self.rewriting = True
        try:
            yield
        finally:
            self.rewriting = False

    # --- settings, and other contents of the manifest ---

    def adopt(self, settings: StreamSettings, overrides: Overrides | None = None) -> None:
        """Apply these settings from the next message on. If `overrides` is None, the overrides do
        not change.

        Call this method as the `then` of an exclusive call that has stored the settings. If
        `durability` changes, that call must also have synced all records. No group is being written
        at that moment, because groups are taken only while no job runs, and the next job begins
        after `then`. So the same settings apply to the write, sync and answers of a group. They are
        on disk before they apply to a message. Messages that were judged earlier keep their
        outcome, and are committed with the new settings.
        """
        self.settings = settings
        if overrides is not None:
            self.overrides = overrides
        self._shown_settings = None
        self.sequencer.configure(
            sequencer_config(self.name, settings, self.log),
            window_ns(settings),
            settings.dedupe.max_ids,
        )
        self.subjects.adopt(settings)
        self.sequencer.room = room_of(settings, self.log, self.newest)
        self.log.config = log_config(settings, replicated=self.log.config.replicated)
        # Only `PAUSED` and `READ_ONLY` depend on the settings: a stream that has failed, or whose
        # daemon is stopping, keeps refusing.
        if self._refuse_with in (None, PAUSED, READ_ONLY):
            self._refuse_with = standing_refusal(settings)
        self.commits.adopt(settings)

    def shown_settings(self) -> dict[str, Any]:
        """The settings in the form that YAML shows. The result is cached until the settings change,
        because the conversion takes half of the time of describing a stream. Callers must not
        modify the result."""
        if self._shown_settings is None:
            self._shown_settings = self.settings.to_yaml_dict()
        return self._shown_settings

    def metadata(
        self, settings: StreamSettings | None = None, overrides: Overrides | None = None
    ) -> dict[str, Any]:
        """Return the metadata that this layer stores in the manifest. New settings and overrides
        replace the present ones, if they are given."""
        overrides = self.overrides if overrides is None else overrides
        metadata = new_metadata(settings or self.settings, self.origin)
        metadata["possible_losses"] = self._own_losses
        return metadata | ({"switches": overrides} if overrides else {})

    def set_neighbours(
        self, destinations: Destinations, siblings: dict[bytes, tuple[str, ...]]
    ) -> None:
        """Set the subjects to which acks may be sent. Also set, by stream name, the subjects of the
        other streams that get their own copies of messages. Applies from the next message on."""
        self.sequencer.destinations = destinations
        self.sequencer.sibling_streams = siblings

    def note_possible_loss(self, reason: str, time_ns: int) -> int:
        """Note that messages may be missing before the next message, and return the offset of that
        message.

        The note is stored with the next `metadata`, or in the side state if there are replicas.
        """
        self.possible_loss_events += 1
        offset = self.sequencer.next_offset
        if not self.log.config.replicated:
            event = {"offset": offset, "time_ns": time_ns, "reason": reason}
            self._own_losses = [*self._own_losses, event][-MAX_POSSIBLE_LOSSES:]
        return offset

    @property
    def possible_losses(self) -> list[dict[str, Any]]:
        """Return the newest possible losses. They include losses from before a restart, and losses
        that former leaders have noted."""
        leases = self.log.leases
        if not (self.log.config.replicated and leases.are_known):
            return self._own_losses
        found = [*self._own_losses, *map(dict, leases.side_state.possible_losses)]
        return found[-MAX_POSSIBLE_LOSSES:]

    @property
    def has_moved(self) -> bool:
        """True if records were written after the recovery point was saved."""
        return self.log.log_end_offset != self.recovery_point_offset

    def recovery_point_saved(self, next_offset: int) -> None:
        """Note that a recovery point was saved: the next recovery begins its scan at
        `next_offset`."""
        self.recovery_point_offset = next_offset

    # --- readers ---

    def wait_high_watermark(self, offset: int) -> asyncio.Future[None]:
        """Return a future that is done when the high watermark is above `offset`, or when the
        stream ends. Cancel the future to stop waiting."""
        if self.log.high_watermark > offset:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_result(None)
            return future
        return self._waiters.add(offset)

    # --- the end ---

    def refuse_new(self, refusal: RefusalReason = SHUTTING_DOWN) -> None:
        """Nack every message that arrives from now on."""
        if self._refuse_with is None:
            self._refuse_with = refusal

    @property
    def is_accepting(self) -> bool:
        """True if messages are accepted, or refused only because of the settings."""
        return self._refuse_with in (None, PAUSED, READ_ONLY)

    def accept_again(self, refusal: RefusalReason) -> None:
        """Accept messages again. Does nothing if another refusal has replaced `refusal` since
        `refuse_new`."""
        if self._refuse_with is refusal and self.is_leading:
            self._refuse_with = standing_refusal(self.settings)

    async def drained(self) -> None:
        """Wait until everything received so far is committed and answered, or has failed."""
        while not self._is_idle():
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            self.kick()
            if not self._is_idle():
                await asyncio.wait([self._idle], timeout=_LOOK_AGAIN_SECONDS)

    def _is_idle(self) -> bool:
        waits = self.sequencer.pending_messages > 0 or self.sequencer.is_holding
        return not self.turns.is_taken and (not waits or bool(self.failure))

    def _note_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and self._is_idle():
            self._idle.set_result(None)

    def close(self) -> None:
        """Begin no more jobs, and release all waiting callers. The broker closes the log later,
        outside the loop.

        - A commit that a thread has begun runs to its end, because its messages are then on disk.
          These messages are committed and answered as usual.
        - No further job begins. The broker closes the log once the stream is drained or the writer
          threads have ended.
        - Messages that are judged but not written get no answer, so their publishers retry.
        - The daemon's own records that are not committed yet are reported as failed, even if the
          current commit contains them. As after a lost ack, the caller may store such records
          again.
        """
        self.turns.close()
        self.subjects.close()
        self.commits.close()
        self._waiters.end()


def new_metadata(settings: StreamSettings, origin: str) -> dict[str, Any]:
    """Return the metadata for a stream that is being created; see `StreamHost.metadata`."""
    return {"settings": stored_form(settings), "origin": origin, "possible_losses": []}
