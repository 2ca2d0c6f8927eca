"""Consumers of the asyncio client: a stream read from a stored checkpoint on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from liftlog.client.batch_reader import BatchReader
from liftlog.client.consuming import ConsumerSettings, reads_from, with_reset_noted
from liftlog.client.progress import Progress
from liftlog.errors import LiftlogError
from liftlog.records.decode import Record, RecordBatch

if TYPE_CHECKING:
    from liftlog.client.asynchronous import Client

logger = logging.getLogger("liftlog.client")


class Consumer:
    """Records from the stored checkpoint on, at least once. Made by `Client.consumer`.

    A record counts as processed when the next one is asked for; `checkpoint()` counts the one in
    hand too. Checkpoints are stored by count and by time whenever a record is asked for (and while
    none comes), on demand, at the end of the read, and by `close`, which `async with` calls. One
    that fails for now (no connection, a full disk) is logged and made up for by the next;
    CheckpointMoved, when another process commits under this name, ends the iteration.

    Belongs to one task. Iteration may be cancelled, and go on afterwards.
    """

    def __init__(self, client: Client, settings: ConsumerSettings) -> None:
        self.name = settings.name
        self.stream = settings.stream
        self._client = client
        self._settings = settings
        self._progress = Progress(settings.every, settings.interval, exclusive=settings.exclusive)
        self._reader: BatchReader | None = None
        self._arrived: RecordBatch | None = None  # nothing of it was handed out yet
        self._batch: RecordBatch | None = None  # the one that records are handed out from
        self._records: list[Record] = []
        self._index = 0
        self._in_hand = 0  # records handed out that do not count yet
        self._closed = False

    # --- where it stands ---

    @property
    def position(self) -> int | None:
        """Everything below counts as processed; None before anything does."""
        return self._progress.position

    @property
    def committed(self) -> int:
        """The offset that is stored durably; 0: none."""
        return self._progress.committed

    @property
    def lag(self) -> int | None:
        """Offsets from `position` to the high watermark of the newest answer."""
        mark = None if self._reader is None else self._reader.high_watermark
        position = self.position
        return None if mark is None or position is None else max(mark - position, 0)

    # --- reading ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        progress = self._progress
        while self._index == len(self._records):
            batch = await self._arrived_batch()
            # Until its records are made it has only arrived: what interrupts that loses nothing.
            records = batch.records()
            self._records, self._index, self._batch, self._arrived = records, 0, batch, None
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
            settings, client = self._settings, self._client
            found = await client.fetch_checkpoint(self.name, self.stream, check=False)
            start, options = reads_from(settings, found)
            self._progress.begin(found, time.monotonic())
            options = with_reset_noted(options, self._progress)
            self._reader = client.read_batches(self.stream, start, settings.until, **options)
        return self._reader

    def _count_all(self, reader: BatchReader) -> None:
        """Whatever was handed out, and what the read passed over, is processed."""
        self._progress.arrive(reader.position, reader.incarnation, reader.epoch, self._in_hand)
        self._in_hand = 0

    # --- checkpoints ---

    async def checkpoint(self) -> int | None:
        """Everything handed out so far counts as processed: store that. Durable on return.

        Returns the stored offset, None when there is nothing to store. Raises what prevented it.
        """
        if self._in_hand:
            if 0 < self._index < len(self._records):
                self._progress.advance(self._records[self._index - 1].offset + 1, self._in_hand)
                self._in_hand = 0
            elif self._reader is not None:
                self._count_all(self._reader)
        await self._commit()
        return self.committed or None

    async def _commit_if_possible(self) -> None:
        try:
            await self._commit()
        except LiftlogError as error:
            if not self._settings.may_go_on_after(error):
                raise
            self._log_failure(error)

    async def _commit(self) -> None:
        progress = self._progress
        progress.start_commit(time.monotonic())
        while (offset := progress.next_commit()) is not None:
            try:
                await self._client.commit_checkpoint(
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
            except asyncio.CancelledError:
                progress.in_doubt(offset)
                raise
            else:
                progress.confirmed(offset)

    def _log_failure(self, error: LiftlogError) -> None:
        logger.warning(
            "checkpoint-failed consumer=%s stream=%s reason=%s", self.name, self.stream, error
        )

    # --- the end ---

    async def close(self) -> None:
        """Stop reading and store the checkpoint; raises what prevented that.

        What was handed out last does not count, unless `checkpoint` was called since. Called again
        it tries again to store what it could not.
        """
        self._closed = True
        self._arrived = self._batch = None
        self._records, self._index, self._in_hand = [], 0, 0
        if self._reader is not None:
            await self._reader.aclose()
            await self._commit()

    async def __aenter__(self) -> Self:
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
