"""The iterators that `read_batches` of the two clients returns."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, overload

from liftlog.client.aio.link import wake
from liftlog.client.aio.routing import ReadRoute
from liftlog.client.blocking.routing import SyncReadRoute
from liftlog.client.connecting.reconnecting import ReadPatience
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.records.decode import RecordBatch

if TYPE_CHECKING:
    from liftlog.records.columns.positions import Batches


class _Reader:
    """The position and state that both readers report."""

    _ahead: ReadAhead

    @property
    def high_watermark(self) -> int | None:
        """The stream's, as of the newest answer; None before the first."""
        return self._ahead.high_watermark

    @property
    def position(self) -> int | None:
        """The offset after all records returned or skipped; None until that is known."""
        return self._ahead.position

    @property
    def incarnation(self) -> str | None:
        """The incarnation of the stream: store it with a position."""
        return self._ahead.incarnation

    @property
    def epoch(self) -> int | None:
        """The stream's leader epoch in the newest answer: store it with a position."""
        return self._ahead.epoch

    @property
    def divided_by(self) -> frozenset[int] | None:
        """The slots of a group to which all records of the newest batch belong, if the daemon has
        left out the others."""
        return self._ahead.divided_by


class BatchReader(_Reader):
    """Async iterator over record batches. Leaving the loop early cancels pending requests.

    `anext` may be cancelled and called again, and called again after it raised ConnectionLost.
    """

    def __init__(self, session: ReadRoute, ahead: ReadAhead) -> None:
        self._session = session
        self._ahead = ahead
        self._take = ahead.next_batch
        self._patience = ReadPatience(session.target.reconnect_for)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch:
        batch = await self.next_within(None)
        assert batch is not None
        return batch

    async def next_within(self, seconds: float | None) -> RecordBatch | None:
        """The next batch, or None if none arrives within `seconds`, not counting the time spent
        reconnecting. Raises StopAsyncIteration at the end."""
        ahead = self._ahead
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            if ahead.needs_bound:
                await self._session.bound(ahead)
            batch = self._take()
            if batch is not None:
                return batch
            if ahead.interruption is not None:
                await self._session.go_on(ahead, self._patience)
                continue
            if ahead.finished:
                raise StopAsyncIteration
            if deadline is not None and loop.time() >= deadline:
                return None
            ready: asyncio.Future[None] = loop.create_future()
            ahead.on_ready = partial(wake, ready)
            timer = None if deadline is None else loop.call_at(deadline, wake, ready)
            link = self._session.link
            link.leave_input_to(ready)
            try:
                await ready
                if link.input_waits:
                    link.receive()
            finally:
                ahead.on_ready = None
                if timer is not None:
                    timer.cancel()

    async def aclose(self) -> None:
        """Stop reading."""
        self._ahead.stop()

    def __del__(self) -> None:
        # This cannot await; stopping only sends a frame if the connection is still open.
        if self._session.usable:
            self._ahead.stop()


class SyncBatchReader(_Reader):
    """Iterator over record batches. Leaving the loop early cancels pending requests."""

    def __init__(self, session: SyncReadRoute, ahead: ReadAhead) -> None:
        self._session = session
        self._ahead = ahead
        self._take = ahead.next_batch
        self._patience = ReadPatience(session.target.reconnect_for)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordBatch:
        batch = self.next_within(None)
        assert batch is not None
        return batch

    def next_within(self, seconds: float | None) -> RecordBatch | None:
        """The next batch, or None if none arrives within `seconds`, not counting the time spent
        reconnecting. With 0 it takes what has come. Raises StopIteration at the end."""
        ahead, heard = self._ahead, True
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
            link = self._session.link
            if link.error is not None:
                ahead.abandon(link.error)
                continue
            if deadline is not None and time.monotonic() >= deadline and not heard:
                return None
            heard = link.wait(deadline)

    def close(self) -> None:
        """Stop reading."""
        self._ahead.stop()

    def __del__(self) -> None:
        if self._session.usable:
            self._ahead.stop()


async def first_of(readers: Sequence[BatchReader], seconds: float) -> None:
    """Wait until one of them may have a batch, or so long. None of them has one now."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = asyncio.get_running_loop().call_later(seconds, wake, ready)
    for reader in readers:
        reader._ahead.on_ready = partial(wake, ready)
    try:
        await ready
    finally:
        timer.cancel()
        for reader in readers:
            reader._ahead.on_ready = None


def first_of_sync(readers: Sequence[SyncBatchReader], seconds: float) -> None:
    """The same for blocking ones."""
    poll = select.poll()
    for reader in readers:
        link = reader._session.link
        if link.error is not None:
            return
        poll.register(link, link.waits_for)
    poll.poll(seconds * 1000)


def ahead_of(reader: BatchReader | SyncBatchReader) -> ReadAhead:
    """What it has asked for, and what has come."""
    return reader._ahead


@overload
def together(reader: BatchReader) -> AsyncIterator[Batches]: ...


@overload
def together(reader: SyncBatchReader) -> Iterator[Batches]: ...


def together(reader: Any) -> Any:
    """The same reader, which from now on returns adjacent small batches together: for callers that
    convert them to records or rows."""
    reader._take = reader._ahead.next_some
    return reader
