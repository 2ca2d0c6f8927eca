"""Notices when the wall clock steps, so that no record is taken for older than it is."""

from __future__ import annotations

import logging
import threading

from liftlog.log import Clock

logger = logging.getLogger("liftlog.server")

_STEP_NS = 600 * 1_000_000_000
_CONFIRM_NS = 3600 * 1_000_000_000


class ClockGuard:
    """A step of more than ten minutes against the monotonic clock is not trusted until the new
    time has held for an hour, or until the daemon restarts. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wall_ns = clock.now_ns()
        self._monotonic_ns = clock.monotonic_ns()
        self._stepped_at_ns: int | None = None
        self._ahead_ns = 0

    def wall_clock_is_trusted(self) -> bool:
        with self._lock:
            self._look()
            return self._stepped_at_ns is None

    def now_ns(self) -> int:
        """The time for judging ages. A clock that jumped ahead does not make records old, and
        after a jump back new records do not seem older than they are."""
        with self._lock:
            self._look()
            return self._wall_ns - max(self._ahead_ns, 0)

    def _look(self) -> None:
        wall, monotonic = self._clock.now_ns(), self._clock.monotonic_ns()
        step = (wall - self._wall_ns) - (monotonic - self._monotonic_ns)
        self._wall_ns, self._monotonic_ns = wall, monotonic
        if abs(step) > _STEP_NS:
            self._stepped_at_ns = monotonic
            self._ahead_ns += step
            logger.warning(
                "wall-clock-stepped seconds=%d retention_by_time=suspended", step // 10**9
            )
        if self._stepped_at_ns is not None and monotonic - self._stepped_at_ns > _CONFIRM_NS:
            self._stepped_at_ns, self._ahead_ns = None, 0
