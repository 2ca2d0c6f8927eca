"""One consumer with acks, on the node that leads its stream. It reads its records, delivers them,
and writes its changes to the journal.

`liftlog.deliveries` makes the decisions. A turn (`step`) never waits. When a long operation ends,
such as a read in a thread, it makes the consumer ready again. Messages are sent only after the
journal has written the changes of the turn (`outbox`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import numpy as np

from acl.policy import Policy
from liftlog.deliveries.consumer import Consumer, Wants
from liftlog.deliveries.instructions import Ending, Status
from liftlog.deliveries.settings import PriorityPolicy
from liftlog.deliveries.snapshot import encode_snapshot
from liftlog.errors import LiftlogError
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.pull_body import BadPull, Pull
from liftlog.server.jetstream_api.consumers.rows import Row
from liftlog.server.jetstream_api.workers import large
from liftlog.server.jetstream_api.workers.acks import WorkerAcks
from liftlog.server.jetstream_api.workers.admission import Place
from liftlog.server.jetstream_api.workers.arriving import ArrivingPulls
from liftlog.server.jetstream_api.workers.buffer import Buffer, records_of
from liftlog.server.jetstream_api.workers.changes import StreamChanges
from liftlog.server.jetstream_api.workers.composing import Composer
from liftlog.server.jetstream_api.workers.described import Gauges, describe
from liftlog.server.jetstream_api.workers.local_work import Found, LocalWork, is_local
from liftlog.server.jetstream_api.workers.pacing import Replay
from liftlog.server.jetstream_api.workers.pulls import pull_of
from liftlog.server.jetstream_api.workers.sampling import publish_samples
from liftlog.server.jetstream_api.workers.shared import Shared, Tally
from liftlog.server.jetstream_api.workers.stored import encode_settings
from liftlog.server.journal import Change, ConsumerKey, StateVersion

logger = logging.getLogger("liftlog.server.jetstream_api")

_MOST = 500
"""Maximum number of messages in one turn."""
_PUSH_BYTES = 1024 * 1024
_FULL_NS = 5_000_000
_FAILED_NS = 1_000_000_000
"""Pause, in ns, after a failed read, and while the journal cannot be written."""


class AckedConsumer:
    """One consumer with acks. Belongs to the event loop."""

    def __init__(
        self,
        spec: ConsumerSpec,
        host: StreamHost,
        machine: Consumer,
        version: StateVersion,
        cursor: Cursor,
        composer: Composer,
        shared: Shared,
        changes: StreamChanges,
        pulls: ArrivingPulls,
        local: LocalWork,
        *,
        policy: Policy | None,
        place: Place,
    ) -> None:
        """`version` is the version of the state in the journal, and `changes` accepts later
        changes. `cursor` reads with the rights that `policy` gives. `local` contains the workers on
        the pull socket."""
        self.spec = spec
        self.host = host
        self.machine = machine
        self.changes = changes
        self.version = version
        self.local = local
        local.wake, local.cursor = self.wake, cursor
        self.key = ConsumerKey(host.log.incarnation, spec.name)
        self.is_ready = False
        self.timer_ns: int | None = None
        self.is_closed = False
        self.policy = policy
        self._cursor = cursor
        self._composer = composer
        self._shared = shared
        self._position = 0
        """Position of the consumer's last change in the journal."""
        self.pulls = pulls
        self._answers: list[bytes] = []
        self._buffer = Buffer(cursor.next_offset, replay=Replay() if spec.is_replayed else None)
        self._idle = asyncio.Event()
        """Event that is set while no read is in progress."""
        self._idle.set()
        self._active_ns = shared.clock.now_ns()
        self._acked_ns = self._retry_ns = 0
        """Nothing is delivered before this time: a read failed, or too many messages wait."""
        self._tally = Tally(shared, place)
        self.is_held = False
        """True while the consumer takes no turns, because it is being reset."""

    # --- what arrives ---

    def pull(self, reply: bytes, pull: Pull | BadPull) -> None:
        """Add a client's request for messages."""
        self._active_ns = self._shared.clock.now_ns()
        if isinstance(pull, BadPull):
            self._refuse(reply, pull.words)
            return
        if not self._composer.may_pull(reply):
            self._refuse(reply, b"403 Permissions Violation")
            return
        request = pull_of(pull, reply, self.spec.settings)
        if not self.pulls.add(request, len(self.machine.state.pulls), self._active_ns):
            # As in JetStream: a client with heartbeats detects that they are missing.
            if not request.heartbeat_ns:
                self._refuse(reply, b"409 Exceeded MaxWaiting")
            return
        if not self._shared.interest.has_now(reply, self):
            self.pulls.has_no_subscriber(reply, self._active_ns)
        self._tally.arrived(1)
        self._shared.rounds.ready(self)

    def _refuse(self, reply: bytes, words: bytes) -> None:
        self.changes.after_written(0, self._composer.status(Status(reply, words)))

    def acknowledge(self, arrived: WorkerAcks) -> None:
        """Apply acks at once. Answers that clients request are sent when the changes are synced."""
        now = self._active_ns = self._shared.clock.now_ns()
        if self.spec.sample_percent:
            publish_samples(self._shared.advisories, self, arrived, now)
        held = self.machine.state.pending.total
        verdicts = self.machine.acknowledge(arrived.acks, now)
        self._acked_ns = now if self.machine.state.pending.total < held else self._acked_ns
        self._answers += arrived.to_answer(verdicts)
        self._tally.arrived(len(arrived.acks))
        if self._tally.is_full:
            self._end_turn({})
        rounds = self._shared.rounds  # the client's next pull usually causes a turn soon
        is_urgent = arrived.replies or self.machine.waiting or not arrived.acks.is_plain
        (rounds.ready if is_urgent else rounds.ready_later)(self)

    def flow_answered(self, subject: bytes) -> None:
        if self._composer.flow.answered(subject):
            self._shared.rounds.ready(self)

    def update(self, spec: ConsumerSpec, to: Deliveries) -> None:
        """Adopt a new configuration, and the destination `to` of deliveries. New filters also
        require a new cursor (`replace`)."""
        self.spec = spec
        self._composer.update(spec, to)
        self.machine.update(spec.settings, self._shared.clock.now_ns())
        self._shared.growth.leave(self, self.host)
        self._shared.rounds.ready(self)

    def replace(self, cursor: Cursor, policy: Policy | None, replay: Replay | None = None) -> None:
        """Replace the cursor after a change of filters or rights. `replay` is for a reset."""
        self._cursor.close()
        cursor.move(self.machine.state.next_offset)
        self._cursor = self.local.cursor = cursor
        self.policy = policy
        self.local.release(self.machine)
        self._buffer = Buffer(cursor.next_offset, replay=replay or self._buffer.replay)
        self._shared.rounds.ready(self)

    def wake(self) -> None:
        """Make the consumer ready, because an interest, the stream or the ACL has changed."""
        self._shared.rounds.ready(self)

    def subjects(self) -> list[bytes]:
        """Return the NATS subjects to which the consumer may deliver now."""
        if self.spec.deliver_subject:
            return [self.spec.deliver_subject.encode()]
        return [one for one in self.machine.waiting if not is_local(one)]

    def subscriber_lost(self) -> None:
        """Take a turn, because a subject that was in use may have lost its subscriber."""
        self._active_ns = self._shared.clock.now_ns()
        self.wake()

    def take_over(self) -> None:
        self.pulls.take_over(self.machine.state)
        self.machine.take_over(self._shared.clock.now_ns())
        self._shared.rounds.ready(self)

    def end(self, why: Ending, *, is_stored: bool = True) -> None:
        """End all pulls and stop. If `is_stored` is true, store the last changes."""
        if not self.is_closed:
            self.pulls.pass_on(self.machine, self._cursor.left, self._shared.clock.now_ns())
            self.machine.end_pulls(why)
            # While the consumer is held, this delta does not match the state in the journal.
            self._end_turn({}, is_stored=is_stored and not self.is_held)
            self.abandon(why)

    def abandon(self, why: Ending = Ending.LEADERSHIP_CHANGE) -> None:
        """Stop without storing anything. Changes since the last turn are lost, as after a crash."""
        if self.is_closed:
            return
        self.is_closed = True
        self.local.close(why)
        self._shared.growth.leave(self, self.host)
        self._cursor.close()
        self._composer.flow.close()
        self.pulls.close()
        self._tally.close()

    # --- its turn ---

    def step(self, now_ns: int) -> None:
        if self.is_closed or self.is_held:
            return
        machine = self.machine
        self._skip()
        self.pulls.grow_older(now_ns)
        self._buffer.tick(now_ns)
        self._take_pulls(now_ns)
        self.pulls.end_lost(machine, self._shared.leaf, now_ns, self._acked_ns)
        self.local.pull(machine, now_ns)
        self._buffer.drop_removed(self._cursor, self.machine)
        if (due := machine.due_ns()) is not None and due <= now_ns:
            machine.tick(now_ns)
        if (beat := self._composer.heartbeat(machine.state, now_ns)) and not self.changes.is_full:
            self.changes.after_written(self._position, beat)
        self._end_turn(self._serve(now_ns) if self._has_demand(now_ns) else {})
        if self._buffer.must_look(machine):
            self._begin(self._buffer.drop_purged(self._cursor, machine))
        seconds = self.spec.inactive_seconds
        if seconds and now_ns - self.active_ns() >= seconds * 1e9:
            self._active_ns = now_ns  # if the deletion fails, it is tried again
            self._shared.on_inactive(self)

    def active_ns(self) -> int:
        """Return the time at which clients last used the consumer, or could not reach it."""
        leaf, to = self._shared.leaf, self.spec.deliver_subject.encode()
        is_in_use = self.pulls.queue or self.machine.state.pulls or self.local.is_waiting
        is_out = not (leaf.connected or self.local.is_used)
        if is_in_use or is_out or (to and leaf.has_interest(to)):
            self._active_ns = self._shared.clock.now_ns()
        self._active_ns = max(self._active_ns, self._shared.interest.connection_ns)
        return self._active_ns

    def due_ns(self) -> int | None:
        if self.is_closed or self.is_held:
            return None
        dues = (self.machine.due_ns(), self.pulls.due_ns(), self._buffer.due_ns)
        times = [due for due in dues if due is not None]
        if self._retry_ns:
            times.append(self._retry_ns)
        if self.spec.inactive_seconds:
            times.append(self._active_ns + round(self.spec.inactive_seconds * 1e9))
        if self.spec.heartbeat_seconds:
            times.append(self._composer.pushed_ns + round(self.spec.heartbeat_seconds * 1e9))
        return min(times, default=None)

    def fail(self, error: Exception) -> None:
        logger.exception("consumer-failed name=%s error=%r", self.spec.name, error, exc_info=error)
        self._shared.on_failure(self)

    def _take_pulls(self, now_ns: int) -> None:
        queue = self.pulls.queue
        while queue:
            if queue[0].no_wait and not self._cursor.is_counted:
                if now_ns >= self._retry_ns:
                    self.count_again()
                return
            self.machine.pull(queue.popleft(), self._cursor.left, now_ns)

    def _has_demand(self, now_ns: int) -> bool:
        leaf = self._shared.leaf
        if now_ns < self._retry_ns:
            return False
        self._retry_ns = 0
        if not (leaf.connected or self.local.is_waiting):
            return False
        if self._shared.journal.problem is not None:  # no delivery could be sent
            self._retry_ns = now_ns + _FAILED_NS
            return False
        if self.changes.is_full:
            self._retry_ns = now_ns + _FULL_NS
            return False
        if self._shared.services.gate.policy is not self.policy:
            self._shared.on_policy(self)
            return False
        if self.spec.deliver_subject:
            self._open_window(now_ns)
            return True
        if not self.machine.waiting:
            self._cursor.is_fresh = False
            return False
        return self.pulls.drop_dead(self.machine, leaf.has_interest, is_connected=leaf.connected)

    def _open_window(self, now_ns: int) -> None:
        subject = self.spec.deliver_subject.encode()
        is_open = self._composer.flow.is_open and self._shared.interest.has_now(subject, self)
        room, rate = _PUSH_BYTES, self._composer.rate
        if rate is not None and is_open:
            room = min(rate.room(now_ns), room)
            if room <= 0:
                self._retry_ns = rate.due_ns()
        self.machine.open_push(subject, _MOST if is_open else 0, room)

    # --- reading ---

    def _serve(self, now_ns: int) -> dict[int, Row]:
        """Give waiting clients the records that are in memory, and begin to read the records that
        they still need. Returns the delivered records."""
        floor, group = self.machine.state.floor_offset, self._shared.services.live_group(self.host)
        if not self._cursor.knows_purges(floor, group):
            self._begin(self._cursor.read_purges(floor))
            return {}
        self._buffer.leave_out_purged(self._cursor)
        room = self._shared.room
        wants = self.machine.wants(now_ns, max(_MOST, self.local.most), room)
        self._cursor.is_fresh &= wants.first > 0
        rows: dict[int, Row] = {}
        if len(wants.again):
            rows = self._redeliver(wants, now_ns)
            if not rows:
                return rows
        if wants.first > 0:
            match self.local.deliver(self.machine, wants, now_ns, room):
                case Found.NEEDS_ROWS:
                    rows |= self._deliver(wants, now_ns, room)
                case Found.NEEDS_THREAD:
                    self._begin(self.local.read(wants.start))
                case Found.AT_END:
                    self._wait_for_records(wants.start)
                case Found.DELIVERED:  # `deliver` has moved the cursor
                    self._buffer.clear(self.machine.state.next_offset)
        return rows

    def _redeliver(self, wants: Wants, now_ns: int) -> dict[int, Row]:
        asked, rows = self._buffer.take_again()
        if not asked:
            self._begin(self._buffer.read_again(self._cursor, wants.again.tolist()))
            return {}
        examined = set(asked)
        order = [one for one in wants.again.tolist() if one in examined]
        order, rows = large.again_of(order, rows, self._large(now_ns))
        found = [rows[offset] for offset in sorted(rows)]
        queued = self.machine.state.pending.queued
        offsets = np.array(order, np.int64)
        self.machine.redeliver(offsets, records_of(found), self._cursor.left, now_ns)
        if self.machine.state.pending.queued < queued:
            self._shared.rounds.ready(self)  # there may be more redeliveries
        else:  # no pull takes a message, because of its priority
            self._wait_for_records(self.host.log.high_watermark)
        return rows

    def _large(self, now_ns: int) -> large.Waiting:
        limit = large.limit_of(self.spec, self.machine, self._shared.leaf.max_payload_bytes)
        return large.Waiting(limit, self.local, self.machine, self.spec.name, self._buffer, now_ns)

    def _deliver(self, wants: Wants, now_ns: int, room: int) -> dict[int, Row]:
        buffer, cursor, state = self._buffer, self._cursor, self.machine.state
        end = self.host.log.high_watermark
        has_conditions = state.settings.priority_policy is PriorityPolicy.OVERFLOW
        if cursor.must_recount or (has_conditions and not cursor.is_counted):
            self.count_again()
            return {}
        if not buffer.start <= wants.start <= cursor.next_offset:
            cursor.move(wants.start)
            buffer.clear(wants.start)
        buffer.drop_before(wants.start)
        needs_rows = not buffer.rows and not self._is_at_end
        # While a thread reads, this method reads nothing, because both reads would return the same
        # records.
        if needs_rows and not (
            self._idle.is_set() and buffer.read_now(cursor, self._shared.services, self.host)
        ):
            self._begin(buffer.read(cursor))
            return {}
        most = large.most_of(buffer, self._large(now_ns))
        if not most:
            return {}
        if is_at_end := self._is_at_end:
            cursor.left, cursor.is_stale = len(buffer.rows), False
        first, sizes = min(wants.first, most), self.machine.needs_sizes
        scan = buffer.scan(first, cursor.next_offset, now_ns, is_at_end=is_at_end, has_sizes=sizes)
        if scan is None:
            return {}
        self.machine.deliver(scan, cursor.left, now_ns, room)
        taken = buffer.drop_before(state.next_offset)
        buffer.delivered(taken, now_ns)
        cursor.left = max(cursor.left - len(taken), 0)
        cursor.is_fresh = wants.first > len(taken) and not buffer.rows
        if buffer.reads_ahead(len(taken)):
            self._begin(buffer.read(cursor))
        if buffer.rows and has_conditions and not taken:
            self._wait_for_records(end)
        elif not buffer.rows and is_at_end:
            self._wait_for_records(cursor.next_offset)
        elif (self.spec.deliver_subject or self.machine.waiting) and (
            not buffer.rows or len(taken) in (_MOST, most) or (taken and self.spec.takes_parts)
        ):
            self._shared.rounds.ready(self)
        return taken

    @property
    def _is_at_end(self) -> bool:
        return self._buffer.is_at_end and self._cursor.next_offset >= self.host.log.high_watermark

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a read. Only one read runs at a time. When it ends, the consumer becomes ready."""
        if self._idle.is_set():
            self._idle.clear()
            self._shared.services.spawn(self._reading(work))
        else:
            work.close()

    async def _reading(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except LiftlogError as error:
            self._retry_ns = self._shared.clock.now_ns() + _FAILED_NS
            logger.warning("consumer-not-read name=%s error=%s", self.spec.name, error)
        finally:
            self._idle.set()
        if not self.is_closed:
            self._shared.rounds.ready(self)

    def _wait_for_records(self, offset: int) -> None:
        """Make the consumer ready when there may be a wanted record at or above `offset`."""
        if self._shared.growth.wait(self, self.host, self.spec.filters, offset):
            self._buffer.waits(self._cursor.next_offset, offset)

    def grown(self, examined: int) -> None:
        """See `Growth`."""
        self._buffer.examined = examined
        self.wake()

    def _skip(self) -> None:
        """Skip the records that were examined during the wait and did not match."""
        examined = self._shared.growth.examined(self, self.host)
        if self._idle.is_set():
            self._cursor.skip(self._buffer.skip(self._cursor.next_offset, examined))

    # --- what leaves ---

    def _end_turn(self, rows: dict[int, Row], *, is_stored: bool = True) -> None:
        turn = self.machine.end_turn()
        if turn.delta and is_stored:
            self.version = self.version._replace(number=self.version.number + 1)
            delta = Change.delta(self.key, self.version, turn.delta)
            self._position = self.changes.write(delta)
        over_nats = self.local.carry_out(turn.instructions, self.machine, self._position)
        if commands := self._composer.compose(over_nats, rows):
            self.changes.after_written(self._position, commands)
        if self._answers:
            self.changes.after_synced(self._position, self._composer.answers(self._answers))
            self._answers.clear()
        self._tally.turn_ended(self.machine.state.pending.total)
        self.pulls.turn_ended(len(self.machine.state.pulls))

    # --- what is shown and stored ---

    def stored_settings(self) -> bytes:
        """Return the settings that the journal stores together with the state."""
        return encode_settings(self.spec, self.local.origin, self._cursor.chosen_end)

    def snapshot(self) -> Change:
        """Return the whole consumer. First writes the delta of the changes since the last turn.
        Otherwise these changes would be applied twice."""
        self._end_turn({})
        return Change.snapshot(
            self.key, self.version, self.stored_settings(), encode_snapshot(self.machine.state)
        )

    def gauges(self) -> Gauges:
        is_paused = self.spec.settings.is_paused(self._shared.clock.now_ns())
        return Gauges(self._cursor.left, self._composer.exhausted_total, is_paused)

    def count_again(self) -> None:
        """Begin to count the waiting messages, unless the number is exact."""
        if not self._cursor.is_counted:
            self._begin(self._buffer.count(self._cursor, self.machine))

    async def info(self) -> dict[str, Any]:
        """Return JetStream's description of the consumer."""
        self._buffer.drop_removed(self._cursor, self.machine)
        await self._idle.wait()
        for _ in range(3):  # another read may begin before the count does
            self.count_again()
            await self._idle.wait()
        figures = self.machine.figures(now := self._shared.clock.now_ns())
        self._shared.rounds.ready(self)
        stream, created_ns = self.host.name, self.local.origin.created_ns
        pin, last = self.machine.pin, (self.machine.state.delivered_ns, self._acked_ns)
        found = describe(self.spec, stream, created_ns, figures, self._cursor.left, pin, now, last)
        if self.spec.deliver_subject:
            found["push_bound"] = all(map(self._shared.leaf.has_interest, self.subjects()))
        if (cluster := self.changes.cluster()) is not None:
            found["cluster"] = cluster
        return found
