"""Finds out whether JetStream acks the same messages as the daemon.

A publisher uses the first ack that arrives. So it could treat an ack of JetStream as an ack of the
daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import Collection, Sequence

from acl.subjects import overlaps
from liftlog.errors import NatsUnavailable
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.connection import NatsConnection
from liftlog.server.ingest.subscriptions import LinkSubscription

logger = logging.getLogger("liftlog.server.nats")

MARK = "liftlog"
"""The key in answers on JetStream's API that distinguishes liftlog from JetStream."""

_API_PREFIX = "$JS.API."
_NAMES = f"{_API_PREFIX}STREAM.NAMES"
_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 300.0
"""Pause, in seconds, between two checks while nothing changes."""
_PAUSE_SECONDS = 1.0
"""Shortest time, in seconds, from one check to the next. While programs create thousands of
streams, a check of all streams after each new stream would take longer than the creations."""
_MAY_RECORD_INBOXES = ("_INBOX", "*", ">")


class JetStreamWatch:
    """Checks in the background: after each change, and from time to time. Belongs to the event
    loop."""

    def __init__(self, lock: asyncio.Lock) -> None:
        """The holder of `lock` changes the subscriptions of a connection."""
        self._lock = lock
        self._look: _Look | None = None
        self._due_at = self._free_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Check soon, because a subscription was added."""
        self._due_at = 0.0

    def start_over(self) -> None:
        """Check soon, and ask again even if NATS did not allow it before."""
        self._look, self._due_at, self._free_at = None, 0.0, 0.0

    def refuses(self, subject: str) -> bool:
        """Return True if NATS has refused a message of this check on this subject. The check then
        sends no more requests over this connection."""
        if self._look is None or not subject.upper().startswith(_API_PREFIX):
            return False
        self._look.is_refused = True
        return True

    def look(
        self, connection: NatsConnection, wanted: Collection[LinkSubscription], now: float
    ) -> None:
        """Begin a check if it is due. Returns at once."""
        if now < max(self._due_at, self._free_at):
            return
        if self._looking is not None and not self._looking.done():
            return
        self._due_at, self._free_at = now + _LOOK_SECONDS, now + _PAUSE_SECONDS
        if self._look is None or self._look.connection is not connection:
            self._look = _Look(connection, self._lock)
        acked = [one for one in wanted if one.is_acked and one.confirmed]
        # A stream that records inboxes would record the answers to the check.
        would_record = any(
            subject.startswith(_MAY_RECORD_INBOXES) and overlaps(subject, "_INBOX.>")
            for one in wanted
            for subject in one.subjects
        )
        if acked and not would_record and not self._look.is_refused:
            self._looking = asyncio.create_task(self._look.ask(acked), name="nats-jetstream")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)


class _Look:
    """Asks JetStream over one connection, unless NATS forbids it."""

    def __init__(self, connection: NatsConnection, lock: asyncio.Lock) -> None:
        self.connection = connection
        self._lock = lock
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._answers: dict[int, list[str]] = {}
        self._first = self._asked = 0
        """The current questions have the numbers from `_first` to `_asked` - 1."""
        self._missing = 0
        self._is_there = False
        """True if a server other than liftlog has answered."""
        self._done = asyncio.Event()
        self._subscription = LinkSubscription((f"{self._inbox}.*",), None, self._receive)
        self.is_refused = False
        """True if NATS does not allow the questions."""

    async def ask(self, wanted: Sequence[LinkSubscription]) -> None:
        """Set `jetstream_streams` of each subscription to the streams of JetStream that overlap
        with it.

        The first question is asked alone. If JetStream does not answer this question, no other
        question is asked. So without JetStream, a check of thousands of streams takes no longer
        than a check of one stream.
        """
        try:
            if not await self._listens():
                return
            self._is_there = False
            found = await self._answered([wanted[0].subjects[0]])
            questions: list[tuple[LinkSubscription, str]] = []
            if self._is_there:
                questions = [(one, subject) for one in wanted for subject in one.subjects]
                found += await self._answered([subject for _, subject in questions[1:]])
        except NatsUnavailable:
            return  # keep the earlier result
        logger.debug("jetstream-looked asked=%d there=%s", len(wanted), self._is_there)
        if not self._is_there and found != [None]:
            for one in wanted:
                one.jetstream_streams = []
        told: dict[LinkSubscription, set[str]] = {}
        for (one, _), names in zip(questions, found, strict=False):
            if names is not None:
                told.setdefault(one, set()).update(names)
        for one, streams in told.items():
            self._tell(one, sorted(streams))

    async def _listens(self) -> bool:
        """Return True if NATS lets the daemon receive JetStream's answers."""
        if self._subscription not in self.connection.sids:
            async with self._lock:
                self.is_refused = bool(await self.connection.subscribe([self._subscription]))
        return not self.is_refused

    async def _answered(self, subjects: Sequence[str]) -> list[list[str] | None]:
        """Return JetStream's streams for each subject; None for a subject without an answer. Raises
        NatsUnavailable."""
        first = self._first = self._asked
        self._asked += len(subjects)
        self._answers = {}
        self._missing = len(subjects)
        self._done.clear()
        commands = []
        for number, subject in enumerate(subjects, first):
            question = json.dumps({"subject": subject}).encode()
            head = f"PUB {_NAMES} {self._inbox}.{number} {len(question)}\r\n".encode()
            commands.append(head + question + b"\r\n")
        self.connection.send(b"".join(commands))
        await self.connection.confirm()
        if subjects and not self.is_refused:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._done.wait()
        return [self._answers.get(number) for number in range(first, self._asked)]

    def _tell(self, one: LinkSubscription, names: list[str]) -> None:
        if names and names != one.jetstream_streams:
            logger.warning(
                "jetstream-on-the-same-subject subject=%s jetstream_streams=%s advice=%s",
                ",".join(one.subjects),
                ",".join(names),
                "set acks: off for our stream, or remove the other one: both ack the same messages",
            )
        one.jetstream_streams = names

    def _receive(self, run: MessageRun) -> None:
        for subject, payload in zip(run.subjects, run.payloads, strict=True):
            try:
                number = int(subject.rpartition(b".")[2])
                # Without JetStream, NATS answers "no responders" with an empty payload.
                found = json.loads(payload) if payload else {}
                # Another liftlog node of the same cluster may answer in place of JetStream.
                is_ours = not found or MARK in found
                names = [] if is_ours else found.get("streams") or []
            except (ValueError, AttributeError):
                continue
            if number < self._first:
                continue  # this answers an earlier question
            self._is_there |= not is_ours
            if isinstance(names, list):
                self._answers[number] = list(map(str, names))
            self._missing -= 1
        if self._missing <= 0:
            self._done.set()
