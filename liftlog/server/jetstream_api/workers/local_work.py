"""The workers on the pull socket that wait for messages of one consumer.

Only the worker that has waited longest has a pull in the state machine. So each worker gets
consecutive messages, and their record batches are sent unchanged. The answer to a worker contains
the messages of one turn, the first turn that delivers messages to it. After that turn, the next
worker gets a pull. The turn chooses the messages of an answer; the answer is composed later. It is
sent when the journal has the delta of the turn.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from liftlog.deliveries.consumer import Consumer, Wants
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.instructions import Deliver, Ending, Instruction, Status
from liftlog.deliveries.records import Scan
from liftlog.errors import (
    ConsumerNotFound,
    InvalidArgument,
    LiftlogError,
    LimitExceeded,
    NotReady,
    ShuttingDown,
)
from liftlog.log.erased import ErasedSet
from liftlog.server.commits.host import StreamHost
from liftlog.server.consumers.door import Asked, Body, Delivery, Told
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.workers import pieces
from liftlog.server.jetstream_api.workers.changes import StreamChanges
from liftlog.server.jetstream_api.workers.stored import Origin
from liftlog.server.pull.services import PullServices
from liftlog.server.vitals.rare_warnings import RareWarnings

logger = logging.getLogger("liftlog.server.jetstream_api")

MAX_WAITING = 512
"""Maximum number of workers of one consumer that wait."""
_MAX_SENDING_BYTES = 16 * 2**20
"""Limit on the number of bytes that are being read for answers, or that wait for the journal. Above
this limit, a consumer delivers nothing to the socket."""
_MAX_RESTING = 1024
_TOO_LARGE = (
    "the next record is larger than max_payload of NATS, and waits for a worker on the pull socket"
)
_MARK = b" "
"""First byte of the reply subject of these workers' pulls. No subject of NATS contains it."""
_LIFE = secrets.token_hex(4).encode()
_numbers = itertools.count()


def is_local(reply: bytes) -> bool:
    """Return True if the pull belongs to a worker on the pull socket. This is also true if an
    earlier process received the pull."""
    return reply.startswith(_MARK)


class Found(Enum):
    """The outcome of a turn for the workers on the pull socket."""

    DELIVERED = "messages were delivered, or may be in the next turn"
    NEEDS_ROWS = "the records must be read one by one"
    NEEDS_THREAD = "the batches must be read from the disk"
    AT_END = "there are no more records"


class Piece(NamedTuple):
    """A piece of the log, its source, and the epoch and erased records of the log at the time of
    the read."""

    start: int
    content: pieces.Piece
    epoch: int
    erased: ErasedSet | None


class LocalWork:
    """The waiting workers of one consumer. It belongs to the event loop."""

    def __init__(
        self,
        name: str,
        host: StreamHost,
        origin: Origin,
        services: PullServices,
        changes: StreamChanges,
        now_ns: Callable[[], int],
    ) -> None:
        self._host = host
        self.is_used = origin.is_local
        """True if the consumer was created on the pull socket, or if workers on the pull socket
        have used it while this node has served it."""
        self.adopt(origin)
        self.wake: Callable[[], None] = lambda: None
        """Function that gives the consumer a turn. The consumer sets `wake` and `cursor`."""
        self.cursor: Cursor
        self.seen_ns = now_ns()
        """Time, by the clock `now_ns`, of the last request from a worker on the pull socket. Before
        the first request, it is the time at which this node began to serve the consumer."""
        self._now_ns = now_ns
        self._name = name
        self._services = services
        self._changes = changes
        self._waiting: deque[Asked] = deque()
        self._resting: deque[str] = deque(maxlen=_MAX_RESTING)
        self._reply = b""
        """Reply subject of the pull in the state machine; empty if the state machine has no
        pull."""
        self._told: list[Told] = []
        self._warnings = RareWarnings(logger)
        self._piece: Piece | None = None
        self._damaged_at = -1
        self._sending_bytes = 0
        self._end: LiftlogError | None = None
        """The reason why the consumer has ended; None before the end."""

    def adopt(self, origin: Origin) -> None:
        """Adopt the origin of the consumer, which a reset can change."""
        self.origin = origin
        self.identity = f"{self._host.log.incarnation}.{origin.created_ns}"
        """Text that identifies the consumer among all past and future consumers of its name."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def most(self) -> int:
        """The number of messages that the worker with the pull requests; 0 if no worker has a
        pull."""
        return self._waiting[0].most if self._reply else 0

    @property
    def behind(self) -> int:
        """Number of waiting workers without a pull in the state machine."""
        return len(self._waiting) - bool(self._reply)

    @property
    def is_full(self) -> bool:
        return self._sending_bytes > _MAX_SENDING_BYTES

    # --- what arrives ---

    def add(self, asked: Asked) -> None:
        """Let a worker wait for messages. Raises LimitExceeded, and the reason why the consumer has
        ended."""
        self._check_open()
        self.is_used, self.seen_ns = True, self._now_ns()
        if len(self._waiting) >= MAX_WAITING:
            raise LimitExceeded(
                f"{MAX_WAITING} workers of the consumer {self._name!r} wait already",
                hint="use fewer workers, with larger batches",
            )
        if asked.worker and asked.worker in self._resting:
            asked.answer(Delivery(self.identity, (), 0, ()))
            return
        self._waiting.append(asked)
        self.wake()

    def cancel(self, asked: Asked, machine: Consumer) -> bool:
        """End the wait of a worker. Returns False if the worker does not wait."""
        if asked not in self._waiting:
            return False
        if asked is self._waiting[0] and self._reply:
            machine.drop_pulls([self._reply])
            self._reply = b""
            self.wake()
        self._waiting.remove(asked)
        return True

    def rest(self, worker: str, machine: Consumer) -> None:
        """Send answers without messages to the waiting requests of a worker. Later requests of the
        worker get the same answer, because a request can arrive after this call over another
        connection."""
        self._resting.append(worker)
        for asked in [one for one in self._waiting if one.worker == worker]:
            self.cancel(asked, machine)
            asked.answer(Delivery(self.identity, (), 0, ()))

    def release(self, machine: Consumer) -> None:
        """Send answers without messages to all waiting requests. Called because the consumer may
        now deliver other subjects, or because the ACL has changed. The rights of the workers are
        checked when they send the next request."""
        for asked in [*self._waiting]:
            self.cancel(asked, machine)
            asked.answer(Delivery(self.identity, (), 0, ()))

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end

    def confirm(self, told: Told) -> None:
        """Call `told` when the changes of the present turn are synced. Raises the error that states
        why the consumer has ended."""
        self._check_open()
        self.seen_ns = self._now_ns()
        self._told.append(told)
        self.wake()

    def close(self, why: Ending) -> None:
        """Refuse all waiting requests, because the consumer ends."""
        error = self._end = error_of_ending(why, self._name)
        waiting, self._waiting = self._waiting, deque()
        told, self._told = self._told, []
        self._piece = None
        for asked in waiting:
            asked.refuse(error)
        for one in told:
            one(error)

    # --- a turn ---

    def pull(self, machine: Consumer, now_ns: int) -> None:
        """Give the worker that waits longest a pull in the state machine."""
        if self._waiting and not self._reply and not self.is_full:
            self._reply = _MARK + b"%b.%d" % (_LIFE, next(_numbers))
            request = PullRequest(self._reply, self._waiting[0].most)
            machine.pull(request, self.cursor.left, now_ns)

    def takes_next(self, machine: Consumer) -> bool:
        """Let the worker that has a pull get the next message, which is too large for NATS. Returns
        False if no worker has a pull."""
        if self._reply not in machine.waiting:
            self._warnings.warn(
                "jetstream-consumer-waits name=%s reason=%s", self._name, _TOO_LARGE
            )
            return False
        machine.prefer(self._reply)
        return True

    def deliver(self, machine: Consumer, wants: Wants, now_ns: int, room: int) -> Found:
        """Deliver record batches as they are stored, if only workers on the pull socket wait."""
        cursor = self.cursor
        if machine.waiting != [self._reply] or not cursor.takes_all:
            return Found.NEEDS_ROWS
        start, log = wants.start, self._host.log
        piece = self._piece
        if (
            piece is None
            or piece.epoch != log.leader_epoch
            or piece.erased is not log.view.erased
            or not piece.start <= start < piece.content.next_offset
        ):
            if start >= log.high_watermark:
                self._piece = None
                return Found.AT_END
            if start == self._damaged_at:
                return Found.NEEDS_ROWS  # the thread skips the damage, and reports it
            erased = log.view.erased
            content = pieces.read_now(log, start, self._waiting[0].max_bytes)
            if content is None or content.is_coarse(self.most):
                return Found.NEEDS_THREAD
            piece = self._piece = Piece(start, content, log.leader_epoch, erased)
        content = piece.content
        cursor.passed(content.offsets[content.offsets.searchsorted(start) :], content.next_offset)
        records = content.records(start, wants.first)
        count = len(records.offsets)
        end = content.next_offset
        if count and int(records.offsets[-1]) < int(content.offsets[-1]):
            end = int(records.offsets[-1]) + 1
        before = machine.state.sequence
        machine.deliver(Scan(start, end, records, False), cursor.left, now_ns, room)
        cursor.move(machine.state.next_offset)
        cursor.left = max(cursor.left - count, 0)
        if machine.state.sequence > before:
            # The request ends when it has received its first messages.
            machine.drop_pulls([self._reply])
        else:
            self.wake()
        return Found.DELIVERED

    async def read(self, start: int) -> None:
        """Read batches from the disk, for the worker that waits longest."""
        if not self._waiting:
            return  # the worker has gone
        threads = self._services.scanners.of("(workers)", self.identity)
        asked = self._waiting[0]
        log, epoch = self._host.log, self._host.log.leader_epoch
        erased = log.view.erased
        content = await asyncio.wrap_future(
            threads.submit(pieces.read, log, start, asked.max_bytes, asked.most)
        )
        if content is None:
            self._damaged_at = start
        else:
            self._piece = Piece(start, content, epoch, erased)

    def carry_out(
        self, instructions: Sequence[Instruction], machine: Consumer, position: int
    ) -> list[Instruction]:
        """Carry out the instructions for workers on the pull socket, and confirm their acks.
        Returns the other instructions. `position` is the position of the turn's delta in the
        journal."""
        if self._told:
            told, self._told = self._told, []
            asyncio.ensure_future(self._changes.synced(position)).add_done_callback(
                lambda synced: [one(_error_of(synced)) for one in told]
            )
        if not self._reply and not any(is_local(_reply_of(one)) for one in instructions):
            return list(instructions)
        others, parts, status = [], [], None
        for one in instructions:
            reply = _reply_of(one)
            if not is_local(reply):
                others.append(one)
            elif reply == self._reply and isinstance(one, Deliver):
                parts.append(one)
            elif reply == self._reply and isinstance(one, Status):
                status = one
        if parts or status is not None:
            asked, self.seen_ns = self._waiting.popleft(), self._now_ns()
            if self._reply in machine.waiting:
                machine.drop_pulls([self._reply])
            self._reply = b""
            if self._waiting:
                self.wake()
            if parts:
                self._send(asked, parts, position)
            elif status is not None:
                asked.refuse(_refusal(status, self._name))
        return others

    # --- answers ---

    def _send(self, asked: Asked, parts: Sequence[Deliver], position: int) -> None:
        offsets = np.concatenate([one.offsets for one in parts])
        counts = np.concatenate([one.counts for one in parts])
        runs, pending = runs_of(offsets, counts), int(parts[-1].pendings[-1])
        bodies = self._stored_bodies(runs)
        delivery = Delivery(self.identity, runs, pending, bodies or ())
        if bodies is None:
            self._count_sending(asked.max_bytes)  # these bytes count until their real size is known
            self._services.spawn(self._gather_and_send(asked, delivery, position))
            return
        self._send_written(asked, delivery, position)

    def _stored_bodies(self, runs: Sequence[tuple[int, int, int]]) -> tuple[Body, ...] | None:
        piece = self._piece
        if piece is None or any(one[2] != 1 for one in runs):
            return None
        first, last = runs[0][0], runs[-1][0] + runs[-1][1] - 1
        if first < piece.start or last >= piece.content.next_offset:
            return None
        return piece.content.bodies(first, last, sum([one[1] for one in runs]))

    async def _gather_and_send(self, asked: Asked, delivery: Delivery, position: int) -> None:
        runs = delivery.runs
        threads = self._services.scanners.of("(workers)", self.identity)
        wanted = [at for first, count, _ in runs for at in range(first, first + count)]
        try:
            steps, gathered = pieces.gather(self._host.log, wanted), None
            while gathered is None:  # between two steps, other work can use the thread
                gathered = await asyncio.wrap_future(threads.submit(_next_step, steps))
            bodies, found = gathered
        except LiftlogError as error:
            asked.refuse(error)  # the messages are delivered again when their ack wait is over
            return
        finally:
            self._count_sending(-asked.max_bytes)
        if len(found) < len(wanted):
            logger.warning("consumer-not-read name=%s missing=%d", self._name,
                           len(wanted) - len(found))  # fmt: skip
            kept = [(at, n) for first, count, n in runs for at in range(first, first + count)
                    if at in found]  # fmt: skip
            runs = runs_of(*np.array(kept, np.int64).reshape(-1, 2).T)
        self._send_written(asked, delivery._replace(runs=runs, bodies=bodies), position)

    def _send_written(self, asked: Asked, delivery: Delivery, position: int) -> None:
        size = sum([len(one) for one in delivery.bodies])
        self._count_sending(size)

        def written(done: asyncio.Future[None]) -> None:
            self._count_sending(-size)
            error = _error_of(done)
            if error is None:
                asked.answer(delivery)
            else:
                # The worker sends another request. The messages are delivered again when their ack
                # wait is over.
                asked.refuse(error)

        future = self._changes.written(position)
        if future.done():
            written(future)
        else:
            future.add_done_callback(written)

    def _count_sending(self, size_bytes: int) -> None:
        was_full = self.is_full
        self._sending_bytes += size_bytes
        if was_full and not self.is_full:
            self.wake()


def _next_step(steps: Generator[None, None, pieces.Gathered]) -> pieces.Gathered | None:
    """Return the result after the last step. Return None after each earlier step."""
    try:
        next(steps)
    except StopIteration as end:
        gathered: pieces.Gathered = end.value
        return gathered
    return None


def runs_of(offsets: np.ndarray, counts: np.ndarray) -> list[tuple[int, int, int]]:
    """Return the runs of offsets. In a run, the offsets are consecutive and have equal counts. The
    order is kept."""
    if not len(offsets):
        return []
    is_break = (offsets[1:] - offsets[:-1] != 1) | (counts[1:] != counts[:-1])
    if not is_break.any():
        return [(int(offsets[0]), len(offsets), int(counts[0]))]
    begins = np.concatenate(([0], np.flatnonzero(is_break) + 1))
    lengths = np.diff(begins, append=len(offsets))
    columns = offsets[begins].tolist(), lengths.tolist(), counts[begins].tolist()
    return list(zip(*columns, strict=True))


def error_of_ending(why: Ending, name: str) -> LiftlogError:
    """Return the error for workers that wait when their consumer ends."""
    if why is Ending.CONSUMER_DELETED:
        return ConsumerNotFound(f"the consumer {name!r} was deleted")
    if why is Ending.SERVER_SHUTDOWN:
        return ShuttingDown("the daemon is shutting down")
    return NotReady(f"the consumer {name!r} has a new leader", hint="ask again")


def _refusal(status: Status, name: str) -> LiftlogError:
    words = status.words.decode("utf-8", "replace")
    if words.startswith("409 Consumer Deleted"):
        return error_of_ending(Ending.CONSUMER_DELETED, name)
    if words.startswith("409 Server Shutdown"):
        return error_of_ending(Ending.SERVER_SHUTDOWN, name)
    if words.startswith(("409 Exceeded MaxWaiting", "408")):
        return LimitExceeded(f"the consumer {name!r} has too many waiting pulls: {words}")
    if words.startswith("409 Leadership"):
        return error_of_ending(Ending.LEADERSHIP_CHANGE, name)
    return InvalidArgument(
        f"the consumer {name!r} refuses to deliver to workers on the pull socket: {words}",
        hint="`liftlog consumer info` shows its settings",
    )


def _reply_of(instruction: Instruction) -> bytes:
    return instruction.reply if isinstance(instruction, Deliver | Status) else b""


def _error_of(done: asyncio.Future[None]) -> LiftlogError | None:
    error = None if done.cancelled() else done.exception()
    if done.cancelled():
        return ShuttingDown("the daemon is shutting down")
    return error if isinstance(error, LiftlogError) or error is None else NotReady(str(error))
