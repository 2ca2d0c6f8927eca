"""One consumer: delivers the records of a stream to one client, in order, over the leaf link.

A pull consumer delivers what requests ask for; a push consumer to its subject, as long as that has
a subscriber. It is kept in memory only and ends with its client, the stream's leadership or the
link: clients then create another one, which continues where they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from liftlog.errors import LiftlogError, NatsUnavailable
from liftlog.sequencing.destinations import Destination, Why
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import time_text
from liftlog.server.jetstream_api.consumers.budget import Part
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.cursor import PIECE_BYTES, Cursor, Row
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.leaf import FLOW_PREFIX, LeafLink, leaf_message
from liftlog.server.jetstream_api.pace import Pace
from liftlog.server.pull.services import PullServices

logger = logging.getLogger("liftlog.server.jetstream_api")

WINDOW_BYTES, LEAST_WINDOW_BYTES = 1024 * 1024, 128 * 1024
"""After so many bytes a client with flow control is asked to answer; it may be one such window
behind. Some clients look only a few times a second whether there is something to answer, so with a
small window they get little. Where many consumers share the bound on all windows, theirs are the
least."""
_PIECES_NOW = 16
"""Of what was just written, read in the event loop at most; a thread reads the rest."""
_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(slots=True)
class PullRequest:
    """`expires_at` and `heartbeat_at` are times of the event loop; None: never."""

    reply: bytes
    batch: int
    max_bytes: int = 0
    no_wait: bool = False
    expires_at: float | None = None
    heartbeat_seconds: float = 0.0
    heartbeat_at: float | None = None
    delivered: int = field(default=0)


class Consumer:
    """Belongs to the event loop. `on_end` is called once, when it will deliver no more."""

    def __init__(
        self,
        spec: ConsumerSpec,
        host: StreamHost,
        services: PullServices,
        leaf: LeafLink,
        cursor: Cursor,
        deliveries: Deliveries,
        *,
        party: bytes,
        waiting: Part,
        window: Part,
        pace: Pace,
        is_there: Callable[[], bool],
        on_end: Callable[[Consumer], None],
    ) -> None:
        """`party` has asked for it; `waiting` is its part of all requests that wait, `window` of
        all windows of flow control, `pace` that of all consumers. `is_there`: whether the stream is
        still this one, and led here."""
        self.spec = spec
        self.host = host
        self._services = services
        self._leaf = leaf
        self._cursor = cursor
        self._to = deliveries
        self.party = party
        self._waiting = waiting
        self._window = window
        self._pace = pace
        self.is_there = is_there
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._created_ns = time.time_ns()
        self._rows: deque[Row] = deque()
        self._caught_up = False
        self._pieces_now = 0
        """How many may be read in the event loop: some, since there was nothing more to read."""
        self._group = services.live_group(host)
        self._reading = asyncio.Lock()
        """The cursor takes one call at a time."""
        self._requests: deque[PullRequest] = deque()
        self._delivered = 0
        self._last_offset = max(0, cursor.next_offset - 1)
        self._last_ns = 0
        self._active_at = self._loop.time()
        self._heartbeat_at = self._active_at + spec.heartbeat_seconds
        self._news = asyncio.Event()
        self._flow = _Flow(spec, host.name, window)
        self._ack_head = f"$JS.ACK.{host.name}.{spec.name}.1.".encode()
        self._task: asyncio.Task[None] | None = None

    # --- what clients ask ---

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"jetstream-consumer-{self.spec.name}")

    def add(self, request: PullRequest) -> None:
        """A request of a pull consumer."""
        self._active_at = self._loop.time()
        count = len(self._requests)
        if count >= self.spec.max_waiting or not self._waiting.resize(count + 1):
            self._services.spawn(self._try_send(self._status(request, b"409 Exceeded MaxWaiting")))
            return
        self._requests.append(request)
        self._news.set()

    def flow_answered(self, subject: bytes) -> None:
        if self._flow.answered(subject):
            self._active_at = self._loop.time()
            self._news.set()

    def idle_seconds(self) -> float:
        """How long no one has asked a pull consumer for anything; 0 while someone waits. A push
        consumer ends with its subscriber."""
        if self.spec.deliver_subject or self._requests:
            return 0.0
        return self._loop.time() - self._active_at

    def wake(self) -> None:
        self._news.set()

    async def close(self, status: bytes = b"") -> None:
        """End it; waiting requests get `status`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._say_end(status)

    async def _say_end(self, status: bytes) -> None:
        self._let_go()
        requests, self._requests = self._requests, deque()
        if not status:
            return
        commands = [self._status(request, status) for request in requests]
        target = self._to.pushes() if self.spec.deliver_subject else Why.RESERVED
        if not isinstance(target, Why):
            commands.append(leaf_message(target, b"", _status_block(status), b""))
        await self._try_send(b"".join(commands))

    def _let_go(self) -> None:
        self._cursor.close()
        self._waiting.close()
        self._window.close()

    async def info(self, *, is_new: bool = False) -> dict[str, Any]:
        """What JetStream says of a consumer. For a new one, `num_pending` is what there was when it
        began: watchers of buckets take so many records for the present state."""
        if not is_new:
            with contextlib.suppress(LiftlogError):
                async with self._reading:
                    await self._cursor.count()
        now = time.time_ns()
        delivered: dict[str, Any] = {
            "consumer_seq": self._delivered,
            "stream_seq": self._last_offset,
        }
        if self._last_ns:
            delivered["last_active"] = time_text(self._last_ns)
        answer = {
            "stream_name": self.host.name,
            "name": self.spec.name,
            "created": time_text(self._created_ns),
            "config": self.spec.config,
            "delivered": delivered,
            "ack_floor": {"consumer_seq": self._delivered, "stream_seq": self._last_offset},
            "num_ack_pending": 0,
            "num_redelivered": 0,
            "num_waiting": len(self._requests),
            "num_pending": self._cursor.left,
            "ts": time_text(now),
        }
        if self.spec.deliver_subject:
            answer["push_bound"] = self._leaf.has_interest(self.spec.deliver_subject)
        return answer

    # --- its task ---

    async def _run(self) -> None:
        why = ""
        try:
            while not why:
                why = await self._pace.run(self._step())
        except (NatsUnavailable, LiftlogError) as error:
            why = error.message
        except Exception as error:  # a supervisor: the client creates another one
            why = "it failed"
            logger.exception("jetstream-consumer-failed name=%s error=%r", self.spec.name, error)
        logger.debug("jetstream-consumer-ended name=%s reason=%s", self.spec.name, why)
        self._task = None
        self._let_go()
        self._on_end(self)

    async def _step(self) -> str:
        """Deliver something, or wait; returns why it ends, if it does."""
        if not self.is_there():
            await self._say_end(b"409 Leadership Change")
            return "the stream is not led here, or may not be read any more"
        if self.spec.deliver_subject and isinstance(found := self._to.pushes(), Why):
            return f"nothing may be sent to {self.spec.deliver_subject} any more: {found.value}"
        now = self._loop.time()
        await self._expire(now)
        self._waiting.resize(len(self._requests))
        if self._is_inactive(now):
            return "inactive"
        if self._has_demand():
            if not self._rows and not self._caught_up:
                await self._fill()
            if self._rows:
                await self._open_share()
                await self._deliver()
                return ""
            if not self._caught_up:
                return ""
            await self._end_no_wait()
        await self._send_heartbeats(now)
        await self._wait(self._next_due())
        return ""

    def _has_demand(self) -> bool:
        if not self.spec.deliver_subject:
            return bool(self._requests)
        return self._flow.is_open and self._leaf.has_interest(self.spec.deliver_subject)

    def _is_inactive(self, now: float) -> bool:
        if self.spec.deliver_subject:
            if self._leaf.has_interest(self.spec.deliver_subject):
                self._active_at = now
        elif self._requests:
            self._active_at = now
        return now - self._active_at >= self.spec.inactive_seconds

    async def _fill(self) -> None:
        async with self._reading:
            found = await self._read_now() if self._pieces_now else None
            self._pieces_now = 0 if found is None else self._pieces_now - 1
            rows, self._caught_up = found or await self._cursor.read()
            self._rows.extend(self._within_payload(rows))
            if self._caught_up:
                self._cursor.left = len(self._rows)

    def _within_payload(self, rows: list[Row]) -> list[Row]:
        """Leave out rows that are larger than `max_payload` of NATS, which can be lowered."""
        limit = self._leaf.max_payload_bytes
        if not limit or self.spec.headers_only or self._cursor.read_bytes <= limit:
            return rows
        fitting = [row for row in rows if len(row.value) + len(row.headers) <= limit]
        if len(fitting) < len(rows):
            logger.warning(
                "jetstream-consumer-skipped name=%s first=%d last=%d max_payload=%d reason=%s",
                self.spec.name,
                rows[0].offset,
                rows[-1].offset,
                limit,
                "records that are larger than NATS takes",
            )
        return fitting

    async def _read_now(self) -> tuple[list[Row], bool] | None:
        await self._pace.turn()
        await self._open_share()
        with self._services.read_share:
            return self._cursor.read_now(self._group)

    async def _open_share(self) -> None:
        """While the loop is short of time, publishers come first."""
        share = self._services.read_share
        while not share.is_open:
            opened = asyncio.Event()
            share.wait(opened.set)
            try:
                await opened.wait()
            finally:
                share.leave(opened.set)

    async def _wait(self, due: float) -> None:
        waiter = None
        if self._caught_up:
            waiter = self._group.wait(self.host, self._cursor.next_offset, self._grown)
        try:
            async with asyncio.timeout_at(due):
                await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self._news.clear()
            if waiter is not None:
                self._group.leave(waiter)

    def _grown(self) -> None:
        self._caught_up = False
        self._pieces_now = _PIECES_NOW
        self._news.set()

    def _next_due(self) -> float:
        now = self._loop.time()
        times = [now + _LONGEST_PAUSE_SECONDS, self._active_at + self.spec.inactive_seconds]
        if self.spec.deliver_subject and self.spec.heartbeat_seconds:
            times.append(self._heartbeat_at)
        for request in self._requests:
            times += [one for one in (request.expires_at, request.heartbeat_at) if one is not None]
        # Not at once again: what is due is done at the next step.
        return max(min(times), now + 0.001)

    # --- delivery ---

    async def _deliver(self) -> None:
        """Send what is asked for of the records that are here."""
        with self._services.read_share:
            if self.spec.deliver_subject:
                commands = self._push()
            else:
                commands = self._answer_requests()
        if self._size_bytes() > PIECE_BYTES:
            self._drop_rows()
        await self._leaf.send(commands)

    def _size_bytes(self) -> int:
        return sum(len(row.value) + len(row.headers) for row in self._rows)

    def _drop_rows(self) -> None:
        """Large records that no one asks for at the moment are read again later."""
        self._cursor.go_back(self._rows[0])
        self._rows.clear()
        self._caught_up = False

    def _push(self) -> bytes:
        target = self._to.pushes()
        if isinstance(target, Why):
            return b""  # the next step ends the consumer
        rows = list(self._rows)
        self._rows.clear()
        commands = self._commands(target, rows)
        size = sum(map(len, commands))
        self._heartbeat_at = self._loop.time() + self.spec.heartbeat_seconds
        question = self._flow.sent(size)
        if question:
            commands.append(
                leaf_message(target, question, b"NATS/1.0 100 FlowControl Request\r\n\r\n", b"")
            )
        return b"".join(commands)

    def _answer_requests(self) -> bytes:
        commands: list[bytes] = []
        now = self._loop.time()
        while self._rows and self._requests:
            request = self._requests[0]
            target = self._to.pulls(request.reply)
            if isinstance(target, Why):
                self._requests.popleft()
                continue
            rows, is_full = self._rows_for(request)
            commands += self._commands(target, rows)
            request.batch -= len(rows)
            request.delivered += len(rows)
            if request.heartbeat_at is not None:
                request.heartbeat_at = now + request.heartbeat_seconds
            if is_full or request.batch <= 0:
                self._requests.popleft()
                if is_full and request.batch > 0:
                    word = (
                        b"409 Batch Completed"
                        if request.delivered
                        else (b"409 Message Size Exceeds MaxBytes")
                    )
                    commands.append(self._status(request, word, counted=True))
        return b"".join(commands)

    def _rows_for(self, request: PullRequest) -> tuple[list[Row], bool]:
        """What goes to this request now, and whether its bytes are used up."""
        rows: list[Row] = []
        while self._rows and len(rows) < request.batch:
            if request.max_bytes:
                row = self._rows[0]
                size = (
                    len(row.value)
                    + len(row.headers)
                    + len(row.subject)
                    + len(request.reply)
                    + len(self._ack_head)
                    + 48
                )
                if size > request.max_bytes:
                    return rows, True
                request.max_bytes -= size
            rows.append(self._rows.popleft())
        return rows, request.max_bytes < 0

    def _commands(self, target: Destination, rows: Sequence[Row]) -> list[bytes]:
        """The messages that carry these rows."""
        head, left, number = self._ack_head, self._cursor.left, self._delivered
        commands = []
        for row in rows:
            number += 1
            left = max(left - 1, 0)
            reply = b"%b%d.%d.%d.%d@%b" % (
                head,
                row.offset,
                number,
                row.timestamp_ns,
                left,
                row.subject,
            )
            if self.spec.headers_only:
                commands.append(leaf_message(target, reply, _headers_only(row), b""))
            else:
                commands.append(leaf_message(target, reply, row.headers, row.value))
        self._cursor.left = left
        self._delivered = number
        if rows:
            self._last_offset = rows[-1].offset
            self._last_ns = time.time_ns()
        return commands

    # --- requests that end without records ---

    def _take_requests(self, ends: Callable[[PullRequest], bool]) -> list[PullRequest]:
        """Those that end, which then wait no longer."""
        ended = list(filter(ends, self._requests))
        if ended:
            self._requests = deque([one for one in self._requests if not ends(one)])
        return ended

    async def _expire(self, now: float) -> None:
        ended = self._take_requests(
            lambda one: one.expires_at is not None and one.expires_at <= now
        )
        if ended:
            statuses = [self._status(one, b"408 Request Timeout", counted=True) for one in ended]
            await self._leaf.send(b"".join(statuses))

    async def _end_no_wait(self) -> None:
        """There is nothing more for requests that do not wait."""
        ended = self._take_requests(
            lambda one: one.no_wait and (one.delivered > 0 or one.expires_at is None)
        )
        if ended:
            words = [
                b"408 Request Timeout" if one.delivered else b"404 No Messages" for one in ended
            ]
            pairs = zip(ended, words, strict=True)
            statuses = [self._status(one, word, counted=True) for one, word in pairs]
            await self._leaf.send(b"".join(statuses))

    async def _send_heartbeats(self, now: float) -> None:
        commands = []
        for request in self._requests:
            if request.heartbeat_at is not None and request.heartbeat_at <= now:
                request.heartbeat_at = now + request.heartbeat_seconds
                commands.append(self._status(request, b"100 Idle Heartbeat"))
        spec, target = self.spec, self._to.pushes() if self.spec.deliver_subject else Why.RESERVED
        if not isinstance(target, Why) and spec.heartbeat_seconds and self._heartbeat_at <= now:
            self._heartbeat_at = now + spec.heartbeat_seconds
            lines = b"Nats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n" % (
                self._delivered,
                self._last_offset,
            )
            if self._flow.question and not self._flow.is_open:
                lines += b"Nats-Consumer-Stalled: %b\r\n" % self._flow.question
            headers = b"NATS/1.0 100 Idle Heartbeat\r\n%b\r\n" % lines
            commands.append(leaf_message(target, b"", headers, b""))
        if commands:
            await self._leaf.send(b"".join(commands))

    def _status(self, request: PullRequest, words: bytes, *, counted: bool = False) -> bytes:
        """The command that sends a status to a request; empty if nothing may be sent there.
        `counted`: with what is left of the request."""
        target = self._to.statuses(request.reply)
        if target is None:
            return b""
        lines = b""
        if counted:
            lines = b"Nats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n" % (
                max(request.batch, 0),
                max(request.max_bytes, 0),
            )
        return leaf_message(target, b"", _status_block(words, lines), b"")

    async def _try_send(self, commands: bytes) -> None:
        with contextlib.suppress(NatsUnavailable):
            await self._leaf.send(commands)


class _Flow:
    """Flow control of a push consumer: how much may be sent before the client answers."""

    def __init__(self, spec: ConsumerSpec, stream: str, window: Part) -> None:
        self._is_on = spec.flow_control
        self._head = f"{FLOW_PREFIX}{stream}.{spec.name}.".encode()
        if self._is_on and not window.resize(WINDOW_BYTES):
            window.resize(LEAST_WINDOW_BYTES)
        self._window_bytes = window.amount
        self._bytes = 0
        self.question = b""
        """The subject on which an answer is awaited."""

    @property
    def is_open(self) -> bool:
        return not self.question or self._bytes < self._window_bytes

    def sent(self, size: int) -> bytes:
        """Count what was sent; returns the subject for a new question, if it is time for one."""
        if not self._is_on:
            return b""
        self._bytes += size
        if self.question or self._bytes < self._window_bytes:
            return b""
        self._bytes = 0
        self.question = self._head + secrets.token_hex(4).encode()
        return self.question

    def answered(self, subject: bytes) -> bool:
        if not self.question or subject != self.question:
            return False
        self.question = b""
        return True


def _status_block(words: bytes, lines: bytes = b"") -> bytes:
    return b"NATS/1.0 %b\r\n%b\r\n" % (words, lines)


def _headers_only(row: Row) -> bytes:
    head = row.headers[:-2] if row.headers else b"NATS/1.0\r\n"
    return b"%bNats-Msg-Size: %d\r\n\r\n" % (head, len(row.value))
