"""Whether JetStream acks the same messages as we do: a publisher takes the first ack for the one
that it waits for, so it would take JetStream's for ours."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Sequence

from liftlog.errors import NatsUnavailable
from liftlog.server.ingest.connection import NatsConnection
from liftlog.server.ingest.subscriptions import LinkSubscription
from liftlog.stream.run import MessageRun

logger = logging.getLogger("liftlog.server.nats")

API_PREFIX = "$JS.API."
_NAMES = f"{API_PREFIX}STREAM.NAMES"
_ANSWER_SECONDS = 2.0


class JetStreamLook:
    """Asks JetStream over one connection, as far as NATS allows that. Belongs to the event loop."""

    def __init__(self, connection: NatsConnection, lock: asyncio.Lock) -> None:
        """`lock` is held while subscriptions of the connection change."""
        self._connection = connection
        self._lock = lock
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._answers: dict[int, list[str]] = {}
        self._missing = 0
        self._done = asyncio.Event()
        self._subscription = LinkSubscription(f"{self._inbox}.*", None, self._receive)
        self.is_refused = False
        """NATS does not let us ask, so there is no use in asking again."""

    async def ask(self, wanted: Sequence[LinkSubscription]) -> None:
        """Find out which streams of JetStream overlap; kept in each one's `jetstream_streams`."""
        connection = self._connection
        try:
            if self._subscription not in connection.sids:
                async with self._lock:
                    self.is_refused = bool(await connection.subscribe([self._subscription]))
                if self.is_refused:
                    return
            self._answers.clear()
            self._done.clear()
            self._missing = len(wanted)
            commands = []
            for number, one in enumerate(wanted):
                question = json.dumps({"subject": one.subject}).encode()
                head = f"PUB {_NAMES} {self._inbox}.{number} {len(question)}\r\n".encode()
                commands.append(head + question + b"\r\n")
            connection.send(b"".join(commands))
            await connection.confirm()
            if self.is_refused or not wanted:
                return
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._done.wait()
        except (NatsUnavailable, TimeoutError):
            pass  # what is known so far is kept
        logger.debug("jetstream-looked asked=%d answers=%d", len(wanted), len(self._answers))
        for number, names in self._answers.items():
            self._tell(wanted[number], names)

    def _tell(self, one: LinkSubscription, names: list[str]) -> None:
        if names and names != one.jetstream_streams:
            logger.warning(
                "jetstream-on-the-same-subject subject=%s jetstream_streams=%s advice=%s",
                one.subject,
                ",".join(names),
                "set acks: off for our stream, or remove the other one: both ack the same messages",
            )
        one.jetstream_streams = names

    def _receive(self, run: MessageRun) -> None:
        for subject, payload in zip(run.subjects, run.payloads, strict=True):
            try:
                number = int(subject.rpartition(b".")[2])
                # Without JetStream NATS answers that nobody listens, with an empty payload.
                found = json.loads(payload) if payload else {}
                names = found.get("streams") or []
            except (ValueError, AttributeError):
                continue
            if isinstance(names, list):
                self._answers[number] = sorted(map(str, names))
            self._missing -= 1
        if self._missing <= 0:
            self._done.set()
