"""The part of a worker that does not wait: its requests, and the messages that it has received and
not acked."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from liftlog.client.working.deliveries import Held, WorkBatch, WorkMessage, joined
from liftlog.client.working.settings import WAIT_SECONDS, WorkerSettings, config_of, nanoseconds
from liftlog.errors import InvalidArgument
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.workers import (
    MAX_ACKED,
    MAX_BATCH,
    NAK,
    AckWork,
    CreateConsumer,
    Delivered,
    PullWork,
    Rest,
    Run,
    decode_runs,
    encode_runs,
)

logger = logging.getLogger("liftlog.client")

GOODBYE_SECONDS = 5.0
"""Time limit for returning messages at the end."""
_MAX_HELD = 10_000
"""Maximum number of unacked deliveries that are returned at the end. Older deliveries are delivered
again when their ack wait is over."""
_MAX_REASON_CHARS = 1024

Acked: TypeAlias = "WorkBatch | WorkMessage | Iterable[WorkMessage]"
Listed: TypeAlias = "WorkBatch | list[WorkMessage]"


class Working:
    """A worker of a consumer with acks."""

    def __init__(self, settings: WorkerSettings) -> None:
        settings.check()
        self.stream = settings.stream
        self.consumer = settings.consumer
        self._settings = settings
        self._worker = os.urandom(8).hex()
        self._held: deque[Held] = deque(maxlen=_MAX_HELD)
        self._opened = False
        self._closed = False
        self.answer_count = 0
        """Number of answers to requests for messages."""

    # --- requests ---

    def _create_request(self) -> CreateConsumer:
        return CreateConsumer(self.stream, self.consumer, config_of(self._settings.options))

    def _pull_request(self) -> PullWork:
        settings = self._settings
        return PullWork(
            self.stream,
            self.consumer,
            settings.batch,
            settings.max_bytes,
            round(WAIT_SECONDS * 1000),
            self._worker,
        )

    def _rest_request(self) -> Rest:
        return Rest(self.stream, self.consumer, self._worker)

    def _ack_requests(
        self, kind: str, what: Iterable[Listed], delay: float = 0.0, reason: str = ""
    ) -> list[AckWork]:
        """Return the requests that ack messages. Raises InvalidArgument."""
        delay_ns = nanoseconds("delay", delay)
        if len(reason) > _MAX_REASON_CHARS:
            raise InvalidArgument(f"a reason has at most {_MAX_REASON_CHARS} characters")
        found: dict[str, list[Run]] = {}
        single: dict[str, list[tuple[int, int]]] = {}
        for one in what:
            if isinstance(one, WorkBatch):
                found.setdefault(one.held.identity, []).extend(one.held.left())
                continue
            for message in one:
                offset_and_count = message.record.offset, message.deliveries
                single.setdefault(message.held.identity, []).append(offset_and_count)
        for identity, some in single.items():
            found.setdefault(identity, []).extend(joined(iter(some)))
        return [
            AckWork(self.stream, self.consumer, identity, kind, encode_runs(some), delay_ns, reason)
            for identity, runs in found.items()
            for some in _pieces(runs)
        ]

    def _no_longer_held(self, what: Iterable[Listed]) -> None:
        """Remove messages that the daemon has confirmed as acked or returned."""
        for one in what:
            if isinstance(one, WorkBatch):
                one.held.all_done()
            else:
                for message in one:
                    message.held.done(message.record.offset)
        while self._held and self._held[0].is_empty:
            self._held.popleft()

    def _return_requests(self) -> list[AckWork]:
        """Return the requests that return the unacked messages."""
        found: dict[str, list[Run]] = {}
        for held in self._held:
            found.setdefault(held.identity, []).extend(held.left())
        self._held.clear()
        return [
            AckWork(self.stream, self.consumer, identity, NAK, encode_runs(some))
            for identity, runs in found.items()
            for some in _pieces(runs)
        ]

    # --- answers ---

    def _received(self, delivered: Delivered, exchange: Exchange) -> WorkBatch | None:
        """Return the batch of an answer; None if it has no messages. Raises CorruptBatch."""
        self.answer_count += 1
        runs = decode_runs(delivered.runs)
        if not runs:
            return None
        held = Held(delivered.identity, runs)
        self._held.append(held)
        body = b"" if exchange.body is None else exchange.body
        return WorkBatch(self.stream, self.consumer, held, delivered.pending, body)

    def _log_failure(self, failure: Exception) -> None:
        logger.warning(
            "worker-not-returned stream=%s consumer=%s reason=%s",
            self.stream,
            self.consumer,
            failure,
        )


def as_lists(what: Iterable[Acked]) -> list[Listed]:
    """Return the acked messages in a form that can be iterated twice. Raises InvalidArgument."""
    found: list[Listed] = []
    for one in what:
        if isinstance(one, WorkBatch):
            found.append(one)
            continue
        messages = [one] if isinstance(one, WorkMessage) else list(one)
        for message in messages:
            if not isinstance(message, WorkMessage):
                raise InvalidArgument(
                    f"{message!r} was not delivered by a worker",
                    hint="ack batches, and messages of batches",
                )
        found.append(messages)
    return found


def _pieces(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Divide runs into parts that one request can contain."""
    piece: list[Run] = []
    size = 0
    for run in runs:
        if piece and (len(piece) == MAX_BATCH or size + run.size > MAX_ACKED):
            yield piece
            piece, size = [], 0
        piece.append(run)
        size += run.size
    if piece:
        yield piece
