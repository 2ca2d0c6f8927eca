"""Hides the records of a stream that are older than its `max_age`. Their segments are deleted
later, as a whole."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from weakref import WeakKeyDictionary

from liftlog.errors import LiftlogError
from liftlog.log import Log
from liftlog.records.decode import decode_batch
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.broker import Broker

logger = logging.getLogger("liftlog.server.jetstream_api")

_LOOK_SECONDS = 0.2
_MOST_OF_TIME = 0.2
"""Maximum share of the time that the task spends on reading logs. With more streams, the task
examines each stream less often."""
_NS = 1_000_000_000


class Ages:
    """Tracks the offset of the first record that is not too old, for each stream whose `max_age`
    was set by a client of JetStream. Belongs to the event loop; `keep` is a task."""

    def __init__(self, broker: Broker, threads: Executor) -> None:
        self._broker, self._threads = broker, threads
        self._known: WeakKeyDictionary[StreamHost, _Age] = WeakKeyDictionary()

    def first_offset(self, host: StreamHost) -> int:
        """Return the first shown offset. It can be outdated by a fraction of a second."""
        age = self._known.get(host)
        start = host.log.log_start_offset
        return start if age is None else max(start, age.first_offset)

    async def keep(self) -> None:
        await look_often(self._broker, self._look)

    async def _look(self, host: StreamHost) -> None:
        settings = host.settings
        seconds = settings.retention.max_age_seconds
        if settings.jetstream is None or not seconds or not host.is_leading:
            if self._known.pop(host, None) is not None:
                _expire(host, 0)
            return
        max_age_ns, now_ns = int(seconds * _NS), self._broker.now_ns()
        age = self._known.get(host)
        if age is None or age.max_age_ns != max_age_ns or age.until_ns <= now_ns:
            age = await asyncio.wrap_future(
                self._threads.submit(_age_of, host.log, max_age_ns, now_ns)
            )
            self._known[host] = age
        _expire(host, age.first_offset)  # the table may have been replaced meanwhile


def _expire(host: StreamHost, below: int) -> None:
    table = host.sequencer.subjects
    if table is not None and table.expire(below):
        host.subjects.request()


async def look_often(broker: Broker, look: Callable[[StreamHost], Awaitable[None]]) -> None:
    """Call `look` for each stream, again and again."""
    while True:
        began = time.monotonic()
        for host in list(broker.hosts.values()):
            try:
                await look(host)
            except Exception as error:  # a supervisor: continue with other streams
                if broker.hosts.get(host.name) is host:
                    logger.exception("not-looked-at stream=%s error=%r", host.name, error)
        took = time.monotonic() - began
        await asyncio.sleep(max(_LOOK_SECONDS, took / _MOST_OF_TIME))


class _Age:
    """The first offset that is not too old, valid until `until_ns`."""

    __slots__ = ("first_offset", "max_age_ns", "until_ns")

    def __init__(self, first_offset: int, max_age_ns: int, until_ns: int) -> None:
        self.first_offset, self.max_age_ns, self.until_ns = first_offset, max_age_ns, until_ns


def _age_of(log: Log, max_age_ns: int, now_ns: int) -> _Age:
    """Find the first record that is not too old. Blocking."""
    offset = log.offset_for_timestamp(now_ns - max_age_ns + 1)
    oldest_ns = now_ns
    if offset < log.high_watermark:
        oldest_ns = timestamp_at(log, offset) or now_ns - max_age_ns
    return _Age(offset, max_age_ns, oldest_ns + max_age_ns)


def timestamp_at(log: Log, offset: int) -> int:
    """Return the time of the first record at or after the offset, in ns since 1970; 0 if the time
    is unknown. Blocking."""
    return first_message(log, offset)[1]


def first_message(log: Log, offset: int) -> tuple[int, int]:
    """Return the offset of the first record at or after `offset`, and its time in ns since 1970. If
    there is no such record, returns the high watermark. The time is 0 if it is unknown.
    Blocking."""
    end = log.high_watermark
    while offset < end:
        try:
            piece = log.read(offset, 1, 1)
            if piece is None:
                break
            try:
                batch, following = decode_batch(piece.pread()), piece.next_offset
            finally:
                piece.release()
        except (LiftlogError, OSError):
            return offset, 0  # damaged, or deleted meanwhile
        batch = batch.trim(offset, batch.next_offset)
        if len(batch):
            return int(batch.offsets()[0]), batch.timestamps_ns()[0]
        offset = max(following, offset + 1)
    return end, 0
