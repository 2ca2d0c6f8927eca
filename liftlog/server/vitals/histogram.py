"""Counts values in buckets. The cost is small enough for the path of every commit."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

LATENCY_BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
"""Bounds in seconds. An fsync takes 100 us on a good disk, and seconds on an overloaded disk."""

COUNT_BOUNDS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
"""Bounds for the number of messages per commit, from a single publisher to a flood."""


class Histogram:
    """Counts of values in buckets. Not thread-safe: hold a lock to observe from several threads."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """Counts per bucket, not cumulative. The last bucket counts values above every bound."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """Return the value below which `part` (0 to 1) of the observations lie. Assumes that the
    observations in a bucket are spread evenly. Returns the highest bound if the value is above it,
    and NaN if there are no observations."""
    wanted = part * sum(counts)
    if not wanted:
        return math.nan
    below, low = 0, 0.0
    for high, count in zip(bounds, counts, strict=False):
        if below + count >= wanted:
            return low + (high - low) * (wanted - below) / count
        below, low = below + count, high
    return low
