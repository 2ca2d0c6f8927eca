"""Consumers of the blocking client: a stream read from a stored checkpoint on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from liftlog.client.batch_reader import SyncBatchReader
from liftlog.client.consuming import ConsumerSettings, reads_from, with_reset_noted
from liftlog.client.progress import Progress
from liftlog.errors import LiftlogError
from liftlog.records.decode import Record, RecordBatch

if TYPE_CHECKING:
    from liftlog.client.synchronous import SyncClient

logger = logging.getLogger("liftlog.client")


class SyncConsumer:
    """As `Consumer`, blocking. Made by `SyncClient.consumer`.

    Belongs to one thread. An exception of a signal handler may interrupt its waits; it can go on
    after. One that comes just while records are handed out takes them along, as with any iterator:
    then open another consumer, or let the handler only set a flag.
    """

    def __init__(self, client: SyncClient, settings: ConsumerSettings) -> None:
        self.name = settings.name
        self.stream = settings.stream
        self._client = client
        self._settings = settings
        self._progress = Progress(settings.every, settings.interval, exclusive=settings.exclusive)
        self._reader: SyncBatchReader | None = None
        self._arrived: RecordBatch | None = None  # nothing of it was handed out yet
        self._batch: RecordBatch | None = None  # the one that records are handed out from
        self._records: list[Record] = []
        self._index = 0
        self._in_hand = 0  # records handed out that do not count yet
        self._closed = False

    # --- where it stands ---

    @property
    def position(self) -> int | None:
        """As `Consumer.position`."""
        return self._progress.position

    @property
    def committed(self) -> int:
        """As `Consumer.committed`."""
        return self._progress.committed

    @property
    def lag(self) -> int | None:
        """As `Consumer.lag`."""
        mark = None if self._reader is None else self._reader.high_watermark
        position = self.position
        return None if mark is None or position is None else max(mark - position, 0)

    # --- reading ---

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        progress = self._progress
        while self._index == len(self._records):
            batch = self._arrived_batch()
            # Until its records are made it has only arrived: what interrupts that loses nothing.
            records = batch.records()
            self._records, self._index, self._batch, self._arrived = records, 0, batch, None
        record = self._records[self._index]
        if self._in_hand:
            progress.advance(record.offset, self._in_hand)
            self._in_hand = 0
        if progress.is_due(time.monotonic()):
            self._commit_if_possible()
        self._index += 1
        self._in_hand = 1
        return record

    def batches(self) -> Iterator[RecordBatch]:
        """As `Consumer.batches`."""
        return _SyncBatches(self)

    def _take_batch(self) -> RecordBatch:
        batch = self._rest_of_batch()
        if batch is None:
            batch = self._arrived_batch()
        self._in_hand, self._arrived = len(batch), None
        return batch

    def _rest_of_batch(self) -> RecordBatch | None:
        """What the iteration over records has left of its batch, which is handed over with this."""
        batch, records, index = self._batch, self._records, self._index
        if batch is None or index == len(records):
            return None
        rest = batch.trim(records[index].offset)
        if self._in_hand:
            self._progress.advance(records[index].offset, self._in_hand)
        self._batch, self._records, self._index = None, [], 0
        return rest

    def _arrived_batch(self) -> RecordBatch:
        """The next one. It counts as handed out only once it is not `_arrived` any more."""
        if self._arrived is None:
            self._batch = None
            self._arrived = self._next_batch()
        return self._arrived

    def _next_batch(self) -> RecordBatch:
        progress = self._progress
        reader = self._opened()
        while True:
            self._count_all(reader)
            now = time.monotonic()
            if progress.is_due(now):
                self._commit_if_possible()
            try:
                batch = reader.next_within(progress.seconds_left(time.monotonic()))
            except StopIteration:
                self._count_all(reader)
                self._commit()
                raise
            if batch is not None:
                progress.hear(reader.incarnation, reader.epoch)
                return batch

    def _opened(self) -> SyncBatchReader:
        if self._closed:
            raise StopIteration
        if self._reader is None:
            settings, client = self._settings, self._client
            found = client.fetch_checkpoint(self.name, self.stream, check=False)
            start, options = reads_from(settings, found)
            self._progress.begin(found, time.monotonic())
            options = with_reset_noted(options, self._progress)
            self._reader = client.read_batches(self.stream, start, settings.until, **options)
        return self._reader

    def _count_all(self, reader: SyncBatchReader) -> None:
        """Whatever was handed out, and what the read passed over, is processed."""
        self._progress.arrive(reader.position, reader.incarnation, reader.epoch, self._in_hand)
        self._in_hand = 0

    # --- checkpoints ---

    def checkpoint(self) -> int | None:
        """As `Consumer.checkpoint`."""
        if self._in_hand:
            if 0 < self._index < len(self._records):
                self._progress.advance(self._records[self._index - 1].offset + 1, self._in_hand)
                self._in_hand = 0
            elif self._reader is not None:
                self._count_all(self._reader)
        self._commit()
        return self.committed or None

    def _commit_if_possible(self) -> None:
        try:
            self._commit()
        except LiftlogError as error:
            if not self._settings.may_go_on_after(error):
                raise
            self._log_failure(error)

    def _commit(self) -> None:
        progress = self._progress
        progress.start_commit(time.monotonic())
        while (offset := progress.next_commit()) is not None:
            try:
                self._client.commit_checkpoint(
                    self.name,
                    self.stream,
                    offset,
                    progress.expected,
                    metadata=self._settings.metadata,
                    incarnation=progress.incarnation,
                    epoch=progress.epoch,
                )
            except LiftlogError as error:
                if not progress.refused(offset, error):
                    raise
            except BaseException:
                progress.in_doubt(offset)  # a signal's handler raised
                raise
            else:
                progress.confirmed(offset)

    def _log_failure(self, error: LiftlogError) -> None:
        logger.warning(
            "checkpoint-failed consumer=%s stream=%s reason=%s", self.name, self.stream, error
        )

    # --- the end ---

    def close(self) -> None:
        """As `Consumer.close`."""
        self._closed = True
        self._arrived = self._batch = None
        self._records, self._index, self._in_hand = [], 0, 0
        if self._reader is not None:
            self._reader.close()
            self._commit()

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except LiftlogError as failure:
            if error is None:
                raise
            self._log_failure(failure)  # it does not take the place of what ended the work


class _SyncBatches:
    """As `Consumer.batches`: a generator would be over once an exception passed through it."""

    def __init__(self, consumer: SyncConsumer) -> None:
        self._consumer = consumer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordBatch:
        return self._consumer._take_batch()
