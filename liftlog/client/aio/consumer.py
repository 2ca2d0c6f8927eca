"""The asyncio client's consumer: reads a stream from a stored checkpoint on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Self

from liftlog.client.aio.batch_reader import BatchReader
from liftlog.client.aio.calls import Calls
from liftlog.client.aio.consuming_block import Batches, ConsumingBlock
from liftlog.client.reading.consuming import ConsumerSettings, ConsumerState
from liftlog.errors import LiftlogError
from liftlog.records.decode import Record, RecordBatch


class Consumer(ConsumerState, ConsumingBlock[RecordBatch]):
    """Iterates over records, beginning at the stored checkpoint, with at-least-once delivery.
    Created by `Client.consumer`.

    A record counts as processed when the next record is requested. `checkpoint()` also counts the
    last returned record. The consumer stores a checkpoint after `checkpoint_every` records or
    `checkpoint_interval` seconds (also while it waits for records), in `checkpoint`, at the end of
    the read, and in `close`, which `async with` calls. If the client cannot store a checkpoint for
    a temporary reason (no connection, a full disk), it logs a warning, and stores a checkpoint
    again later. If another process commits with this name, the iteration raises CheckpointMoved and
    ends.

    A consumer belongs to one task. An iteration that was cancelled can be continued.
    """

    _reader: BatchReader | None

    def __init__(
        self,
        calls: Calls,
        read_batches: Callable[..., BatchReader],
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(settings)
        self._calls = calls
        self._read_batches = read_batches

    # --- reading ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        progress = self._progress
        while self._index == len(self._records):
            self._begin_batch(await self._arrived_batch())
        record = self._records[self._index]
        if self._in_hand:
            progress.advance(record.offset, self._in_hand)
            self._in_hand = 0
        if progress.is_due(time.monotonic()):
            await self._commit_if_possible()
        self._index += 1
        self._in_hand = 1
        return record

    def batches(self) -> AsyncIterator[RecordBatch]:
        """Return the same records in batches. All records of a batch count as processed when the
        next batch is requested.

        If the iteration has already returned some records of a batch, the first batch has the
        remaining records of that batch.
        """
        return Batches(self)

    async def _take_batch(self) -> RecordBatch:
        batch = self._rest_of_batch()
        if batch is None:
            batch = await self._arrived_batch()
        self._in_hand, self._arrived = len(batch), None
        return batch

    async def _arrived_batch(self) -> RecordBatch:
        """Return the next batch. The batch stays in `_arrived`, and counts as returned only when
        the caller has removed it from `_arrived`."""
        if self._arrived is None:
            self._batch = None
            self._arrived = await self._next_batch()
        return self._arrived

    async def _next_batch(self) -> RecordBatch:
        progress = self._progress
        reader = await self._opened()
        while True:
            self._count_all(reader)
            now = time.monotonic()
            if progress.is_due(now):
                await self._commit_if_possible()
            try:
                batch = await reader.next_within(progress.seconds_left(time.monotonic()))
            except StopAsyncIteration:
                self._count_all(reader)
                await self._commit()
                raise
            if batch is not None:
                progress.hear(reader.incarnation, reader.epoch)
                return batch

    async def _opened(self) -> BatchReader:
        if self._closed:
            raise StopAsyncIteration
        if self._reader is None:
            found = await self._calls.fetch_checkpoint(self.name, self.stream, check=False)
            start, options = self._begin(found, time.monotonic())
            self._reader = self._read_batches(self.stream, start, self._settings.until, **options)
        return self._reader

    # --- checkpoints ---

    async def checkpoint(self) -> int | None:
        """Count all records returned so far as processed, and store a checkpoint. Durable on
        return.

        Returns the stored offset, or None if no checkpoint was necessary. Raises the errors of
        `commit_checkpoint`.
        """
        self._count_in_hand()
        await self._commit()
        return self.committed or None

    async def _commit_if_possible(self) -> None:
        try:
            await self._commit()
        except LiftlogError as error:
            self._go_on_after(error)

    async def _commit(self) -> None:
        progress = self._progress
        progress.start_commit(time.monotonic())
        while (offset := progress.next_commit()) is not None:
            try:
                await self._calls.commit_checkpoint(
                    self.name, self.stream, offset, **self._commit_options()
                )
            except LiftlogError as error:
                if not progress.refused(offset, error):
                    raise
            except asyncio.CancelledError:
                progress.in_doubt(offset)  # the daemon may have stored the checkpoint
                raise
            else:
                progress.confirmed(offset)

    # --- the end ---

    async def close(self) -> None:
        """Stop reading, and store the checkpoint. Raises the errors of `commit_checkpoint`. To
        retry, call `close` again.

        The last returned record or batch does not count as processed, unless `checkpoint` was
        called after it.
        """
        self._let_go()
        if self._reader is not None:
            await self._reader.aclose()
            await self._commit()

    async def __aenter__(self) -> Self:
        self._check_open()
        await self._opened()
        return self
