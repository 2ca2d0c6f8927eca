"""The streams as the pages show them: descriptions at most a second old, and rates of growth."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from liftlog.errors import StreamNotFound
from liftlog.protocol.messages import StreamInfo
from liftlog.server.streams.broker import Broker

MAX_AGE_SECONDS = 1.0
_MAX_DESCRIBED = 10_000
_TURN_SECONDS = 0.002
"""The event loop is held for about so long at a time."""

INTERVAL_SECONDS = 5.0
KEPT = 60
"""Values of each stream: five minutes."""
_STREAMS_PER_TURN = 200


class Descriptions:
    """Belongs to the event loop. To describe hundreds of streams takes a while, so it is done over
    several turns of the loop."""

    def __init__(self, broker: Broker, now: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._now = now
        self._kept: dict[str, tuple[float, StreamInfo]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def of(self, names: Sequence[str]) -> list[StreamInfo]:
        """Descriptions of the streams of these names that exist."""
        async with self._one_at_a_time:
            if len(self._kept) > _MAX_DESCRIBED:
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
        except StreamNotFound:  # deleted in the meantime
            self._kept.pop(name, None)
            return None
        self._kept[name] = (now, info)
        return info

    def forget(self, name: str) -> None:
        """Describe the stream again when it is asked for next: it has changed."""
        self._kept.pop(name, None)


class Counted(NamedTuple):
    """The counters of one stream, since the daemon started."""

    name: str
    records: int
    received_bytes: int


class Rate(NamedTuple):
    """Per second. `history` holds a rate of records per `INTERVAL_SECONDS`, the oldest first."""

    records: float
    received_bytes: float
    history: list[float]


NOTHING = Rate(0.0, 0.0, [])


class _Series:
    __slots__ = ("at", "history", "last", "received_bytes")

    def __init__(self, counted: Counted, at: float) -> None:
        self.last, self.at = counted, at
        self.history = array("d")
        self.received_bytes = 0.0

    def add(self, counted: Counted, at: float) -> None:
        seconds = at - self.at
        if seconds <= 0:
            return
        # If the counter fell, the stream was deleted and created again.
        is_new = counted.records < self.last.records
        before = Counted(counted.name, 0, 0) if is_new else self.last
        self.history.append((counted.records - before.records) / seconds)
        self.received_bytes = (counted.received_bytes - before.received_bytes) / seconds
        del self.history[:-KEPT]
        self.last, self.at = counted, at


class Rates:
    """How fast each stream has grown in the last minutes. Belongs to the event loop.

    The hot path only counts, and the counters are read every few seconds. Nothing survives a
    restart; for longer times there are the metrics.
    """

    def __init__(
        self,
        counters: Callable[[], Iterable[Counted]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters = counters
        self._now = now
        self._series: dict[str, _Series] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="web-rates")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def of(self, name: str) -> Rate:
        series = self._series.get(name)
        if series is None or not series.history:
            return NOTHING
        # Rounded as the page shows them: more digits would only make its twin longer.
        history = [round(one, 2) for one in series.history]
        return Rate(history[-1], round(series.received_bytes, 1), history)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def look(self) -> None:
        """Read all counters once."""
        found = list(self._counters())
        for number, counted in enumerate(found):
            series = self._series.get(counted.name)
            if series is None:
                self._series[counted.name] = _Series(counted, self._now())
            else:
                series.add(counted, self._now())
            if number % _STREAMS_PER_TURN == _STREAMS_PER_TURN - 1:
                await asyncio.sleep(0)
        there = {counted.name for counted in found}
        for name in [name for name in self._series if name not in there]:
            del self._series[name]
