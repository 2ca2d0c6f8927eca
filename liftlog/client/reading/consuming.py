"""The part of a consumer that does not wait, for both clients: its progress, and the times at which
it stores checkpoints.

A record counts as processed when the next record is requested. A checkpoint is the offset after the
last processed record. So if the consumer ends while it processes a record, this record is read
again.

With `exclusive` every commit contains the offset that it expects to be stored. If the answer to a
commit was lost, the commit may have taken effect, so the consumer remembers the offset of this
commit. If the daemon then refuses the next commit because exactly this offset is stored, the
earlier commit has taken effect.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from liftlog.client.reading.base_reader import BaseReader
from liftlog.client.reading.read_options import RESETTABLE, ReadOptions, Reset, Start, Until
from liftlog.errors import (
    CheckpointMoved,
    CheckpointUncertain,
    ConnectionLost,
    InvalidArgument,
    LiftlogError,
    RequestTimeout,
)
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.messages import EARLIEST
from liftlog.records.decode import Record, RecordBatch

CHECKPOINT_EVERY = 1000
CHECKPOINT_INTERVAL_SECONDS = 5.0

_MAX_TRIES = 5

logger = logging.getLogger("liftlog.client")

FIRST_OFFSET = 1


class Progress:
    """The progress of a consumer. A checkpoint is due after `every` records or `interval` seconds.
    A limit of None is switched off."""

    def __init__(self, every: int | None, interval: float | None, *, exclusive: bool) -> None:
        if every is not None and every < 1:
            raise InvalidArgument(f"checkpoint_every={every!r} is not a number of records")
        if interval is not None and interval <= 0:
            raise InvalidArgument(f"checkpoint_interval={interval!r} is not a time in seconds")
        self.position: int | None = None
        """All records below this offset count as processed; None until the first record counts as
        processed."""
        self.committed = 0
        """The stored offset according to the last answer; 0 if no checkpoint is stored."""
        self.incarnation: str | None = None
        self.epoch: int | None = None
        self._every = every
        self._interval = interval
        self._exclusive = exclusive
        self._uncounted = 0
        self._due_at: float | None = None
        self._undecided: set[int] = set()
        self._tries = 0
        self._lost = False

    def begin(self, stored: Checkpoint | None, now: float) -> None:
        """Begin with the stored checkpoint. `stored` is None, or has offset 0, if there is no
        checkpoint."""
        if stored is not None and stored.offset:
            self.committed = self.position = stored.offset
            self.incarnation, self.epoch = stored.incarnation, stored.epoch
        self._postpone(now)

    @property
    def expected(self) -> int | None:
        """The offset that the daemon must have stored to accept the next commit; None if commits
        are unconditional."""
        return self.committed if self._exclusive else None

    # --- what counts as processed ---

    def advance(self, position: int | None, count: int) -> None:
        """Count all records below `position` as processed. `count` is the number of records that
        did not count before."""
        if position is not None:
            self.position = position
            self._uncounted += count

    def arrive(
        self, position: int | None, incarnation: str | None, epoch: int | None, count: int
    ) -> None:
        """Like `advance`, for all records that the read has returned. Also notes the incarnation
        and the epoch of the stream."""
        self.advance(position, count)
        if position is not None:
            self.incarnation, self.epoch = incarnation, epoch

    def hear(self, incarnation: str | None, epoch: int | None) -> None:
        """Note the incarnation and the epoch of the following records. A checkpoint between these
        records has to contain their epoch, because the previous epoch may have ended below these
        records."""
        self.incarnation, self.epoch = incarnation, epoch

    def move(self, position: int, incarnation: str) -> None:
        """Note that the read continues at another position."""
        self.position = position
        self.incarnation, self.epoch = incarnation, None

    # --- when to store it ---

    def is_due(self, now: float) -> bool:
        if self._every is not None and self._uncounted >= self._every:
            return self._is_new
        if self._due_at is None or now < self._due_at:
            return False
        if not self._is_new:
            self._postpone(now)
            return False
        return True

    def seconds_left(self, now: float) -> float | None:
        """Return the time to wait for records before `is_due` is checked again."""
        return None if self._due_at is None else max(self._due_at - now, 0.0)

    @property
    def _is_new(self) -> bool:
        return self.position is not None and self.position != self.committed

    def _postpone(self, now: float) -> None:
        self._uncounted = 0
        self._due_at = None if self._interval is None else now + self._interval

    # --- storing it ---

    def start_commit(self, now: float) -> None:
        """Begin a commit. The next commit is due after a full interval, even if this one fails."""
        self._postpone(now)
        self._tries = 0

    def next_commit(self) -> int | None:
        """Return the offset to commit. Returns None if it is already stored, or if another process
        has committed."""
        if self._lost or not self._is_new:
            return None
        self._tries += 1
        return self.position

    def confirmed(self, offset: int) -> None:
        """Note that the daemon has stored `offset` durably."""
        self.committed = offset
        self._undecided.clear()

    def in_doubt(self, offset: int) -> None:
        """Note that a commit of `offset` may have taken effect."""
        self._undecided.add(offset)

    def refused(self, offset: int, error: LiftlogError) -> bool:
        """Note that the commit has failed. Returns True if the caller must call `next_commit`
        again, and False if it must raise the error."""
        if isinstance(error, CheckpointMoved):
            stored = error.details.get("offset")
            if stored in self._undecided:
                self.confirmed(stored)
                return True
            self._lost = True
            return False
        lost = isinstance(error, ConnectionLost) and error.undecided
        if lost or isinstance(error, RequestTimeout):
            self.in_doubt(offset)
        return lost and self._tries < _MAX_TRIES


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The arguments of `Client.consumer`."""

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
        """Return True if the iteration continues although a checkpoint could not be stored. Either
        the next checkpoint covers the same records, or the read is about to continue at another
        position."""
        resets = self.options.get("on_reset", "error") != "error"
        return error.retriable or (resets and isinstance(error, RESETTABLE))


def reads_from(settings: ConsumerSettings, found: Checkpoint | None) -> tuple[Start, ReadOptions]:
    """Return the start and the options of the read. With a checkpoint, the options contain its
    incarnation and epoch, so that the daemon reports an error if the position no longer exists or
    the name belongs to another stream.

    Damage may have destroyed checkpoints. If an older checkpoint is left, the read begins there,
    and some records are read again. If no checkpoint is left, and the read would start after the
    first record, the read could skip records that were never read. In this case the function raises
    CheckpointUncertain, unless `on_reset` defines where to continue.
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
    """Return options in which `reset_callback` also moves the consumer's position. If the caller's
    own callback raises an exception, the position stays unchanged, so the next run gets the same
    error."""
    callback = options.get("reset_callback")

    def moved(reset: Reset) -> None:
        if callback is not None:
            callback(reset)
        progress.move(reset.to_offset, reset.incarnation)

    options["reset_callback"] = moved
    return options


class ConsumerState:
    """The records that a consumer has received, how many of them are returned and processed, and
    its position.

    The asyncio and the blocking consumer add the loops that wait for records and for stored
    checkpoints.
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self.name = settings.name
        self.stream = settings.stream
        self._settings = settings
        self._progress = Progress(settings.every, settings.interval, exclusive=settings.exclusive)
        self._reader: BaseReader | None = None
        self._arrived: RecordBatch | None = None  # none of its records are returned yet
        self._batch: RecordBatch | None = None  # the batch whose records are being returned
        self._records: list[Record] = []
        self._index = 0
        self._in_hand = 0  # returned records that do not count as processed yet
        self._closed = False

    # --- its position ---

    @property
    def position(self) -> int | None:
        """All records below this offset count as processed; None until the first record counts as
        processed."""
        return self._progress.position

    @property
    def committed(self) -> int:
        """The durably stored offset; 0 if there is no checkpoint."""
        return self._progress.committed

    @property
    def lag(self) -> int | None:
        """Number of offsets from `position` to the high watermark in the newest answer; None before
        the first answer."""
        mark = None if self._reader is None else self._reader.high_watermark
        position = self.position
        return None if mark is None or position is None else max(mark - position, 0)

    # --- records in hand ---

    def _begin_batch(self, batch: RecordBatch) -> None:
        """Make this batch the current one: the iteration returns its records next."""
        # The batch stays in `_arrived` until its records are made, so an interruption loses
        # nothing.
        records = batch.records()
        self._records, self._index, self._batch, self._arrived = records, 0, batch, None

    def _rest_of_batch(self) -> RecordBatch | None:
        """Return the rest of the current batch: the records that the iteration has not returned.
        The iteration then does not return these records."""
        batch, records, index = self._batch, self._records, self._index
        if batch is None or index == len(records):
            return None
        rest = batch.trim(records[index].offset)
        if self._in_hand:
            self._progress.advance(records[index].offset, self._in_hand)
        self._batch, self._records, self._index = None, [], 0
        return rest

    def _count_all(self, reader: BaseReader) -> None:
        """Count as processed all returned records and all offsets that the read has skipped."""
        self._progress.arrive(reader.position, reader.incarnation, reader.epoch, self._in_hand)
        self._in_hand = 0

    def _count_in_hand(self) -> None:
        """Count all returned records as processed, even in the middle of a batch."""
        if self._in_hand:
            if 0 < self._index < len(self._records):
                self._progress.advance(self._records[self._index - 1].offset + 1, self._in_hand)
                self._in_hand = 0
            elif self._reader is not None:
                self._count_all(self._reader)

    def _let_go(self) -> None:
        """Return no more records. The record or batch that was returned last does not count as
        processed."""
        self._closed = True
        self._arrived = self._batch = None
        self._records, self._index, self._in_hand = [], 0, 0

    def _check_open(self) -> None:
        if self._closed:
            raise LiftlogError("the consumer is closed", hint="make another one")

    # --- checkpoints ---

    def _begin(self, found: Checkpoint | None, now: float) -> tuple[Start, ReadOptions]:
        """Begin at the stored checkpoint `found`. Returns the start and the options of the read."""
        start, options = reads_from(self._settings, found)
        self._progress.begin(found, now)
        return start, with_reset_noted(options, self._progress)

    def _commit_options(self) -> dict[str, Any]:
        """The arguments of a commit other than its offset."""
        progress = self._progress
        return {
            "expected": progress.expected,
            "metadata": self._settings.metadata,
            "incarnation": progress.incarnation,
            "epoch": progress.epoch,
        }

    def _go_on_after(self, failure: LiftlogError) -> None:
        """Raise the failure of a commit, unless the iteration continues after it."""
        if not self._settings.may_go_on_after(failure):
            raise failure
        self._log_failure(failure)

    def _log_failure(self, failure: LiftlogError) -> None:
        logger.warning(
            "checkpoint-failed consumer=%s stream=%s reason=%s", self.name, self.stream, failure
        )
