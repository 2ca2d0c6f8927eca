"""Walks over the matching records of a log in bounded steps, from older to newer or from newer to
older.

Blocking: `step` runs in the threads that all scans share. Other scans run between two steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from liftlog.errors import CorruptRange, OffsetOutOfRange
from liftlog.log import Log
from liftlog.records.columns.selection import Selection
from liftlog.records.decode import Record, RecordBatch, decode_batch
from liftlog.server.reading.fairness import others_wait
from liftlog.server.reading.filtering import scan_log
from liftlog.server.reading.scan import Scan

_SCAN_BYTES = 256 * 1024
"""Limit of encoded bytes of one scan. Records of the usual size fill a page with fewer bytes."""
_WINDOW_BYTES = 1024 * 1024
"""Approximate size of the first window of a backward walk. The size of later windows depends on the
time that they take."""
_KEPT_BYTES = 4 * 1024 * 1024
"""Limit of the bytes of records that are kept from one window."""
_SHORT_SECONDS, _LONG_SECONDS = 0.03, 0.1
"""If a window takes less than the first time (in seconds), the next window has twice its size. If
it takes more than the second time, the next window has half its size."""
_FAIR_PART = 0.25
"""Factor for `_SHORT_SECONDS` and `_LONG_SECONDS` while another principal waits for the thread."""


class Damage(NamedTuple):
    """Records that can no longer be read."""

    first_offset: int
    next_offset: int
    message: str


class Span(NamedTuple):
    """A range of offsets; `high` is exclusive."""

    low: int
    high: int


Item = Record | Damage


class Walk(Protocol):
    """A walk over a log. It continues at `position`. If `at_end` is True, no further record exists
    yet."""

    position: int
    at_end: bool

    def step(self, limit: int) -> list[Item]:
        """Return the next items, at most `limit` and possibly none. Blocking. Raises
        LiftlogErrors."""

    def resume_after(self, item: Item) -> None:
        """Continue after this item, which the last step returned."""


def _batches(body: bytes) -> Iterator[RecordBatch]:
    position = 0
    while position < len(body):
        batch = decode_batch(body, position)
        position += batch.header.length
        yield batch


def _damage(error: CorruptRange) -> Damage:
    first, following = int(error.details["first_offset"]), int(error.details["next_offset"])
    return Damage(first, following, error.message)


class Forward:
    """A walk from older to newer records. `position` is the next offset to examine. If `is_open` is
    true, the walk continues to the current high watermark."""

    def __init__(self, log: Log, span: Span, selection: Selection, *, is_open: bool) -> None:
        self._log, self._selection = log, selection
        self._stop = None if is_open else span.high
        self.position = span.low
        self.at_end = not is_open and span.low >= span.high

    def step(self, limit: int) -> list[Item]:
        scan = Scan(self.position, self._stop, _SCAN_BYTES, self._selection)
        items: list[Item] = []
        try:
            scanned = scan_log(self._log, scan)
        except CorruptRange as error:
            items.append(_damage(error))
            self.position = int(error.details["next_offset"])
            self._note_end(self.position >= self._log.high_watermark)
            return items
        except OffsetOutOfRange:  # retention has deleted these records
            self.position = max(self.position, self._log.log_start_offset)
            return items
        for batch in _batches(scanned.body):
            left = limit - len(items)
            if len(batch) > left:
                offsets = batch.offsets()
                if left:
                    items += batch.trim(offsets[0], offsets[left]).records()
                self.position, self.at_end = int(offsets[left]), False
                return items
            items += batch.records()
        self.position = scanned.next_offset
        self._note_end(scanned.caught_up)
        return items

    def _note_end(self, caught_up: bool) -> None:
        self.at_end = caught_up or (self._stop is not None and self.position >= self._stop)

    def resume_after(self, item: Item) -> None:
        following = item.next_offset if isinstance(item, Damage) else item.offset + 1
        if following < self.position:
            self.position, self.at_end = following, False


class Backward:
    """A walk from newer to older records. All offsets from `position` on have been examined.

    A log can only be read from older to newer records. So a step reads a window of offsets in that
    direction, and keeps the newest matching records. The size of a window depends on the time that
    the previous window took.
    """

    def __init__(self, log: Log, span: Span, selection: Selection) -> None:
        self._log, self._selection = log, selection
        self._low = span.low
        self.position = span.high
        self.at_end = span.low >= span.high
        offsets = max(1, log.high_watermark - log.log_start_offset)
        self._width = max(1, _WINDOW_BYTES * offsets // max(log.view.size_bytes, 1))

    def narrow(self, width: int) -> None:
        """Limit the first window to this number of offsets. The number is sufficient if every
        record matches."""
        self._width = min(self._width, width)

    def step(self, limit: int) -> list[Item]:
        began = time.monotonic()
        low = max(self._low, self.position - self._width)
        found, reached = _newest_in(self._log, Span(low, self.position), self._selection, limit)
        took = time.monotonic() - began
        part = _FAIR_PART if others_wait() else 1.0
        if took < part * _SHORT_SECONDS:
            self._width *= 2
        elif took > part * _LONG_SECONDS:
            self._width = max(1, self._width // 2)
        self.position = reached
        self.at_end = reached <= max(self._low, self._log.log_start_offset)
        return found

    def resume_after(self, item: Item) -> None:
        reached = _begin_of(item)
        if reached > self.position:
            self.position, self.at_end = reached, False


def _newest_in(log: Log, window: Span, selection: Selection, limit: int) -> tuple[list[Item], int]:
    """Return the newest items of a window, the newest first, and an offset. The result contains all
    matching items from that offset to the end of the window."""
    kept: deque[Item] = deque()
    size, is_cut = 0, False
    complete_from = at = window.low
    while at < window.high:
        try:
            scanned = scan_log(log, Scan(at, window.high, _SCAN_BYTES, selection))
        except CorruptRange as error:
            damage = _damage(error)
            kept.append(damage)
            if at == window.low:  # the batch may begin before the window
                complete_from = min(complete_from, damage.first_offset)
            at = max(at + 1, damage.next_offset)
        except OffsetOutOfRange:  # retention has deleted these records
            start = log.log_start_offset
            if start <= at:
                break
            at = complete_from = start
        else:
            if scanned.record_count > limit:  # no earlier item is needed
                kept.clear()
                size, is_cut = 0, True
            newest = _last(scanned.body, scanned.record_count - limit)
            kept += newest
            size += sum([_size_of(record) for record in newest])
            at = scanned.next_offset
            if scanned.caught_up:
                break
        while len(kept) > limit or (size > _KEPT_BYTES and len(kept) > 1):
            size -= _size_of(kept.popleft())
            is_cut = True
    if is_cut and kept:
        complete_from = _begin_of(kept[0])
    return list(reversed(kept)), complete_from


def _last(body: bytes, left_out: int) -> list[Record]:
    """Return the records of these batches except the first `left_out` records."""
    found: list[Record] = []
    for batch in _batches(body):
        if left_out > 0:
            offsets = batch.offsets()
            left_out -= len(offsets)
            if left_out >= 0:
                continue
            batch = batch.trim(offsets[left_out], batch.header.next_offset)
        found += batch.records()
    return found


def _begin_of(item: Item) -> int:
    return item.first_offset if isinstance(item, Damage) else item.offset


def _size_of(item: Item) -> int:
    if isinstance(item, Damage):
        return 0
    return len(item.value or b"") + len(item.key or b"") + len(item.raw_headers)
