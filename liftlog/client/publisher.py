"""Publishing over NATS with acks: `Publisher`.

    async with Publisher("nats://127.0.0.1:4222", expect=["orders"]) as publisher:
        published = await publisher.publish("orders.new", b"...", key="k1")
        print(published.offset)

Uses nats-py, which is imported when a publisher is opened. docs/how-to/publish.md shows how to use
a publisher.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from liftlog.client.publishing.delivery import Delivery, read_answer
from liftlog.client.publishing.headers import Headers, lines_of
from liftlog.client.publishing.message import OutgoingMessage, checked
from liftlog.client.publishing.publisher_link import NatsTarget, PublisherLink
from liftlog.client.publishing.results import (
    Ack,
    NotPublished,
    OrderBroken,
    Published,
    PublishFailed,
    PublishRefused,
    PublishUnknown,
    Refusal,
)
from liftlog.client.publishing.send_queue import RetryPolicy, SendQueue, Sequenced, Unordered
from liftlog.errors import InvalidArgument, LiftlogError
from liftlog.records.message_headers import (
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_STREAM,
    MESSAGE_ID,
    HeaderLine,
    without,
)

__all__ = [
    "Ack",
    "NotPublished",
    "Order",
    "OrderBroken",
    "PublishFailed",
    "PublishRefused",
    "PublishUnknown",
    "Published",
    "Publisher",
    "Refusal",
]

logger = logging.getLogger("liftlog.client.publisher")

Order = Literal["any", "one_in_flight", "sequence"]

DEFAULT_NATS = "nats://127.0.0.1:4222"
_MESSAGE_ID = MESSAGE_ID.encode()
_LARGE = 2**62  # as large as any offset
_WATCH_SECONDS = 0.25  # nats-py only notifies the connection's owner of reconnects


class Publisher:
    """Publishes messages and waits for the acks of streams. Open it with `async with`.

    `nats` is a connection of nats-py, which the publisher does not close, or the address (or
    addresses) of NATS servers; further keywords then go to `nats.connect`. A publisher belongs to
    one event loop; any number of tasks of this loop may publish at the same time.

    If an attempt gets no answer within `ack_timeout` seconds, the publisher sends the message again
    with the same message id; the stream stores only one copy. The publisher stops `retry_for`
    seconds after the first attempt, and the call raises PublishUnknown. `dedupe_window` is the
    shortest `dedupe_window` of the streams that record the messages; `retry_for` is at most half of
    it. With `retry_for=0` there is one attempt and no message id. All times are in seconds.

    `order` is the promise about the order of the stored records:

    - `any`: no promise. Up to `max_in_flight` messages are sent at once, independently.
    - `one_in_flight`: records are stored in the order of the calls. Each message is sent after the
      ack of the previous one.
    - `sequence`: records are stored in the order of the calls, with up to `max_in_flight` messages
      at once. The publisher sets `Nats-Expected-Last-Sequence`, so it must be the only publisher
      of one stream, which `expect` names. `last_sequence` is the last offset of the stream, if
      known.

    With `one_in_flight` and `sequence` the publisher stops sending if it is unknown whether a
    message was stored. With `sequence` it also stops if another publisher has written to the
    stream. Calls then raise OrderBroken until `resume` is called.
    """

    def __init__(
        self,
        nats: NatsTarget = DEFAULT_NATS,
        *,
        expect: Sequence[str] = (),
        order: Order = "any",
        last_sequence: int | None = None,
        max_in_flight: int = 256,
        ack_timeout: float = 5.0,
        retry_for: float = 30.0,
        dedupe_window: float = 120.0,
        use_envelope: bool = False,
        connect_timeout: float = 10.0,
        **connect_options: Any,
    ) -> None:
        self._expect = _stream_names(expect)
        if order not in ("any", "one_in_flight", "sequence"):
            raise InvalidArgument(f"order is any, one_in_flight or sequence, not {order!r}")
        if order == "sequence" and len(self._expect) != 1:
            raise InvalidArgument('order="sequence" needs the name of one stream in expect')
        if max_in_flight < 1 or ack_timeout <= 0 or retry_for < 0:
            raise InvalidArgument("max_in_flight and ack_timeout are above 0, retry_for at least 0")
        if retry_for > dedupe_window / 2:
            raise InvalidArgument(
                "retry_for is more than half of dedupe_window: a repeated message might arrive so "
                "late that it is stored twice"
            )
        self._order = order
        self._ack_timeout = ack_timeout
        self._makes_ids = retry_for > 0
        self._use_envelope = use_envelope
        self._link = PublisherLink(nats, connect_options, connect_timeout)
        self._queue: SendQueue
        if order == "sequence":
            self._queue = Sequenced(RetryPolicy(retry_for), last_sequence, self._on_broken)
        else:
            self._queue = Unordered(RetryPolicy(retry_for))
        self._slots = asyncio.Semaphore(1 if order == "one_in_flight" else max_in_flight)
        self._name = secrets.token_hex(8)
        self._made_ids = itertools.count(1)
        self._count = 0
        self._pending: dict[int, Delivery] = {}
        self._deadlines: deque[tuple[float, Delivery, int]] = deque()
        self._broken: PublishFailed | None = None
        self._closed = "it is not open"
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._engine: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._unconfirmed_since: float | None = None  # time of the oldest `send` since
        self._reconnects = 0

    # --- opening and closing ---

    async def open(self) -> Self:
        """Connect to NATS, or use the given connection. Raises NatsUnavailable, and
        MissingDependency if nats-py is not installed."""
        await self._link.open(self._on_answer)
        self._reconnects = self._link.reconnects
        self._closed = ""
        self._loop = asyncio.get_running_loop()
        self._engine = asyncio.create_task(self._run(), name="liftlog-publisher")
        return self

    async def close(self) -> None:
        """Close the publisher at once. Calls whose messages have no answer yet raise PublishUnknown
        or NotPublished."""
        self._closed = self._closed or "the publisher is closed"
        if self._engine is not None:
            self._engine.cancel()
            await asyncio.gather(self._engine, return_exceptions=True)
            self._engine = None
            self._fail_all(self._closed)
            await self._link.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the publisher. First wait for all messages in flight, unless an exception left the
        block."""
        try:
            if error is None:
                await self.flush()
        finally:
            await self.close()

    # --- publishing ---

    async def publish(
        self,
        subject: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        message_id: str | None = None,
        expect: Sequence[str] | None = None,
    ) -> Published:
        """Publish a message, and wait for an ack from every stream in `expect`, or from any one
        stream if `expect` is empty.

        `value=None` publishes a tombstone for `key`. Without `message_id` the publisher generates
        an id. `headers` is a mapping of names to values or lists of values, a sequence of (name,
        value) pairs, or the headers of a record, all of which are published. A header value given
        as bytes need not be valid UTF-8. Cancelling the call only ends the wait; the message may
        still be stored.

        Raises PublishRefused, PublishUnknown, NotPublished and OrderBroken (all are subclasses of
        PublishFailed), and InvalidArgument for a message that NATS or liftlog cannot carry.
        """
        settled = await self.submit(
            subject, value, key=key, headers=headers, message_id=message_id, expect=expect
        )
        return await settled

    async def submit(
        self,
        subject: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        message_id: str | None = None,
        expect: Sequence[str] | None = None,
    ) -> asyncio.Future[Published]:
        """Like `publish`, but without the wait for acks: return a future that gets the result. The
        call only waits while `max_in_flight` messages are in flight.

        Raises OrderBroken, InvalidArgument, and LiftlogError if the publisher is closed.
        """
        message = self._message(subject, value, key, headers, message_id, makes_id=self._makes_ids)
        names = self._expect if expect is None else _stream_names(expect)
        if self._order == "sequence" and names != self._expect:
            raise InvalidArgument("with order=sequence, expect is that of the publisher")
        await self._slots.acquire()
        number = self._count + 1
        try:
            self._check_open(message)
            wire = self._to_wire(message, self._link.reply(number, 1), _LARGE)
            self._link.check_size(*wire)
        except BaseException:
            self._slots.release()
            raise
        self._count = number
        future: asyncio.Future[Published] = self._loop.create_future()
        delivery = Delivery(message, names, partial(self._on_settled, number, future))
        delivery.number = number
        if self._order != "sequence":
            delivery.wire = wire
        self._pending[self._count] = delivery
        self._idle.clear()
        self._queue.add(delivery)
        self._wake.set()
        return future

    async def send(
        self,
        subject: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        message_id: str | None = None,
    ) -> None:
        """Publish without requesting an ack, for a stream with `acks: off`. The message is sent
        once, and the publisher gets no confirmation that it was stored. Messages are sent in the
        order of the calls.

        To wait until NATS has received the message, call `flush`. Raises NotPublished while there
        is no connection to NATS. Raises InvalidArgument for the same reasons as `publish`, and if
        `order` is not `any`.
        """
        if self._order != "any":
            raise InvalidArgument('send needs order="any": the other orders need acks')
        message = self._message(subject, value, key, headers, message_id, makes_id=False)
        self._check_open(message)
        payload, block = message.to_wire("")
        self._link.check_size(payload, block)
        if self._unconfirmed_since is None:
            self._unconfirmed_since = self._loop.time()
        if not await self._link.send(subject, payload, "", block):
            raise NotPublished(
                f"not sent: there is no connection to NATS: {self._link.last_error or 'lost'}",
                subject=subject,
                message_id=message_id,
            )

    async def flush(self) -> None:
        """Wait until no message is in flight. Futures from `submit` then have their results.

        Raises errors only for messages of `send`: NatsUnavailable if NATS may not have received all
        of them, and NatsRefused if NATS refused one.
        """
        await self._idle.wait()
        since, self._unconfirmed_since = self._unconfirmed_since, None
        if since is not None:
            await self._link.confirm(since)

    @property
    def closed(self) -> str:
        """The reason why the publisher can no longer publish, for example that the connection to
        NATS was closed for good; empty while the publisher is open."""
        return self._closed

    def resume(self, last_sequence: int | None = None) -> None:
        """Accept messages again after OrderBroken. `last_sequence` is the stream's last offset, if
        known.

        Raises LiftlogError while messages are still in flight: `flush` first.
        """
        if self._pending:
            raise LiftlogError("some messages have no answer yet", hint="await flush() first")
        self._broken = None
        self._queue.resume(last_sequence)

    def _message(
        self,
        subject: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Headers | None,
        message_id: str | None,
        *,
        makes_id: bool,
    ) -> OutgoingMessage:
        lines = lines_of(headers)
        if lines:
            lines, message_id = _without_id(lines, message_id)
        if message_id is None and makes_id:
            message_id = f"{self._name}.{next(self._made_ids)}"
        if self._order == "sequence" and len(lines) > len(
            without(lines, EXPECTED_STREAM, EXPECTED_LAST_SEQUENCE)
        ):
            raise InvalidArgument("with order=sequence the publisher sets the expected sequence")
        return checked(
            subject,
            value,
            key=key,
            headers=lines,
            message_id=message_id,
            use_envelope=self._use_envelope,
        )

    def _to_wire(
        self, message: OutgoingMessage, reply: str, last_sequence: int | None
    ) -> tuple[bytes, bytes]:
        if self._order != "sequence":
            return message.to_wire(reply)
        return message.to_wire(reply, stream=self._expect[0], last_sequence=last_sequence)

    def _check_open(self, message: OutgoingMessage) -> None:
        if self._closed:
            raise LiftlogError(f"cannot publish: {self._closed}")
        if self._broken is not None:
            raise OrderBroken(
                f"not sent: a message before it failed: {self._broken.message}",
                subject=message.subject,
                message_id=message.message_id,
                hint="decide about that message, then call resume()",
            )

    # --- events ---

    def _on_answer(self, number: int, attempt: int, payload: bytes, status: str | None) -> None:
        delivery = self._pending.get(number)
        if delivery is None:
            return
        answer = read_answer(payload, status)
        if answer is None:
            delivery.foreign_answers += 1
            return
        self._queue.answered(delivery, attempt, answer, self._loop.time())
        self._wake.set()

    def _on_settled(
        self, number: int, future: asyncio.Future[Published], delivery: Delivery
    ) -> None:
        del self._pending[number]
        self._slots.release()
        if not self._pending:
            self._idle.set()
        result = delivery.result
        if isinstance(result, PublishUnknown):
            self._explain(result, delivery)
            if self._order == "one_in_flight":
                self._on_broken(result)
        if future.done():  # the caller cancelled its wait
            return
        if isinstance(result, Published):
            future.set_result(result)
        elif result is not None:
            future.set_exception(result)

    def _explain(self, failure: PublishUnknown, delivery: Delivery) -> None:
        """If NATS has reported a reason, add the reason to the failure. NATS drops a message that
        the client may not publish, and reports the drop only as an error on the connection."""
        if delivery.first_sent is not None:
            error = self._link.error_since(delivery.first_sent)
            if error is not None:
                failure.hint = f"NATS reported: {error}"

    def _on_broken(self, failure: PublishFailed) -> None:
        self._broken = self._broken or failure

    def _fail_all(self, reason: str) -> None:
        for delivery in list(self._pending.values()):
            delivery.give_up(reason)

    # --- the engine ---

    async def _run(self) -> None:
        loop = self._loop
        try:
            while not self._link.is_closed:
                self._wake.clear()
                self._expire(loop.time())
                await self._send_what_is_due(loop)
                timer = None
                if self._pending:
                    timer = loop.call_at(self._next_look(loop.time()), self._wake.set)
                await self._wake.wait()
                if timer is not None:
                    timer.cancel()
            reason = f"the connection to NATS is closed: {self._link.last_error or 'by its owner'}"
        except Exception as error:
            logger.exception("publisher-stopped")
            reason = f"the publisher failed: {error!r}"
        self._closed = self._closed or reason
        self._fail_all(reason)

    async def _send_what_is_due(self, loop: asyncio.AbstractEventLoop) -> None:
        while (delivery := self._queue.next(loop.time())) is not None:
            now = loop.time()
            attempt = delivery.start_attempt(now)
            self._deadlines.append((now + self._ack_timeout, delivery, attempt))
            reply = self._link.reply(delivery.number, attempt)
            wire, delivery.wire = delivery.wire, None
            if wire is None or attempt > 1:
                wire = self._to_wire(delivery.message, reply, delivery.last_sequence)
            payload, block = wire
            if not await self._link.send(delivery.message.subject, payload, reply, block):
                delivery.withdraw_attempt()
                self._queue.send_again(delivery, now)

    def _expire(self, now: float) -> None:
        """Expire attempts that got no answer within `ack_timeout`. After a reconnect, expire all
        attempts sent before: their answers may never arrive."""
        reconnects = self._link.reconnects
        lost = reconnects != self._reconnects
        self._reconnects = reconnects
        deadlines = self._deadlines
        while deadlines and (lost or deadlines[0][0] <= now or deadlines[0][1].settled):
            _, delivery, attempt = deadlines.popleft()
            if not delivery.settled:
                self._queue.expired(delivery, attempt, now)

    def _next_look(self, now: float) -> float:
        times = [now + _WATCH_SECONDS]
        if self._deadlines:
            times.append(self._deadlines[0][0])
        wake_at = self._queue.wake_at()
        if wake_at is not None:
            times.append(wake_at)
        return max(min(times), now)


def _stream_names(expect: Sequence[str]) -> tuple[str, ...]:
    """Return each name once. Raises InvalidArgument."""
    if isinstance(expect, str):
        raise InvalidArgument("expect is a list of stream names")
    return tuple(dict.fromkeys(expect))


def _without_id(
    lines: list[HeaderLine], message_id: str | None
) -> tuple[list[HeaderLine], str | None]:
    """Split the message id off the headers: return the other headers, and the id. `message_id`
    takes precedence over a header `Nats-Msg-Id`; of several such headers the first one counts."""
    others = [line for line in lines if line[0] != _MESSAGE_ID]
    if message_id is None and len(others) < len(lines):
        found = next(value for name, value in lines if name == _MESSAGE_ID)
        message_id = found.decode(errors="surrogateescape")
    return others, message_id
