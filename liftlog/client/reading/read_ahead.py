"""One continuous read, sans-io: which fetch to send next, which batches are ready, when it ends.

The next fetch is sent as soon as the header of the last answer has arrived, before its body, so the
server always has one more to work on while a body is being sent. The larger the answers, the longer
a delay this covers, so a read begins with small ones (the caller may want a few records only) and
doubles them. `read_ahead_bytes` plus one answer limit how far it runs ahead.

The daemon is asked about damage before it is reported. If a batch's header is damaged, its own
bytes do not show its extent; the daemon has the index, which does. If its body is damaged, the
daemon has not examined it yet: it sends batches unchecked. When it is asked to look into the
records there, it quarantines the damaged ones, or repairs them from another replica. Then the read
starts again at that offset: the answer is either the exact range, or good records if it was
repaired or only the transfer was at fault.

A lost connection interrupts a read, it does not end it: the caller that drives the read reconnects
and calls `resume`, and the next batch returned is the one after the last. The fetches state the
incarnation and the leader epoch that were read from, so a daemon that restarted with another
history reports it; the reset policy (`read_options`) then decides.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from liftlog.client.connecting.reconnecting import is_detour
from liftlog.client.reading.batches import ArrivingBatches, DamagedHeader, corrupt_range
from liftlog.client.reading.read_options import (
    END,
    RESETTABLE,
    Column,
    Filter,
    OnCorrupt,
    OnReset,
    Prefer,
    Reset,
    ResetCallback,
    Start,
    Until,
    check_options,
    not_selected,
    selection_fields,
    start_fields,
)
from liftlog.errors import CorruptRange, LiftlogError, ProtocolViolation
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.limits import KIB, MIB
from liftlog.protocol.messages import ANY_REPLICA, LATEST, Fetch, FetchHeader
from liftlog.records.decode import RecordBatch

if TYPE_CHECKING:
    from liftlog.records.columns.positions import Batches

FIRST_FETCH_BYTES = 512 * KIB
DEFAULT_FETCH_BYTES = 1 * MIB
DEFAULT_READ_AHEAD_BYTES = 8 * MIB
SMALLEST_FETCH_BYTES = 4 * KIB
POLL_MS = 20_000

logger = logging.getLogger("liftlog.client")


Taken = TypeVar("Taken")


class Requester(Protocol):
    def request(self, message: Fetch, exchange: Exchange) -> None: ...
    def give_up(self, exchange: Exchange) -> None: ...


class ReadAhead:
    """State of one read. `on_ready` runs when the result of `next_batch` may have changed."""

    def __init__(
        self,
        requester: Requester,
        stream: str,
        start: Start,
        until: Until,
        *,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
        read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES,
        on_corrupt: OnCorrupt = "raise",
        on_reset: OnReset = "error",
        reset_callback: ResetCallback | None = None,
        filter: Filter | None = None,
        columns: Sequence[Column] | None = None,
        incarnation: str | None = None,
        epoch: int | None = None,
        replica: str | None = None,
        prefer: Prefer = "leader",
        slots: tuple[list[int], int] | None = None,
        poll_ms: int = POLL_MS,
    ) -> None:
        """`slots`, with their number in the group: the daemon may leave out all other slots."""
        check_options(until, prefer, replica, on_corrupt, on_reset, reset_callback)
        self.stream = stream
        self.on_ready: Callable[[], None] | None = None
        self.interruption: LiftlogError | None = None
        """The reason why no more batches come until `resume`; all before it have been returned."""
        self.answer_count = 0
        self._requester = requester
        self._next: dict[str, Any] = start_fields(start)  # where the next fetch starts
        self._next |= {"incarnation": incarnation, "epoch": epoch}
        self._selection = selection_fields(filter, columns)
        self._slots: dict[str, Any] = {}
        self._wanted_slots: frozenset[int] | None = None  # in the next fetch; None: all records
        self._asked_slots: frozenset[int] | None = None  # in the fetch that was sent last
        self.divided_by: frozenset[int] | None = None
        """The slots to which all records of the newest batch belong, if the daemon has left out all
        others."""
        self._poll_ms = poll_ms
        self._replica = ANY_REPLICA if prefer == "nearest" else replica
        self.needs_bound = prefer == "nearest"
        """True if `begin_with` is to be called before the first batch is requested."""
        self._at_least: int | None = None
        self._until = until
        self._on_corrupt = on_corrupt
        self._on_reset = on_reset
        self._reset_callback = reset_callback
        self._reset: tuple[LiftlogError, int | None] | None = None  # requested, not answered yet
        self._looked_at: int | None = None
        """The offset of a damaged body that the daemon was asked to look into."""
        self._suspect: int | None = None
        """The offset of a damaged header, while the daemon is asked about it."""
        self._stop_offset = until if type(until) is int else None
        self._largest_fetch_bytes = max(fetch_bytes, SMALLEST_FETCH_BYTES)
        self._fetch_bytes = min(FIRST_FETCH_BYTES, self._largest_fetch_bytes)
        self._read_ahead_bytes = read_ahead_bytes
        self._asked: Exchange | None = None  # the fetch whose header has not arrived
        self._open: set[Exchange] = set()
        self._last: FetchHeader | None = None  # newest header
        self._ahead_bytes = 0
        self._ready: deque[
            tuple[FetchHeader, Exchange, frozenset[int] | None] | LiftlogError | Reset
        ] = deque()
        self._current: ArrivingBatches | None = None
        self._arriving: Exchange | None = None  # the answer that `_current` reads
        self._current_bytes = 0
        self._begun = False
        self._over = False  # no further fetch will be sent
        if slots is not None:
            self.ask_for(slots[0], slots[1], read_ahead_bytes)

    def ask_for(self, slots: list[int], slot_count: int, read_ahead_bytes: int) -> None:
        """Request the records of these slots, from the next fetch on. A fetch in flight
        continues."""
        self._slots = {"filter_slots": slots, "slot_count": slot_count}
        self._wanted_slots = frozenset(slots)
        self._read_ahead_bytes = read_ahead_bytes

    @property
    def wanted_slots(self) -> frozenset[int] | None:
        """The slots of the last `ask_for`."""
        return self._wanted_slots

    def has_all_of(self, slots: Set[int]) -> bool:
        """Return True if all records of these slots from `position` on are in the batches that
        follow."""
        asked = [one[2] for one in self._ready if isinstance(one, tuple)]
        if self._current is not None:
            asked.append(self.divided_by)
        if self._asked is not None:
            asked.append(self._asked_slots)
        return all(one is None or slots <= one for one in (*asked, self._wanted_slots))

    @property
    def newest(self) -> tuple[int, int] | None:
        """The first offset of the newest answer, and the offset that follows the answer. Before the
        first answer, both are the start of the read; None while the start is not known."""
        if self._last is not None:
            return self._last.offset, self._last.next_offset
        start = self._next.get("start")
        return (start, start) if type(start) is int else None

    @property
    def finished(self) -> bool:
        """All batches have been returned and no more will come."""
        return self._over and not self._open and not self._ready and self._current is None

    @property
    def high_watermark(self) -> int | None:
        """The high watermark in the newest answer; None before the first."""
        return None if self._last is None else self._last.high_watermark

    @property
    def position(self) -> int | None:
        """The offset below which all records were returned or skipped; None until it is known."""
        first = self._ready[0] if self._ready else None
        if self._current is not None:
            position: Any = self._current.next_offset
        elif isinstance(first, tuple):
            position = first[0].offset
        else:
            position = None if isinstance(first, Reset) else self._next.get("start")
        if type(position) is not int:
            return None
        return position if self._stop_offset is None else min(position, self._stop_offset)

    @property
    def incarnation(self) -> str | None:
        """The incarnation of the stream to which `position` belongs."""
        return self._next.get("incarnation")

    @property
    def epoch(self) -> int | None:
        """The leader epoch of the stream in the newest answer."""
        return self._next.get("epoch")

    def begin_with(self, info: StreamInfo) -> None:
        """Take the leader's description of the stream: any copy that answers this read must reach
        as far. The ends of the log are those of the leader."""
        self.needs_bound = False
        self._at_least = info.high_watermark
        if self._next.get("start") == LATEST:
            self._next["start"] = info.high_watermark
        if self._next["incarnation"] is None:
            self._next["incarnation"] = info.incarnation
        if self._until == END:
            self._stop_offset = info.high_watermark
        position = self._next.get("start")
        if self._stop_offset is not None and type(position) is int:
            self._begun = self._over = position >= self._stop_offset

    def next_some(self) -> Batches | None:
        """Like `next_batch`, but returns adjacent small batches together."""
        take: Callable[[ArrivingBatches, int], Any] = ArrivingBatches.next_some
        found: Batches | None = self._taken(take)
        return found

    def next_batch(self) -> RecordBatch | None:
        """Return the next batch, or None if it has not arrived (or the read is finished or
        interrupted).

        Raises the error that ended the read, after everything before it was returned. Then the read
        is finished, and `position` stays before the place of the error.
        """
        return self._taken(ArrivingBatches.next)

    def _taken(self, take: Callable[[ArrivingBatches, int], Taken | None]) -> Taken | None:
        if not self._begun:
            self._begun = True
            self._ask()
        while self.interruption is None:
            current, arriving = self._current, self._arriving
            if current is not None and arriving is not None:
                try:
                    batch = take(current, arriving.arrived_bytes)
                except CorruptRange as error:
                    if self._looked_at == error.first_offset:
                        self._report(error)
                    else:
                        self._have_looked_at(error.first_offset)
                    continue
                except DamagedHeader as damage:
                    self._ask_about(damage)
                    continue
                except LiftlogError:
                    self.stop()
                    raise
                if batch is not None:
                    return batch
                if not current.exhausted:
                    if arriving.error is None:
                        return None  # the rest has not arrived yet
                    self._next["start"] = current.next_offset  # this was the newest answer
                self._current = self._arriving = None
                self._ahead_bytes -= self._current_bytes
            if not self._ready:
                self._ask_if_room()
                if not self._ready:  # sending fails at once if the connection is gone
                    return None
            item = self._ready.popleft()
            if isinstance(item, CorruptRange):
                self._report(item)
                self._begin_behind(item)
                continue
            if isinstance(item, Reset):
                self._report_reset(item)
                continue
            if isinstance(item, LiftlogError):
                if is_detour(item):
                    self.interruption = item
                    return None
                if self._may_reset(item):
                    self._begin_elsewhere(item)
                    continue
                self.stop()
                raise item
            header, exchange, self.divided_by = item
            body = exchange.body
            assert body is not None
            exchange.body = None
            self._current = ArrivingBatches(self.stream, header, body, self._stop_offset)
            self._arriving = exchange
            self._current_bytes = header.body_length
            del item, body, exchange  # the buffer must be free as soon as its batches are
            self._ask_if_room()
        return None

    def abandon(self, error: LiftlogError) -> None:
        """Record that the connection was lost, if this read was not notified because an exception
        from a signal handler interrupted its caller."""
        if self.position is not None:
            self._next = {**self._next, "start": self.position}
        self.interruption = error

    def resume(self) -> None:
        """Continue after the last batch returned, on a new connection."""
        self.interruption = None
        self._suspect = self._looked_at = None  # the question about damage was not answered
        self._begin(self._next)

    # --- damage ---

    def _report(self, error: CorruptRange) -> None:
        """Report the damage to the reader; raises if that ends the read."""
        on_corrupt = self._on_corrupt
        if on_corrupt == "raise":
            self._stop_at(error.first_offset)
            raise error
        if isinstance(on_corrupt, str):
            logger.warning(
                "corrupt-range-skipped stream=%s first_offset=%d next_offset=%d",
                self.stream,
                error.first_offset,
                error.next_offset,
            )
            return
        try:
            on_corrupt(error)
        except BaseException:
            self._stop_at(error.first_offset)
            raise

    def _have_looked_at(self, offset: int) -> None:
        """Make the daemon check the records there, by a fetch for which it has to look into them;
        then continue at `offset`, whatever the result."""
        last = self._last
        assert last is not None
        self._looked_at = offset
        self._drop()
        self._next = {
            "start": offset,
            "incarnation": last.incarnation,
            "epoch": last.leader_epoch,
        }

        def looked(exchange: Exchange) -> None:
            self._open.discard(exchange)
            if exchange.error is not None and is_detour(exchange.error):
                self._ready.append(exchange.error)
            else:
                self._begin(self._next)
            if self.on_ready is not None:
                self.on_ready()

        exchange = Exchange(on_done=looked)
        self._open.add(exchange)
        fetch = Fetch(
            self.stream,
            max_bytes=SMALLEST_FETCH_BYTES,
            columns=["offset"],
            replica=self._replica,
            at_least=self._bound_for(offset),
            **self._next,
        )
        try:
            self._requester.request(fetch, exchange)
        except LiftlogError as error:
            exchange.finish(None, error)

    def _ask_about(self, damage: DamagedHeader) -> None:
        offset = damage.offset
        if self._suspect != offset:
            self._suspect = offset
            self._begin_at(offset, max_bytes=1)  # one batch, if there is one
            return
        # The daemon sent this batch alone, so it considers it good: it was damaged on the way.
        following = max(damage.next_offset, offset + 1)
        self._report(corrupt_range(self.stream, offset, following))
        self._begin_at(following)

    def _begin_behind(self, error: CorruptRange) -> None:
        if error.next_offset <= error.first_offset:
            self.stop()
            raise ProtocolViolation("the server sent a damaged range that ends where it begins")
        self._begin_at(error.next_offset)

    def _begin_at(self, offset: int, *, max_bytes: int | None = None) -> None:
        """Drop all open requests and continue at `offset`."""
        fields: dict[str, Any] = {"start": offset}
        if self._last is not None:
            fields |= {"incarnation": self._last.incarnation, "epoch": self._last.leader_epoch}
        self._begin(fields, max_bytes=max_bytes)

    def _begin(self, fields: dict[str, Any], *, max_bytes: int | None = None) -> None:
        self._drop()
        self._next = fields
        self._ahead_bytes = 0
        self._fetch_bytes = FIRST_FETCH_BYTES if max_bytes is None else max_bytes
        offset = fields.get("start")
        self._over = (
            self._stop_offset is not None and type(offset) is int and offset >= self._stop_offset
        )
        self._ask_if_room()

    # --- the start offset no longer exists ---

    def _may_reset(self, error: LiftlogError) -> bool:
        # The answer to the first fetch after a reset gives the new position. An error before that
        # answer must not cause another reset.
        return self._on_reset != "error" and isinstance(error, RESETTABLE) and self._reset is None

    def _begin_elsewhere(self, error: LiftlogError) -> None:
        position = self._next.get("start")
        self._reset = (error, position if type(position) is int else None)
        self._begin({"start": self._on_reset})

    def _note_reset(self, header: FetchHeader, before: FetchHeader | None) -> None:
        if self._reset is None:
            return
        error, from_offset = self._reset
        self._reset = None
        self._ready.append(
            Reset(self.stream, error, from_offset, header.offset, header.incarnation)
        )
        if self._until != END:
            return
        # The end of a stream that was deleted or truncated may never be reached.
        same = before is not None and before.incarnation == header.incarnation
        if self._stop_offset is None or not same:
            self._stop_offset = header.high_watermark
        else:
            self._stop_offset = min(self._stop_offset, header.high_watermark)

    def _report_reset(self, reset: Reset) -> None:
        """Report the reset to the reader; raises if that ends the read."""
        logger.warning(
            "position-reset stream=%s from_offset=%s to_offset=%d reason=%s",
            reset.stream,
            reset.from_offset,
            reset.to_offset,
            reset.error.name,
        )
        if self._reset_callback is None:
            return
        try:
            self._reset_callback(reset)
        except BaseException:
            self._stop_at(None)  # the old position is gone, and the new one was not accepted
            raise

    def stop(self) -> None:
        """End the read: it returns no more batches, and `position` stays where it is. A waiting
        caller is woken. Calling it again does nothing."""
        self._stop_at(self.position)
        if self.on_ready is not None:
            self.on_ready()

    def _stop_at(self, position: int | None) -> None:
        self._drop()
        self._next = {**self._next, "start": position}

    def _drop(self) -> None:
        """Cancel all open requests, and drop the bytes that have arrived."""
        self._over = True
        given_up, self._open = self._open, set()
        for exchange in given_up:  # before any is cancelled: that may find the connection lost
            exchange.on_header = exchange.on_done = exchange.on_progress = None
        for exchange in given_up:
            self._requester.give_up(exchange)
        self._ready.clear()
        self._current = self._arriving = None
        self._asked = None

    # --- fetching ---

    def _ask_if_room(self) -> None:
        if self._asked is None and not self._over and self._ahead_bytes <= self._read_ahead_bytes:
            self._ask()

    def _ask(self) -> None:
        """Send the next fetch."""
        fields = dict(self._next)
        position = fields.get("start")
        # A read with an end needs the first answer for the state of the log. And a start such as
        # `latest` must become an offset at once, before the connection can be lost.
        unknown = self._until is not None or type(position) is not int
        at_once = (self._last is None and unknown) or self._reset is not None
        wait_ms = 0 if at_once else self._poll_ms
        if self._stop_offset is not None and type(position) is int:
            fields["max_records"] = max(self._stop_offset - position, 1)
        fields |= self._selection | self._slots
        fetch = Fetch(
            self.stream,
            max_bytes=self._fetch_bytes,
            max_wait_ms=wait_ms,
            replica=self._replica,
            at_least=self._bound_for(position),
            **fields,
        )
        self._fetch_bytes = min(
            max(2 * self._fetch_bytes, SMALLEST_FETCH_BYTES), self._largest_fetch_bytes
        )
        exchange = Exchange(self._on_header, self._on_done, self._on_progress)
        self._asked, self._asked_slots = exchange, self._wanted_slots
        self._open.add(exchange)
        try:
            self._requester.request(fetch, exchange)
        except LiftlogError as error:  # too long for this daemon
            exchange.finish(None, error)

    def _bound_for(self, position: object) -> int | None:
        """Return the offset that a copy must have reached to answer a fetch from there: its end may
        lie before a position that another copy has reached."""
        if self._at_least is not None and type(position) is int:
            self._at_least = max(self._at_least, position)
        return self._at_least

    def _on_header(self, header: FetchHeader) -> None:
        asked, self._asked = self._asked, None
        if header.body_length and header.next_offset <= header.offset:
            raise ProtocolViolation("the server sent records but did not advance the next offset")
        too_old = not_selected(bool(self._selection), header)
        if too_old is not None:
            self._over = True
            self._ready.append(too_old)
            return
        self._note_reset(header, self._last)
        self._last = header
        self.answer_count += 1
        self._next = {
            "start": header.next_offset,
            "incarnation": header.incarnation,
            "epoch": header.leader_epoch,
        }
        self._ahead_bytes += header.body_length
        if self._until == END and self._stop_offset is None:
            self._stop_offset = header.high_watermark
        if self._stop_offset is not None and header.next_offset >= self._stop_offset:
            self._over = True
        self._compare_with_suspicion(header)
        if header.body_length and asked is not None:
            self._ready.append((header, asked, self._asked_slots if header.selected else None))
        self._ask_if_room()

    def _compare_with_suspicion(self, header: FetchHeader) -> None:
        """If the daemon has quarantined the damaged batch meanwhile, it answers with the records
        that follow."""
        suspect = self._suspect
        if suspect is None or header.offset != suspect:
            return
        following = header.first_offset if header.body_length else header.next_offset
        if following > suspect:
            self._suspect = None
            self._ready.append(corrupt_range(self.stream, suspect, following))

    def _on_progress(self) -> None:
        """More bytes of a body arrived: of the oldest incomplete answer."""
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
