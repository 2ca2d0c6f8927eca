"""The asyncio client's dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from liftlog.client.aio.consumer import Consumer
from liftlog.client.aio.group import GroupConsumer
from liftlog.client.dead_lettering import Lettering, Work, is_too_large
from liftlog.client.publisher import Publisher
from liftlog.client.publishing.results import Published, PublishRefused
from liftlog.errors import GroupFenced, InvalidArgument, LiftlogError
from liftlog.records.decode import Record


class DeadLetters(Lettering):
    """Processes records. A record that fails repeatedly is published to another subject, and does
    not stop the others.

    - `publisher` is an open publisher, which the caller closes. It publishes the dead letters on
      `subject`. `expect` is the name of the stream that records this subject. This stream must not
      be the stream from which the records are read.
    - `retries`: number of further attempts after the first one. The first pause lasts `pause`
      seconds, and each following pause is twice as long, up to 30 s. During a pause the member
      processes no other record, so the records of a key stay in order.
    - `errors`: errors that a bad record can cause. Any other error ends the run, and the record is
      read again later. So do not include errors with other causes than the record, such as a
      database that is down.

    A record counts as processed only after its dead letter is acked. If the dead letter cannot be
    published, the error ends the run; the record does not count as processed, and is read again
    later. If the process dies between the ack and the commit, the record is also read again and may
    become a dead letter again. The second letter has the message id of the first, so within the
    dedupe window the stream stores only one of them.
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
        super().__init__(subject, expect, retries, pause, errors)
        self._publisher = publisher

    async def run(self, records: GroupConsumer | Consumer, work: Work) -> None:
        """Call `process` for each record, until the iteration ends."""
        async for record in records:
            await self.process(records, record, work)

    async def process(
        self, records: GroupConsumer | Consumer, record: Record, work: Work
    ) -> Published | None:
        """Call `work(record)`, and repeat it after an error. If all attempts fail, publish a dead
        letter and return its acks; return None if `work` succeeded. `records` is the consumer that
        returned the record.

        Raises errors of `work` that are not in `errors`, GroupFenced, and PublishFailed.
        """
        for attempt in range(1, self._retries + 2):
            try:
                await work(record)
            except GroupFenced:
                raise  # not in `errors`: the record did not cause it
            except self._errors as error:
                if attempt > self._retries:
                    return await self._publish(records, record, error, attempt)
                await asyncio.sleep(self._pause_after(attempt, record, error))
            else:
                return None
        raise AssertionError("unreachable")

    async def _publish(
        self, records: GroupConsumer | Consumer, record: Record, error: Exception, attempts: int
    ) -> Published | None:
        name = records.group if isinstance(records, GroupConsumer) else records.name
        return await self.publish(name, records.stream, record, error, attempts)

    async def publish(
        self, name: str, stream: str, record: Record, error: Exception, attempts: int
    ) -> Published | None:
        """Publish a dead letter, and return its acks; None if the record is itself a dead letter on
        this subject. `name` is the consumer, `attempts` is the number of its attempts to process
        the record, and `error` is the error of the last attempt. Raises PublishFailed."""
        misfit: LiftlogError | None = None
        for letter in self._letters(name, stream, record, error, attempts):
            try:
                done = await self._publisher.publish(self._subject, **letter)
            except InvalidArgument as refusal:
                misfit = refusal
            except PublishRefused as refusal:
                if not is_too_large(refusal):
                    raise
                misfit = refusal
            else:
                self.published += 1
                return done
        if misfit is not None:
            raise misfit
        return None
