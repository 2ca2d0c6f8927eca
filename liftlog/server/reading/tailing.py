"""Wakes the consumers that wait at the end of one stream. They are woken together, and not too
often.

At most one round of wake-ups begins per `linger`, even if the stream commits more often. The first
commit after a quiet time starts a round at once. With many consumers, the pause after a round grows
with the processor time of the round, so that the event loop has time left for commits. The pause is
also longer while many messages arrive.

The consumers that one round wakes read up to the same high watermark. Most of these consumers then
also request the same bytes. So these bytes are read once, and kept for the other consumers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from liftlog.log import Log, LogSlice
from liftlog.log.state import ReadView
from liftlog.protocol.limits import KIB
from liftlog.records.codecs import raw_length
from liftlog.records.header import parse_header
from liftlog.server.commits.host import StreamHost
from liftlog.server.reading.read_share import ReadShare

MAX_TAIL_BYTES = 64 * KIB
_WAKES_PER_TURN = 64
_KEPT_TAILS = 8
REST = 1
"""Length of the pause after a round, as a multiple of the processor time of the round."""
_FLOOD_LINGERS = 10
"""Factor for the linger time while many messages arrive at the same time. Each answer then contains
many records anyway, and fewer answers leave more time for the publishers."""
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class Waiter:
    """A consumer that waits in the group. Pass it to `leave` to cancel the wait."""

    __slots__ = ("offset", "wake")

    def __init__(self, offset: int, wake: Callable[[], None]) -> None:
        self.offset = offset
        self.wake: Callable[[], None] | None = wake


class Tail(NamedTuple):
    """The last batches of a stream, as bytes."""

    first_offset: int
    next_offset: int
    record_count: int
    body: bytes

    @property
    def length(self) -> int:
        return len(self.body)

    def release(self) -> None:
        """Do nothing, because only slices of files have resources to release."""


class TailGroup:
    """The consumers that wait at the end of one stream. Belongs to the loop's thread.

    A consumer is woken when the high watermark passes its position, so it only receives committed
    records.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, linger_seconds: float, share: ReadShare
    ) -> None:
        self._loop = loop
        self._share = share
        self._linger = linger_seconds
        self._waiting: dict[Waiter, None] = {}
        self._future: asyncio.Future[None] | None = None
        self._future_offset = 0
        self._timer: asyncio.TimerHandle | None = None
        # Measured by `time.monotonic`, because the clock of uvloop has a resolution of 1 ms.
        self._due = 0.0  # earliest start of the next round
        self.pause_seconds = linger_seconds
        """Time, in seconds, between the beginnings of the last round and of the next round."""
        self._kept: dict[tuple[int, int, int | None], Tail] = {}
        self._kept_of: ReadView | None = None  # the state of the log when they were read
        self.shared: dict[str, Any] = {}
        """Objects that the consumers of the group share, by a name that they choose."""

    def wait(self, stream: StreamHost, offset: int, wake: Callable[[], None]) -> Waiter:
        """Call `wake` once, in the next round after the high watermark has passed `offset` or the
        stream has ended. This round begins when the linger time of the previous round is over.
        `wake` may also be called too early, so it must check the high watermark."""
        waiter = Waiter(offset, wake)
        self._waiting[waiter] = None
        if self._timer is None and (self._future is None or offset < self._future_offset):
            self._watch(stream, offset)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Cancel the wait of `waiter`. Does nothing if it was already woken."""
        waiter.wake = None
        self._waiting.pop(waiter, None)
        if not self._waiting:
            self._stop_watching()

    # --- waking ---

    def _watch(self, stream: StreamHost, offset: int) -> None:
        self._stop_watching()
        self._future_offset = offset
        self._future = stream.wait_high_watermark(offset)
        self._future.add_done_callback(self._moved)

    def _stop_watching(self) -> None:
        future, self._future = self._future, None
        if future is not None:
            future.cancel()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _moved(self, future: asyncio.Future[None]) -> None:
        if future is not self._future:
            return  # the wait was cancelled in the meantime
        self._future = None
        if not future.cancelled():
            future.exception()  # each consumer checks the reason itself
        left = self._due - time.monotonic()
        if left <= 0:
            self._begin_round()
        else:
            self._timer = self._loop.call_later(left, self._begin_round)

    def _begin_round(self) -> None:
        self._timer = None
        self.pause_seconds = 0.0
        self._pause(self._linger * (_FLOOD_LINGERS if self._share.is_flooded else 1))
        woken, self._waiting = list(self._waiting), {}
        self._wake(woken, 0.0)

    def _pause(self, seconds: float) -> None:
        self.pause_seconds = max(self.pause_seconds, seconds)
        self._due = max(self._due, time.monotonic() + seconds)

    def _wake(self, woken: list[Waiter], seconds: float) -> None:
        """Wake these consumers, some of them in later turns of the loop. `seconds` is the processor
        time that this round has taken so far. Time in which other processes have the processor does
        not count, because a longer pause would not shorten it."""
        began = time.thread_time()
        with self._share:
            for waiter in woken[:_WAKES_PER_TURN]:
                wake, waiter.wake = waiter.wake, None
                if wake is not None:
                    wake()
        seconds += time.thread_time() - began
        self._pause(REST * seconds)
        if len(woken) > _WAKES_PER_TURN:
            self._loop.call_soon(self._wake, woken[_WAKES_PER_TURN:], seconds)

    # --- the bytes that consumers share ---

    def recall(
        self, view: ReadView, offset: int, max_bytes: int, max_records: int | None
    ) -> Tail | None:
        """Return the bytes that another consumer has just read for the same request; None if there
        are no such bytes. The bytes must belong to the present state of the log. Compaction may
        have removed records even if the high watermark is the same."""
        if view is not self._kept_of:
            return None
        return self._kept.get((offset, max_bytes, max_records))

    def take(
        self,
        piece: LogSlice,
        view: ReadView,
        offset: int,
        max_bytes: int,
        max_records: int | None,
    ) -> LogSlice | Tail:
        """Return the bytes of a short slice that is in the page cache, and keep them for other
        consumers. Return any other slice unchanged. `view` is the log's state from before the slice
        was read."""
        if piece.length > MAX_TAIL_BYTES or piece.next_offset != view.committed.offset:
            return piece
        tail = read_from_memory(piece)
        if tail is None:
            return piece  # sent like any other slice
        if view is not self._kept_of or len(self._kept) >= _KEPT_TAILS:
            self._kept_of = view
            self._kept.clear()
        self._kept[offset, max_bytes, max_records] = tail
        return tail


def read_tail(
    log: Log, group: TailGroup, view: ReadView, offset: int, max_bytes: int
) -> Tail | None:
    """Return the batches from `offset` on if they are in memory and have at most `max_bytes`. Keep
    them for other consumers of the group. `view` is the present state of the log. Raises
    CorruptRange, OffsetOutOfRange."""
    question = (offset, max_bytes, None)
    known = group.recall(view, *question)
    if known is not None:
        return known
    piece = log.read(*question)
    if piece is None:
        return None
    if piece.length <= max_bytes:
        found = group.take(piece, view, *question)
        tail = found if isinstance(found, Tail) else read_from_memory(piece)
        if tail is not None:
            return tail
    piece.release()
    return None


def read_from_memory(piece: LogSlice) -> Tail | None:
    """Return the bytes of a slice and release the slice. Return None if the bytes are not in the
    page cache, or if the file system cannot report which pages are there."""
    if piece.body is not None:
        piece.release()
        return Tail(piece.first_offset, piece.next_offset, piece.record_count, piece.body)
    body = bytearray(piece.length)
    try:
        if os.preadv(piece.fd, [body], piece.position, _NOWAIT) != len(body):
            return None
    except OSError:
        return None
    piece.release()
    return Tail(piece.first_offset, piece.next_offset, piece.record_count, bytes(body))


def inflated_bytes(body: bytes) -> int:
    """Return the size of some batches without compression."""
    size = position = 0
    while position < len(body):
        header = parse_header(body, position)
        size += raw_length(body[position : position + header.length], header)
        position += header.length
    return size
