"""Keeps the last minutes and hours of each stream, and of the daemon as a whole, in bounded
memory."""

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
    """A period that a chart shows: `kept` points, one every `seconds`."""

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
"""Maximum number of streams for which all spans are kept. All spans of a stream take 18 KiB. For
further streams only the finest span is kept, which takes 5 KiB."""
DAEMON = ""
"""Name of the daemon's own history. It is empty, because no stream has an empty name."""
_BETWEEN = "/"
"""Separator of two names; it occurs in no name of a stream, a consumer or a group."""
_PER_TURN = 100


class Reading(NamedTuple):
    """The counters and levels at one moment.

    A point of the history is computed from two readings:

    - `totals` only grow. A point holds their growth per second.
    - `events` only grow. A point holds their growth.
    - `timings` count observations in the buckets of LATENCY_BOUNDS. A point holds the median and
      the 99th percentile, in seconds, of the observations between the two readings.
    - `levels` rise and fall. A point holds the newer value.

    The first two `totals` are records and received bytes. A reading is immutable. If nothing has
    changed, the caller can pass the same object again; `add` detects this quickly.
    """

    totals: Mapping[str, float]
    events: Mapping[str, float]
    timings: Mapping[str, Sequence[int]]
    levels: Mapping[str, float]


class Rate(NamedTuple):
    """Growth per second of one stream. `history` holds one rate of records per `INTERVAL_SECONDS`,
    the oldest first."""

    records: float
    received_bytes: float
    history: list[float]


NOTHING = Rate(0.0, 0.0, [])


class Points(NamedTuple):
    """The points of a chart. Each of `times`, in seconds since 1970, is the end of the interval
    that its values describe. A value is NaN if nothing was measured."""

    times: Sequence[float]
    values: Mapping[str, Sequence[float]]


def of_consumer(consumer: str, stream: str) -> str:
    """Return the name of the history of a consumer."""
    return f"{consumer}{_BETWEEN}{stream}"


def of_group(group: str, stream: str) -> str:
    """Return the name of the history of a consumer group."""
    return f"{group}{_BETWEEN * 2}{stream}"


class _Series:
    """The points of one stream in one span."""

    __slots__ = ("_at", "_last", "_span", "_still", "_values", "times")

    def __init__(self, span: Span, reading: Reading, at: float) -> None:
        self._span, self._last, self._at = span, reading, at
        self.times = array("d")
        self._values: dict[str, array[float]] = {}
        self._still = 0
        """Number of the newest points that have no stored values yet, because nothing has changed
        since `_last`."""

    @property
    def values(self) -> dict[str, array[float]]:
        self._settle()
        return self._values

    def add(self, reading: Reading, at: float, wall: float) -> None:
        """Add a point. Skips it if the previous point is less than one step old."""
        seconds, last = at - self._at, self._last
        if seconds < self._span.seconds - INTERVAL_SECONDS / 2:
            return
        self._at = at
        if reading is last:  # most streams are idle in most intervals
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
    """Compute a point from two readings."""
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
    """The histories of all streams. Belongs to the event loop.

    The code on the path of messages only increases counters. The history reads these counters every
    few seconds. It is lost at a restart; for longer periods, use the metrics.
    """

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
        """Return the newest rates of a stream, and its rates of records in the last minutes."""
        series = self._series.get(name, {}).get(FINEST)
        if series is None or not series.times:
            return NOTHING
        # Rounded to the digits that the page shows, so that its JSON form is shorter.
        history = [round(one, 2) for one in series.values["records"]]
        return Rate(history[-1], round(series.values["received_bytes"][-1], 1), history)

    def points(self, name: str, span: str) -> Points:
        """Return the points of one span; empty if the stream is unknown or new, or has no history
        of this length."""
        series = self._series.get(name, {}).get(span)
        return Points((), {}) if series is None else Points(series.times, series.values)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def look(self) -> None:
        """Read all counters once, and add a point to each history."""
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
