# Made from liftlog/client/aio/dead_letters.py by `make blocking`: edit that one.
"""The blocking client's dead letters."""

from __future__ import annotations

import time
from collections.abc import Sequence

from liftlog.client.blocking.consumer import SyncConsumer
from liftlog.client.blocking.group import SyncGroupConsumer
from liftlog.client.dead_lettering import Lettering, SyncWork, is_too_large
from liftlog.client.publishing.results import Published, PublishRefused
from liftlog.client.sync_publisher import SyncPublisher
from liftlog.errors import GroupFenced, InvalidArgument, LiftlogError
from liftlog.records.decode import Record


class SyncDeadLetters(Lettering):
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
        publisher: SyncPublisher,
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

    def run(self, records: SyncGroupConsumer | SyncConsumer, work: SyncWork) -> None:
        """`process` each record, until the iteration ends."""
        for record in records:
            self.process(records, record, work)

    def process(
        self, records: SyncGroupConsumer | SyncConsumer, record: Record, work: SyncWork
    ) -> Published | None:
        """Call `work(record)`, again after an error, and then publish a dead letter, whose acks
        are returned; None if `work` succeeded. `records` is where the record comes from.

        Raises the errors that are not of `errors`, GroupFenced, and PublishFailed.
        """
        for attempt in range(1, self._retries + 2):
            try:
                work(record)
            except GroupFenced:
                raise  # an error that the record did not cause
            except self._errors as error:
                if attempt > self._retries:
                    return self._publish(records, record, error, attempt)
                time.sleep(self._pause_after(attempt, record, error))
            else:
                return None
        raise AssertionError("unreachable")

    def _publish(
        self,
        records: SyncGroupConsumer | SyncConsumer,
        record: Record,
        error: Exception,
        attempts: int,
    ) -> Published | None:
        name = records.group if isinstance(records, SyncGroupConsumer) else records.name
        misfit: LiftlogError | None = None
        for letter in self._letters(name, records.stream, record, error, attempts):
            try:
                done = self._publisher.publish(self._subject, **letter)
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
