"""Requests about the erased records of a stream take turns."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Hashable

from liftlog.errors import LimitExceeded
from liftlog.server.commits.host import StreamHost

MOST_WAITING = 16
"""Maximum number of requests about one stream that wait."""
MOST_OF_PARTY = 4
"""Maximum number of requests of one party that wait, of all streams."""


class Places:
    """Lets requests about the same stream run one at a time, and limits the number of requests that
    wait. Belongs to the event loop."""

    def __init__(self) -> None:
        self._locks: weakref.WeakKeyDictionary[StreamHost, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )
        self._waiting: Counter[Hashable] = Counter()

    @contextlib.asynccontextmanager
    async def of(self, host: StreamHost, party: Hashable) -> AsyncIterator[None]:
        """Wait for the turn of a request. Raises LimitExceeded if too many requests wait
        already."""
        lock, waiting = self._locks.setdefault(host, asyncio.Lock()), self._waiting
        of_stream, of_party = ("stream", host.name), ("party", party)
        if waiting[of_stream] >= MOST_WAITING or waiting[of_party] >= MOST_OF_PARTY:
            raise LimitExceeded(
                f"too many requests about erased records of {host.name} wait already",
                hint="try again when the others have ended",
            )
        waiting.update((of_stream, of_party))
        try:
            await lock.acquire()
        finally:
            for one in (of_stream, of_party):
                waiting[one] -= 1
                if not waiting[one]:
                    del waiting[one]
        try:
            yield
        finally:
            lock.release()
