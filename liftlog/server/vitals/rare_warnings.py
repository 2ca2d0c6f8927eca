"""Logs warnings about events that repeat many times a second. Each warning is logged at most once a
minute."""

from __future__ import annotations

import logging
import time

_AGAIN_SECONDS = 60.0
_TIDY_SECONDS = 10.0


class RareWarnings:
    """Limits repeated warnings. Belongs to one thread. The lines of the last minute are kept in
    memory, so lines must not contain values that change each time."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told: dict[str, float] = {}
        self._tidied = time.monotonic()

    def warn(self, event: str, *values: object) -> None:
        """Log the line, unless the same line was logged less than a minute ago."""
        line, now = event % values, time.monotonic()
        told = self._told.get(line)
        if told is not None and now - told < _AGAIN_SECONDS:
            return
        # Not at each call, because a node may lead 1,000 streams.
        if now - self._tidied >= _TIDY_SECONDS:
            self._tidied = now
            self._told = {one: at for one, at in self._told.items() if now - at < _AGAIN_SECONDS}
        self._told[line] = now
        self._logger.warning(event, *values)

    def forget(self) -> None:
        """Drop all earlier lines, so that the next warning is logged in any case."""
        self._told.clear()
