"""Descriptions of the streams for the pages, at most a second old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from liftlog.errors import StreamNotFound
from liftlog.protocol.messages import StreamInfo
from liftlog.server.streams.broker import Broker
from liftlog.server.vitals.slices import Slices

MAX_AGE_SECONDS = 1.0
_MAX_DESCRIBED = 10_000


class Descriptions:
    """Caches the descriptions of the streams for a second. Describing hundreds of streams takes
    long, so the work is spread over several turns of the event loop. Belongs to one event loop."""

    def __init__(self, broker: Broker, now: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._now = now
        self._kept: dict[str, tuple[float, StreamInfo]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def of(self, names: Sequence[str]) -> list[StreamInfo]:
        """Return the descriptions of the named streams. Streams that do not exist are left out."""
        async with self._one_at_a_time:
            if len(self._kept) > _MAX_DESCRIBED:
                self._kept.clear()
            found = []
            slices = Slices()
            for name in names:
                info = await self._fresh(name)
                if info is not None:
                    found.append(info)
                await slices.pause()
            return found

    async def _fresh(self, name: str) -> StreamInfo | None:
        now = self._now()
        kept = self._kept.get(name)
        if kept is not None and now - kept[0] < MAX_AGE_SECONDS:
            return kept[1]
        try:
            info = await self._broker.describe_stream(name)
        except StreamNotFound:  # the stream was deleted meanwhile
            self._kept.pop(name, None)
            return None
        self._kept[name] = (now, info)
        return info

    def forget(self, name: str) -> None:
        """Remove the cached description of a stream that has changed."""
        self._kept.pop(name, None)
