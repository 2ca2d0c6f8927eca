"""When a commit may run inside the event loop.

A small group that is synced inline is acked without two thread hand-overs, which is most of a
lone publisher's latency. It must not make the loop wait for a slow disk: so only while recent
syncs were fast, and only for a small share of each loop turn.
"""

from __future__ import annotations

import asyncio
import time

_FAST_SYNC_SECONDS = 0.001
_SMOOTHING = 0.2
_PROBE_SECONDS = 0.25


class InlineBudget:
    """Shared by all streams of a daemon."""

    def __init__(self, max_messages: int, budget_seconds: float) -> None:
        self.max_messages = max_messages
        self._budget_seconds = budget_seconds
        self._left_seconds = budget_seconds
        self._recent_seconds = 0.0
        self._slow_since = 0.0
        self._reset_scheduled = False

    def allows(self, messages: int) -> bool:
        if messages > self.max_messages or self._left_seconds <= 0:
            return False
        if self._recent_seconds <= _FAST_SYNC_SECONDS:
            return True
        # Syncs in the writer threads are not measured here; look again from time to time.
        return time.monotonic() - self._slow_since > _PROBE_SECONDS

    def spent(self, seconds: float) -> None:
        """An inline commit took this long."""
        self._recent_seconds += _SMOOTHING * (seconds - self._recent_seconds)
        if self._recent_seconds > _FAST_SYNC_SECONDS:
            self._slow_since = time.monotonic()
        self._left_seconds -= seconds
        if not self._reset_scheduled:
            self._reset_scheduled = True
            asyncio.get_running_loop().call_soon(self._reset)

    def _reset(self) -> None:
        self._reset_scheduled = False
        self._left_seconds = self._budget_seconds
