"""Tracks which records of a stream were erased after a consumer had counted and read them."""

from __future__ import annotations

import time

from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.state import ReadView

_PAUSE = 10.0
"""Least pause before the next new count, as a multiple of the time of the last one."""


class Removals:
    """Erased records that one consumer has not taken into account. Belongs to the event loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._of_rows = self._of_counts = log.view.erased
        self._next_count = self._began = 0.0

    def concern_rows(self) -> bool:
        """Return True, once, if records were erased since the last call."""
        if (erased := self._log.view.erased) is self._of_rows:
            return False
        self._of_rows = erased
        return True

    def count_in(self, view: ReadView, first_offset: int, next_offset: int) -> int:
        """Return how many records of [first_offset, next_offset) were erased since the last
        call."""
        before, self._of_counts = self._of_counts, view.erased
        return erased_between(before, view.erased, first_offset, next_offset)

    @property
    def are_counted(self) -> bool:
        """True if no records were erased since the last call of `count_in`."""
        return self._log.view.erased is self._of_counts

    # --- new counts, limited to a share of the time ---

    @property
    def may_count(self) -> bool:
        return time.monotonic() >= self._next_count

    def count_begins(self) -> None:
        self._began = time.monotonic()

    def count_ends(self) -> None:
        now = time.monotonic()
        self._next_count = now + _PAUSE * (now - self._began)


def erased_between(
    before: ErasedSet | None, after: ErasedSet | None, first_offset: int, next_offset: int
) -> int:
    """Return how many offsets of [first_offset, next_offset) are in the set `after` and not in the
    set `before`."""
    if after is before or after is None or first_offset >= next_offset:
        return 0
    some = after.within(first_offset, next_offset)
    return len(some if before is None else some - before)
