"""Callers that wait for the commits of one stream. Belongs to the event loop.

A caller waits for the high watermark to move, or for the commit of records that the daemon itself
writes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from liftlog.errors import (
    DiskFull,
    LiftlogError,
    NotReady,
    RequestTimeout,
    ShuttingDown,
    StreamUnavailable,
)
from liftlog.sequencing.refusals import MOVING, NOT_LEADING, SHUTTING_DOWN, RefusalReason

Told = Callable[[LiftlogError | None], None]


class WatermarkWaiters:
    """Futures that wait for the high watermark."""

    def __init__(self) -> None:
        self.has_ended = False
        """True if the high watermark will not move again: the stream has failed, or is closed."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def add(self, offset: int) -> asyncio.Future[None]:
        """Return a future that is done when the high watermark is above `offset`, or when the
        stream ends. Cancel the future to stop waiting."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.has_ended:
            future.set_result(None)
            return future
        self._waiting.append((offset, future))
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: asyncio.Future[None]) -> None:
        if future.cancelled():
            self._waiting = [entry for entry in self._waiting if entry[1] is not future]

    def wake(self, high_watermark: int) -> None:
        """Complete each future that waits for an offset below `high_watermark`."""
        if not self._waiting:
            return
        still = []
        for offset, future in self._waiting:
            if offset >= high_watermark:
                still.append((offset, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = still

    def end(self) -> None:
        """Complete all futures. Later futures are completed at once."""
        self.has_ended = True
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_result(None)


class OwnRecords:
    """Callbacks for records that the daemon itself writes, in the order of their offsets."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._waiting: deque[tuple[int, Told]] = deque()

    def wait(self, next_offset: int, told: Told) -> None:
        """Call `told` later. It receives None when all records below `next_offset` are committed,
        or the error if the commit fails."""
        self._waiting.append((next_offset, told))

    def committed(self, next_offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= next_offset:
            waiting.popleft()[1](None)

    def failed(self, error: Exception | str, from_offset: int = 0) -> None:
        """Call all callbacks of records from `from_offset` on with an error. The write was undone,
        so these records have lost their offsets."""
        waiting, self._waiting = self._waiting, deque()
        for next_offset, told in waiting:
            if next_offset <= from_offset:
                self._waiting.append((next_offset, told))
            else:
                told(self._told_about(error))

    def stepped_down(self) -> None:
        """Call all callbacks with an error, because another node leads the stream now. The new
        leader may still commit the records that were written on this node."""
        waiting, self._waiting = self._waiting, deque()
        for _, told in waiting:
            told(
                RequestTimeout(
                    f"another node begins to lead stream {self._stream}: whether it was stored is "
                    "undecided",
                    hint="check whether it took effect before you repeat it",
                )
            )

    def refused(self, refusal: RefusalReason, told: Told) -> None:
        """Call a callback with an error, because the stream accepts no records now."""
        if refusal is SHUTTING_DOWN:
            told(ShuttingDown("the daemon is stopping"))
        elif refusal in (NOT_LEADING, MOVING):
            told(NotReady(f"another node begins to lead stream {self._stream}", hint="try again"))
        else:
            told(self._told_about(refusal.description))

    def _told_about(self, error: Exception | str) -> LiftlogError:
        if isinstance(error, DiskFull):
            return error
        return StreamUnavailable(f"stream {self._stream} could not store it: {error}")
