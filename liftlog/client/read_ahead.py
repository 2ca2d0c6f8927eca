"""One continuous read, sans-io: which fetch to send next, what is ready, when it is over.

The next fetch leaves as soon as the header of the last answer has arrived, before its body, so
the server always has one more to work on while a body is under way. The larger the answers, the
longer a delay this covers, so a read begins with small ones (the caller may want a few records
only) and doubles them. How far it runs ahead is bounded by `read_ahead_bytes` plus one answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from liftlog.client.batches import ArrivingBatches
from liftlog.client.positions import END, Start, Until, check_until, start_fields
from liftlog.errors import LiftlogError, ProtocolViolation
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.limits import KIB, MIB
from liftlog.protocol.messages import Fetch, FetchHeader
from liftlog.records.decode import RecordBatch

FIRST_FETCH_BYTES = 512 * KIB
DEFAULT_FETCH_BYTES = 1 * MIB
DEFAULT_READ_AHEAD_BYTES = 8 * MIB
SMALLEST_FETCH_BYTES = 4 * KIB
POLL_MS = 20_000


class Requester(Protocol):
    def request(self, message: Fetch, exchange: Exchange) -> None: ...
    def give_up(self, exchange: Exchange) -> None: ...


class ReadAhead:
    """State of one read. `on_ready` runs when `next_batch` may have something new to say."""

    def __init__(
        self,
        requester: Requester,
        stream: str,
        start: Start,
        until: Until,
        *,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
        read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES,
        max_wait_ms: int = POLL_MS,
    ) -> None:
        check_until(until)
        self.stream = stream
        self.on_ready: Callable[[], None] | None = None
        self._requester = requester
        self._start: dict[str, Any] = start_fields(start)
        self._until = until
        self._stop_offset = until if type(until) is int else None
        self._largest_fetch_bytes = max(fetch_bytes, SMALLEST_FETCH_BYTES)
        self._fetch_bytes = min(FIRST_FETCH_BYTES, self._largest_fetch_bytes)
        self._read_ahead_bytes = read_ahead_bytes
        self._max_wait_ms = max_wait_ms
        self._asked: Exchange | None = None  # the fetch whose header has not come
        self._open: set[Exchange] = set()
        self._last: FetchHeader | None = None  # newest header
        self._ahead_bytes = 0
        self._ready: deque[tuple[FetchHeader, Exchange] | LiftlogError] = deque()
        self._current: ArrivingBatches | None = None
        self._arriving: Exchange | None = None  # the answer that `_current` looks at
        self._current_bytes = 0
        self._begun = False
        self._over = False  # no further fetch will be sent

    @property
    def finished(self) -> bool:
        """Everything was handed out and nothing more will come."""
        return self._over and not self._open and not self._ready and self._current is None

    @property
    def high_watermark(self) -> int | None:
        """As of the newest answer; None before the first."""
        return None if self._last is None else self._last.high_watermark

    def next_batch(self) -> RecordBatch | None:
        """The next batch, or None when it is not here yet (or the read is finished).

        Raises the error that ended the read, once everything before it was handed out.
        """
        if not self._begun:
            self._begun = True
            self._ask()
        while True:
            current, arriving = self._current, self._arriving
            if current is not None and arriving is not None:
                try:
                    batch = current.next(arriving.arrived_bytes)
                except LiftlogError:
                    self.stop()
                    raise
                if batch is not None:
                    return batch
                if not current.exhausted and arriving.error is None:
                    return None  # the rest is on its way
                self._current = self._arriving = None
                self._ahead_bytes -= self._current_bytes
            if not self._ready:
                self._ask_if_room()
                return None
            item = self._ready.popleft()
            if isinstance(item, LiftlogError):
                self.stop()
                raise item
            header, exchange = item
            body = exchange.body
            assert body is not None
            exchange.body = None
            self._current = ArrivingBatches(self.stream, header, body, self._stop_offset)
            self._arriving = exchange
            self._current_bytes = header.body_length
            del item, body, exchange  # the buffer must be free as soon as its batches are
            self._ask_if_room()

    def stop(self) -> None:
        """Give up: nothing more will be handed out. Calling it again does nothing."""
        self._over = True
        for exchange in self._open:
            exchange.on_header = exchange.on_done = exchange.on_progress = None
            self._requester.give_up(exchange)
        self._open.clear()
        self._ready.clear()
        self._current = self._arriving = None
        self._asked = None

    # --- fetching ---

    def _ask_if_room(self) -> None:
        if self._asked is None and not self._over and self._ahead_bytes <= self._read_ahead_bytes:
            self._ask()

    def _ask(self) -> None:
        """Send the fetch that follows the newest header."""
        last = self._last
        if last is None:
            fields = dict(self._start)
            # With an end in sight the first answer is wanted for what it says about the log.
            wait_ms = self._max_wait_ms if self._until is None else 0
        else:
            fields = {"start": last.next_offset, "incarnation": last.incarnation}
            wait_ms = self._max_wait_ms
        position = fields.get("start")
        if self._stop_offset is not None and type(position) is int:
            fields["max_records"] = max(self._stop_offset - position, 1)
        fetch = Fetch(self.stream, max_bytes=self._fetch_bytes, max_wait_ms=wait_ms, **fields)
        self._fetch_bytes = min(2 * self._fetch_bytes, self._largest_fetch_bytes)
        exchange = Exchange(self._on_header, self._on_done, self._on_progress)
        self._asked = exchange
        self._open.add(exchange)
        self._requester.request(fetch, exchange)

    def _on_header(self, header: FetchHeader) -> None:
        asked, self._asked = self._asked, None
        if header.body_length and header.next_offset <= header.offset:
            raise ProtocolViolation("the server sent records and a next offset that stands still")
        self._last = header
        self._ahead_bytes += header.body_length
        if self._until == END and self._stop_offset is None:
            self._stop_offset = header.high_watermark
        if self._stop_offset is not None and header.next_offset >= self._stop_offset:
            self._over = True
        if header.body_length and asked is not None:
            self._ready.append((header, asked))
        self._ask_if_room()

    def _on_progress(self) -> None:
        """More of a body is here: of that of the oldest answer which is not whole."""
        current, arriving = self._current, self._arriving
        if self.on_ready is not None and (
            current is None
            or (arriving is not None and arriving.arrived_bytes >= current.needed_bytes)
        ):
            self.on_ready()

    def _on_done(self, exchange: Exchange) -> None:
        self._open.discard(exchange)
        if exchange.error is not None:
            self._over = True
            self._asked = None
            self._ready.append(exchange.error)
        elif not isinstance(exchange.answer, FetchHeader):
            self._over = True
            self._ready.append(ProtocolViolation("a fetch was answered with something else"))
        if self.on_ready is not None:
            self.on_ready()
