"""The part of a consumer that does not wait, shared by both kinds."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from liftlog.client.batch_reader import BatchReader, SyncBatchReader
from liftlog.client.progress import Progress
from liftlog.client.read_options import RESETTABLE, ReadOptions, Reset, Start, Until
from liftlog.errors import CheckpointUncertain, LiftlogError
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.messages import EARLIEST
from liftlog.records.decode import Record, RecordBatch

logger = logging.getLogger("liftlog.client")

FIRST_OFFSET = 1


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The arguments of `consumer`."""

    name: str
    stream: str
    start: Start
    until: Until
    every: int | None
    interval: float | None
    exclusive: bool
    metadata: str
    options: ReadOptions = field(default_factory=ReadOptions)

    def may_go_on_after(self, error: LiftlogError) -> bool:
        """Whether the iteration continues although a checkpoint could not be stored: the next one
        makes up for it, or the read is about to continue at another position."""
        resets = self.options.get("on_reset", "error") != "error"
        return error.retriable or (resets and isinstance(error, RESETTABLE))


def reads_from(settings: ConsumerSettings, found: Checkpoint | None) -> tuple[Start, ReadOptions]:
    """Where the read begins, and its options. With a checkpoint they state what was read before, so
    that the daemon reports when the position is gone or the stream is another one.

    If the daemon has lost checkpoints to damage, an older one only means that records are read
    again. Without any, a start after the first record would skip records that were never read: then
    this raises CheckpointUncertain, unless `on_reset` says where to continue.
    """
    options = settings.options.copy()
    if found is None:
        return settings.start, options
    if found.uncertain:
        logger.warning(
            "checkpoint-uncertain consumer=%s stream=%s offset=%d: the daemon has lost checkpoints "
            "to damage, and records may be read again",
            settings.name,
            settings.stream,
            found.offset,
        )
    if found.offset:
        options["incarnation"], options["epoch"] = found.incarnation, found.epoch
        return found.offset, options
    if settings.start in (EARLIEST, FIRST_OFFSET):
        return settings.start, options
    on_reset = options.get("on_reset", "error")
    if on_reset == "error":
        raise CheckpointUncertain(
            f"the daemon has lost checkpoints to damage, maybe that of {settings.name} in stream "
            f"{settings.stream}: to begin at {settings.start!r} may skip records"
        )
    return on_reset, options


def with_reset_noted(options: ReadOptions, progress: Progress) -> ReadOptions:
    """A reset moves the consumer, too, unless the caller's own callback raises. The checkpoint then
    stays where it was, and the next run meets the same error."""
    callback = options.get("reset_callback")

    def moved(reset: Reset) -> None:
        if callback is not None:
            callback(reset)
        progress.move(reset.to_offset, reset.incarnation)

    options["reset_callback"] = moved
    return options


class ConsumerState:
    """Which records a consumer has returned, which of them count, and its position.

    The two consumers add the loops that wait for records and for the daemon to store a checkpoint.
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self.name = settings.name
        self.stream = settings.stream
        self._settings = settings
        self._progress = Progress(settings.every, settings.interval, exclusive=settings.exclusive)
        self._reader: BatchReader | SyncBatchReader | None = None
        self._arrived: RecordBatch | None = None  # none of it was returned yet
        self._batch: RecordBatch | None = None  # its records are being returned
        self._records: list[Record] = []
        self._index = 0
        self._in_hand = 0  # records returned that do not count yet
        self._closed = False

    # --- where it stands ---

    @property
    def position(self) -> int | None:
        """Everything below counts as processed; None before anything does."""
        return self._progress.position

    @property
    def committed(self) -> int:
        """The offset that is stored durably; 0 if there is none."""
        return self._progress.committed

    @property
    def lag(self) -> int | None:
        """Offsets from `position` to the high watermark of the newest answer."""
        mark = None if self._reader is None else self._reader.high_watermark
        position = self.position
        return None if mark is None or position is None else max(mark - position, 0)

    # --- records in hand ---

    def _begin_batch(self, batch: RecordBatch) -> None:
        """Return its records from now on."""
        # Until its records are made it has only arrived, so an interruption loses nothing.
        records = batch.records()
        self._records, self._index, self._batch, self._arrived = records, 0, batch, None

    def _rest_of_batch(self) -> RecordBatch | None:
        """The records of the batch that the iteration has not returned; it gives them up."""
        batch, records, index = self._batch, self._records, self._index
        if batch is None or index == len(records):
            return None
        rest = batch.trim(records[index].offset)
        if self._in_hand:
            self._progress.advance(records[index].offset, self._in_hand)
        self._batch, self._records, self._index = None, [], 0
        return rest

    def _count_all(self, reader: BatchReader | SyncBatchReader) -> None:
        """Count as processed all records returned and all that the read passed over."""
        self._progress.arrive(reader.position, reader.incarnation, reader.epoch, self._in_hand)
        self._in_hand = 0

    def _count_in_hand(self) -> None:
        """Count as processed all records returned, also in the middle of a batch."""
        if self._in_hand:
            if 0 < self._index < len(self._records):
                self._progress.advance(self._records[self._index - 1].offset + 1, self._in_hand)
                self._in_hand = 0
            elif self._reader is not None:
                self._count_all(self._reader)

    def _let_go(self) -> None:
        """Return no more records. The record or batch that was returned last does not count."""
        self._closed = True
        self._arrived = self._batch = None
        self._records, self._index, self._in_hand = [], 0, 0

    def _check_open(self) -> None:
        if self._closed:
            raise LiftlogError("the consumer is closed", hint="make another one")

    # --- checkpoints ---

    def _begin(self, found: Checkpoint | None, now: float) -> tuple[Start, ReadOptions]:
        """Where the read begins, and its options; `found` is the stored checkpoint."""
        start, options = reads_from(self._settings, found)
        self._progress.begin(found, now)
        return start, with_reset_noted(options, self._progress)

    def _commit_options(self) -> dict[str, Any]:
        """The options of a commit besides its offset."""
        progress = self._progress
        return {
            "expected": progress.expected,
            "metadata": self._settings.metadata,
            "incarnation": progress.incarnation,
            "epoch": progress.epoch,
        }

    def _go_on_after(self, failure: LiftlogError) -> None:
        """Raise the failure of a commit, unless the iteration continues in spite of it."""
        if not self._settings.may_go_on_after(failure):
            raise failure
        self._log_failure(failure)

    def _log_failure(self, failure: LiftlogError) -> None:
        logger.warning(
            "checkpoint-failed consumer=%s stream=%s reason=%s", self.name, self.stream, failure
        )
