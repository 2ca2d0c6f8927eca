"""Tracks which records of a stream were erased after a consumer had counted and read them.

A rewrite removes the bytes of erased records, and then removes these records from the erased set.
If this happens before the consumer has read the set, the set no longer shows which records were
erased. The consumer then counts and reads again.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import NamedTuple, Self

from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.state import ReadView

_PAUSE = 10.0
"""Minimum pause before the next new count, as a multiple of the time that the last count took."""


class News(Enum):
    """The kinds of erasures since the last call."""

    NONE = 0
    """No record was erased."""
    LISTED = 1
    """Records were erased, and the erased set has all of them."""
    UNKNOWN = 2
    """Records were erased, and a rewrite has already removed the bytes of some of them."""


class Seen(NamedTuple):
    """The erased records at some moment, and the number of erasures since the start."""

    erased: ErasedSet | None
    total: int

    @classmethod
    def of(cls, view: ReadView) -> Self:
        return cls(view.erased, view.erased_total)

    def news(self, view: ReadView) -> News:
        """Return what kind of erasures there were after that moment. If records were erased and a
        rewrite has also removed the bytes of earlier erased records, the result is UNKNOWN."""
        more = view.erased_total - self.total
        if not more:
            return News.NONE
        grown = len(view.erased or ()) - len(self.erased or ())
        return News.LISTED if grown == more else News.UNKNOWN

    def count_in(self, view: ReadView, first_offset: int, next_offset: int) -> int | None:
        """Return how many records of [first_offset, next_offset) were erased since then; None if
        that is not known."""
        news = self.news(view)
        if news is News.NONE or first_offset >= next_offset:
            return 0
        if news is News.UNKNOWN or view.erased is None:
            return None
        some = view.erased.within(first_offset, next_offset)
        return len(some if self.erased is None else some - self.erased)


class Removals:
    """The erased records that one consumer has not taken into account yet. Belongs to the event
    loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._of_rows = self._of_counts = Seen.of(log.view)
        self._next_count = self._began = 0.0

    def concern_rows(self) -> News:
        """Return what kind of erasures there were since the last call."""
        view, before = self._log.view, self._of_rows
        self._of_rows = Seen.of(view)
        return before.news(view)

    def count_in(self, view: ReadView, first_offset: int, next_offset: int) -> int | None:
        """Return how many records of [first_offset, next_offset) were erased since the last call;
        None if that is not known."""
        before, self._of_counts = self._of_counts, Seen.of(view)
        return before.count_in(view, first_offset, next_offset)

    @property
    def are_counted(self) -> bool:
        """True if no records were erased since the last call of `count_in`."""
        return self._of_counts.news(self._log.view) is News.NONE

    # --- new counts, limited to a share of the time ---

    @property
    def may_count(self) -> bool:
        return time.monotonic() >= self._next_count

    def count_begins(self) -> None:
        self._began = time.monotonic()

    def count_ends(self) -> None:
        now = time.monotonic()
        self._next_count = now + _PAUSE * (now - self._began)
