"""How long fdatasync takes, over all streams."""

from __future__ import annotations

import threading

from liftlog.server.vitals.histogram import LATENCY_BOUNDS, Histogram


class SyncTimes:
    """Thread-safe: syncs run in the event loop and in writer threads."""

    def __init__(self) -> None:
        self._histogram = Histogram(LATENCY_BOUNDS)
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._histogram.observe(seconds)

    def snapshot(self) -> Histogram:
        copy = Histogram(self._histogram.bounds)
        with self._lock:
            copy.counts = list(self._histogram.counts)
            copy.sum = self._histogram.sum
        return copy
