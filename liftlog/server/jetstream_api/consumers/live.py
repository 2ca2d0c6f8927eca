"""Delivers new records to the consumers that wait at the end of one stream, in rounds.

The stream's commit group starts a round when it has new records. The round serves the consumers one
after the other, in a callback of the event loop. A task for each consumer would take longer than
the delivery. If the time for answers is used up, or publishers have precedence, a task completes
the round in turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import ref

from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.pace import Pace
from liftlog.server.pull.services import PullServices
from liftlog.server.reading.read_share import ReadShare
from liftlog.server.reading.tailing import Waiter

_NAME = "live-rounds"


class LiveRounds:
    """The consumers that wait for the next record of one stream. Belongs to the event loop."""

    def __init__(self, host: StreamHost, services: PullServices, pace: Pace) -> None:
        self._host = ref(host)  # the commit group of the host refers to this object
        self._services = services
        self._group = services.live_group(host)
        self._pace = pace
        self._waiting: dict[Callable[[], None], int] = {}
        """Maps each function that delivers to the offset behind which it waits."""
        self._round: deque[Callable[[], None]] = deque()
        self._waiter: Waiter | None = None

    def wait(self, offset: int, deliver: Callable[[], None]) -> None:
        """Call `deliver` once, when the high watermark has passed `offset`. `deliver` raises no
        exception, and may be called too early."""
        self._waiting[deliver] = offset
        if not self._round:
            self._watch(offset)

    def leave(self, deliver: Callable[[], None]) -> None:
        """Cancel the wait. Does nothing if `deliver` was already called."""
        self._waiting.pop(deliver, None)
        if not self._waiting and self._waiter is not None:
            self._group.leave(self._waiter)
            self._waiter = None

    def _watch(self, offset: int) -> None:
        waiter = self._waiter
        if waiter is not None:
            if waiter.offset <= offset:
                return
            self._group.leave(waiter)
        host = self._host()
        if host is not None:
            self._waiter = self._group.wait(host, offset, self._begin)

    def _begin(self) -> None:
        self._waiter = None
        host = self._host()
        high_watermark = 0 if host is None else host.log.high_watermark
        reached = [one for one, offset in self._waiting.items() if offset < high_watermark]
        # The stream may have ended. In this case each consumer detects the end itself.
        self._round.extend(reached or self._waiting)
        if self._pace.is_free:
            self._serve()
        if self._round:
            self._services.spawn(self._complete())

    def _serve(self) -> None:
        """Serve consumers as long as there is time."""
        pace, share, waiting = self._pace, self._services.read_share, self._waiting
        with share:
            while self._round and pace.has_time and share.is_open:
                deliver = self._round.popleft()
                if waiting.pop(deliver, None) is not None:
                    pace.run_now(deliver)
        if not self._round and waiting:
            self._watch(min(waiting.values()))

    async def _complete(self) -> None:
        while self._round:
            await self._pace.turn()
            await opened(self._services.read_share)
            self._serve()


async def opened(share: ReadShare) -> None:
    """Wait while the event loop has no time for answers, because messages of publishers have
    precedence."""
    while not share.is_open:
        is_open = asyncio.Event()
        share.wait(is_open.set)
        try:
            await is_open.wait()
        finally:
            share.leave(is_open.set)


def live_rounds(host: StreamHost, services: PullServices, pace: Pace) -> LiveRounds:
    """Return the rounds of a stream. All callers must share one `pace`."""
    group = services.live_group(host)
    found: LiveRounds | None = group.shared.get(_NAME)
    if found is None:
        found = group.shared[_NAME] = LiveRounds(host, services, pace)
    return found
