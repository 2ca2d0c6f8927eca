"""One consumer with acks, on the node that leads its stream: reads what it wants, delivers it, and
has its changes written.

The decisions are those of `liftlog.deliveries`. A turn (`step`) never waits. A long operation, such
as a read in a thread, makes the consumer ready again when it ends. Nothing leaves before the
journal has the changes of the turn (`outbox`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np

from acl.policy import Policy
from liftlog.deliveries.acks import Verdict
from liftlog.deliveries.consumer import Consumer, Wants
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.instructions import Ending, Status
from liftlog.deliveries.records import Scan
from liftlog.deliveries.snapshot import encode_snapshot
from liftlog.deliveries.statuses import heartbeat
from liftlog.errors import LiftlogError
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import time_text
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.cursor import Cursor, Row
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.consumers.pull_body import (
    BadPull,
    Pull,
    check_without_priorities,
)
from liftlog.server.jetstream_api.workers.acks import WorkerAcks
from liftlog.server.jetstream_api.workers.advisories import Advisories
from liftlog.server.jetstream_api.workers.buffer import Buffer, records_of, within_payload
from liftlog.server.jetstream_api.workers.composing import Composer
from liftlog.server.jetstream_api.workers.outbox import Outbox
from liftlog.server.jetstream_api.workers.rounds import Clock, Rounds
from liftlog.server.jetstream_api.workers.stored import encode_settings
from liftlog.server.journal import Change, ConsumerKey, Journal, StateVersion
from liftlog.server.pull.services import PullServices

logger = logging.getLogger("liftlog.server.jetstream_api")

_MOST = 500
"""Maximum number of messages in one turn."""
_PUSH_BYTES = 1024 * 1024
_FULL_NS = 5_000_000
_FAILED_NS = 1_000_000_000
"""Time until a failed read is tried again."""
_GRACE_NS = 2_000_000_000
"""Time for which a pull waits for the report that its inbox has a subscriber. The pull can arrive
before the report, which takes another path through NATS."""
MAX_PENDING_OF_ALL = 4_000_000


@dataclass(slots=True)
class Shared:
    """Shared by all consumers. `pending` counts their pending messages."""

    services: PullServices
    leaf: LeafLink
    journal: Journal
    outbox: Outbox
    rounds: Rounds
    clock: Clock
    advisories: Advisories
    on_inactive: Callable[[AckedConsumer], None]
    on_failure: Callable[[AckedConsumer], None]
    on_policy: Callable[[AckedConsumer], None]
    """Called at each turn of a consumer whose cursor was opened under an earlier ACL policy."""
    pending: int = 0


class AckedConsumer:
    """Belongs to the event loop."""

    def __init__(
        self,
        spec: ConsumerSpec,
        host: StreamHost,
        machine: Consumer,
        version: StateVersion,
        cursor: Cursor,
        composer: Composer,
        shared: Shared,
        *,
        policy: Policy | None,
        created_ns: int,
        party: bytes,
    ) -> None:
        """`version` is the version of the state in the journal. `cursor` reads with the rights that
        `policy` gives. `party` is the client that created the consumer."""
        self.spec = spec
        self.host = host
        self.machine = machine
        self.version = version
        self.created_ns = created_ns
        self.party = party
        self.key = ConsumerKey(host.log.incarnation, spec.name)
        self.is_ready = False
        self.timer_ns: int | None = None
        self.is_closed = False
        self.policy = policy
        self._cursor = cursor
        self._composer = composer
        self._shared = shared
        self._position = 0
        """Position of its last change in the journal."""
        self._pulls: deque[PullRequest] = deque()
        self._arrived: dict[bytes, int] = {}
        """Pulls whose inbox had no subscriber when they came, a short time ago, and when."""
        self._answers: list[bytes] = []
        self._buffer = Buffer(cursor.next_offset)
        self._idle = asyncio.Event()
        """Not set while a read is under way."""
        self._idle.set()
        self._group = shared.services.live_group(host)
        self._active_ns = shared.clock.now_ns()
        self._retry_ns = 0
        """Nothing is delivered before this time, because a read failed or too much waits."""
        self._pending = 0

    # --- what arrives ---

    def pull(self, reply: bytes, pull: Pull | BadPull) -> None:
        """A client asks for messages."""
        self._active_ns = self._shared.clock.now_ns()
        try:
            if isinstance(pull, BadPull):
                raise pull
            check_without_priorities(pull)
        except BadPull as refused:
            self._refuse(reply, refused.words)
            return
        if not self._composer.may_pull(reply):
            self._refuse(reply, b"403 Permissions Violation")
            return
        request = PullRequest(
            reply, pull.batch, pull.max_bytes, pull.no_wait, pull.expires_ns, pull.heartbeat_ns
        )
        self._pulls.append(request)
        if not self._shared.leaf.has_interest(reply):
            self._arrived[reply] = self._active_ns
        self._shared.rounds.ready(self)

    def _refuse(self, reply: bytes, words: bytes) -> None:
        self._shared.outbox.after_written(0, self._composer.status(Status(reply, words)))

    def acknowledge(self, arrived: WorkerAcks) -> None:
        """Apply acks at once; those that want an answer get it when the changes are synced."""
        now = self._active_ns = self._shared.clock.now_ns()
        verdicts = self.machine.acknowledge(arrived.acks, now)
        if arrived.replies:
            self._answers += [
                reply
                for reply, verdict in zip(arrived.replies, verdicts.tolist(), strict=True)
                if reply and verdict != Verdict.IGNORED
            ]
        self._shared.rounds.ready(self)

    def flow_answered(self, subject: bytes) -> None:
        if self._composer.flow.answered(subject):
            self._shared.rounds.ready(self)

    def update(self, spec: ConsumerSpec) -> None:
        """Adopt a new configuration. New filters need a new cursor, too (`replace`)."""
        self.spec = self._composer.spec = spec
        self.machine.update(spec.settings, self._shared.clock.now_ns())
        self._shared.rounds.ready(self)

    def replace(self, cursor: Cursor, policy: Policy | None) -> None:
        """Replace the cursor, for new filters or rights. `cursor` is at `next_offset`."""
        self._cursor.close()
        self._cursor, self.policy = cursor, policy
        self._buffer = Buffer(cursor.next_offset)
        self._shared.rounds.ready(self)

    def wake(self) -> None:
        """Make the consumer ready, because interest, the stream or the ACL has changed."""
        self._shared.rounds.ready(self)

    def take_over(self) -> None:
        self.machine.take_over(self._shared.clock.now_ns())
        self._shared.rounds.ready(self)

    def end(self, why: Ending) -> None:
        """End all pulls, and stop the consumer."""
        if not self.is_closed:
            self.machine.end_pulls(why)
            self._end_turn({})
            self.abandon()

    def abandon(self) -> None:
        """Do nothing more. Changes since the last turn are lost, as if the daemon had ended."""
        if self.is_closed:
            return
        self.is_closed = True
        self._cursor.close()
        self._composer.flow.close()
        self._shared.pending -= self._pending

    # --- its turn ---

    def step(self, now_ns: int) -> None:
        if self.is_closed:
            return
        machine = self.machine
        if self._arrived:
            young = now_ns - _GRACE_NS
            self._arrived = {one: at for one, at in self._arrived.items() if at > young}
        self._take_pulls(now_ns)
        machine.log_started(self.host.log.log_start_offset)
        due = machine.due_ns()
        if due is not None and due <= now_ns:
            machine.tick(now_ns)
        rows: dict[int, Row] = {}
        if self._has_demand(now_ns):
            rows = self._serve(now_ns)
        self._end_turn(rows)
        if self._is_inactive(now_ns):
            self._shared.on_inactive(self)

    def due_ns(self) -> int | None:
        if self.is_closed:
            return None
        times = [] if (due := self.machine.due_ns()) is None else [due]
        if self._arrived:
            times.append(min(self._arrived.values()) + _GRACE_NS)
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

    def _is_inactive(self, now_ns: int) -> bool:
        if not self.spec.inactive_seconds:
            return False
        subject = self.spec.deliver_subject.encode()
        if self.machine.state.pulls or (subject and self._shared.leaf.has_interest(subject)):
            self._active_ns = now_ns
        return now_ns - self._active_ns >= self.spec.inactive_seconds * 1e9

    def _take_pulls(self, now_ns: int) -> None:
        while self._pulls:
            request = self._pulls[0]
            if request.no_wait and not self._cursor.is_counted:
                self._begin(self._cursor.count())
                return
            self._pulls.popleft()
            self.machine.pull(request, self._cursor.left, now_ns)

    def _has_demand(self, now_ns: int) -> bool:
        leaf = self._shared.leaf
        if not leaf.connected or now_ns < self._retry_ns:
            return False
        self._retry_ns = 0
        if self._shared.outbox.is_full:
            self._retry_ns = now_ns + _FULL_NS
            return False
        if self._shared.services.gate.policy is not self.policy:
            self._shared.on_policy(self)
            return False
        if self.spec.deliver_subject:
            self._open_window(now_ns)
            return True
        return self._drop_dead_pulls()

    def _drop_dead_pulls(self) -> bool:
        """Drop the pulls whose client is gone. Returns False while this is unknown for a pull,
        because NATS has not yet reported a subscriber of its inbox."""
        has_interest = self._shared.leaf.has_interest
        missing = [one for one in self.machine.waiting if not has_interest(one)]
        dead = [one for one in missing if one not in self._arrived]
        if dead:
            self.machine.drop_pulls(dead)
        return len(dead) == len(missing)

    def _open_window(self, now_ns: int) -> None:
        subject = self.spec.deliver_subject.encode()
        is_open = self._composer.flow.is_open and self._shared.leaf.has_interest(subject)
        self.machine.open_push(subject, _MOST if is_open else 0, _PUSH_BYTES)
        seconds = self.spec.heartbeat_seconds
        if is_open and seconds and now_ns - self._composer.pushed_ns >= seconds * 1e9:
            self._composer.pushed_ns = now_ns
            state = self.machine.state
            status = heartbeat(subject, state.sequence, state.next_offset - 1)
            self._shared.outbox.after_written(self._position, self._composer.status(status))

    # --- reading ---

    def _serve(self, now_ns: int) -> dict[int, Row]:
        """Deliver the records that were read to waiting clients, and read those that they still
        need. Returns the rows for the deliveries."""
        room = MAX_PENDING_OF_ALL - self._shared.pending
        wants = self.machine.wants(now_ns, _MOST, room)
        rows: dict[int, Row] = {}
        if len(wants.again):
            rows = self._redeliver(wants, now_ns)
            if not rows:
                return rows
        if wants.first > 0:
            rows |= self._deliver(wants, now_ns, room)
        return rows

    def _redeliver(self, wants: Wants, now_ns: int) -> dict[int, Row]:
        asked, rows = self._buffer.take_again()
        if not asked:
            self._begin(self._read_again(sorted(wants.again.tolist())))
            return {}
        offsets = np.array(sorted(rows), np.int64)
        found = [rows[offset] for offset in offsets.tolist()]
        order = [one for one in wants.again.tolist() if one in set(asked)]
        self.machine.redeliver(
            np.array(order, np.int64), records_of(found), self._cursor.left, now_ns
        )
        self._shared.rounds.ready(self)  # there may be more
        return rows

    async def _read_again(self, offsets: list[int]) -> None:
        rows = await self._cursor.rows_at(offsets)
        fitting = self._within_payload(rows)
        self._buffer.again = (offsets, {row.offset: row for row in fitting})

    def _deliver(self, wants: Wants, now_ns: int, room: int) -> dict[int, Row]:
        buffer, cursor, state = self._buffer, self._cursor, self.machine.state
        if not buffer.start <= wants.start <= cursor.next_offset:
            cursor.move(wants.start)
            buffer.clear(wants.start)
        buffer.drop_before(wants.start)
        if not buffer.rows and not self._is_at_end and not self._read_now():
            self._begin(self._read())
            return {}
        rows, is_at_end = buffer.rows, self._is_at_end
        if is_at_end:
            cursor.left = len(rows)
        scan = Scan(buffer.start, cursor.next_offset, records_of(rows), is_at_end)
        self.machine.deliver(scan, cursor.left, now_ns, room)
        taken = buffer.drop_before(state.next_offset)
        cursor.left = max(cursor.left - len(taken), 0)
        if buffer.rows:
            return taken
        if is_at_end:
            self._wait_forrecords_of()
        else:
            self._shared.rounds.ready(self)
        return taken

    @property
    def _is_at_end(self) -> bool:
        log, cursor = self.host.log, self._cursor
        return self._buffer.is_at_end and cursor.next_offset >= log.high_watermark

    def _read_now(self) -> bool:
        """Read records that were just written, in the event loop. Returns False if the read needs a
        thread."""
        with self._shared.services.read_share:
            found = self._cursor.read_now(self._group)
        if found is None:
            return False
        self._add(*found)
        return True

    async def _read(self) -> None:
        self._add(*await self._cursor.read())

    def _add(self, rows: list[Row], is_at_end: bool) -> None:
        self._buffer.add(self._within_payload(rows), is_at_end)

    def _within_payload(self, rows: list[Row]) -> list[Row]:
        limit = 0 if self.spec.headers_only else self._shared.leaf.max_payload_bytes
        return within_payload(rows, limit, self.spec.name)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a read, one at a time; the consumer becomes ready when it has ended."""
        if not self._idle.is_set():
            work.close()
            return
        self._idle.clear()
        self._shared.services.spawn(self._reading(work))

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

    def _wait_forrecords_of(self) -> None:
        if not self._buffer.waits:
            self._buffer.waits = True
            self._group.wait(self.host, self._cursor.next_offset, self._grown)

    def _grown(self) -> None:
        self._buffer.waits = False
        if not self.is_closed:
            self._shared.rounds.ready(self)

    # --- what leaves ---

    def _end_turn(self, rows: dict[int, Row]) -> None:
        turn = self.machine.end_turn()
        shared = self._shared
        if turn.delta:
            self.version = self.version._replace(number=self.version.number + 1)
            delta = Change.delta(self.key, self.version, turn.delta)
            self._position = shared.journal.write([delta])
        commands = b"".join(
            [part for one in turn.instructions for part in self._composer.compose(one, rows)]
        )
        if commands:
            shared.outbox.after_written(self._position, commands)
        if self._answers:
            shared.outbox.after_synced(self._position, self._composer.answers(self._answers))
            self._answers.clear()
        pending = self.machine.state.pending.total
        shared.pending += pending - self._pending
        self._pending = pending

    # --- what is shown and stored ---

    def stored_settings(self) -> bytes:
        """Return the settings that the journal stores together with the state."""
        return encode_settings(self.spec, self.created_ns, self._cursor.chosen_end)

    def snapshot(self) -> Change:
        """Return the whole consumer. Acks and pulls may have changed it since its last turn: their
        delta goes to the journal first, or it would be applied to this state again."""
        self._end_turn({})
        return Change.snapshot(
            self.key, self.version, self.stored_settings(), encode_snapshot(self.machine.state)
        )

    async def info(self) -> dict[str, Any]:
        """Return JetStream's description of the consumer."""
        await self._idle.wait()
        if not self._cursor.is_counted:
            self._begin(self._cursor.count())
            await self._idle.wait()
        now = self._shared.clock.now_ns()
        figures = self.machine.figures(now)
        self._shared.rounds.ready(self)
        answer: dict[str, Any] = {
            "stream_name": self.host.name,
            "name": self.spec.name,
            "created": time_text(self.created_ns),
            "config": self.spec.config,
            "delivered": {
                "consumer_seq": figures.delivered_sequence,
                "stream_seq": max(figures.delivered_offset, 0),
            },
            "ack_floor": {
                "consumer_seq": figures.floor_sequence,
                "stream_seq": max(figures.floor_offset, 0),
            },
            "num_ack_pending": figures.num_ack_pending,
            "num_redelivered": figures.num_redelivered,
            "num_waiting": figures.num_waiting,
            "num_pending": self._cursor.left,
            "ts": time_text(now),
        }
        if self.spec.deliver_subject:
            subject = self.spec.deliver_subject.encode()
            answer["push_bound"] = self._shared.leaf.has_interest(subject)
        if figures.is_paused:
            answer["paused"] = True
            answer["pause_remaining"] = self.spec.settings.pause_until_ns - now
        return answer
