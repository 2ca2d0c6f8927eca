"""Keeps the answers that a read has requested, from the request until the last batch is
returned."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set
from typing import NamedTuple

from liftlog.client.reading.batches import ArrivingBatches
from liftlog.client.reading.read_options import Reset
from liftlog.errors import CorruptRange, LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import FetchHeader


class Answer(NamedTuple):
    """An answer with records. Its header has arrived."""

    header: FetchHeader
    exchange: Exchange
    slots: frozenset[int] | None
    """The slots to which the daemon has limited the records; None: no limit."""


class OpenAnswers:
    """The open requests of one read, and the answers that have arrived for them, in the order of
    the log.

    A request is first `asked` (its header has not arrived), then an `Answer` in `waiting`, then
    `current`: its batches are returned while the rest of its body arrives.

    Invariants:

    - At most one request is `asked`, and all others precede it.
    - `waiting` holds errors and resets between the answers, each at the place where the reader must
      get it.
    - `bytes` is the sum of the bodies of `current` and of the answers in `waiting`.
    - Only `current` refers to a body, so the memory of a body is free as soon as its batches are
      freed.
    """

    def __init__(self) -> None:
        self.requests: set[Exchange] = set()
        """Requests that are not completely answered."""
        self.waiting: deque[Answer | LiftlogError | Reset] = deque()
        self.current: ArrivingBatches | None = None
        self.arriving: Exchange | None = None
        """The request that `current` answers; None if there is none."""
        self.bytes = 0
        self.divided_by: frozenset[int] | None = None
        """The slots of the answer that was opened last."""
        self._asked: Exchange | None = None
        self._asked_slots: frozenset[int] | None = None  # of the newest request
        self._current_bytes = 0

    @property
    def is_asking(self) -> bool:
        """True while the newest request waits for the header of its answer."""
        return self._asked is not None

    @property
    def is_empty(self) -> bool:
        return not self.requests and not self.waiting and self.current is None

    @property
    def may_continue(self) -> bool:
        """True if the bytes that have arrived may complete the next batch."""
        current, arriving = self.current, self.arriving
        if current is None or arriving is None:
            return current is None
        return arriving.arrived_bytes >= current.needed_bytes

    def first_unread(self) -> int | Reset | None:
        """Return the offset of the first record that was not returned yet. If a `Reset` precedes
        this record, return the `Reset`; None if nothing has arrived."""
        if self.current is not None:
            return self.current.next_offset
        for item in self.waiting:
            if isinstance(item, Answer):
                return item.header.offset
            if isinstance(item, CorruptRange):
                return item.first_offset
            if isinstance(item, Reset):
                return item
        return None

    def have_all_of(self, slots: Set[int]) -> bool:
        """Return True if no open request leaves out records of these slots."""
        return all(asked is None or slots <= asked for asked in self._asked_for())

    def _asked_for(self) -> Iterator[frozenset[int] | None]:
        if self.current is not None:
            yield self.divided_by
        yield from (one.slots for one in self.waiting if isinstance(one, Answer))
        if self._asked is not None:
            yield self._asked_slots

    # --- the way of an answer ---

    def asks(self, exchange: Exchange, slots: frozenset[int] | None) -> None:
        """Note that a fetch for the records of these slots is about to be sent."""
        self._asked, self._asked_slots = exchange, slots
        self.requests.add(exchange)

    def header_arrived(self) -> Exchange | None:
        """Return the request to which the header belongs: the newest request."""
        asked, self._asked = self._asked, None
        return asked

    def add(self, header: FetchHeader, exchange: Exchange) -> None:
        """Note that the header of an answer with records has arrived."""
        slots = self._asked_slots if header.selected else None
        self.waiting.append(Answer(header, exchange, slots))
        self.bytes += header.body_length

    def open(self, answer: Answer, stream: str, stop_offset: int | None) -> None:
        """Make this answer the current one."""
        header, exchange, self.divided_by = answer
        body = exchange.body
        assert body is not None
        exchange.body = None
        self.current = ArrivingBatches(stream, header, body, stop_offset)
        self.arriving = exchange
        self._current_bytes = header.body_length

    def close_current(self) -> None:
        """Release the body of the current answer."""
        self.current = self.arriving = None
        self.bytes -= self._current_bytes

    def done(self, exchange: Exchange) -> None:
        """Note that this request is answered or has failed. An error then waits in `waiting` until
        it is raised."""
        self.requests.discard(exchange)
        if exchange.error is not None:
            self._asked = None
            self.waiting.append(exchange.error)

    def drop(self) -> set[Exchange]:
        """Drop everything that has arrived. Return the open requests, which the caller must cancel.
        These requests make no further callbacks."""
        dropped, self.requests = self.requests, set()
        for exchange in dropped:
            exchange.on_header = exchange.on_done = exchange.on_progress = None
        self.waiting.clear()
        self.current = self.arriving = self._asked = None
        self.bytes = 0
        return dropped
