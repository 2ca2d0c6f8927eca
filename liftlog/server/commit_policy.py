"""When a commit may run inside the event loop.

A small group that is synced inline is acked without two thread hand-overs, which is most of a
lone publisher's latency. It must not make the loop wait for a slow disk: so only while recent
syncs were fast, and only for a small share of each loop turn.
"""

from __future__ import annotations

import asyncio
from collections import deque

_FAST_SYNC_SECONDS = 0.001
_REMEMBERED = 15


class InlineBudget:
    """Shared by all streams of a daemon."""

    def __init__(self, max_messages: int, budget_seconds: float) -> None:
        self.max_messages = max_messages
        self._budget_seconds = budget_seconds
        self._left_seconds = budget_seconds
        self._recent: deque[float] = deque([0.0] * _REMEMBERED, maxlen=_REMEMBERED)
        self._fast = True
        self._reset_scheduled = False

    def allows(self, messages: int) -> bool:
        return self._fast and messages <= self.max_messages and self._left_seconds > 0

    def observe(self, sync_seconds: float) -> None:
        """A sync, inline or in a thread, took this long. The median decides, so that one stall
        does not banish small commits from the loop and one lucky sync does not bring them back."""
        self._recent.append(sync_seconds)
        self._fast = sorted(self._recent)[_REMEMBERED // 2] <= _FAST_SYNC_SECONDS

    def spent(self, seconds: float) -> None:
        """An inline commit took this long of the present loop turn."""
        self._left_seconds -= seconds
        if not self._reset_scheduled:
            self._reset_scheduled = True
            asyncio.get_running_loop().call_soon(self._reset)

    def _reset(self) -> None:
        self._reset_scheduled = False
        self._left_seconds = self._budget_seconds
