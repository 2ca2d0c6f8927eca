"""The requests of a worker on one connection. The worker pulls messages from consumers with acks,
and acks them.

Acks take turns at the event loop (`liftlog.server.reading.turns`), because one request can name
100,000 messages. Such a request takes effect in parts, over several turns of the loop. Each message
is acked or not, independently of the other messages. The acks of one connection take effect in the
order of their arrival.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from time import thread_time

from liftlog.deliveries.acks import AckKind
from liftlog.deliveries.settings import MAX_WAIT_NS
from liftlog.errors import BadRequest, Cancelled, LiftlogError
from liftlog.protocol.limits import MIB
from liftlog.protocol.workers import (
    ACK,
    NAK,
    PROGRESS,
    TERM,
    AckWork,
    Delivered,
    PullWork,
    Rest,
    Run,
    decode_runs,
    encode_runs,
)
from liftlog.server.consumers.door import AcksOf, Asked, Delivery, Door, Told
from liftlog.server.pull.answers import Answers
from liftlog.server.pull.services import PullServices
from liftlog.server.reading.turns import Asker
from liftlog.server.requests.rights import Caller, consumers_of

_DEFAULT_BYTES = 1 * MIB
_FEW_RUNS_BYTES = 256 * 24
_MOST_MESSAGES, _MOST_RUNS = 1024, 1000
"""Maximum numbers of messages and runs in one part of an ack. Such a part takes less than 2 ms.
After a longer step, the party of the client would have to pause (`turns`)."""
_PART_SECONDS = 0.001
"""An ack that has used this processor time (in seconds) pauses before its next part."""
_KINDS = {ACK: AckKind.ACK, NAK: AckKind.NAK, PROGRESS: AckKind.PROGRESS, TERM: AckKind.TERM}

OfWorker = PullWork | Rest | AckWork


class _Waiting:
    """A waiting request for messages."""

    __slots__ = ("asked", "message", "timer")

    def __init__(self, message: PullWork, asked: Asked, timer: asyncio.TimerHandle) -> None:
        self.message, self.asked, self.timer = message, asked, timer


class WorkRequests:
    """The requests of one connection. They belong to the event loop."""

    def __init__(self, services: PullServices, caller: Caller, answers: Answers) -> None:
        self._services = services
        self._caller = caller
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Waiting] = {}
        self._acks: deque[tuple[int, AckWork]] = deque()
        """Acks that wait for a turn."""
        self._is_acking = False

    def begin(self, request_id: int, message: OfWorker) -> None:
        try:
            self._authorize(message)
            door = consumers_of(self._caller)
            if isinstance(message, PullWork):
                self._work(request_id, message, door)
            elif isinstance(message, Rest):
                door.rest(message.stream, message.consumer, message.worker)
                self._answers.done(request_id)
            else:
                self._begin_ack(request_id, message)
        except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
            self._answers.refuse(request_id, error)

    def cancel(self, request_id: int) -> bool:
        """Refuse a waiting request and return True. Returns False if no such request waits."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return False
        if self._withdraw(waiting):
            self._end(request_id)
            self._answers.refuse(request_id, Cancelled("the request for messages was cancelled"))
        return True

    def close(self, error: LiftlogError | None = None) -> None:
        """End the wait of all requests, because the connection ends. Acks that have arrived still
        take effect. If `error` is given, answer each request with this error. In this case, acks
        that have not begun have no effect."""
        for request_id, waiting in list(self._waiting.items()):
            if self._withdraw(waiting):
                self._end(request_id)
                if error is not None:
                    self._answers.refuse(request_id, error)
        if error is not None:
            acks, self._acks = self._acks, deque()
            for request_id, _ in acks:
                self._answers.refuse(request_id, error)

    def _authorize(self, message: OfWorker) -> None:
        caller = self._caller
        caller.gate.authorize_work(
            caller.principal, message.stream, message.consumer, peer=caller.peer
        )

    def _withdraw(self, waiting: _Waiting) -> bool:
        """Withdraw the request from its consumer. Returns False if the answer is already being
        sent."""
        door, message = self._caller.broker.consumers, waiting.message
        return door is not None and door.cancel(message.stream, message.consumer, waiting.asked)

    def _end(self, request_id: int) -> bool:
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return False
        waiting.timer.cancel()
        return True

    # --- messages ---

    def _work(self, request_id: int, message: PullWork, door: Door) -> None:
        caller = self._caller
        readable = caller.gate.readable_subjects(caller.principal, message.stream, peer=caller.peer)
        limits = self._services.limits.wire
        seconds = min(message.max_wait_ms, limits.max_wait_ms) / 1000
        asked = Asked(
            message.worker,
            max(message.batch, 1),
            min(message.max_bytes or _DEFAULT_BYTES, limits.max_fetch_bytes),
            partial(self._answer, request_id),
            partial(self._refuse, request_id),
        )
        timer = self._loop.call_later(seconds, self._over, request_id)
        self._waiting[request_id] = _Waiting(message, asked, timer)
        try:
            door.work(message.stream, message.consumer, asked, readable)
        except BaseException:
            self._end(request_id)
            raise

    def _over(self, request_id: int) -> None:
        """End a wait without messages."""
        waiting = self._waiting[request_id]
        if self._withdraw(waiting):
            self._answer(request_id, Delivery("", (), 0, ()))

    def _answer(self, request_id: int, delivery: Delivery) -> None:
        if self._end(request_id):
            size = sum([len(body) for body in delivery.bodies])
            runs = encode_runs(delivery.runs)
            header = Delivered(delivery.identity, runs, max(delivery.pending, 0), size)
            self._answers.delivered(request_id, header, delivery.bodies)

    def _refuse(self, request_id: int, error: Exception) -> None:
        if self._end(request_id):
            self._answers.refuse(request_id, error)
            self._answers.flush()

    # --- acks ---

    def _begin_ack(self, request_id: int, message: AckWork) -> None:
        """If it is this client's turn, apply acks of few messages at once. Apply larger acks
        later."""
        services = self._services
        if not self._is_acking and len(message.runs) <= _FEW_RUNS_BYTES:
            acks = _acks_of(message)
            if sum([run.size for run in acks.runs]) <= _MOST_MESSAGES:
                apply = partial(self._apply, request_id, message, acks, is_last=True)
                if services.turns.at_once(self._party, apply):
                    return
        self._acks.append((request_id, message))
        if not self._is_acking:
            self._is_acking = True
            services.spawn(self._serve_acks())

    @property
    def _party(self) -> Hashable:
        return self._caller.principal or self._answers

    async def _serve_acks(self) -> None:
        asker = Asker(self._party, self._answers)
        try:
            while self._acks:
                request_id, message = self._acks.popleft()
                try:
                    await self._services.turns.run(asker, self._in_parts(request_id, message))
                except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
                    self._answers.refuse(request_id, error)
                    self._answers.settle()
        finally:
            self._is_acking = False

    async def _in_parts(self, request_id: int, message: AckWork) -> None:
        began = thread_time()
        self._authorize(message)  # the rights may have changed in the meantime
        acks = _acks_of(message)
        parts = list(_parts_of(acks.runs))
        for number, runs in enumerate(parts, 1):
            if thread_time() - began > _PART_SECONDS:
                await asyncio.sleep(0)
                began = thread_time()
            part = acks._replace(runs=runs)
            self._apply(request_id, message, part, is_last=number == len(parts))

    def _apply(self, request_id: int, message: AckWork, acks: AcksOf, *, is_last: bool) -> None:
        told: Told | None = partial(self._told, request_id) if is_last else None
        door = consumers_of(self._caller)
        door.acknowledge(message.stream, message.consumer, acks, told)

    def _told(self, request_id: int, error: LiftlogError | None) -> None:
        if error is None:
            self._answers.done(request_id)
        else:
            self._answers.refuse(request_id, error)
            self._answers.flush()


def _acks_of(message: AckWork) -> AcksOf:
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise BadRequest(f"{message.kind[:40]!r} is not a kind of ack")
    delay_ns = min(message.delay_ns, MAX_WAIT_NS)
    return AcksOf(message.identity, kind, decode_runs(message.runs), delay_ns, message.reason)


def _parts_of(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Yield the messages of some runs in parts. Each part takes little time. If there are no
    messages, yield one empty part."""
    part: list[Run] = []
    size = 0
    for run in runs:
        rest = run
        while size + rest.size > _MOST_MESSAGES:
            taken = _MOST_MESSAGES - size
            yield [*part, Run(rest.first, taken, rest.deliveries)]
            part, size = [], 0
            rest = Run(rest.first + taken, rest.size - taken, rest.deliveries)
        part.append(rest)
        size += rest.size
        if len(part) == _MOST_RUNS or size == _MOST_MESSAGES:
            yield part
            part, size = [], 0
    if part or not runs:
        yield part
