"""The subjects of a bucket that were purged, and the offsets below which their messages are gone.

Purged messages stay in the log until compaction. After a purge, a consumer must not deliver them.
So the readers of a bucket search the log for tombstones and roll-ups. They begin at the first
message that one of the bucket's consumers still needs, and end at the high watermark. They read
each part of the log once for all consumers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from liftlog.errors import CorruptBatch, CorruptRange, LiftlogError, OffsetOutOfRange
from liftlog.log import Log
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.messages.newest import ROLLUP_LINE, deleted_below
from liftlog.server.reading.tailing import TailGroup, inflated_bytes, read_tail

logger = logging.getLogger("liftlog.server.jetstream_api")

_PIECE_BYTES = 256 * 1024
_TAIL_BYTES = 128 * 1024
_MOST_TAILS = 4
MOST_SUBJECTS = 200_000
"""Maximum number of purged subjects of one stream, at about 150 bytes each. If there are more, the
subjects that were purged first are dropped."""

_Found = dict[bytes, int]
Result = TypeVar("Result")


class Purges:
    """The purges of one bucket. Belongs to the event loop."""

    def __init__(self, log: Log) -> None:
        self.version = 0
        """Number that increases with each purge that is found."""
        self._log = log
        self._below: _Found = {}
        self._start_over()

    def _start_over(self) -> None:
        self._epoch = self._log.leader_epoch
        self._first = self._position = self._log.high_watermark
        """All records from `_first` to `_position` were examined."""

    def hides(self, subject: bytes, offset: int) -> bool:
        """Return True if a known purge has deleted the message; see `knows`."""
        return offset < self._below.get(subject, 0)

    @property
    def is_empty(self) -> bool:
        return not self._below

    def covers(self, first: int) -> bool:
        """Return True if all committed purges of messages from `first` on are known."""
        self._check()
        return self._first <= first and self._position >= self._log.high_watermark

    def knows(self, first: int, group: TailGroup) -> bool:
        """Like `covers`, but first examine the records that were just written. If the result is
        False, other records have to be read (`read`)."""
        log = self._log
        self._check()
        if first < self._first:
            return False
        try:
            for _ in range(_MOST_TAILS):
                view = log.view
                if self._position >= view.committed.offset:
                    return True
                tail = read_tail(log, group, view, self._position, _TAIL_BYTES)
                if tail is None or inflated_bytes(tail.body) > _TAIL_BYTES:
                    return False
                found: _Found = {}
                _note(tail.body, found)
                self._add(found)
                self._position = tail.next_offset
        except LiftlogError:  # `read` skips the damage
            return False
        return self._position >= log.high_watermark

    async def read(self, first: int, run: Callable[..., Awaitable[Result]]) -> None:
        """Find all purges of messages from `first` on that are committed now. `run` calls a
        function in a thread. Raises LiftlogError."""
        self._check()
        epoch, below, end = self._epoch, self._first, self._log.high_watermark
        if first < below:
            found = await self._scan(first, below, run)
            if self._epoch == epoch and self._first == below:
                self._add(found)
                self._first = first
        at = self._position
        if at < end:
            found = await self._scan(at, end, run)
            if self._epoch == epoch and self._position == at:
                self._add(found)
                self._position = end

    async def _scan(self, at: int, end: int, run: Callable[..., Awaitable[Result]]) -> _Found:
        found: _Found = {}
        while at < end:
            following = await run(_examine, self._log, at, found)
            assert isinstance(following, int)
            if following <= at:
                break
            at = following
        return found

    def _check(self) -> None:
        """Start again if the log has lost records."""
        log = self._log
        if log.leader_epoch != self._epoch or log.high_watermark < self._position:
            self._start_over()

    def _add(self, found: _Found) -> None:
        if not found:
            return
        self.version += 1
        known = self._below
        for subject, below in found.items():
            known[subject] = max(below, known.pop(subject, 0))
        if len(known) > MOST_SUBJECTS:
            start = self._log.log_start_offset
            known = self._below = {one: below for one, below in known.items() if below > start}
        if len(known) > MOST_SUBJECTS:
            logger.warning("jetstream-purges-forgotten stream=%s", self._log.name)
            for subject in [*known][: len(known) - MOST_SUBJECTS // 2]:
                del known[subject]


class AllPurges:
    """The purges of all buckets. Belongs to the event loop."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[StreamHost, Purges] = WeakKeyDictionary()

    def of(self, host: StreamHost) -> Purges | None:
        """Return the purges of a stream; None if tombstones do not delete messages there."""
        own = host.settings.jetstream
        if own is None or own.max_msgs_per_subject is None:
            return None
        known = self._known.get(host)
        if known is None:
            known = self._known[host] = Purges(host.log)
        return known


def _examine(log: Log, at: int, found: _Found) -> int:
    """Add the purges in the records from `at` on, and return the offset at which to continue; `at`
    if there are no more records. Blocking."""
    try:
        piece = log.read(at, _PIECE_BYTES)
    except CorruptRange as damage:
        return max(damage.next_offset, at + 1)
    except OffsetOutOfRange:
        return max(log.log_start_offset, at)
    if piece is None:
        return at
    try:
        body, following = piece.pread(), piece.next_offset
    finally:
        piece.release()
    try:
        _note(body, found)
    except CorruptBatch:
        pass  # unreadable records purge nothing
    return following


def _note(body: bytes, found: _Found) -> None:
    for batch in iter_batches(body):
        if batch.has_tombstones or ROLLUP_LINE in bytes(batch.raw):
            _note_batch(batch, found)


def _note_batch(batch: RecordBatch, found: _Found) -> None:
    columns = batch.raw_subjects(), batch.offsets(), batch.keys(), batch.values(), batch.headers()
    for subject, offset, key, value, headers in zip(*columns, strict=True):
        if value is None:
            found[subject] = max(deleted_below(key, offset), found.get(subject, 0))
        elif ROLLUP_LINE in headers:
            found[subject] = offset
