"""One consumer: delivers the records of a stream to one client, in order, over the leaf link.

A pull consumer delivers the records that clients request. A push consumer delivers to its subject,
as long as the subject has a subscriber. Both kinds exist only in memory. They end when their
client, the stream's leadership or the link ends. The client then creates another consumer that
continues at the client's position.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from liftlog.errors import LiftlogError, NatsUnavailable
from liftlog.sequencing.destinations import Destination, Why
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import time_text
from liftlog.server.jetstream_api.consumers.budget import Part
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec, shown_config
from liftlog.server.jetstream_api.consumers.cursor import PIECE_BYTES, Cursor
from liftlog.server.jetstream_api.consumers.delivered import Delivered
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.consumers.leaf_frames import leaf_message
from liftlog.server.jetstream_api.consumers.live import live_rounds, opened
from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.consumers.pull_requests import (
    PullRequest,
    PullRequests,
    status_block,
)
from liftlog.server.jetstream_api.consumers.push_flow import PushFlow
from liftlog.server.jetstream_api.consumers.removals import News
from liftlog.server.jetstream_api.consumers.rows import Row, without_erased
from liftlog.server.jetstream_api.pace import Pace
from liftlog.server.pull.services import PullServices

logger = logging.getLogger("liftlog.server.jetstream_api")

_PIECES_NOW = 16
"""Number of newly written pieces that are read in the event loop. A thread reads all further
pieces."""
_LONGEST_PAUSE_SECONDS = 5.0
_FLOW_REQUEST = status_block(b"100 FlowControl Request")


class Consumer:
    """A consumer without acks. Belongs to the event loop. The consumer calls `on_end` once, after
    its last delivery."""

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
        """`party` is the client. `waiting` is the consumer's part of all waiting requests, and
        `window` its part of all windows of flow control. All consumers share `pace`. `is_there`
        returns True while the same stream exists and this node leads it."""
        self.spec = spec
        self.host = host
        self._services = services
        self._leaf = leaf
        self._cursor = cursor
        self._to = deliveries
        self.party = party
        self._pace = pace
        self.is_there = is_there
        self._on_end = on_end
        self._problem = ""
        """The reason why the consumer ends, if the reason is found outside the task."""
        self._created_ns = time.time_ns()
        self._rows: deque[Row] = deque()
        self._caught_up = False
        self._pieces_now = 0
        """Number of pieces that may still be read in the event loop. The number is reset when the
        consumer has caught up."""
        self._group = services.live_group(host)
        self._live = live_rounds(host, services, pace)
        self._reading = asyncio.Lock()
        """A lock, because the cursor accepts one call at a time."""
        self._requests = PullRequests(spec.settings.max_waiting, waiting, deliveries, leaf)
        self._delivered = Delivered(
            host.name, spec.name, cursor.next_offset, headers_only=spec.headers_only
        )
        self._active_at = time.monotonic()
        self._news = asyncio.Event()
        self._flow = PushFlow(spec, host.name, window, self._active_at)
        self._task: asyncio.Task[None] | None = None

    # --- requests of clients ---

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"jetstream-consumer-{self.spec.name}")

    def add(self, reply: bytes, pull: Pull) -> None:
        """Add a request to a pull consumer. The client awaits its messages on `reply`."""
        self._active_at = time.monotonic()
        refusal = self._requests.add(PullRequest(reply, pull, self._active_at))
        if refusal:
            self._services.spawn(self._try_send(refusal))
        else:
            self._news.set()

    def flow_answered(self, subject: bytes) -> None:
        if self._flow.answered(subject):
            self._active_at = time.monotonic()
            self._news.set()

    def idle_seconds(self) -> float:
        """Return the time since the last request to a pull consumer; 0 while a request waits. The
        result is always 0 for a push consumer, which ends together with its subscriber."""
        if self.spec.deliver_subject or self._requests:
            return 0.0
        return time.monotonic() - self._active_at

    def wake(self) -> None:
        self._news.set()

    async def close(self, status: bytes = b"") -> None:
        """End the consumer, and send `status` to waiting requests. As in JetStream, a deliver
        subject gets no status, because its subscribers would treat the status as a message."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._say_end(status)

    async def _say_end(self, status: bytes) -> None:
        self._let_go()
        await self._try_send(b"".join(self._requests.end_all(status)))

    def _let_go(self) -> None:
        self._cursor.close()
        self._requests.close()
        self._flow.close()

    async def info(self, *, is_new: bool = False) -> dict[str, Any]:
        """Return JetStream's description of a consumer. For a new consumer, `num_pending` is the
        number of records at its start. Watchers of buckets treat this number of records as the
        present state."""
        if not is_new:
            with contextlib.suppress(LiftlogError):
                async with self._reading:
                    self._drop_erased()
                    if self._cursor.is_stale:
                        self._cursor.count_anew(len(self._rows))
                    await self._cursor.count()
        now = time.time_ns()
        delivered: dict[str, Any] = {
            "consumer_seq": self._delivered.count,
            "stream_seq": self._delivered.last_offset,
        }
        if self._delivered.last_ns:
            delivered["last_active"] = time_text(self._delivered.last_ns)
        answer = {
            "stream_name": self.host.name,
            "name": self.spec.name,
            "created": time_text(self._created_ns),
            "config": shown_config(self.spec),
            "delivered": delivered,
            "ack_floor": {
                "consumer_seq": self._delivered.count,
                "stream_seq": self._delivered.last_offset,
            },
            "num_ack_pending": 0,
            "num_redelivered": 0,
            "num_waiting": len(self._requests),
            "num_pending": self._cursor.left,
            "ts": time_text(now),
        }
        if self.spec.deliver_subject:
            answer["push_bound"] = self._leaf.has_interest(self._to.subject)
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
        """Deliver records, or wait. Returns the reason if the consumer ends."""
        if self._problem:
            return self._problem
        if not self.is_there():
            await self._say_end(b"409 Leadership Change")
            return "the stream is not led here, or may not be read any more"
        if self.spec.deliver_subject and isinstance(found := self._to.pushes(), Why):
            return f"nothing may be sent to {self.spec.deliver_subject} any more: {found.value}"
        now = time.monotonic()
        await self._send(self._requests.expire(now))
        self._requests.release_part()
        if self._is_inactive(now):
            return "inactive"
        if self._has_demand():
            if not self._rows and not self._caught_up:
                await self._fill()
            if self._rows:
                await opened(self._services.read_share)
                await self._deliver()
                return ""
            if not self._caught_up:
                return ""
            await self._send(self._requests.end_no_wait())
        await self._send_heartbeats(now)
        self._cursor.is_fresh = self._caught_up and not self._rows and self._has_demand()
        await self._wait(self._next_due())
        return ""

    def _has_demand(self) -> bool:
        if not self.spec.deliver_subject:
            return bool(self._requests)
        return self._flow.is_open and self._leaf.has_interest(self._to.subject)

    def _is_inactive(self, now: float) -> bool:
        if self.spec.deliver_subject:
            if self._leaf.has_interest(self._to.subject):
                self._active_at = now
        elif self._requests:
            self._active_at = now
        return now - self._active_at >= self.spec.inactive_seconds

    async def _fill(self) -> None:
        async with self._reading:
            found = await self._read_now() if self._pieces_now else None
            self._pieces_now = 0 if found is None else self._pieces_now - 1
            rows, caught_up = found or await self._cursor.read()
            self._cursor.is_fresh &= self._has_demand()
            self._take(rows, caught_up)

    def _take(self, rows: list[Row], caught_up: bool) -> None:
        """Add records that were read. Does not change `rows`."""
        self._caught_up = caught_up
        self._rows.extend(self._within_payload(rows))
        if caught_up:
            self._cursor.left, self._cursor.is_stale = len(self._rows), False

    def _drop_erased(self) -> None:
        """Drop the rows that were erased after they had been read."""
        view = self.host.log.view
        if self._cursor.sees_erased() is News.UNKNOWN and self._rows:
            self._drop_rows()
        elif view.erased is not None:
            left = without_erased(self._rows, view)
            self._cursor.left = max(self._cursor.left - len(self._rows) + len(left), 0)
            self._rows = deque(left)

    def _within_payload(self, rows: list[Row]) -> list[Row]:
        """Leave out rows that are larger than NATS's `max_payload`. The log can contain larger
        records if `max_payload` was lowered."""
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
                "records that are larger than NATS accepts",
            )
        return fitting

    async def _read_now(self) -> tuple[list[Row], bool] | None:
        await self._pace.turn()
        await opened(self._services.read_share)
        with self._services.read_share:
            return self._cursor.read_now(self._group)

    async def _wait(self, due: float) -> None:
        if self._caught_up:
            self._live.wait(self._cursor.next_offset, self._grown)
        try:
            async with asyncio.timeout_at(due):
                await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self._news.clear()
            self._live.leave(self._grown)

    def _grown(self) -> None:
        self._caught_up = False
        self._pieces_now = _PIECES_NOW
        try:
            if self._may_deliver_now() and self._deliver_now():
                return
        except Exception as error:  # the wake-ups of other consumers go on
            self._problem = "it failed"
            logger.exception("jetstream-consumer-failed name=%s error=%r", self.spec.name, error)
        self._news.set()  # the task continues

    def _may_deliver_now(self) -> bool:
        """Return True if the task only waits for records, and the connection accepts more data."""
        return (
            not self._news.is_set()
            and self._leaf.has_room
            and not self._reading.locked()
            and self._has_demand()
            and self.is_there()
        )

    def _deliver_now(self) -> bool:
        """Deliver the records that were just written, in this call. A turn of the task would take
        longer than the delivery. Returns False if the task must run instead."""
        try:
            found = self._cursor.read_now(self._group)
        except LiftlogError:
            return False  # the task gets the same error
        if found is None:
            return False
        self._take(*found)
        commands = self._requested() + self._requests.end_no_wait()
        if commands:
            self._active_at = time.monotonic()
            self._leaf.put(commands)
        is_done = self._caught_up and not self._rows and self._has_demand()
        self._cursor.is_fresh = is_done
        if is_done:
            self._live.wait(self._cursor.next_offset, self._grown)
        return is_done

    def _next_due(self) -> float:
        now = time.monotonic()
        times = [now + _LONGEST_PAUSE_SECONDS, self._active_at + self.spec.inactive_seconds]
        times += self._flow.due() if self.spec.deliver_subject else self._requests.due()
        # The wait has a minimum, because actions that are already due are performed in the next
        # step.
        return max(min(times), now + 0.001)

    # --- delivery ---

    async def _deliver(self) -> None:
        """Send the records that were read and that are requested."""
        self._drop_erased()
        if self._cursor.must_recount:
            async with self._reading:
                self._cursor.count_anew(len(self._rows))
                await self._cursor.count()
            self._drop_erased()
        with self._services.read_share:
            commands = self._requested()
        if self._size_bytes() > PIECE_BYTES:
            self._drop_rows()
        await self._leaf.send(commands)

    def _requested(self) -> bytes:
        """Take the records that clients have requested, and return the commands that send them."""
        if self.spec.deliver_subject:
            return self._push()
        now = time.monotonic()
        return self._requests.answer(self._rows, self._delivered, self._cursor, now)

    def _size_bytes(self) -> int:
        return sum(len(row.value) + len(row.headers) for row in self._rows)

    def _drop_rows(self) -> None:
        """Free the memory of records that were read but not requested. The consumer reads them
        again later."""
        self._cursor.go_back(self._rows[0])
        self._rows.clear()
        self._caught_up = False

    def _push(self) -> bytes:
        target = self._to.pushes()
        if isinstance(target, Why):
            return b""  # the next step ends the consumer
        rows = list(self._rows)
        self._rows.clear()
        queues = self._leaf.queues(target)
        commands = self._delivered.commands(target, rows, self._cursor, queues)
        size = sum(map(len, commands))
        self._flow.delay_heartbeat(time.monotonic())
        question = self._flow.sent(size)
        if question:
            commands.append(self._control(target, question, _FLOW_REQUEST))
        return b"".join(commands)

    def _control(self, target: Destination, reply: bytes, headers: bytes) -> bytes:
        """Return the command that sends a status or a heartbeat to the deliver subject. Such a
        message contains no record."""
        return leaf_message(target, reply, headers, b"", self._leaf.queues(target))

    async def _send_heartbeats(self, now: float) -> None:
        position = self._delivered.position(
            self._rows[0].offset if self._rows else self._cursor.next_offset
        )
        commands = self._requests.heartbeats(now, position)
        target = self._to.pushes() if self.spec.deliver_subject else Why.RESERVED
        if not isinstance(target, Why):
            headers = self._flow.heartbeat(now, position)
            if headers:
                commands.append(self._control(target, b"", headers))
        await self._send(b"".join(commands))

    async def _send(self, commands: bytes) -> None:
        if commands:
            await self._leaf.send(commands)

    async def _try_send(self, commands: bytes) -> None:
        with contextlib.suppress(NatsUnavailable):
            await self._send(commands)
