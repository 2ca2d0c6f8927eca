"""The pauses in which a connection to NATS was not read."""

from __future__ import annotations

import time
from collections.abc import Callable

STILL_SECONDS = 1.0
"""If a connection ends after this time (in seconds) without reads, the daemon assumes that NATS
closed it because of a slow consumer."""
_JUST_NOW_SECONDS = 5.0


class ReadingPauses:
    """Measures for how long a connection is not read.

    `stood_still_seconds` is a function that returns the duration of the last pause of the process.
    """

    def __init__(self, stood_still_seconds: Callable[[], float]) -> None:
        self._stood_still_seconds = stood_still_seconds
        self._since = 0.0
        """Start of the present pause; 0.0 while the connection is read."""
        self._last = (0.0, 0.0)
        """End and length of the last long pause."""

    def begin(self) -> None:
        self._since = time.monotonic()

    def end(self) -> None:
        now = time.monotonic()
        if now - self._since >= STILL_SECONDS:
            self._last = (now, now - self._since)
        self._since = 0.0

    def not_read_seconds(self) -> float:
        """Return the length, in seconds, of the present pause. If there is none, return the length
        of the last long pause if it ended at most 5 s ago, and 0.0 otherwise. A pause of the whole
        process counts, too."""
        now = time.monotonic()
        until, seconds = self._last
        if self._since:
            until, seconds = now, now - self._since
        held = seconds if now - until <= _JUST_NOW_SECONDS else 0.0
        return max(held, self._stood_still_seconds())
