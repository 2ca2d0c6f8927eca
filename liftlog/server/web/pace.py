"""Slows down searches while messages are being stored, so that publishers do not wait longer for
acks.

A search runs in a thread. Commits also run Python code, and wait while the search holds the
interpreter lock. Each step of a commit may then wait for half a millisecond, or for one call of
numpy. Therefore, while messages are stored, a search works for a few milliseconds and then pauses
for the same time. During the pause the messages that have arrived are committed and acked.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from liftlog.records.columns.column_set import BinaryColumn, Flags
from liftlog.server.web.conditions import Condition, parts_of

_WORK_SECONDS = 0.004
LONGEST_REST_SECONDS = 0.02
_QUIET_SECONDS = 0.25
"""If no message has arrived for this time (in seconds), a search runs without pauses."""
PART_BYTES = 64 * 1024
"""Size, in bytes, of a part that takes about a millisecond of work."""


class Pace:
    """Paces the searches of all viewers. Only one search works at a time. A search calls this
    object between two small pieces of work. The call blocks while the search has to pause.

    `stored` returns a number that changes when messages arrive or are stored. `stored` is called in
    the search's thread.
    """

    def __init__(
        self,
        stored: Callable[[], int],
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stored, self._now, self._sleep = stored, now, sleep
        self._seen = stored()
        self._quiet_from = now()
        self._began = now()

    def begin(self) -> None:
        """Begin a piece of work. The time before this call does not count as work."""
        self._began = self._now()

    def __call__(self) -> None:
        now = self._now()
        worked = now - self._began
        if worked < _WORK_SECONDS:
            return
        if (stored := self._stored()) != self._seen:
            self._seen, self._quiet_from = stored, now + _QUIET_SECONDS
        if now < self._quiet_from:
            self._sleep(min(worked, LONGEST_REST_SECONDS))
        self._began = self._now()


class Paced:
    """A condition that examines the values in parts, and pauses between the parts."""

    def __init__(self, condition: Condition, pace: Pace) -> None:
        self._condition, self._pace = condition, pace

    def __call__(self, values: BinaryColumn) -> Flags:
        found = np.empty(len(values), np.bool_)
        for first, part in parts_of(values, PART_BYTES):
            found[first : first + len(part)] = self._condition(part)
            self._pace()
        return found
