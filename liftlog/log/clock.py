"""Time, behind a seam that tests replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int:
        """Wall clock, nanoseconds since 1970 UTC."""
        ...

    def monotonic_ns(self) -> int:
        """A clock that never steps; only differences mean something."""
        ...


class SystemClock:
    def now_ns(self) -> int:
        """In whole microseconds, as batches keep them: joining batches then changes no stamp."""
        now = time.time_ns()
        return now - now % 1000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()
