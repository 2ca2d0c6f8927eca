"""When a commit may run inside the event loop.

A small group that is synced inline is acked without two handovers between threads, which are most
of a lone publisher's latency. The loop must not wait for a slow disk, so this is allowed only while
recent syncs were fast, and only for a small share of the time: at most the budget for each chunk
that is read.
"""

from __future__ import annotations

from collections import deque

_FAST_SYNC_SECONDS = 0.001
_STALLED_SYNC_SECONDS = 0.05
_REMEMBERED = 15


class InlineBudget:
    """Shared by all streams of a daemon."""

    def __init__(self, max_messages: int, budget_seconds: float) -> None:
        self.max_messages = max_messages
        self._budget_seconds = budget_seconds
        self._left_seconds = budget_seconds
        self._recent_slow: deque[bool] = deque([False] * _REMEMBERED, maxlen=_REMEMBERED)
        self._slow_count = 0

    def allows(self, messages: int) -> bool:
        return (
            messages <= self.max_messages
            and self._left_seconds > 0
            and self._slow_count <= _REMEMBERED // 2
        )

    def observe(self, sync_seconds: float) -> None:
        """A sync, inline or in a thread, took this long.

        The median decides: one slow sync does not end inline commits, and one lucky sync does not
        bring them back. A stall is the exception, as the loop has stalled with the disk: it ends
        inline commits at once, until enough fast syncs in threads have made the median fast again.
        """
        if sync_seconds > _STALLED_SYNC_SECONDS:
            self._recent_slow.extend([True] * _REMEMBERED)
            self._slow_count = _REMEMBERED
            return
        slow = sync_seconds > _FAST_SYNC_SECONDS
        self._slow_count += slow - self._recent_slow[0]
        self._recent_slow.append(slow)

    def spent(self, seconds: float) -> None:
        """An inline commit took this long of the present chunk's share."""
        self._left_seconds -= seconds

    def begin_chunk(self) -> None:
        """A chunk is read: inline commits have their full share of time again."""
        self._left_seconds = self._budget_seconds
