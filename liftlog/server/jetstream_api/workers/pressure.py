"""Back pressure on the connection for acks and pulls. Reading stops while too many earlier acks and
pulls are unprocessed. While publishers wait, reading pauses after each part of a read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

_LOOK_SECONDS = 0.005
_RELIEVED = 0.5
_SHORT_SECONDS = 0.002
"""Acks and pulls that took at most this time (in seconds) cause no pause."""
_ACTIVE_SECONDS = 1.0
"""Publishers count as active for this time, in seconds, after a message."""


class Held(Protocol):
    """The connection on which acks and pulls arrive."""

    def hold(self) -> None: ...

    def release(self) -> None: ...


class Pressure:
    """Stops and resumes reading of the connection for acks and pulls. While reading is stopped,
    NATS buffers arriving data. The object belongs to the event loop."""

    def __init__(
        self,
        link: Held,
        load: Callable[[], float],
        ingested: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`load` returns the fill level of the buffers; 1 means full. Reading continues when the
        buffers are half full. `ingested` returns a number that changes when publishers send
        messages."""
        self._link = link
        self._load = load
        self._ingested = ingested
        self._now = now
        self._last_ingested = ingested()
        self._active_until = 0.0
        self._rests_until = 0.0
        self._relieving: asyncio.Task[None] | None = None
        self.holds = 0
        """Number of stops because of full buffers, since the start of the process."""

    def read_ended(self, spent_seconds: float) -> None:
        """Stop reading if the buffers are full. While publishers are active, also pause for as long
        as the acks and pulls of this turn took. The acks to publishers need several turns of the
        event loop."""
        if self._relieving is not None:
            return
        is_full = self._load() >= 1
        if is_full:
            self.holds += 1
        if spent_seconds > _SHORT_SECONDS and self._has_publishers():
            self._rests_until = self._now() + spent_seconds
        elif not is_full:
            return
        self._link.hold()
        self._relieving = asyncio.create_task(self._relieve(is_full), name="workers-held")

    def _has_publishers(self) -> bool:
        ingested, now = self._ingested(), self._now()
        if ingested != self._last_ingested:
            self._last_ingested, self._active_until = ingested, now + _ACTIVE_SECONDS
        return now < self._active_until

    async def _relieve(self, is_full: bool) -> None:
        try:
            await asyncio.sleep(self._rests_until - self._now())
            while is_full and self._load() > _RELIEVED:  # noqa: ASYNC110  several things relieve it
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._relieving = None
            self._link.release()

    async def close(self) -> None:
        """Resume reading."""
        relieving = self._relieving
        if relieving is not None:
            relieving.cancel()
            await asyncio.gather(relieving, return_exceptions=True)
            self._relieving = None
            self._link.release()  # resumes reading if the task was cancelled before it began
