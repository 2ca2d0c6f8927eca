"""What becomes of a record whose processing fails: it is tried again, then published elsewhere.

    letters = DeadLetters(publisher, "dead.orders", expect=["dead"], retries=3)
    async with client.group("billing", "orders") as records:
        await letters.run(records, bill)

docs/how-to/dead-letters.md shows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from liftlog.client.aio.consumer import Consumer
from liftlog.client.aio.group import GroupConsumer
from liftlog.client.publisher import Published, Publisher
from liftlog.client.publishing.message import fits_header_line
from liftlog.errors import GroupFenced, InvalidArgument
from liftlog.records.decode import Record
from liftlog.records.message_headers import KEY, TOMBSTONE

__all__ = ["DeadLetters"]

STREAM = "Liftlog-Dead-Stream"
OFFSET = "Liftlog-Dead-Offset"
SUBJECT = "Liftlog-Dead-Subject"
GROUP = "Liftlog-Dead-Group"
ERROR = "Liftlog-Dead-Error"
ATTEMPTS = "Liftlog-Dead-Attempts"
WAS_TOMBSTONE = "Liftlog-Dead-Tombstone"
LEFT_OUT = "Liftlog-Dead-Left-Out"
"""What of the record the dead letter does not hold, because it fits no message."""

_NOT_KEPT = ("nats-", "liftlog-dead-")
"""Headers that begin so were for the server that stored it, or are of an earlier dead letter."""
_MAX_ERROR_CHARACTERS = 500
_MAX_PAUSE_SECONDS = 30.0

logger = logging.getLogger("liftlog.client")

Work = Callable[[Record], Awaitable[object]]


class DeadLetters:
    """Processes records so that one that cannot be processed does not stop the others.

    - `publisher` is open, and remains the caller's. `subject`: where dead letters are published;
      `expect` names the stream that records it, which has to be another one than the group reads.
    - `retries`: how often to try again after the first attempt, the first time after `pause`
      seconds, then twice as long each time, at most 30 s. Meanwhile this member does nothing else,
      so the records of a key stay in order.
    - `errors`: what a record can be guilty of. All other errors end the run, and the record comes
      again: name the errors of bad records, and not those of a database that is down.

    A dead letter is acked before its record counts as processed. If it cannot be published, the
    error ends the run, the record does not count, and comes again. If the process dies between the
    ack and the commit, the record comes again and may become a dead letter again: that has the same
    message id, so its stream stores it once within its dedupe window.
    """

    def __init__(
        self,
        publisher: Publisher,
        subject: str,
        *,
        expect: Sequence[str] = (),
        retries: int = 3,
        pause: float = 0.5,
        errors: tuple[type[Exception], ...] = (Exception,),
    ) -> None:
        """Raises InvalidArgument."""
        if retries < 0 or not 0 <= pause <= _MAX_PAUSE_SECONDS:
            raise InvalidArgument(f"retries={retries!r} or pause={pause!r} is out of range")
        self.published = 0
        """Dead letters that were acked."""
        self._publisher = publisher
        self._subject = subject
        self._expect = expect
        self._retries = retries
        self._pause = pause
        self._errors = errors

    async def run(self, records: GroupConsumer | Consumer, work: Work) -> None:
        """`process` each record, until the iteration ends."""
        async for record in records:
            await self.process(records, record, work)

    async def process(
        self, records: GroupConsumer | Consumer, record: Record, work: Work
    ) -> Published | None:
        """Await `work(record)`, again after an error, and then publish a dead letter, whose acks
        are returned; None if `work` succeeded. `records` is where the record comes from.

        Raises the errors that are not of `errors`, GroupFenced, and PublishFailed.
        """
        pause = self._pause
        for attempt in range(1, self._retries + 2):
            try:
                await work(record)
            except GroupFenced:
                raise  # it is not the record's
            except self._errors as error:
                if attempt > self._retries:
                    return await self._publish(records, record, error, attempt)
                logger.info("attempt-failed offset=%d error=%r", record.offset, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            else:
                return None
        raise AssertionError("unreachable")

    async def _publish(
        self, records: GroupConsumer | Consumer, record: Record, error: Exception, attempts: int
    ) -> Published | None:
        name = records.group if isinstance(records, GroupConsumer) else records.name
        reason = _one_line(f"{type(error).__name__}: {error}")
        logger.warning(
            "dead-letter group=%s stream=%s offset=%d attempts=%d error=%s",
            name,
            records.stream,
            record.offset,
            attempts,
            reason,
        )
        if record.subject == self._subject:
            return None  # it is one already; another one of it would come back, too
        headers = {
            STREAM: records.stream,
            OFFSET: str(record.offset),
            SUBJECT: record.subject,
            GROUP: name,
            ERROR: reason,
            ATTEMPTS: str(attempts),
        }
        if record.value is None:
            headers[WAS_TOMBSTONE] = "true"
        headers = {field: text for field, text in headers.items() if fits_header_line(field, text)}
        message_id = f"{name}/{records.stream}/{record.offset}/{record.timestamp_ns}"
        for form in _forms(record, headers):
            try:
                done = await self._publisher.publish(
                    self._subject, **form, message_id=message_id, expect=self._expect or None
                )
            except InvalidArgument as refusal:
                misfit = refusal
            else:
                self.published += 1
                return done
        raise misfit


def _forms(record: Record, headers: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The dead letter, whole, and then with less and less of its record."""
    value = record.value or b""
    own = {
        name: text
        for name, text in record.headers.items()
        if not name.lower().startswith(_NOT_KEPT)
        and name not in (KEY, TOMBSTONE)
        and fits_header_line(name, text)
    }
    yield {"value": value, "key": record.key, "headers": own | headers}
    yield {"value": value, "headers": own | headers | {LEFT_OUT: "key"}}
    yield {"value": value, "headers": headers | {LEFT_OUT: "key, headers"}}
    yield {"value": b"", "headers": headers | {LEFT_OUT: "key, headers, value"}}


def _one_line(text: str) -> str:
    """Without what a header or a terminal would act on."""
    shown = "".join([one if one.isprintable() else " " for one in text[:_MAX_ERROR_CHARACTERS]])
    return shown.strip()
