# Made from liftlog/client/aio/batch_reader.py by `make blocking`: edit that one.
"""The iterator that `read_batches` of the blocking client returns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from liftlog.client.blocking.link import first_input
from liftlog.client.blocking.routing import SyncReadRoute
from liftlog.client.reading.base_reader import BaseReader
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.records.decode import RecordBatch

if TYPE_CHECKING:
    from liftlog.records.columns.positions import Batches


class SyncBatchReader(BaseReader):
    """Iterator over record batches. Leaving the loop early cancels pending requests.

    `next` can be called again after a ConnectionLost, and after an exception that a signal handler
    raised in it. If such an exception arrives while a record is being returned, the record is lost,
    as with any iterator. Then start another read at your own position, or let the handler only set
    a flag.
    """

    def __init__(self, session: SyncReadRoute, ahead: ReadAhead) -> None:
        super().__init__(ahead, session.target.reconnect_for)
        self._session = session

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordBatch:
        batch = self.next_within(None)
        assert batch is not None
        return batch

    def next_within(self, seconds: float | None) -> RecordBatch | None:
        """Return the next batch, or None if no batch arrives within `seconds`. The time for
        reconnecting does not count. With 0 the call does not wait: it returns a batch only if one
        has already arrived. Raises StopAsyncIteration at the end."""
        ahead = self._ahead
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            if ahead.needs_bound:
                self._session.bound(ahead)
            batch = self._take()
            if batch is not None:
                return batch
            if ahead.interruption is not None:
                self._session.go_on(ahead, self._patience)
                continue
            if ahead.finished:
                raise StopIteration
            if not self._session.link.input_for(ahead, deadline):
                return None

    def close(self) -> None:
        """Stop reading."""
        self._ahead.stop()

    def __del__(self) -> None:
        # Stopping only sends a frame, and only if the connection is still open.
        if self._session.usable:
            self._ahead.stop()


def first_of(readers: Sequence[SyncBatchReader], seconds: float) -> None:
    """Wait until one of the readers may have a batch, but at most `seconds`. Call this only if no
    reader has a batch now."""
    first_input([(reader._session.link, reader._ahead) for reader in readers], seconds)


def together(reader: SyncBatchReader) -> Iterator[Batches]:
    """Make the reader join adjacent small batches from now on, for callers that convert batches to
    records or rows. Returns the same reader."""
    merging: Any = reader
    merging._take = reader._ahead.next_some
    merged: Iterator[Batches] = merging
    return merged
