"""One continuous read, without I/O: decides when to send the next fetch, what the reader gets, and
when the read ends.

`NextFetch` holds the position of the next fetch. `OpenAnswers` holds the answers that the reader
has not read completely. `ReadAhead` advances both, and decides about damage, resets and
interruptions.

The next fetch is sent as soon as the header of the last answer has arrived, before its body. So the
server always has a fetch to work on while it sends a body. Larger answers compensate for longer
network delays. A read begins with small answers, because the caller may want only a few records,
and doubles their size each time. The data that is read ahead is limited to `read_ahead_bytes` plus
one answer.

Before damage is reported, the client asks the daemon about it. If the header of a batch is damaged,
only the daemon's index shows where the batch ends. If the body is damaged, the daemon may not have
found the damage yet, because it sends batches without checking them. At the client's request, the
daemon examines the records, and quarantines damaged records or repairs them from another replica.
Then the read starts again at the offset of the damage. The daemon answers with the exact range of
the damage, or with good records if the range was repaired or only the transfer failed.

A lost connection interrupts a read and does not end it. The caller reconnects and calls `resume`;
the read then continues after the last batch that it returned. The fetches contain the incarnation
and the leader epoch of the records that were read. So a daemon that restarted with another history
reports an error, and the reset policy (`read_options`) decides how to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from liftlog.client.connecting.reconnecting import is_detour
from liftlog.client.reading.batches import ArrivingBatches, DamagedHeader, corrupt_range
from liftlog.client.reading.next_fetch import DEFAULT_FETCH_BYTES, POLL_MS, NextFetch
from liftlog.client.reading.open_answers import Answer, OpenAnswers
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
)
from liftlog.client.reading.reporting import Reports
from liftlog.errors import CorruptRange, LiftlogError, ProtocolViolation
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.limits import MIB
from liftlog.protocol.messages import ANY_REPLICA, Fetch, FetchHeader
from liftlog.records.decode import RecordBatch

if TYPE_CHECKING:
    from liftlog.records.columns.positions import Batches

DEFAULT_READ_AHEAD_BYTES = 8 * MIB

Taken = TypeVar("Taken")


class Requester(Protocol):
    def request(self, message: Fetch, exchange: Exchange) -> None: ...
    def give_up(self, exchange: Exchange) -> None: ...


class ReadAhead:
    """The state of one read. `on_ready` is called when the result of `next_batch` may have changed.

    Invariants:

    - A fetch is sent when the header of the previous answer has arrived and at most
      `read_ahead_bytes` wait for the reader, unless the read is over.
    - Each record is returned at most once, in the order of the offsets. A record is skipped only if
      damage or a reset is reported.
    - While the read is interrupted, nothing is returned and nothing is sent.
    """

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
        """`slots` are the wanted slots of a group, and the group's number of slots. The daemon may
        leave out the records of all other slots."""
        check_options(until, prefer, replica, on_corrupt, on_reset, reset_callback)
        self.stream = stream
        self.on_ready: Callable[[], None] | None = None
        self.interruption: LiftlogError | None = None
        """The reason why the read returns no more batches until `resume`. All batches before the
        interruption have been returned."""
        self.answer_count = 0
        self.needs_bound = prefer == "nearest"
        """True if the caller must call `begin_with` before it requests the first batch."""
        self._requester = requester
        self._next = NextFetch(
            stream,
            start,
            until,
            selection_fields(filter, columns),
            fetch_bytes=fetch_bytes,
            incarnation=incarnation,
            epoch=epoch,
            replica=ANY_REPLICA if prefer == "nearest" else replica,
            poll_ms=poll_ms,
        )
        self._answers = OpenAnswers()
        self._read_ahead_bytes = read_ahead_bytes
        self._until = until
        self._reports = Reports(stream, on_corrupt, reset_callback)
        self._on_reset = on_reset
        self._reset: tuple[LiftlogError, int | None] | None = None  # requested, not answered yet
        self._looked_at: int | None = None
        """The offset of a damaged body that the daemon was asked to examine."""
        self._suspect: int | None = None
        """The offset of a damaged header, while the daemon is asked about it."""
        self._last: FetchHeader | None = None  # newest header
        self._begun = False
        self._over = False  # no further fetch will be sent
        if slots is not None:
            self.ask_for(slots[0], slots[1], read_ahead_bytes)

    def ask_for(self, slots: list[int], slot_count: int, read_ahead_bytes: int) -> None:
        """Request the records of these slots, from the next fetch on. A fetch in flight is not
        changed."""
        self._next.ask_for(slots, slot_count)
        self._read_ahead_bytes = read_ahead_bytes

    @property
    def wanted_slots(self) -> frozenset[int] | None:
        """The slots of the last `ask_for`."""
        return self._next.slots

    @property
    def divided_by(self) -> frozenset[int] | None:
        """The slots by which the daemon has filtered the newest batch: the batch has only records
        of these slots."""
        return self._answers.divided_by

    def has_all_of(self, slots: Set[int]) -> bool:
        """Return True if the reader will still return every record of these slots from `position`
        on, because neither its open requests nor its next fetches leave out these slots."""
        wanted = self._next.slots
        return self._answers.have_all_of(slots) and (wanted is None or slots <= wanted)

    @property
    def newest(self) -> tuple[int, int] | None:
        """The first offset of the newest answer, and the offset that follows the answer. Before the
        first answer, both are the start of the read; None while the start is not known."""
        if self._last is not None:
            return self._last.offset, self._last.next_offset
        start = self._next.offset
        return None if start is None else (start, start)

    @property
    def finished(self) -> bool:
        """True if all batches have been returned and no more will arrive."""
        return self._over and self._answers.is_empty

    @property
    def high_watermark(self) -> int | None:
        """The high watermark in the newest answer; None before the first answer."""
        return None if self._last is None else self._last.high_watermark

    @property
    def position(self) -> int | None:
        """The offset below which all records were returned or skipped; None until it is known."""
        unread = self._answers.first_unread()
        if isinstance(unread, Reset):
            return None
        position = self._next.offset if unread is None else unread
        stop = self._next.stop_offset
        return position if position is None or stop is None else min(position, stop)

    @property
    def incarnation(self) -> str | None:
        """The incarnation of the stream to which `position` belongs."""
        return self._next.incarnation

    @property
    def epoch(self) -> int | None:
        """The leader epoch of the stream in the newest answer."""
        return self._next.epoch

    def begin_with(self, info: StreamInfo) -> None:
        """Set the bounds of the read from the leader's description of the stream. A copy that
        answers this read must have reached the leader's high watermark. "earliest" and "latest"
        refer to the leader's log."""
        self.needs_bound = False
        self._next.take_bound(info)
        if self._until == END:
            self._next.stop_offset = info.high_watermark
        if self._next.is_at_end:
            self._begun = self._over = True

    def next_some(self) -> Batches | None:
        """Like `next_batch`, but returns adjacent small batches together."""
        take: Callable[[ArrivingBatches, int], Any] = ArrivingBatches.next_some
        found: Batches | None = self._taken(take)
        return found

    def next_batch(self) -> RecordBatch | None:
        """Return the next batch. Returns None if the batch has not arrived, or if the read is
        finished or interrupted.

        Raises the error that ended the read, after all batches before the error were returned. Then
        the read is finished, and `position` stays before the place of the error.
        """
        return self._taken(ArrivingBatches.next)

    def _taken(self, take: Callable[[ArrivingBatches, int], Taken | None]) -> Taken | None:
        if not self._begun:
            self._begun = True
            if not self._over:
                self._ask()
        answers = self._answers
        while self.interruption is None:
            current, arriving = answers.current, answers.arriving
            if current is not None and arriving is not None:
                try:
                    batch = take(current, arriving.arrived_bytes)
                except CorruptRange as error:
                    self._report_examined(error)
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
                    self._next.move_to(current.next_offset)  # this was the newest answer
                answers.close_current()
            if not answers.waiting:
                self._ask_if_room()
                if not answers.waiting:  # sending fails at once if the connection is gone
                    return None
            self._take_item(answers.waiting.popleft())
        return None

    def _take_item(self, item: Answer | LiftlogError | Reset) -> None:
        """Handle the next item that has waited. Raises its error if it ends the read."""
        if isinstance(item, Answer):
            self._answers.open(item, self.stream, self._next.stop_offset)
            self._ask_if_room()
        elif isinstance(item, CorruptRange):
            self._report(item)
            self._begin_behind(item)
        elif isinstance(item, Reset):
            self._report_reset(item)
        elif is_detour(item):
            self.interruption = item
        elif self._may_reset(item):
            self._begin_elsewhere(item)
        else:
            self.stop()
            raise item

    def abandon(self, error: LiftlogError) -> None:
        """Note that the connection was lost. The read may not have been notified, if an exception
        from a signal handler interrupted its caller."""
        if self.position is not None:
            self._next.move_to(self.position)
        self.interruption = error

    def resume(self) -> None:
        """Continue after the last batch returned, on a new connection."""
        self.interruption = None
        self._suspect = self._looked_at = None  # the request about damage was not answered
        self._begin()

    # --- damage ---

    def _report_examined(self, error: CorruptRange) -> None:
        """Report a damaged body, after the daemon has examined it."""
        if self._looked_at == error.first_offset:
            self._report(error)
        else:
            self._have_looked_at(error.first_offset)

    def _report(self, error: CorruptRange) -> None:
        """Report the damage to the reader. Raises an error if the damage ends the read."""
        try:
            self._reports.damage(error)
        except BaseException:
            self._stop_at(error.first_offset)
            raise

    def _have_looked_at(self, offset: int) -> None:
        """Send a fetch for which the daemon has to examine the damaged records. Then continue at
        `offset`, regardless of the result."""
        self._looked_at = offset
        self._drop()
        self._next.move_to(offset)

        def looked(exchange: Exchange) -> None:
            self._answers.requests.discard(exchange)
            if exchange.error is not None and is_detour(exchange.error):
                self._answers.waiting.append(exchange.error)
            else:
                self._begin()
            if self.on_ready is not None:
                self.on_ready()

        exchange = Exchange(on_done=looked)
        self._answers.requests.add(exchange)
        self._send(self._next.examine(), exchange)

    def _ask_about(self, damage: DamagedHeader) -> None:
        offset = damage.offset
        if self._suspect != offset:
            self._suspect = offset
            self._begin_at(offset, max_bytes=1)  # at most one batch
            return
        # The daemon has checked this batch and sent it alone, so the batch was damaged during the
        # transfer.
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
        self._next.move_to(offset)
        if self._last is None:
            # The daemon has checked the given epoch at the start of the read. A later epoch may
            # begin before `offset`.
            self._next.epoch = None
        self._begin(max_bytes=max_bytes)

    def _begin(self, *, max_bytes: int | None = None) -> None:
        """Drop all open requests and continue with the next fetch."""
        self._drop()
        self._next.begin_small(max_bytes)
        self._over = self._next.is_at_end
        self._ask_if_room()

    # --- the start offset no longer exists ---

    def _may_reset(self, error: LiftlogError) -> bool:
        # The answer to the first fetch after a reset gives the new position. An error before that
        # answer must not cause another reset.
        return self._on_reset != "error" and isinstance(error, RESETTABLE) and self._reset is None

    def _begin_elsewhere(self, error: LiftlogError) -> None:
        self._reset = (error, self._next.offset)
        self._next.move_elsewhere(self._on_reset)
        self._begin()

    def _note_reset(self, header: FetchHeader, before: FetchHeader | None) -> None:
        if self._reset is None:
            return
        error, from_offset = self._reset
        self._reset = None
        self._answers.waiting.append(
            Reset(self.stream, error, from_offset, header.offset, header.incarnation)
        )
        if self._until != END:
            return
        # The end of a stream that was deleted or truncated may never be reached.
        same = before is not None and before.incarnation == header.incarnation
        stop = self._next.stop_offset
        if stop is None or not same:
            self._next.stop_offset = header.high_watermark
        else:
            self._next.stop_offset = min(stop, header.high_watermark)

    def _report_reset(self, reset: Reset) -> None:
        """Report the reset to the reader. Raises an error if the reset ends the read."""
        try:
            self._reports.reset(reset)
        except BaseException:
            self._stop_at(None)  # the old position is gone, and the new one was not accepted
            raise

    def stop(self) -> None:
        """End the read: it returns no more batches, and `position` does not change. A waiting
        caller wakes up. A second call does nothing."""
        self._stop_at(self.position)
        if self.on_ready is not None:
            self.on_ready()

    def _stop_at(self, position: int | None) -> None:
        self._drop()
        self._next.move_to(position)

    def _drop(self) -> None:
        """Cancel all open requests, and drop the bytes that have arrived."""
        self._over = True
        for exchange in self._answers.drop():  # all at once: a cancellation may lose the connection
            self._requester.give_up(exchange)

    # --- fetching ---

    def _ask_if_room(self) -> None:
        answers = self._answers
        if not answers.is_asking and not self._over and answers.bytes <= self._read_ahead_bytes:
            self._ask()

    def _ask(self) -> None:
        """Send the next fetch."""
        # A read with an end gets the state of the log from the first answer. A start such as
        # `latest` must be converted to an offset at once, before the connection can be lost.
        unknown = self._until is not None or self._next.offset is None
        at_once = (self._last is None and unknown) or self._reset is not None
        exchange = Exchange(self._on_header, self._on_done, self._on_progress)
        self._answers.asks(exchange, self._next.slots)
        self._send(self._next.take(at_once=at_once), exchange)

    def _send(self, fetch: Fetch, exchange: Exchange) -> None:
        try:
            self._requester.request(fetch, exchange)
        except LiftlogError as error:  # too long for this daemon
            exchange.finish(None, error)

    def _on_header(self, header: FetchHeader) -> None:
        exchange = self._answers.header_arrived()
        if header.body_length and header.next_offset <= header.offset:
            raise ProtocolViolation("the server sent records but did not advance the next offset")
        too_old = not_selected(self._next.selects, header)
        if too_old is not None:
            self._over = True
            self._answers.waiting.append(too_old)
            return
        self._note_reset(header, self._last)
        self._last = header
        self.answer_count += 1
        self._next.move_behind(header)
        if self._until == END and self._next.stop_offset is None:
            self._next.stop_offset = header.high_watermark
        if self._next.is_at_end:
            self._over = True
        self._compare_with_suspicion(header)
        if header.body_length and exchange is not None:
            self._answers.add(header, exchange)
        self._ask_if_room()

    def _compare_with_suspicion(self, header: FetchHeader) -> None:
        """Handle an answer for the batch that failed its check. If the daemon has quarantined the
        batch in the meantime, the answer has only the records after it, and the batch is reported
        as damaged."""
        suspect = self._suspect
        if suspect is None or header.offset != suspect:
            return
        following = header.first_offset if header.body_length else header.next_offset
        if following > suspect:
            self._suspect = None
            self._answers.waiting.append(corrupt_range(self.stream, suspect, following))

    def _on_progress(self) -> None:
        """Note that more bytes have arrived for the oldest incomplete answer."""
        if self.on_ready is not None and self._answers.may_continue:
            self.on_ready()

    def _on_done(self, exchange: Exchange) -> None:
        self._answers.done(exchange)
        if exchange.error is not None:
            self._over = True
        elif not isinstance(exchange.answer, FetchHeader):
            self._over = True
            self._answers.waiting.append(
                ProtocolViolation("a fetch was answered with something else")
            )
        if self.on_ready is not None:
            self.on_ready()
