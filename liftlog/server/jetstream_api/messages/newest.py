"""Finds the newest records of each subject of a stream: the records that JetStream would have kept.

`note` runs in a thread. It receives the pieces of the log in their order. All other methods run in
the caller's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from liftlog.records.columns.selection import HEADERS, KEY, OFFSET, SUBJECT
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.records.message_headers import ROLLUP
from liftlog.sequencing.subject_sequences import PARTIAL

ROLLUP_LINE = b"\r\n%b:" % ROLLUP.encode()
"""A record with this header replaces all earlier records of its subject."""


def deleted_below(key: bytes | None, offset: int) -> int:
    """Return the offset below which the tombstone at `offset` deletes the records of its
    subject."""
    if key is None or not key.startswith(PARTIAL):
        return offset
    digits = key.removeprefix(PARTIAL)
    return int(digits) if digits.isdigit() and len(digits) < 20 else 0


def partial_key(below: int) -> bytes:
    """Return the key of a tombstone that deletes only the records of its subject below this offset;
    see `deleted_below`."""
    return PARTIAL + b"%d" % below


class LastOf:
    """The last offset of each subject below `end`. If `tombstones_delete` is true, a subject is
    left out if its last record is a tombstone."""

    def __init__(self, end: int, *, tombstones_delete: bool) -> None:
        self._end, self._tombstones_delete = end, tombstones_delete
        self.columns = frozenset((OFFSET, SUBJECT, KEY) if tombstones_delete else (OFFSET, SUBJECT))
        self._last: dict[bytes, int] = {}

    @property
    def size(self) -> int:
        """Number of stored offsets."""
        return len(self._last)

    def note(self, body: bytes) -> None:
        for batch in _below(body, self._end):
            if self._tombstones_delete and batch.has_tombstones:
                self._note_with_tombstones(batch)
            else:
                self._last.update(zip(batch.raw_subjects(), batch.offsets(), strict=True))

    def _note_with_tombstones(self, batch: RecordBatch) -> None:
        last = self._last
        columns = (batch.raw_subjects(), batch.offsets(), batch.keys(), batch.values())
        for subject, offset, key, value in zip(*columns, strict=True):
            if value is not None:
                last[subject] = offset
                continue
            below = deleted_below(key, offset)
            if last.get(subject, below) < below:
                del last[subject]

    def by_subject(self) -> dict[bytes, Sequence[int]]:
        return {subject: (offset,) for subject, offset in self._last.items()}

    def offsets(self) -> Iterable[int]:
        return self._last.values()


class NewestOf:
    """The last `count` offsets of each subject below `end`. Records before the subject's last
    roll-up, and records that a tombstone deletes, are left out."""

    columns = frozenset((OFFSET, SUBJECT, HEADERS, KEY))

    def __init__(self, count: int, end: int) -> None:
        self._count, self._end = count, end
        self._found: dict[bytes, deque[int]] = {}
        self.size = 0

    def note(self, body: bytes) -> None:
        for batch in _below(body, self._end):
            columns = (batch.raw_subjects(), batch.offsets(), batch.headers())
            values, keys = (batch.values(), batch.keys()) if batch.has_tombstones else ((), ())
            for row, (subject, offset, headers) in enumerate(zip(*columns, strict=True)):
                if values and values[row] is None:
                    self._delete(subject, deleted_below(keys[row], offset))
                    continue
                some = self._found.get(subject)
                if some is None or ROLLUP_LINE in headers:
                    self.size -= len(some or ())
                    some = self._found[subject] = deque(maxlen=self._count)
                self.size += len(some) < self._count
                some.append(offset)

    def _delete(self, subject: bytes, below: int) -> None:
        some = self._found.get(subject)
        while some and some[0] < below:
            some.popleft()
            self.size -= 1
        if some is not None and not some:
            del self._found[subject]

    def by_subject(self) -> dict[bytes, Sequence[int]]:
        return {subject: list(some) for subject, some in self._found.items()}

    def offsets(self) -> Iterable[int]:
        return [offset for some in self._found.values() for offset in some]


Newest = LastOf | NewestOf


def newest_of(history: int | None, end: int, *, count: int | None = None) -> Newest:
    """Create the object that finds the last `count` records of each subject, in a stream that shows
    `history` records per subject (None: all)."""
    wanted = count or history or 1
    if wanted == 1 and history in (None, 1):
        return LastOf(end, tombstones_delete=history == 1)
    return NewestOf(wanted, end)


def _below(body: bytes, end: int) -> Iterable[RecordBatch]:
    """Yield the batches below `end`. The last piece of a search may extend beyond `end`."""
    for batch in iter_batches(body, verify=False):
        yield batch.trim(batch.base_offset, end)
