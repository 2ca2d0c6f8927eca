"""How late the event loop is: what a blocking call in it costs everybody else."""

from __future__ import annotations

import asyncio
import time

from liftlog.server.vitals.histogram import LATENCY_BOUNDS, Histogram

_INTERVAL_SECONDS = 0.25
"""Four wake-ups a second: an idle daemon should stay idle, and whoever blocks the loop for longer
than that is seen in any case."""


class LoopWatch:
    """`run` is its life; the other members may be read at any time."""

    def __init__(self) -> None:
        self.lag = Histogram(LATENCY_BOUNDS)
        self.last_lag_seconds = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        due = time.monotonic() + _INTERVAL_SECONDS
        while True:
            await asyncio.sleep(due - time.monotonic())
            now = time.monotonic()
            self.last_lag_seconds = max(now - due, 0.0)
            self.lag.observe(self.last_lag_seconds)
            due = now + _INTERVAL_SECONDS
