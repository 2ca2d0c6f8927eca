"""Consumers of the asyncio client: a stream read from a stored checkpoint on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from liftlog.client.batch_reader import BatchReader
from liftlog.client.consuming import ConsumerSettings, ConsumerState
from liftlog.errors import LiftlogError
from liftlog.records.decode import Record, RecordBatch

if TYPE_CHECKING:
    from liftlog.client.aio.client import Client


class Consumer(ConsumerState):
    """Records from the stored checkpoint on, at least once. Made by `Client.consumer`.

    A record counts as processed when the next one is asked for; `checkpoint()` counts the one in
    hand too. Checkpoints are stored by count and by time whenever a record is asked for (and while
    none comes), on demand, at the end of the read, and by `close`, which `async with` calls. One
    that fails for now (no connection, a full disk) is logged and made up for by the next;
    CheckpointMoved, when another process commits under this name, ends the iteration.

    Belongs to one task. Iteration may be cancelled, and go on afterwards.
    """

    _reader: BatchReader | None

    def __init__(self, client: Client, settings: ConsumerSettings) -> None:
        super().__init__(settings)
        self._client = client

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
        """The same, batch by batch: all of a batch counts when the next one is asked for.

        The rest of a batch whose first records were handed out singly comes first.
        """
        return _Batches(self)

    async def _take_batch(self) -> RecordBatch:
        batch = self._rest_of_batch()
        if batch is None:
            batch = await self._arrived_batch()
        self._in_hand, self._arrived = len(batch), None
        return batch

    async def _arrived_batch(self) -> RecordBatch:
        """The next one. It counts as handed out only once it is not `_arrived` any more."""
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
            client, until = self._client, self._settings.until
            found = await client.fetch_checkpoint(self.name, self.stream, check=False)
            start, options = self._begin(found, time.monotonic())
            self._reader = client.read_batches(self.stream, start, until, **options)
        return self._reader

    # --- checkpoints ---

    async def checkpoint(self) -> int | None:
        """Everything handed out so far counts as processed: store that. Durable on return.

        Returns the stored offset, None when there is nothing to store. Raises what prevented it.
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
                await self._client.commit_checkpoint(
                    self.name, self.stream, offset, **self._commit_options()
                )
            except LiftlogError as error:
                if not progress.refused(offset, error):
                    raise
            except asyncio.CancelledError:
                progress.in_doubt(offset)
                raise
            else:
                progress.confirmed(offset)

    # --- the end ---

    async def close(self) -> None:
        """Stop reading and store the checkpoint; raises what prevented that.

        What was handed out last does not count, unless `checkpoint` was called since. Called again
        it tries again to store what it could not.
        """
        self._let_go()
        if self._reader is not None:
            await self._reader.aclose()
            await self._commit()

    async def __aenter__(self) -> Self:
        self._check_open()
        await self._opened()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except LiftlogError as failure:
            if error is None:
                raise
            self._log_failure(failure)  # it does not take the place of what ended the work


class _Batches:
    """What `Consumer.batches` returns. A generator would be over once a wait is cancelled."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch:
        return await self._consumer._take_batch()
