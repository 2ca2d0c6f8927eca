# Made from liftlog/client/aio/consumer.py by `make blocking`: edit that one.
"""The blocking client's consumer: reads a stream from a stored checkpoint on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Self

from liftlog.client.blocking.batch_reader import SyncBatchReader
from liftlog.client.blocking.calls import SyncCalls
from liftlog.client.blocking.consuming_block import Batches, ConsumingBlock
from liftlog.client.reading.consuming import ConsumerSettings, ConsumerState
from liftlog.errors import LiftlogError
from liftlog.records.decode import Record, RecordBatch


class SyncConsumer(ConsumerState, ConsumingBlock[RecordBatch]):
    """Iterates over records, beginning at the stored checkpoint, with at-least-once delivery.
    Created by `SyncClient.consumer`.

    A record counts as processed when the next record is requested. `checkpoint()` also counts the
    last returned record. The consumer stores a checkpoint after `checkpoint_every` records or
    `checkpoint_interval` seconds (also while it waits for records), in `checkpoint`, at the end of
    the read, and in `close`, which `with` calls. If the client cannot store a checkpoint for
    a temporary reason (no connection, a full disk), it logs a warning, and stores a checkpoint
    again later. If another process commits with this name, the iteration raises CheckpointMoved and
    ends.

    A consumer belongs to one thread. An iteration can be continued after an exception that a
    signal handler raised in it. If such an exception arrives while records are being returned, the
    records are lost, as with any iterator. Then open another consumer, or let the handler only set
    a flag.
    """

    _reader: SyncBatchReader | None

    def __init__(
        self,
        calls: SyncCalls,
        read_batches: Callable[..., SyncBatchReader],
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(settings)
        self._calls = calls
        self._read_batches = read_batches

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
        """Return the same records in batches. All records of a batch count as processed when the
        next batch is requested.

        If the iteration has already returned some records of a batch, the first batch has the
        remaining records of that batch.
        """
        return Batches(self)

    def _take_batch(self) -> RecordBatch:
        batch = self._rest_of_batch()
        if batch is None:
            batch = self._arrived_batch()
        self._in_hand, self._arrived = len(batch), None
        return batch

    def _arrived_batch(self) -> RecordBatch:
        """Return the next batch. The batch stays in `_arrived`, and counts as returned only when
        the caller has removed it from `_arrived`."""
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
            found = self._calls.fetch_checkpoint(self.name, self.stream, check=False)
            start, options = self._begin(found, time.monotonic())
            self._reader = self._read_batches(self.stream, start, self._settings.until, **options)
        return self._reader

    # --- checkpoints ---

    def checkpoint(self) -> int | None:
        """Count all records returned so far as processed, and store a checkpoint. Durable on
        return.

        Returns the stored offset, or None if no checkpoint was necessary. Raises the errors of
        `commit_checkpoint`.
        """
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
                self._calls.commit_checkpoint(
                    self.name, self.stream, offset, **self._commit_options()
                )
            except LiftlogError as error:
                if not progress.refused(offset, error):
                    raise
            except BaseException:
                progress.in_doubt(offset)  # the daemon may have stored the checkpoint
                raise
            else:
                progress.confirmed(offset)

    # --- the end ---

    def close(self) -> None:
        """Stop reading, and store the checkpoint. Raises the errors of `commit_checkpoint`. To
        retry, call `close` again.

        The last returned record or batch does not count as processed, unless `checkpoint` was
        called after it.
        """
        self._let_go()
        if self._reader is not None:
            self._reader.close()
            self._commit()

    def __enter__(self) -> Self:
        self._check_open()
        self._opened()
        return self
