"""Measures the duration of each fdatasync, and the lag of the event loop."""

from __future__ import annotations

import asyncio
import threading
import time

from liftlog.server.vitals.histogram import LATENCY_BOUNDS, Histogram

_INTERVAL_SECONDS = 0.25
"""Pause, in seconds, between two measurements. It is long enough to use little time on an idle
daemon. Every call that blocks the loop for longer than the pause is detected."""
_STILL_SECONDS = 1.0
_JUST_NOW_SECONDS = 5.0


class SyncTimes:
    """The duration of each fdatasync, over all streams. Thread-safe: syncs run on the event loop
    and in writer threads."""

    def __init__(self) -> None:
        self._histogram = Histogram(LATENCY_BOUNDS)
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._histogram.observe(seconds)

    @property
    def count(self) -> int:
        with self._lock:
            return self._histogram.count

    def snapshot(self) -> Histogram:
        copy = Histogram(self._histogram.bounds)
        with self._lock:
            copy.counts = list(self._histogram.counts)
            copy.sum = self._histogram.sum
        return copy


class LoopWatch:
    """Measures the delay of a timer of the event loop. A blocking call causes the same delay for
    all other tasks.

    `run` is a task. The attributes may be read at any time.
    """

    def __init__(self) -> None:
        self.lag = Histogram(LATENCY_BOUNDS)
        self.last_lag_seconds = 0.0
        self._due = 0.0
        self._stood_still = (0.0, 0.0)  # its end and its length, in seconds

    async def run(self) -> None:
        """Measure until cancelled."""
        self._due = time.monotonic() + _INTERVAL_SECONDS
        while True:
            await asyncio.sleep(self._due - time.monotonic())
            now = time.monotonic()
            self.last_lag_seconds = max(now - self._due, 0.0)
            self.lag.observe(self.last_lag_seconds)
            if self.last_lag_seconds >= _STILL_SECONDS:
                self._stood_still = (now, self.last_lag_seconds)
            self._due = now + _INTERVAL_SECONDS

    def stood_still_seconds(self) -> float:
        """Return the length, in seconds, of the last pause of the event loop, if it has just ended.
        During a pause the process or its machine was stopped, or a call blocked the loop. Returns
        0.0 if the pause was shorter than a second, or ended some time ago."""
        now = time.monotonic()
        if self._due and now - self._due >= _STILL_SECONDS:  # `run` has not measured this pause yet
            return now - self._due
        until, seconds = self._stood_still
        return seconds if now - until <= _JUST_NOW_SECONDS else 0.0
