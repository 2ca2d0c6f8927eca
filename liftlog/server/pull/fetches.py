"""The fetches of one connection on one stream: answered in order, the first may wait.

A fetch that finds too little waits for the high watermark to move or for its time to be up.
Nothing polls: the stream's future and one timer wake it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from liftlog.errors import BadRequest, Cancelled, Diverged, LiftlogError, StaleIncarnation
from liftlog.protocol.messages import EARLIEST, LATEST, Fetch, FetchHeader
from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.seams import LogSlice, ReadableLog, ReadableStream


class FetchHost(Protocol):
    """What a queue needs of its connection."""

    loop: asyncio.AbstractEventLoop
    cold_readers: Executor

    @property
    def may_produce(self) -> bool:
        """False while too many bytes wait to be sent; `pump` is called when that is over."""
        ...

    def open_stream(self, name: str) -> ReadableStream: ...
    def answer_fetch(
        self, request_id: int, header: FetchHeader, piece: LogSlice | None
    ) -> None: ...
    def refuse(self, request_id: int, error: Exception) -> None: ...
    def settle(self) -> None:
        """Called after answers were given from a callback of the loop."""
        ...


class _Waiting:
    __slots__ = ("deadline", "fetch", "offset", "request_id")

    def __init__(self, request_id: int, fetch: Fetch) -> None:
        self.request_id = request_id
        self.fetch = fetch
        self.offset: int | None = None  # once known
        self.deadline: float | None = None  # once it is this fetch's turn


class FetchQueue:
    def __init__(self, host: FetchHost, stream_name: str, limits: PullLimits) -> None:
        self._host = host
        self._stream_name = stream_name
        self._default_bytes = limits.default_fetch_bytes
        self._max_bytes = limits.wire.max_fetch_bytes
        self._max_wait_ms = limits.wire.max_wait_ms
        self._queue: deque[_Waiting] = deque()
        self._parked: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lookup: asyncio.Future[int] | None = None

    def __len__(self) -> int:
        return len(self._queue)

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
        self._queue.remove(waiting)
        self._host.refuse(request_id, Cancelled("the fetch was cancelled"))
        self.pump()
        return True

    def pump(self) -> None:
        """Answer what can be answered now."""
        while self._queue and self._parked is None and self._lookup is None:
            if not self._host.may_produce:
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
        queue, self._queue = self._queue, deque()
        for waiting in queue:
            if error is not None:
                self._host.refuse(waiting.request_id, error)

    def _serve(self, waiting: _Waiting) -> bool:
        """True when the fetch was answered, False when it has to wait."""
        fetch = waiting.fetch
        stream = self._host.open_stream(self._stream_name)
        log = stream.log
        _check_identity(fetch, log)
        if waiting.deadline is None:
            wait_ms = min(fetch.max_wait_ms, self._max_wait_ms)
            waiting.deadline = self._host.loop.time() + wait_ms / 1000
        if waiting.offset is None:
            waiting.offset = _known_offset(fetch, log)
            if waiting.offset is None:
                assert fetch.timestamp_ns is not None
                self._look_up(waiting, log, fetch.timestamp_ns)
                return False
        offset = waiting.offset
        if type(fetch.start) is not int and offset < log.log_start_offset:
            offset = waiting.offset = log.log_start_offset  # retention moved it meanwhile
        asked_bytes = self._default_bytes if fetch.max_bytes is None else fetch.max_bytes
        max_bytes = max(1, min(asked_bytes, self._max_bytes))
        high_watermark = log.high_watermark  # before reading: what is not found is not there
        piece = log.read(offset, max_bytes, fetch.max_records)
        next_offset = max(offset, high_watermark) if piece is None else piece.next_offset
        if piece is None:
            enough = offset < high_watermark  # a hole that ends at the high watermark
        else:
            full = piece.length >= min(fetch.min_bytes, max_bytes)
            enough = full or next_offset < high_watermark
        if not enough and self._host.loop.time() < waiting.deadline:
            if piece is not None:
                piece.release()
            self._park(stream, max(offset, high_watermark), waiting.deadline)
            return False
        self._host.answer_fetch(waiting.request_id, _header(log, offset, next_offset, piece), piece)
        return True

    def _park(self, stream: ReadableStream, offset: int, deadline: float) -> None:
        self._parked = stream.wait_high_watermark(offset)
        self._parked.add_done_callback(self._moved)
        self._timer = self._host.loop.call_at(deadline, self._expired)

    def _moved(self, future: asyncio.Future[None]) -> None:
        if future is not self._parked:
            return  # given up since
        if not future.cancelled():
            future.exception()  # whatever ended the wait: serving again says what is the matter
        self._resume()

    def _expired(self) -> None:
        self._resume()

    def _resume(self) -> None:
        self._unpark()
        self.pump()
        self._host.settle()

    def _unpark(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.cancel()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look_up(self, waiting: _Waiting, log: ReadableLog, timestamp_ns: int) -> None:
        job = self._host.loop.run_in_executor(
            self._host.cold_readers, log.offset_for_timestamp, timestamp_ns
        )
        self._lookup = job
        job.add_done_callback(self._found(waiting))

    def _found(self, waiting: _Waiting) -> Callable[[asyncio.Future[int]], None]:
        def found(job: asyncio.Future[int]) -> None:
            self._lookup = None
            error = None if job.cancelled() else job.exception()
            if not self._queue or self._queue[0] is not waiting:
                pass  # cancelled or closed meanwhile
            elif isinstance(error, Exception):
                self._queue.popleft()
                self._host.refuse(waiting.request_id, error)
            elif not job.cancelled():
                waiting.offset = job.result()
            self.pump()
            self._host.settle()

        return found


def _check_identity(fetch: Fetch, log: ReadableLog) -> None:
    if fetch.incarnation is not None and fetch.incarnation != log.incarnation:
        raise StaleIncarnation(
            f"the stream {fetch.stream!r} was created anew since",
            hint="describe the stream and start over",
            incarnation=log.incarnation,
        )
    if fetch.epoch is None or fetch.epoch == log.leader_epoch:
        return
    if fetch.epoch > log.leader_epoch:
        raise Diverged(
            f"epoch {fetch.epoch} is newer than the stream's {log.leader_epoch}",
            leader_epoch=log.leader_epoch,
        )
    later = [first for epoch, first in log.epochs if epoch > fetch.epoch]
    end = min(later, default=log.log_end_offset)
    if type(fetch.start) is int and fetch.start > end:
        raise Diverged(
            f"epoch {fetch.epoch} ended at offset {end}, before {fetch.start}",
            hint=f"what was read from offset {end} on is not in the stream any more",
            leader_epoch=log.leader_epoch,
            epoch_end_offset=end,
        )


def _known_offset(fetch: Fetch, log: ReadableLog) -> int | None:
    """The asked position as an offset; None when it has to be looked up by time."""
    start = fetch.start
    if (start is None) == (fetch.timestamp_ns is None):
        raise BadRequest("a fetch states either a start `o` or a timestamp `t`")
    if start is None:
        return None
    if type(start) is int:
        return start
    if start == EARLIEST:
        return log.log_start_offset
    if start == LATEST:
        return log.high_watermark
    raise BadRequest(f"the start must be an offset, {EARLIEST!r} or {LATEST!r}")


def _header(log: ReadableLog, offset: int, next_offset: int, piece: LogSlice | None) -> FetchHeader:
    return FetchHeader(
        offset=offset,
        first_offset=offset if piece is None else piece.first_offset,
        next_offset=next_offset,
        record_count=0 if piece is None else piece.record_count,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        leader_epoch=log.leader_epoch,
        incarnation=log.incarnation,
        body_length=0 if piece is None else piece.length,
    )
