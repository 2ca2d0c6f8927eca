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
    """Belongs to the event loop. Describing hundreds of streams takes a while, so it is spread over
    several turns of the loop."""

    def __init__(self, broker: Broker, now: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._now = now
        self._kept: dict[str, tuple[float, StreamInfo]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def of(self, names: Sequence[str]) -> list[StreamInfo]:
        """Return descriptions of those streams that exist."""
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
        except StreamNotFound:  # deleted in the meantime
            self._kept.pop(name, None)
            return None
        self._kept[name] = (now, info)
        return info

    def forget(self, name: str) -> None:
        """Drop the kept description of the stream, which has changed."""
        self._kept.pop(name, None)
