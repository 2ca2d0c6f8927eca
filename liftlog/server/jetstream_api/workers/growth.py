"""Wakes consumers that wait at the end of a stream when there are new records on their subjects.

New records are examined once for all consumers of the stream. Each distinct subject of a batch is
looked up in a tree of the filters of waiting consumers. So a commit stays fast even if ten thousand
consumers wait for other records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

from liftlog.errors import LiftlogError
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.consumers.cursor import PIECE_BYTES
from liftlog.server.jetstream_api.consumers.interest import Interest
from liftlog.server.reading.tailing import TailGroup, inflated_bytes, read_tail

_MOST_PIECES = 4
_MOST_BYTES = 1024 * 1024

Filters = tuple[str, ...]
"""Patterns of subjects; no pattern means all subjects."""


class Waiting(Protocol):
    """A consumer that waits at the end of a stream."""

    def grown(self, examined: int) -> None:
        """Examine the records at and above `examined`. No earlier record is wanted in this wait."""
        ...


class _Stream:
    """The consumers that wait at the end of one stream."""

    def __init__(self, host: StreamHost, group: TailGroup) -> None:
        self._host = host
        self._group = group
        self._waiting: dict[Waiting, Filters] = {}
        self._sets: dict[Filters, dict[Waiting, None]] = {}
        self._numbers: dict[Filters, bytes] = {}
        self._filters: dict[bytes, Filters] = {}
        self._tree = Interest()
        self._next_number = 0
        self._is_watching = False
        self.position = 0
        """All records below this offset have been examined for the waiting consumers."""

    def wait(self, one: Waiting, filters: Filters, offset: int) -> bool:
        if one in self._waiting:
            return False
        if not self._waiting:
            self.position = offset
        self._waiting[one] = filters
        members = self._sets.get(filters)
        if members is None:
            members = self._sets[filters] = {}
            self._add(filters)
        members[one] = None
        self._watch()
        return True

    def leave(self, one: Waiting) -> None:
        filters = self._waiting.pop(one, None)
        if filters is None:
            return
        members = self._sets[filters]
        del members[one]
        if not members:
            del self._sets[filters]
            self._remove(filters)

    def has(self, one: Waiting) -> bool:
        return one in self._waiting

    def _add(self, filters: Filters) -> None:
        self._next_number += 1
        number = b"%d" % self._next_number
        self._numbers[filters], self._filters[number] = number, filters
        for pattern in filters or (">",):
            self._tree.add(pattern.encode(), number)

    def _remove(self, filters: Filters) -> None:
        number = self._numbers.pop(filters)
        del self._filters[number]
        for pattern in filters or (">",):
            self._tree.remove(pattern.encode(), number)

    def _watch(self) -> None:
        if self._waiting and not self._is_watching:
            self._is_watching = True
            self._group.wait(self._host, self.position, self._grown)

    def _grown(self) -> None:
        self._is_watching = False
        try:
            is_complete = self._examine_all()
        except LiftlogError:  # the readers report the damage
            is_complete = False
        if not is_complete:
            self._wake(list(self._waiting), self.position)
        self._watch()

    def _examine_all(self) -> bool:
        """Examine the new records. Returns False if some of the records are not in memory, or if
        there are too many records. In this case each consumer reads the records itself. Raises
        LiftlogError."""
        log = self._host.log
        for _ in range(_MOST_PIECES):
            view = log.view
            if not self._waiting or self.position >= view.committed.offset:
                return True
            tail = read_tail(log, self._group, view, self.position, PIECE_BYTES)
            if tail is None or inflated_bytes(tail.body) > _MOST_BYTES:
                return False
            for batch in iter_batches(tail.body):
                self._examine(batch)
            self.position = tail.next_offset
        return self.position >= log.high_watermark

    def _examine(self, batch: RecordBatch) -> None:
        names = [self._tree.names(subject) for subject in set(batch.raw_subjects())]
        for number in frozenset[bytes]().union(*names):
            self._wake(list(self._sets[self._filters[number]]), batch.base_offset)

    def _wake(self, some: list[Waiting], examined: int) -> None:
        for one in some:
            self.leave(one)
            one.grown(examined)


class Growth:
    """The waiting consumers of all streams. Belongs to the event loop."""

    def __init__(self, group_of: Callable[[StreamHost], TailGroup]) -> None:
        self._group_of = group_of
        self._streams: WeakKeyDictionary[StreamHost, _Stream] = WeakKeyDictionary()

    def wait(self, one: Waiting, host: StreamHost, filters: Filters, offset: int) -> bool:
        """Wake a consumer once, when there is a record at or above `offset` that it may want.
        `offset` must not be below the high watermark. Returns False if the consumer already
        waits."""
        stream = self._streams.get(host)
        if stream is None:
            stream = self._streams[host] = _Stream(host, self._group_of(host))
        return stream.wait(one, filters, offset)

    def leave(self, one: Waiting, host: StreamHost) -> None:
        """End the wait of the consumer, without waking it."""
        stream = self._streams.get(host)
        if stream is not None:
            stream.leave(one)

    def examined(self, one: Waiting, host: StreamHost) -> int:
        """Return the offset below which a waiting consumer wants no record; 0 if the consumer does
        not wait."""
        stream = self._streams.get(host)
        return stream.position if stream is not None and stream.has(one) else 0
