"""Learns the message ids of the streams that this node follows, before it leads one of them.

A new leader needs the ids of the last minutes before it accepts a message. Reading a million ids
from the log takes more than a second. During that time the stream would have no leader. So a
follower reads the ids in the background, a piece at a time, and only few ids are left when it is
elected.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable

from liftlog.errors import LiftlogError
from liftlog.log import Log
from liftlog.sequencing import DedupeWindow
from liftlog.server.commits.configs import window_ns
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.dedupe_restoring import LearnedIds, begin_to_learn, learn_piece
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.replication")

LOOK_SECONDS = 1.0
_MANY_RECORDS = 2000
"""The next look reads the unread records if there are at least this many. Fewer records stay
unread: a new leader reads them in milliseconds, and reading them for a thousand followed streams
would take too long."""
_LONGEST_SECONDS = 10.0
_ALL_TURNS = 10
"""Idle streams are examined only once in this number of turns. A node may follow a thousand
streams, and most of them are idle."""
_REST = 1.0
"""Length of the pause after a read, as a multiple of the read's duration. During the pause, the
reading thread does not use the interpreter, so the event loop can run."""
_AFTER_PROBLEM_SECONDS = 60.0


class _Learning:
    """The ids that were learned from one log, and the time of the last read. A thread that reads
    holds `lock`."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.lock = asyncio.Lock()
        self.ids: LearnedIds | None = None
        self.is_taken = False
        self.preparing: asyncio.Task[None] | None = None
        self.looked_at = 0.0
        self.not_before = 0.0

    def has_read(self, read: asyncio.Future[tuple[float, LearnedIds]]) -> None:
        self.lock.release()
        if not read.cancelled() and read.exception() is None:
            self.ids = read.result()[1]

    def is_near(self) -> bool:
        """Return True if a new leader would have to read only a little."""
        ids, log = self.ids, self.log
        return ids is not None and ids.are_of(log) and log.log_end_offset - ids.end < _MANY_RECORDS

    def is_due(self, now: float, steady_ns: int) -> bool:
        if now < self.not_before:
            return False
        ids = self.ids
        if ids is None or not self.is_near():
            return True
        if now < self.looked_at + _LONGEST_SECONDS:
            return False
        return ids.end < self.log.log_end_offset or ids.dedupe.is_due(steady_ns)


class IdsAhead:
    """Learns ids of followed streams. Belongs to the event loop.

    `followed` returns the streams that this node follows now: all of them, or only the streams with
    the given names. `steady_ns` is the clock that determines the ages of ids.
    """

    def __init__(
        self,
        followed: Callable[[Collection[str] | None], Iterable[StreamHost]],
        steady_ns: Callable[[], int],
    ) -> None:
        self._followed = followed
        self._steady_ns = steady_ns
        self._loop = asyncio.get_running_loop()
        self._learning: dict[str, _Learning] = {}
        self._changed: set[str] = set()

    def changed(self, name: str) -> None:
        """Note that the log of a followed stream has changed, or that this node begins to follow
        the stream."""
        self._changed.add(name)

    async def run(self) -> None:
        """Learn ids until cancelled."""
        for turn in itertools.count():
            names, self._changed = self._changed, set()
            is_for_all = turn % _ALL_TURNS == 0
            followed = self._followed(None if is_for_all else names)
            hosts = {host.name: host for host in followed if window_ns(host.settings)}
            for name in self._learning.keys() - hosts.keys() if is_for_all else ():
                del self._learning[name]
            is_behind = False
            for name, host in hosts.items():
                learning = self._of(host)
                if learning.is_due(self._loop.time(), self._steady_ns()):
                    has_more = await self._learn_piece(learning, host.settings)
                    if has_more:
                        is_behind = True
                        self.changed(name)
            if not is_behind:
                await asyncio.sleep(LOOK_SECONDS)

    async def catch_up(self, host: StreamHost) -> None:
        """Learn all existing ids now, because they are about to be needed. Stops at unreadable
        records; the new leader handles these."""
        if not window_ns(host.settings):
            return
        learning, end = self._of(host), host.log.log_end_offset
        while learning.ids is None or not learning.ids.are_of(host.log) or learning.ids.end < end:
            if not await self._learn_piece(learning, host.settings, rest=0.0):
                return

    def prepare(self, host: StreamHost) -> bool:
        """Begin to read the remaining ids of a stream without pauses, because this node may be
        elected as its leader.

        Returns True if little is left to read, or after one attempt. The caller repeats the call
        until it returns True.
        """
        if not window_ns(host.settings):
            return True
        learning, now = self._of(host), self._loop.time()
        if learning.is_near() or now < learning.not_before:
            return True
        preparing = learning.preparing
        if preparing is None or (preparing.done() and now > learning.looked_at + _LONGEST_SECONDS):
            learning.preparing = asyncio.create_task(self.catch_up(host))
            return False
        return preparing.done()

    async def take(self, name: str, log: Log) -> LearnedIds | None:
        """Return the learned ids of a log that this node leads from now on. This object then learns
        no more ids of the log, because the caller adds further ids to the returned object."""
        learning = self._learning.pop(name, None)
        if learning is None or learning.log is not log:
            return None
        learning.is_taken = True
        async with learning.lock:
            ids = learning.ids
        behind = log.log_end_offset if ids is None else log.log_end_offset - ids.end
        is_known = ids is not None and ids.are_of(log)
        logger.info("ids-taken stream=%s behind=%d known=%s", name, behind, is_known)
        return ids

    def _of(self, host: StreamHost) -> _Learning:
        learning = self._learning.get(host.name)
        if learning is None or learning.log is not host.log:
            learning = self._learning[host.name] = _Learning(host.log)
        return learning

    async def _learn_piece(
        self, learning: _Learning, settings: StreamSettings, *, rest: float = _REST
    ) -> bool:
        """Learn a piece. Returns True if the call has learned ids and more ids remain."""
        loop, log = self._loop, learning.log
        await learning.lock.acquire()
        if learning.is_taken:
            learning.lock.release()
            return False
        before, now_ns = learning.ids, self._steady_ns()
        read = loop.run_in_executor(None, _read_piece, log, before, settings, now_ns)
        read.add_done_callback(learning.has_read)
        try:
            # If the waiting caller is cancelled, the thread continues and keeps the lock until it
            # ends.
            seconds, ids = await asyncio.shield(read)
        except Exception as error:
            learning.not_before = loop.time() + _AFTER_PROBLEM_SECONDS
            if not isinstance(error, LiftlogError | OSError):
                raise
            logger.info("ids-not-learned-ahead stream=%s reason=%s", log.name, error)
            return False
        learning.looked_at = loop.time()
        await asyncio.sleep(rest * seconds)
        if before is not None and before.dedupe is ids.dedupe and before.end == ids.end:
            return False
        return ids.end < log.log_end_offset


def _read_piece(
    log: Log, known: LearnedIds | None, settings: StreamSettings, now_ns: int
) -> tuple[float, LearnedIds]:
    """Return the ids, and the processor time (in seconds) that the read took."""
    began = time.thread_time()
    limits = window_ns(settings), settings.dedupe.max_ids
    if (
        known is None
        or not known.are_of(log)
        or (known.dedupe.window_ns, known.dedupe.max_ids) != limits
    ):
        known = begin_to_learn(log, DedupeWindow(*limits))
    learned = learn_piece(log, known, now_ns)
    return time.thread_time() - began, learned
