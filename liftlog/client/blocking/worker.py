# Made from liftlog/client/aio/worker.py by `make blocking`: edit that one.
"""The blocking client's worker of a consumer with acks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Self

from liftlog.client.blocking.background import Background, BackgroundRouter
from liftlog.client.blocking.consuming_block import ConsumingBlock
from liftlog.client.blocking.routing import SyncRouter
from liftlog.client.connecting.reconnecting import ReadPatience, is_interruption
from liftlog.client.requests import result_of
from liftlog.client.working.deliveries import WorkBatch, WorkMessage
from liftlog.client.working.settings import WAIT_SECONDS, WorkerSettings
from liftlog.client.working.working import GOODBYE_SECONDS, Acked, Working, as_lists, logger
from liftlog.errors import ConsumerNotFound, LiftlogError, RequestTimeout
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import Done, Message
from liftlog.protocol.workers import (
    ACK,
    NAK,
    PROGRESS,
    TERM,
    AckWork,
    ConsumerAnswer,
    Delivered,
    DescribeConsumer,
)


class SyncWorker(Working, ConsumingBlock[WorkBatch]):
    """Iterates over batches of messages of a consumer with acks. `SyncClient.worker` creates it.

    Each message is delivered to one worker of the consumer at a time, until a worker acks the
    message. `ack`, `nak`, `term` and `in_progress` take batches, messages, and lists of messages.
    Each call returns when the daemon has synced its effect to disk.

    After a lost connection the iteration continues on a new connection. The caller can still ack
    messages from an earlier connection, even after a restart of the daemon. `close`, which
    `with` calls, returns the messages that are not acked, so that other workers receive them
    at once. If the process or the connection of a worker ends without `close`, other workers
    receive these messages only when their `ack_wait` is over.

    A worker belongs to one thread. An iteration can be continued after an exception that a signal
    handler raised in it.
    """

    def __init__(self, session: SyncRouter, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self._session = session
        self._router = BackgroundRouter(session)
        self._pulling: Background[Exchange] | None = None

    def _ask(self, message: Message, expected: type[Message]) -> Message:
        timeout = self._session.target.request_timeout
        return result_of(self._session.ask(message, timeout), expected)

    # --- messages ---

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WorkBatch:
        return self._take_batch()

    def messages(self) -> Iterator[WorkMessage]:
        """Return an iterator over single messages."""
        return _Messages(self)

    def _take_batch(self) -> WorkBatch:
        patience = ReadPatience(self._session.target.reconnect_for)
        while not self._closed:
            try:
                self._open()
                batch = self._pull()
            except LiftlogError as error:
                now = time.monotonic()
                pause, deadline = patience.interrupted(self.answer_count, now)
                over = deadline is not None and now + pause >= deadline
                if over or not (is_interruption(error) or isinstance(error, RequestTimeout)):
                    raise
                logger.warning(
                    "worker-interrupted stream=%s consumer=%s reason=%s",
                    self.stream,
                    self.consumer,
                    error,
                )
                time.sleep(pause)
            else:
                if batch is not None:
                    return batch
        raise StopIteration

    def _open(self) -> None:
        """Create the consumer, unless it exists."""
        if self._opened:
            return
        if self._settings.create:
            self._ask(self._create_request(), ConsumerAnswer)
        else:
            self._ask(DescribeConsumer(self.stream, self.consumer), ConsumerAnswer)
        self._opened = True

    def _pull(self) -> WorkBatch | None:
        """Return the next batch; None if the wait ended without messages."""
        if self._pulling is None:
            self._begin()
        assert self._pulling is not None
        try:
            exchange = self._pulling.result()
        except LiftlogError:
            self._pulling = None
            self._router.close()
            raise
        self._pulling = None
        batch = self._received(result_of(exchange, Delivered), exchange)
        if self._settings.prefetch and batch is not None:
            self._begin()
        return batch

    def _begin(self) -> None:
        pulling: Background[Exchange] = Background("liftlog-worker")
        pulling.start(self._request)
        self._pulling = pulling

    def _request(self) -> Exchange:
        router = self._router.opened()
        return router.ask(self._pull_request(), router.target.request_timeout + WAIT_SECONDS)

    # --- acks ---

    def ack(self, *what: Acked) -> None:
        """Mark messages as done, so that they are not delivered again. The ack is durable on
        return."""
        self._acknowledge(ACK, what)

    def nak(self, *what: Acked, delay: float = 0.0) -> None:
        """Return messages to the consumer, which delivers them again after `delay` seconds. The
        effect is durable on return.

        During the delay the messages count towards `max_ack_pending`.
        """
        self._acknowledge(NAK, what, delay)

    def term(self, *what: Acked, reason: str = "") -> None:
        """Terminate messages: they are not delivered again, although they were not processed. The
        effect is durable on return."""
        self._acknowledge(TERM, what, reason=reason)

    def in_progress(self, *what: Acked) -> None:
        """Restart the ack wait of messages, because their processing takes longer."""
        self._acknowledge(PROGRESS, what, ends=False)

    def _acknowledge(
        self,
        kind: str,
        what: tuple[Acked, ...],
        delay: float = 0.0,
        reason: str = "",
        *,
        ends: bool = True,
    ) -> None:
        listed = as_lists(what)
        for request in self._ack_requests(kind, listed, delay, reason):
            self._ask(request, Done)
        if ends:
            self._no_longer_held(listed)

    # --- the end ---

    def close(self) -> None:
        """End the iteration, and return the messages that are not acked. If the daemon cannot be
        reached, these messages are delivered again when their ack wait is over."""
        if self._closed:
            return
        self._closed = True
        try:
            self._say_goodbye()
        except ConsumerNotFound:
            pass  # nothing is left to return
        except LiftlogError as failure:
            self._log_failure(failure)
        finally:
            pulling, self._pulling = self._pulling, None
            if pulling is not None:
                pulling.stop(0)
            self._router.close()

    def _say_goodbye(self) -> None:
        ends = time.monotonic() + GOODBYE_SECONDS
        pulling = self._pulling
        if pulling is not None and not pulling.done:
            result_of(self._session.ask(self._rest_request(), GOODBYE_SECONDS), Done)
        if pulling is not None:
            self._pulling = None
            exchange = pulling.result()
            if isinstance(exchange.answer, Delivered):
                self._received(exchange.answer, exchange)
        requests: list[AckWork] = self._return_requests()
        for request in requests:
            left = max(ends - time.monotonic(), 0.1)
            result_of(self._session.ask(request, left), Done)

    def __enter__(self) -> Self:
        self._open()
        return self


class _Messages:
    """Iterates over the messages of a worker. It is not a generator, because a generator ends with
    the first exception that passes through it."""

    def __init__(self, worker: SyncWorker) -> None:
        self._worker = worker
        self._arrived: list[WorkMessage] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WorkMessage:
        while not self._arrived:
            batch = next(self._worker)
            self._arrived = batch.messages()[::-1]
        return self._arrived.pop()
