"""Answers the fetches of one connection on one stream, in their order; the first one may wait.

A fetch that finds too few records waits for new records or for the end of its wait time. A waiting
fetch does not poll the log. Either a timer wakes the fetch, or the module `tailing`, which wakes
the consumers at the end of a stream. If a fetch has a filter, a thread examines the records
(`filtering`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

from liftlog.errors import (
    Cancelled,
    CorruptRange,
    LiftlogError,
    NotReady,
)
from liftlog.log import Log, LogSlice
from liftlog.log.read.reading import cuts_at
from liftlog.protocol.messages import Fetch, FetchHeader
from liftlog.records.columns.selection import parse_selection
from liftlog.server.cleaning.mending import Mender
from liftlog.server.commits.damage import quarantine_found
from liftlog.server.commits.host import StreamHost
from liftlog.server.pull.answers import Answers
from liftlog.server.pull.identity import check_identity
from liftlog.server.pull.services import PullServices
from liftlog.server.pull.waiting_fetch import (
    Cut,
    WaitingFetch,
    header_of,
    known_offset,
    read_cut,
    rest_seconds,
)
from liftlog.server.reading.filtering import MAX_ANSWER_BYTES, scan_log
from liftlog.server.reading.scan import Scan, Scanned
from liftlog.server.reading.tailing import Tail
from liftlog.server.requests.rights import Caller

_CATCH_UP_SECONDS = 1.0
"""Maximum time, in seconds, that a fetch waits until a follower has the requested records. After
that, the client gets the address of the leader."""
_REPAIR_SECONDS = 5.0
"""Maximum time, in seconds, that a fetch waits for a repair. After that, the client gets an error
that it can retry."""

Result = TypeVar("Result")


class FetchQueue:
    """The fetches of one client on one stream. All code of this class runs in the loop's thread,
    except jobs for threads."""

    def __init__(
        self,
        services: PullServices,
        caller: Caller,
        answers: Answers,
        stream_name: str,
        *,
        for_node: bool = False,
    ) -> None:
        """Create an empty queue. If `for_node` is true, the client is another node that repairs its
        copy."""
        limits = services.limits
        self._loop = asyncio.get_running_loop()
        self._services = services
        self._share = services.read_share
        # Without a principal, each connection is a party of its own.
        self._scanners = services.scanners.of(caller.principal or answers, answers)
        self._caller = caller
        self._answers = answers
        self._stream_name = stream_name
        self._for_node = for_node
        self._default_bytes = limits.default_fetch_bytes
        self._max_bytes = limits.wire.max_fetch_bytes
        self._max_wait_ms = limits.wire.max_wait_ms
        self._queue: deque[WaitingFetch] = deque()
        self._parked: Callable[[], object] | None = None  # cancels the wait of the first fetch
        self._timer: asyncio.TimerHandle | None = None
        self._job: Future[Any] | None = None  # a thread's work for the first fetch
        self._tail_answered_at = 0.0  # by `time.monotonic`
        self._looked_at = 0.0  # time of the last scan, for a member of a group

    @property
    def is_idle(self) -> bool:
        """True if no fetch waits, and no thread works for a fetch."""
        return not self._queue and self._job is None

    def add(self, request_id: int, fetch: Fetch) -> None:
        self._queue.append(WaitingFetch(request_id, fetch))
        self.pump()

    def cancel(self, request_id: int) -> bool:
        """If the fetch is still in the queue, answer it with CANCELLED and return True. Otherwise
        return False."""
        for waiting in self._queue:
            if waiting.request_id == request_id:
                break
        else:
            return False
        if waiting is self._queue[0]:
            self._unpark()
            self._drop_job()
        self._queue.remove(waiting)
        self._answers.refuse(request_id, Cancelled("the fetch was cancelled"))
        self.pump()
        return True

    def pump(self) -> None:
        """Answer the fetches that can be answered now."""
        while self._queue and self._parked is None and self._job is None:
            if not self._answers.may_produce:
                return
            if not self._share.is_open:
                self._share.wait(self._resume)
                return
            waiting = self._queue[0]
            try:
                if not self._serve(waiting):
                    return
            except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
                self._answers.refuse(waiting.request_id, error)
            self._queue.popleft()

    def close(self, error: LiftlogError | None = None) -> None:
        """Drop all waiting fetches. If `error` is given, answer each fetch with it."""
        self._unpark()
        self._drop_job()
        self._share.leave(self._resume)
        queue, self._queue = self._queue, deque()
        for waiting in queue:
            if error is not None:
                self._answers.refuse(waiting.request_id, error)

    def _serve(self, waiting: WaitingFetch) -> bool:
        """Return True if the fetch was answered, False if it has to wait."""
        fetch = waiting.fetch
        readable = self._readable_subjects()
        stream = self._stream(fetch)
        log = stream.log
        if fetch.replica is not None and self._lags(waiting, stream):
            return False
        check_identity(fetch, log, self._services.broker.catalog)
        if waiting.incarnation != log.incarnation or waiting.readable != readable:
            waiting.begin(log.incarnation, readable)
        if waiting.deadline is None:
            wait_ms = min(fetch.max_wait_ms, self._max_wait_ms)
            waiting.deadline = self._loop.time() + wait_ms / 1000
        if waiting.offset is None:
            waiting.offset = known_offset(fetch, log)
            if waiting.offset is None:
                assert fetch.timestamp_ns is not None
                self._look_up(waiting, log, fetch.timestamp_ns)
                return False
        if type(fetch.start) is not int and waiting.offset < log.log_start_offset:
            waiting.offset = log.log_start_offset  # retention has deleted the start
        damage, waiting.damage = waiting.damage, None
        if damage is not None:
            return self._meet(damage, waiting, stream)
        if fetch.selects or fetch.divides or readable is not None:
            return self._serve_selected(waiting, stream, waiting.offset)
        if fetch.optional_subjects is not None and not waiting.is_whole:
            if log.is_sealed_at(waiting.offset):
                return self._serve_selected(waiting, stream, waiting.offset)
            waiting.is_whole = True
        return self._serve_whole(waiting, stream, waiting.offset)

    def _stream(self, fetch: Fetch) -> StreamHost:
        """Return the leader's copy of the stream, or a follower's copy if the client permits it.
        Raises NotLeader, StreamNotFound, StreamUnavailable."""
        broker = self._services.broker
        name, replica = self._stream_name, fetch.replica
        if replica is None or not broker.catalog.may_read_copy(name, replica):
            return broker.led_stream(name)
        return broker.stream(name)

    def _lags(self, waiting: WaitingFetch, stream: StreamHost) -> bool:
        """Return True if the fetch must wait until this copy has the requested records. Raises
        NotLeader if the fetch has waited for `_CATCH_UP_SECONDS`."""
        fetch, log = waiting.fetch, stream.log
        if stream.is_leading:
            return False
        wanted = fetch.at_least or 0
        if log.high_watermark >= wanted and (fetch.epoch or 0) <= log.leader_epoch:
            return False
        now = self._loop.time()
        if waiting.catch_up_until is None:
            waiting.catch_up_until = now + _CATCH_UP_SECONDS
        if now >= waiting.catch_up_until:
            raise self._services.broker.catalog.not_leader(self._stream_name)
        group = self._services.tail_group(stream)
        waiter = group.wait(stream, max(wanted - 1, log.high_watermark), self._woken)
        self._parked = partial(group.leave, waiter)
        self._timer = self._loop.call_at(waiting.catch_up_until, self._resume)
        return True

    @property
    def _mender(self) -> Mender | None:
        return self._services.broker.hosted.mender

    def _readable_subjects(self) -> tuple[str, ...] | None:
        """Return the subjects whose records the client may read (None: all). Called each time a
        fetch is served, because the ACL may have changed. Raises Forbidden."""
        caller = self._caller
        if self._for_node:
            caller.gate.authorize(
                caller.principal, "replicate", self._stream_name, peer=caller.peer
            )
            return None
        return caller.gate.readable_subjects(caller.principal, self._stream_name, peer=caller.peer)

    def _serve_whole(self, waiting: WaitingFetch, stream: StreamHost, offset: int) -> bool:
        fetch, log = waiting.fetch, stream.log
        asked_bytes = self._default_bytes if fetch.max_bytes is None else fetch.max_bytes
        max_bytes = max(1, min(asked_bytes, self._max_bytes))
        cut, waiting.cut = waiting.cut, None
        found: LogSlice | Tail | None = None if cut is None else cut.found
        # The view is taken before reading, so that no record is missed.
        view = log.view if cut is None or found is None else cut.view
        high_watermark = view.committed.offset
        # A fetch that does not wait gets slices of the file, not bytes from the group's memory.
        group = self._services.tail_group(stream) if fetch.max_wait_ms else None
        question = (offset, max_bytes, fetch.max_records)
        if cut is None and group is not None:
            if self._too_soon(waiting, stream, offset < high_watermark):
                self._park(waiting, stream, offset)
                return False
            if offset >= log.log_start_offset:
                found = group.recall(view, *question)
        if found is None and offset != high_watermark:  # the log has no record there yet
            if cut is None and cuts_at(view, log.environment, offset):
                self._cut(waiting, log, question)
                return False
            try:
                found = log.read(*question)
            except CorruptRange as damage:
                return self._meet(damage, waiting, stream)
        if group is not None and found is not None and not isinstance(found, Tail):
            found = group.take(found, view, *question)
        if found is None:
            next_offset = max(offset, high_watermark)
            # The fetch is also answered if only a hole lies between its offset and the high
            # watermark.
            enough = not fetch.min_bytes or offset < high_watermark
        else:
            next_offset = found.next_offset
            full = found.length >= min(fetch.min_bytes, max_bytes)
            enough = full or next_offset < high_watermark
        if not enough and self._may_wait(waiting):
            if found is not None:
                found.release()
            self._park(waiting, stream, max(offset, high_watermark))
            return False
        if next_offset >= high_watermark:
            self._tail_answered_at = time.monotonic()
        if found is None:
            header = header_of(log, offset, next_offset, of_replica=fetch.replica is not None)
            self._answer(waiting, stream, header, None)
            return True
        header = header_of(
            log,
            offset,
            next_offset,
            found.first_offset,
            found.record_count,
            found.length,
            of_replica=fetch.replica is not None,
        )
        body = found.body if isinstance(found, Tail) else found
        self._answer(waiting, stream, header, body)
        return True

    def _serve_selected(self, waiting: WaitingFetch, stream: StreamHost, offset: int) -> bool:
        log, scanned = stream.log, waiting.scanned
        waiting.scanned = None
        if scanned is None:
            position = max(offset, waiting.scan_from or 0)
            if waiting.fetch.divides and self._rests(waiting):
                return False
            if self._too_soon(waiting, stream, position < log.high_watermark):
                self._park(waiting, stream, position)
            elif self._answers.may_encode:
                self._scan(waiting, log, offset, position)
            return False
        if scanned.is_refused:
            waiting.is_whole = True
            return self._serve_whole(waiting, stream, offset)
        next_offset = scanned.next_offset
        nothing_yet = not scanned.record_count and scanned.caught_up
        if nothing_yet and waiting.fetch.min_bytes and self._may_wait(waiting):
            waiting.scan_from = next_offset
            self._park(waiting, stream, next_offset)
            return False
        if scanned.caught_up:
            self._tail_answered_at = time.monotonic()
        first_offset = scanned.first_offset if scanned.record_count else offset
        header = header_of(
            log, offset, next_offset, first_offset, scanned.record_count, scanned.size_bytes, True
        )
        self._answer(waiting, stream, header, scanned.batches or None)
        return True

    def _answer(
        self,
        waiting: WaitingFetch,
        stream: StreamHost,
        header: FetchHeader,
        body: LogSlice | bytes | tuple[bytearray, ...] | None,
    ) -> None:
        if not self._for_node:
            stream.observed.read(header.record_count, header.body_length)
        self._answers.fetched(waiting.request_id, header, body)

    def _scan(self, waiting: WaitingFetch, log: Log, offset: int, position: int) -> None:
        fetch = waiting.fetch
        is_optional = not (fetch.selects or fetch.divides or waiting.readable is not None)
        if waiting.selection is None:
            waiting.selection = parse_selection(
                subjects=fetch.optional_subjects if is_optional else fetch.filter_subjects,
                keys=fetch.filter_keys,
                headers=fetch.filter_headers,
                columns=fetch.columns,
                readable=waiting.readable,
                slots=fetch.filter_slots,
                slot_count=fetch.slot_count,
            )
        asked_bytes = MAX_ANSWER_BYTES if fetch.max_bytes is None else fetch.max_bytes
        stop = None if fetch.max_records is None else offset + max(fetch.max_records, 1)
        shared = self._services.shared_pieces if fetch.divides else None
        if shared is not None and waiting.selection.slots is not None:
            shared.note(log, waiting.selection.slots)
        max_bytes = min(asked_bytes, MAX_ANSWER_BYTES)
        scan = Scan(position, stop, max_bytes, waiting.selection, shared, is_optional)

        def found(scanned: Scanned) -> None:
            waiting.scanned = scanned
            if scanned.caught_up:
                self._looked_at = self._loop.time()

        self._start_job(waiting, found, self._scanners, scan_log, log, scan)

    def _cut(self, waiting: WaitingFetch, log: Log, question: tuple[int, int, int | None]) -> None:
        """Read in a thread, because some records of the batches must be left out. Does nothing
        while the waiting answers use too much memory."""

        def found(cut: Cut) -> None:
            waiting.cut = cut

        if self._answers.may_encode:
            self._start_job(waiting, found, self._scanners, read_cut, log, *question)

    def _rests(self, waiting: WaitingFetch) -> bool:
        """Pause a member of a group, so that more records arrive before its next scan. Returns
        False if no pause is due."""
        rest = rest_seconds(waiting.fetch, is_busy=self._share.is_busy)
        until = (self._looked_at // rest + 1) * rest  # the same time for all members
        if self._loop.time() >= until or not self._may_wait(waiting):
            return False
        self._parked = _do_nothing
        self._timer = self._loop.call_at(until, self._resume)
        return True

    def _may_wait(self, waiting: WaitingFetch) -> bool:
        return waiting.deadline is not None and self._loop.time() < waiting.deadline

    def _too_soon(self, waiting: WaitingFetch, stream: StreamHost, has_news: bool) -> bool:
        """Return True if the previous answer from the end of the stream was sent only a moment ago.
        The next answer should then wait for the next round of the stream."""
        now = time.monotonic()
        return (
            has_news
            and not waiting.lingered
            and now < self._tail_answered_at + self._services.tail_group(stream).pause_seconds
            and self._may_wait(waiting)
        )

    def _park(self, waiting: WaitingFetch, stream: StreamHost, offset: int) -> None:
        """Let the fetch wait until the high watermark passes `offset` or its wait time ends."""
        group = self._services.tail_group(stream)
        self._parked = partial(group.leave, group.wait(stream, offset, self._woken))
        assert waiting.deadline is not None
        self._timer = self._loop.call_at(waiting.deadline, self._resume)

    def _woken(self) -> None:
        self._parked = None
        self._resume()

    def _resume(self) -> None:
        self._unpark()
        for waiting in self._queue:
            waiting.lingered = True
        with self._share:
            self.pump()
            self._answers.settle()

    def _unpark(self) -> None:
        give_up, self._parked = self._parked, None
        if give_up is not None:
            give_up()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look_up(self, waiting: WaitingFetch, log: Log, timestamp_ns: int) -> None:
        def found(offset: int) -> None:
            waiting.offset = offset

        self._start_job(
            waiting, found, self._services.cold_readers, log.offset_for_timestamp, timestamp_ns
        )

    def _meet(self, damage: CorruptRange, waiting: WaitingFetch, stream: StreamHost) -> bool:
        """Handle damaged records at the position of the fetch. Returns False if the fetch will be
        served again after an examination or a repair. Otherwise raises the error for the client."""
        first, end = damage.first_offset, damage.next_offset
        if waiting.examined != first and not stream.log.is_quarantined(first, end):
            self._examine(waiting, stream.log, damage)
            return False
        mender = self._mender
        if self._for_node or mender is None or not mender.is_expected(stream, first, end):
            raise damage
        now = self._loop.time()
        if waiting.repair_until is None:
            waiting.repair_until = now + _REPAIR_SECONDS
        elif now >= waiting.repair_until:
            raise NotReady(
                f"the records [{first}, {end}) are being repaired from another replica",
                hint="try again",
            )
        self._parked = mender.wait(stream, self._woken)
        self._timer = self._loop.call_at(waiting.repair_until, self._resume)
        return False

    def _examine(self, waiting: WaitingFetch, log: Log, damage: CorruptRange) -> None:
        """In a thread, quarantine newly found damage before the client gets the error. So the
        metrics and the health page of the daemon also report the damage."""

        def found(_: None) -> None:
            waiting.examined = damage.first_offset

        self._start_job(
            waiting,
            found,
            self._services.cold_readers,
            quarantine_found,
            log,
            damage,
        )

    def _start_job(
        self,
        waiting: WaitingFetch,
        found: Callable[[Result], None],
        executor: Executor,
        function: Callable[..., Result],
        *arguments: Any,
    ) -> None:
        """Start a job in a thread for the first fetch in the queue. After the job, serve that fetch
        again."""

        def done(job: asyncio.Future[Result]) -> None:
            self._job = None
            error = None if job.cancelled() else job.exception()
            if not self._queue or self._queue[0] is not waiting:
                # The fetch was cancelled, or the queue was closed, in the meantime.
                if not error and not job.cancelled() and isinstance(cut := job.result(), Cut):
                    cut.release()
            elif isinstance(error, CorruptRange) and self._mender is not None:
                waiting.damage = error
            elif isinstance(error, Exception):
                self._queue.popleft()
                self._answers.refuse(waiting.request_id, error)
            elif not job.cancelled():
                found(job.result())
            with self._share:
                self.pump()
                self._answers.settle()

        self._job = executor.submit(function, *arguments)
        asyncio.wrap_future(self._job, loop=self._loop).add_done_callback(done)

    def _drop_job(self) -> None:
        """Cancel the thread's work for a fetch that was cancelled. A running job ends soon, and no
        other job of the queue begins before that. Otherwise a client that repeatedly fetches and
        cancels could occupy all threads."""
        if self._job is not None:
            self._job.cancel()


def _do_nothing() -> None:
    """Do nothing. This is the callback of a timer that only ends a pause."""
