"""How fast each stream grew in the last minutes: counters, looked at every few seconds.

The hot path only counts. Nothing is kept over a restart; metrics are for longer times.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

INTERVAL_SECONDS = 5.0
KEPT = 60
_LOOK_EVERY = 200


class Counted(NamedTuple):
    """Of one stream, since its start."""

    name: str
    records: int
    received_bytes: int


class Rate(NamedTuple):
    """Per second. `history` are records, the oldest first, one per `INTERVAL_SECONDS`."""

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
        # A counter that fell is that of a stream which was made anew.
        anew = counted.records < self.last.records
        before = Counted(counted.name, 0, 0) if anew else self.last
        self.history.append((counted.records - before.records) / seconds)
        self.received_bytes = (counted.received_bytes - before.received_bytes) / seconds
        del self.history[:-KEPT]
        self.last, self.at = counted, at


class Rates:
    """Belongs to the event loop."""

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
        # As the page shows them: more digits would only make its twin longer.
        history = [round(one, 2) for one in series.history]
        return Rate(history[-1], round(series.received_bytes, 1), history)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def look(self) -> None:
        """At all of them once."""
        found = list(self._counters())
        for number, counted in enumerate(found):
            series = self._series.get(counted.name)
            if series is None:
                self._series[counted.name] = _Series(counted, self._now())
            else:
                series.add(counted, self._now())
            if number % _LOOK_EVERY == _LOOK_EVERY - 1:
                await asyncio.sleep(0)
        there = {counted.name for counted in found}
        for name in [name for name in self._series if name not in there]:
            del self._series[name]
