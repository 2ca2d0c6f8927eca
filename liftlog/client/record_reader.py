"""The iterators that `read` of the two clients returns: record by record over a batch reader.

They are classes since a generator ends with the first exception that passes through it, and a
cancelled wait is one: `asyncio.wait_for(anext(records), 1)` is to leave a read that goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from liftlog.client.batch_reader import BatchReader, SyncBatchReader
from liftlog.records.decode import Record, RecordBatch


class RecordReader:
    """Async iterator over records. Leaving the loop early cancels what is under way.

    `anext` may be cancelled and called again, and called again after it raised ConnectionLost.
    """

    def __init__(self, batches: BatchReader) -> None:
        self._batches = batches
        self._batch: RecordBatch | None = None  # arrived, its records are not made yet
        self._records: Iterator[Record] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        while True:
            for record in self._records:
                return record
            if self._batch is None:
                self._batch = await anext(self._batches)
            self._records, self._batch = iter(self._batch.records()), None

    async def aclose(self) -> None:
        """Stop reading."""
        self._records, self._batch = iter(()), None
        await self._batches.aclose()


class SyncRecordReader:
    """Iterator over records. Leaving the loop early cancels what is under way.

    An exception of a signal handler may interrupt its waits; it can go on after. One that comes
    just while an item is handed out takes that along, as with any iterator: read on from your own
    position then, or let the handler only set a flag.
    """

    def __init__(self, batches: SyncBatchReader) -> None:
        self._batches = batches
        self._batch: RecordBatch | None = None  # arrived, its records are not made yet
        self._records: Iterator[Record] = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        while True:
            for record in self._records:
                return record
            if self._batch is None:
                self._batch = next(self._batches)
            self._records, self._batch = iter(self._batch.records()), None

    def close(self) -> None:
        """Stop reading."""
        self._records, self._batch = iter(()), None
        self._batches.close()
