"""The last minutes and hours of each stream, and of the daemon as a whole, in bounded memory."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from liftlog.server.vitals.histogram import LATENCY_BOUNDS, quantile

INTERVAL_SECONDS = 5.0


class Span(NamedTuple):
    """A time to look back on: `kept` points, one every `seconds`."""

    text: str
    seconds: float
    kept: int


SPANS = {
    "5m": Span("5 minutes", INTERVAL_SECONDS, 60),
    "1h": Span("1 hour", 60.0, 60),
    "24h": Span("24 hours", 600.0, 144),
}
FINEST = "5m"
MAX_LONG = 2000
"""Number of streams for which more than the finest span is kept: 18 KiB each. The others take 5
KiB."""
DAEMON = ""
"""Replaces the name of a stream, which is never empty, for the daemon as a whole."""
_BETWEEN = "/"
"""Separator: it does not occur in names of streams, consumers or groups."""
_PER_TURN = 100


class Reading(NamedTuple):
    """The counters and levels at one moment.

    A point of the history is computed from two readings. For `totals`, which only grow, it is the
    growth per second; for `events`, the growth; for `timings`, which are counts in the buckets of
    LATENCY_BOUNDS, the median and the 99th percentile of the growth, in seconds; for `levels`, the
    value itself.

    `totals` begin with records and received bytes. A reading is immutable: passing the same object
    as before shows cheaply that nothing has happened."""

    totals: Mapping[str, float]
    events: Mapping[str, float]
    timings: Mapping[str, Sequence[int]]
    levels: Mapping[str, float]


class Rate(NamedTuple):
    """Growth per second. `history` holds a rate of records per `INTERVAL_SECONDS`, the oldest
    first."""

    records: float
    received_bytes: float
    history: list[float]


NOTHING = Rate(0.0, 0.0, [])


class Points(NamedTuple):
    """`times` in seconds since 1970, each the end of the interval that its values describe. A value
    is NaN if nothing was measured."""

    times: Sequence[float]
    values: Mapping[str, Sequence[float]]


def of_consumer(consumer: str, stream: str) -> str:
    """The name of the history of a consumer."""
    return f"{consumer}{_BETWEEN}{stream}"


def of_group(group: str, stream: str) -> str:
    """The name of the history of a consumer group."""
    return f"{group}{_BETWEEN * 2}{stream}"


class _Series:
    """One span of one stream."""

    __slots__ = ("_at", "_last", "_span", "_still", "_values", "times")

    def __init__(self, span: Span, reading: Reading, at: float) -> None:
        self._span, self._last, self._at = span, reading, at
        self.times = array("d")
        self._values: dict[str, array[float]] = {}
        self._still = 0
        """Number of newest points that have no values yet: nothing has changed since `_last`."""

    @property
    def values(self) -> dict[str, array[float]]:
        self._settle()
        return self._values

    def add(self, reading: Reading, at: float, wall: float) -> None:
        """Add a point, unless the last one is less than a step old."""
        seconds, last = at - self._at, self._last
        if seconds < self._span.seconds - INTERVAL_SECONDS / 2:
            return
        self._at = at
        if reading is last:  # the usual case for most of a thousand streams
            self._still += 1
            self._note_time(wall)
            return
        self._settle()
        self._note_time(wall)
        self._append(_point(reading, last, seconds), 1)
        self._last = reading

    def _settle(self) -> None:
        still, self._still = self._still, 0
        if still:
            self._append(_point(self._last, self._last, self._span.seconds), still)

    def _note_time(self, wall: float) -> None:
        self.times.append(wall)
        del self.times[: -self._span.kept]

    def _append(self, found: dict[str, float], count: int) -> None:
        """Append `count` points with the same values."""
        kept, values = self._span.kept, self._values
        for name in found.keys() | values.keys():
            column = values.get(name)
            if column is None:
                known = max(0, len(self.times) - count)
                column = values[name] = array("f", [math.nan]) * known
            column.extend([found.get(name, math.nan)] * min(count, kept))
            del column[:-kept]


_ZERO = Reading({}, {}, {}, {})


def _point(reading: Reading, last: Reading, seconds: float) -> dict[str, float]:
    """The changes between two readings."""
    if any(now < last.totals.get(name, 0) for name, now in reading.totals.items()):
        last = _ZERO  # the stream was deleted and created again
    found: dict[str, float] = {}
    for name, now in reading.totals.items():
        found[name] = (now - last.totals.get(name, 0)) / seconds
    for name, now in reading.events.items():
        found[name] = max(0, now - last.events.get(name, 0))
    for name, counts in reading.timings.items():
        before = last.timings.get(name, ())
        grown = [now - was for now, was in zip(counts, before, strict=True)] if before else counts
        for label, part in (("p50", 0.5), ("p99", 0.99)):
            found[f"{name}_{label}"] = quantile(LATENCY_BOUNDS, grown, part)
    found.update(reading.levels)
    return found


class History:
    """The series of all streams. Belongs to the event loop.

    The hot path only counts; the counters are read every few seconds. Nothing survives a restart:
    metrics cover longer times."""

    def __init__(
        self,
        readings: Callable[[], Awaitable[Mapping[str, Reading]]],
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._readings = readings
        self._now, self._wall = now, wall
        self._series: dict[str, dict[str, _Series]] = {}
        self._streams = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="web-history")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def rate(self, name: str) -> Rate:
        """The growth of the stream in the last minutes."""
        series = self._series.get(name, {}).get(FINEST)
        if series is None or not series.times:
            return NOTHING
        # Rounded to what the page shows: more digits would only make its twin longer.
        history = [round(one, 2) for one in series.values["records"]]
        return Rate(history[-1], round(series.values["received_bytes"][-1], 1), history)

    def points(self, name: str, span: str) -> Points:
        """Empty for a stream that is unknown or new, or has no series of this length."""
        series = self._series.get(name, {}).get(span)
        return Points((), {}) if series is None else Points(series.times, series.values)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def look(self) -> None:
        """Read all counters once."""
        found = await self._readings()
        for number, (name, reading) in enumerate(found.items(), 1):
            self._take(name, reading)
            if number % _PER_TURN == 0:
                await asyncio.sleep(0)
        for name in [name for name in self._series if name not in found]:
            del self._series[name]
        self._streams = sum(_BETWEEN not in name for name in self._series)

    def _take(self, name: str, reading: Reading) -> None:
        at, wall = self._now(), self._wall()
        kept = self._series.get(name)
        if kept is None:
            is_long = _BETWEEN in name or self._streams <= MAX_LONG
            self._streams += _BETWEEN not in name
            spans = SPANS if is_long else {FINEST: SPANS[FINEST]}
            self._series[name] = {one: _Series(spans[one], reading, at) for one in spans}
            return
        for series in kept.values():
            series.add(reading, at, wall)
