"""The fetches of one connection on one stream: answered in order, the first may wait.

A fetch that finds too little waits for the high watermark to move or for its time to be up.
Nothing polls: the group of those who wait at the end of the stream (`tailing`) and one timer wake
it. One with a filter has a thread look into the records (`filtering`); whether to answer is
decided here as for the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Protocol, TypeVar

from liftlog.errors import Cancelled, CorruptRange, LiftlogError
from liftlog.protocol.messages import Fetch, FetchHeader
from liftlog.records.selection import Selection, parse_selection
from liftlog.server.commits.damage import quarantine_found
from liftlog.server.pull.filtering import MAX_ANSWER_BYTES, Scan, Scanned, scan_log
from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.positions import check_identity, known_offset
from liftlog.server.pull.read_share import ReadShare
from liftlog.server.pull.seams import LogSlice, ReadableLog, ReadableStream
from liftlog.server.pull.tailing import Tail, TailGroup, Waiter

Result = TypeVar("Result")


class FetchHost(Protocol):
    """What a queue needs of its connection."""

    loop: asyncio.AbstractEventLoop
    cold_readers: Executor
    share: ReadShare

    @property
    def scanners(self) -> Executor: ...

    @property
    def may_produce(self) -> bool:
        """False while too many bytes wait to be sent; `pump` is called when that is over."""
        ...

    @property
    def may_encode(self) -> bool:
        """False while answers that lie in memory wait to be sent; `pump` is called likewise."""
        ...

    def open_stream(self, name: str) -> ReadableStream: ...
    def readable_subjects(self, name: str) -> tuple[str, ...] | None:
        """Records of the stream may be handed out on these subjects only (None: on all of them).
        Asked each time that a fetch is looked at. Raises Forbidden."""
        ...

    def tail_group(self, stream: ReadableStream) -> TailGroup: ...
    def answer_fetch(
        self, request_id: int, header: FetchHeader, body: LogSlice | bytes | None
    ) -> None: ...
    def refuse(self, request_id: int, error: Exception) -> None: ...
    def settle(self) -> None:
        """Called after answers were given from a callback of the loop."""
        ...


class _Waiting:
    __slots__ = (
        "deadline",
        "examined",
        "fetch",
        "incarnation",
        "lingered",
        "offset",
        "readable",
        "request_id",
        "scan_from",
        "scanned",
        "selection",
    )

    def __init__(self, request_id: int, fetch: Fetch) -> None:
        self.request_id = request_id
        self.fetch = fetch
        self.deadline: float | None = None  # once it is this fetch's turn
        self.lingered = False
        self.examined = False  # a thread looked at what is damaged
        self.begin(None, None)

    def begin(self, incarnation: str | None, readable: tuple[str, ...] | None) -> None:
        """Nothing is known yet; what will be holds in that incarnation of the stream alone, and
        for whom these subjects are readable."""
        self.incarnation = incarnation
        self.readable = readable
        self.selection: Selection | None = None
        self.offset: int | None = None  # once known
        self.scan_from: int | None = None  # nothing that is wanted lies between offset and here
        self.scanned: Scanned | None = None  # to be judged


class FetchQueue:
    """Belongs to the loop's thread, as everything that it calls; but for jobs in threads."""

    def __init__(self, host: FetchHost, stream_name: str, limits: PullLimits) -> None:
        self._host = host
        self._stream_name = stream_name
        self._default_bytes = limits.default_fetch_bytes
        self._max_bytes = limits.wire.max_fetch_bytes
        self._max_wait_ms = limits.wire.max_wait_ms
        self._linger = limits.linger_seconds
        self._queue: deque[_Waiting] = deque()
        self._parked: tuple[TailGroup, Waiter] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._job: Future[Any] | None = None  # a thread works for the first in the queue
        self._tail_answered_at = -self._linger

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and no thread works for what did."""
        return not self._queue and self._job is None

    def add(self, request_id: int, fetch: Fetch) -> None:
        self._queue.append(_Waiting(request_id, fetch))
        self.pump()

    def cancel(self, request_id: int) -> bool:
        """Answer the fetch with CANCELLED if it is still here."""
        for waiting in self._queue:
            if waiting.request_id == request_id:
                break
        else:
            return False
        if waiting is self._queue[0]:
            self._unpark()
            self._drop_job()
        self._queue.remove(waiting)
        self._host.refuse(request_id, Cancelled("the fetch was cancelled"))
        self.pump()
        return True

    def pump(self) -> None:
        """Answer what can be answered now."""
        while self._queue and self._parked is None and self._job is None:
            if not self._host.may_produce:
                return
            if not self._host.share.is_open:
                self._host.share.wait(self._resume)
                return
            waiting = self._queue[0]
            try:
                if not self._serve(waiting):
                    return
            except Exception as error:  # noqa: BLE001 - the host tells a defect from a refusal
                self._host.refuse(waiting.request_id, error)
            self._queue.popleft()

    def close(self, error: LiftlogError | None = None) -> None:
        """Drop everything that waits, or refuse it with `error`."""
        self._unpark()
        self._drop_job()
        self._host.share.leave(self._resume)
        queue, self._queue = self._queue, deque()
        for waiting in queue:
            if error is not None:
                self._host.refuse(waiting.request_id, error)

    def _serve(self, waiting: _Waiting) -> bool:
        """True when the fetch was answered, False when it has to wait."""
        fetch = waiting.fetch
        readable = self._host.readable_subjects(self._stream_name)
        stream = self._host.open_stream(self._stream_name)
        log = stream.log
        check_identity(fetch, log)
        if waiting.incarnation != log.incarnation or waiting.readable != readable:
            waiting.begin(log.incarnation, readable)
        if waiting.deadline is None:
            wait_ms = min(fetch.max_wait_ms, self._max_wait_ms)
            waiting.deadline = self._host.loop.time() + wait_ms / 1000
        if waiting.offset is None:
            waiting.offset = known_offset(fetch, log)
            if waiting.offset is None:
                assert fetch.timestamp_ns is not None
                self._look_up(waiting, log, fetch.timestamp_ns)
                return False
        if type(fetch.start) is not int and waiting.offset < log.log_start_offset:
            waiting.offset = log.log_start_offset  # retention moved it meanwhile
        if fetch.selects or readable is not None:
            return self._serve_selected(waiting, stream, waiting.offset)
        return self._serve_whole(waiting, stream, waiting.offset)

    def _serve_whole(self, waiting: _Waiting, stream: ReadableStream, offset: int) -> bool:
        fetch, log = waiting.fetch, stream.log
        asked_bytes = self._default_bytes if fetch.max_bytes is None else fetch.max_bytes
        max_bytes = max(1, min(asked_bytes, self._max_bytes))
        high_watermark = log.high_watermark  # before reading: what is not found is not there
        # Who does not wait is not there for the tail: whole slices, straight from the file.
        group = self._host.tail_group(stream) if fetch.max_wait_ms else None
        if group is not None and self._too_soon(waiting, offset < high_watermark):
            self._park(waiting, stream, offset)
            return False
        found: LogSlice | Tail | None = None
        question = (offset, max_bytes, fetch.max_records)
        if group is not None and offset >= log.log_start_offset:
            found = group.recall(high_watermark, *question)
        if found is None and offset != high_watermark:  # there is nothing, and nothing is wrong
            try:
                found = log.read(*question)
            except CorruptRange as damage:
                if waiting.examined or log.is_quarantined(damage.first_offset, damage.next_offset):
                    raise
                self._examine(waiting, log, damage)
                return False
            if group is not None and found is not None:
                found = group.take(found, high_watermark, *question)
        if found is None:
            next_offset = max(offset, high_watermark)
            # Or a hole that ends at the high watermark.
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
            self._tail_answered_at = self._host.loop.time()
        if found is None:
            self._host.answer_fetch(waiting.request_id, _header(log, offset, next_offset), None)
            return True
        header = _header(
            log, offset, next_offset, found.first_offset, found.record_count, found.length
        )
        body = found.body if isinstance(found, Tail) else found
        self._host.answer_fetch(waiting.request_id, header, body)
        return True

    def _serve_selected(self, waiting: _Waiting, stream: ReadableStream, offset: int) -> bool:
        log, scanned = stream.log, waiting.scanned
        waiting.scanned = None
        if scanned is None:
            position = max(offset, waiting.scan_from or 0)
            if self._too_soon(waiting, position < log.high_watermark):
                self._park(waiting, stream, position)
            elif self._host.may_encode:
                self._scan(waiting, log, offset, position)
            return False
        next_offset = scanned.next_offset
        nothing_yet = not scanned.record_count and scanned.caught_up
        if nothing_yet and waiting.fetch.min_bytes and self._may_wait(waiting):
            waiting.scan_from = next_offset
            self._park(waiting, stream, next_offset)
            return False
        if scanned.caught_up:
            self._tail_answered_at = self._host.loop.time()
        first_offset = scanned.first_offset if scanned.record_count else offset
        header = _header(
            log, offset, next_offset, first_offset, scanned.record_count, len(scanned.body), True
        )
        self._host.answer_fetch(waiting.request_id, header, scanned.body or None)
        return True

    def _scan(self, waiting: _Waiting, log: ReadableLog, offset: int, position: int) -> None:
        fetch = waiting.fetch
        if waiting.selection is None:
            waiting.selection = parse_selection(
                subjects=fetch.filter_subjects,
                keys=fetch.filter_keys,
                headers=fetch.filter_headers,
                columns=fetch.columns,
                readable=waiting.readable,
            )
        asked_bytes = MAX_ANSWER_BYTES if fetch.max_bytes is None else fetch.max_bytes
        stop = None if fetch.max_records is None else offset + max(fetch.max_records, 1)
        scan = Scan(position, stop, min(asked_bytes, MAX_ANSWER_BYTES), waiting.selection)

        def found(scanned: Scanned) -> None:
            waiting.scanned = scanned

        self._start_job(waiting, found, self._host.scanners, scan_log, log, scan)

    def _may_wait(self, waiting: _Waiting) -> bool:
        return waiting.deadline is not None and self._host.loop.time() < waiting.deadline

    def _too_soon(self, waiting: _Waiting, has_news: bool) -> bool:
        """Whether little would be answered so soon after the last answer; more comes meanwhile."""
        now = self._host.loop.time()
        return (
            has_news
            and not waiting.lingered
            and now < self._tail_answered_at + self._linger
            and self._may_wait(waiting)
        )

    def _park(self, waiting: _Waiting, stream: ReadableStream, offset: int) -> None:
        """Wait until the high watermark is above `offset`."""
        group = self._host.tail_group(stream)
        self._parked = group, group.wait(stream, offset, self._woken)
        assert waiting.deadline is not None
        self._timer = self._host.loop.call_at(waiting.deadline, self._resume)

    def _woken(self) -> None:
        self._parked = None
        self._resume()

    def _resume(self) -> None:
        self._unpark()
        for waiting in self._queue:
            waiting.lingered = True
        with self._host.share:
            self.pump()
            self._host.settle()

    def _unpark(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            group, waiter = parked
            group.leave(waiter)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look_up(self, waiting: _Waiting, log: ReadableLog, timestamp_ns: int) -> None:
        def found(offset: int) -> None:
            waiting.offset = offset

        self._start_job(
            waiting, found, self._host.cold_readers, log.offset_for_timestamp, timestamp_ns
        )

    def _examine(self, waiting: _Waiting, log: ReadableLog, damage: CorruptRange) -> None:
        """Damage that is met for the first time: have it quarantined before the client hears of it,
        so that it is in the books of the daemon as well."""

        def found(_: None) -> None:
            waiting.examined = True

        self._start_job(
            waiting,
            found,
            self._host.cold_readers,
            quarantine_found,
            log,
            damage,
        )

    def _start_job(
        self,
        waiting: _Waiting,
        found: Callable[[Result], None],
        executor: Executor,
        function: Callable[..., Result],
        *arguments: Any,
    ) -> None:
        """Have a thread work for the fetch that is the first in the queue; serve it again then."""

        def done(job: asyncio.Future[Result]) -> None:
            self._job = None
            error = None if job.cancelled() else job.exception()
            if not self._queue or self._queue[0] is not waiting:
                pass  # cancelled or closed meanwhile
            elif isinstance(error, Exception):
                self._queue.popleft()
                self._host.refuse(waiting.request_id, error)
            elif not job.cancelled():
                found(job.result())
            with self._host.share:
                self.pump()
                self._host.settle()

        self._job = executor.submit(function, *arguments)
        asyncio.wrap_future(self._job, loop=self._host.loop).add_done_callback(done)

    def _drop_job(self) -> None:
        """Nobody wants what it will find. If it runs already it ends soon, and nothing else is
        begun before: else whoever asks and cancels would have all the threads."""
        if self._job is not None:
            self._job.cancel()


def _header(
    log: ReadableLog,
    offset: int,
    next_offset: int,
    first_offset: int | None = None,
    record_count: int = 0,
    body_length: int = 0,
    selected: bool | None = None,
) -> FetchHeader:
    return FetchHeader(
        offset,
        offset if first_offset is None else first_offset,
        next_offset,
        record_count,
        log.high_watermark,
        log.log_start_offset,
        log.log_end_offset,
        log.leader_epoch,
        log.incarnation,
        body_length,
        selected,
    )
