"""Consumers of the blocking client: a stream read from a stored checkpoint on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from liftlog.client.batch_reader import SyncBatchReader
from liftlog.client.consuming import ConsumerSettings, ConsumerState
from liftlog.errors import LiftlogError
from liftlog.records.decode import Record, RecordBatch

if TYPE_CHECKING:
    from liftlog.client.blocking.client import SyncClient


class SyncConsumer(ConsumerState):
    """As `Consumer`, blocking. Made by `SyncClient.consumer`.

    Belongs to one thread. An exception of a signal handler may interrupt its waits; it can go on
    after. One that comes just while records are handed out takes them along, as with any iterator:
    then open another consumer, or let the handler only set a flag.
    """

    _reader: SyncBatchReader | None

    def __init__(self, client: SyncClient, settings: ConsumerSettings) -> None:
        super().__init__(settings)
        self._client = client

    # --- reading ---

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        progress = self._progress
        while self._index == len(self._records):
            self._begin_batch(self._arrived_batch())
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
            client, until = self._client, self._settings.until
            found = client.fetch_checkpoint(self.name, self.stream, check=False)
            start, options = self._begin(found, time.monotonic())
            self._reader = client.read_batches(self.stream, start, until, **options)
        return self._reader

    # --- checkpoints ---

    def checkpoint(self) -> int | None:
        """As `Consumer.checkpoint`."""
        self._count_in_hand()
        self._commit()
        return self.committed or None

    def _commit_if_possible(self) -> None:
        try:
            self._commit()
        except LiftlogError as error:
            self._go_on_after(error)

    def _commit(self) -> None:
        progress = self._progress
        progress.start_commit(time.monotonic())
        while (offset := progress.next_commit()) is not None:
            try:
                self._client.commit_checkpoint(
                    self.name, self.stream, offset, **self._commit_options()
                )
            except LiftlogError as error:
                if not progress.refused(offset, error):
                    raise
            except BaseException:
                progress.in_doubt(offset)  # a signal's handler raised
                raise
            else:
                progress.confirmed(offset)

    # --- the end ---

    def close(self) -> None:
        """As `Consumer.close`."""
        self._let_go()
        if self._reader is not None:
            self._reader.close()
            self._commit()

    def __enter__(self) -> Self:
        self._check_open()
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
