"""The queue of JetStream requests: limited in number, and served in turns.

A NATS message does not name its publisher. JetStream's clients use one inbox for each connection,
so the name of the inbox identifies the client. However, a client can also send each request from a
new inbox. Therefore requests wait in separate lanes: requests from known inboxes, requests from new
inboxes, and slow requests. A flood of requests in one lane cannot take the turns of the other
lanes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from liftlog.server.jetstream_api.inboxes import Inboxes, party_of

Message = tuple[bytes, bytes, bytes, float]
"""A tuple (subject, reply, payload, arrival). The subject of a request that another node has
forwarded begins with this node's own prefix."""

MAX_OF_PARTY = 64
_MAX_WAITING = 1024
_MAX_KNOWN_WAITING = 2048
"""Maximum number of waiting requests from known inboxes. It is above the limit for new inboxes, so
that a flood from new inboxes does not lock out known clients."""
_MAX_WAITING_BYTES = 8 * 2**20
_AT_A_TIME = 4
"""Number of requests of one client that are answered at the same time."""


class Lane(NamedTuple):
    is_known: bool
    is_costly: bool


LANES = {
    Lane(True, False): 4,
    Lane(True, True): 4,
    Lane(False, False): 2,
    Lane(False, True): 2,
}
"""Number of requests of each lane that are answered at the same time."""
WORKERS = sum(LANES.values())


class Waiting:
    """The queue. Lanes take turns, and so do the parties within a lane. `is_costly` classifies a
    request by its subject and payload."""

    def __init__(
        self, inboxes: Inboxes, is_costly: Callable[[bytes, bytes], bool] = lambda *_: False
    ) -> None:
        self.refused = 0
        self._inboxes = inboxes
        self._is_costly = is_costly
        self._lanes: dict[Lane, dict[bytes, deque[Message]]] = {lane: {} for lane in LANES}
        self._under_way: Counter[Lane] = Counter()
        self._lane_of: dict[int, Lane] = {}  # the keys identify the requests in progress
        self._served: Counter[bytes] = Counter()
        self._waiting_of: Counter[bytes] = Counter()
        self._size_bytes = 0
        self._idle: deque[asyncio.Future[None]] = deque()
        """Callers of `take` that wait for a request."""

    def add(self, message: Message) -> bool:
        """Add a request; return False if too many requests wait already."""
        subject, reply, payload, _ = message
        party, size = party_of(reply), len(payload)
        is_known = self._inboxes.note(party)
        most = _MAX_KNOWN_WAITING if is_known else _MAX_WAITING
        if (
            self._waiting_of.total() >= most
            or self._size_bytes + size > _MAX_WAITING_BYTES
            or self._waiting_of[party] >= MAX_OF_PARTY
        ):
            self.refused += 1
            return False
        lane = self._lanes[Lane(is_known, self._is_costly(subject, payload))]
        lane.setdefault(party, deque()).append(message)
        self._waiting_of[party] += 1
        self._size_bytes += size
        self._wake()
        return True

    def clear(self) -> None:
        for lane in self._lanes.values():
            lane.clear()
        self._waiting_of.clear()
        self._size_bytes = 0

    async def take(self) -> Message:
        """Return the next request. Call `done` with it when it has been answered."""
        while True:
            message = self.take_now()
            if message is not None:
                return message
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if not mine.cancelled():
                    self._wake()
                raise

    def take_now(self) -> Message | None:
        """Like `take`, but return None instead of waiting."""
        message = self._next()
        if message is not None and self._waiting_of:
            self._wake()  # there may be another request that can be answered now
        return message

    def _wake(self) -> None:
        """Wake one caller that waits in `take`. Waking all callers for each request would take more
        time than many requests take."""
        while self._idle:
            first = self._idle.popleft()
            if not first.done():
                first.set_result(None)
                return

    def _next(self) -> Message | None:
        for lane, parties in self._lanes.items():
            if self._under_way[lane] >= LANES[lane]:
                continue
            for party, queue in parties.items():
                if self._served[party] < _AT_A_TIME:
                    return self._take(lane, party, queue)
        return None

    def _take(self, lane: Lane, party: bytes, queue: deque[Message]) -> Message:
        message = queue.popleft()
        # The party and the member move to the end of their queues.
        parties = self._lanes.pop(lane)
        self._lanes[lane] = parties
        del parties[party]
        if queue:
            parties[party] = queue
        self._waiting_of[party] -= 1
        if not self._waiting_of[party]:
            del self._waiting_of[party]
        self._size_bytes -= len(message[2])
        self._served[party] += 1
        self._under_way[lane] += 1
        self._lane_of[id(message)] = lane
        return message

    def done(self, message: Message) -> None:
        party = party_of(message[1])
        self._under_way[self._lane_of.pop(id(message))] -= 1
        self._served[party] -= 1
        if not self._served[party]:
            del self._served[party]
        if self._waiting_of:
            self._wake()
