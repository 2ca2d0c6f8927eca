"""The streams as they were within the last second, however many pages are open.

To describe hundreds of them takes a while: a few at a time, so that commits come in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from liftlog.errors import StreamNotFound
from liftlog.protocol.messages import StreamInfo
from liftlog.server.web.seams import ShownBroker

MAX_AGE_SECONDS = 1.0
_TURN_SECONDS = 0.002
"""The event loop is held for about so long at a time."""
_MAX_KEPT = 10_000


class Descriptions:
    """Belongs to the event loop."""

    def __init__(self, broker: ShownBroker, now: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._now = now
        self._kept: dict[str, tuple[float, StreamInfo]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def of(self, names: Sequence[str]) -> list[StreamInfo]:
        """Those that there are."""
        async with self._one_at_a_time:
            if len(self._kept) > _MAX_KEPT:
                self._kept.clear()
            found = []
            turn_began = time.perf_counter()
            for name in names:
                info = await self._fresh(name)
                if info is not None:
                    found.append(info)
                if time.perf_counter() - turn_began > _TURN_SECONDS:
                    await asyncio.sleep(0)
                    turn_began = time.perf_counter()
            return found

    async def _fresh(self, name: str) -> StreamInfo | None:
        now = self._now()
        kept = self._kept.get(name)
        if kept is not None and now - kept[0] < MAX_AGE_SECONDS:
            return kept[1]
        try:
            info = await self._broker.describe_stream(name)
        except StreamNotFound:  # deleted meanwhile
            self._kept.pop(name, None)
            return None
        self._kept[name] = (now, info)
        return info

    def forget(self, name: str) -> None:
        """It was changed by whoever will look at it next."""
        self._kept.pop(name, None)
