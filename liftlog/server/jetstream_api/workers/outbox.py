"""Sends commands when the journal has the changes on which they depend.

Deliveries and statuses are sent when the changes of their turn are written, and answers to acks
when the changes are synced. The order within each kind is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from liftlog.errors import NatsUnavailable
from liftlog.server.journal import Journal

_MOST_BYTES = 1024 * 1024
_MOST_WAITING_BYTES = 4 * _MOST_BYTES
_RETRY_SECONDS = 0.2
_SPARE_BYTES = 64 * 1024
"""Additional space for a turn that began below the limit. The deliveries of such a turn are already
counted. They must not be dropped if a heartbeat of the same turn exceeds the limit."""
_ENTRY_BYTES = 128
"""Memory, in bytes, that an entry uses in addition to its commands."""

Offer = Callable[[bytes], bool]
"""Function that sends NATS commands at once. If the commands have to wait, the function sends
nothing and returns False."""
Send = Callable[[bytes], Awaitable[None]]
"""Function that sends NATS commands. Raises NatsUnavailable."""

_Commands = tuple[int, bytes, object]
"""The position in the journal for which commands wait, the commands, and their source."""


class _Queue:
    """Commands in the order of their positions. `reached` returns the position in the journal up to
    which commands may leave."""

    def __init__(self, reached: Callable[[], int], offer: Offer, send: Send) -> None:
        self._reached = reached
        self._offer = offer
        self._send = send
        self._waiting: deque[_Commands] = deque()
        self._unsent: list[_Commands] = []
        """Due commands that wait for NATS, while `_sending` runs."""
        self._sending: asyncio.Task[None] | None = None
        self.size_bytes = 0

    def put(self, position: int, commands: bytes, source: object) -> None:
        self._waiting.append((position, commands, source))
        self.size_bytes += len(commands) + _ENTRY_BYTES

    def drop(self, source: object) -> None:
        """Drop the commands of `source` that were not passed to NATS."""
        self._unsent = [one for one in self._unsent if one[2] is not source]
        self._waiting = deque(one for one in self._waiting if one[2] is not source)
        self.size_bytes = sum([len(one[1]) + _ENTRY_BYTES for one in self._waiting])

    @property
    def is_due(self) -> bool:
        """True if commands may be sent now."""
        waiting = self._waiting
        return bool(waiting) and self._sending is None and waiting[0][0] <= self._reached()

    def advance(self) -> None:
        """Send the commands that may leave."""
        while self.is_due:
            taken = self._take()
            if not self._offer(_joined(taken)):
                self._unsent = taken
                self._sending = asyncio.create_task(self._send_again(), name="consumer-commands")

    def _take(self) -> list[_Commands]:
        found, size = [], 0
        reached = self._reached()
        while self._waiting and self._waiting[0][0] <= reached and size < _MOST_BYTES:
            taken = self._waiting.popleft()
            size += len(taken[1]) + _ENTRY_BYTES
            found.append(taken)
        self.size_bytes -= size
        return found

    async def _send_again(self) -> None:
        while self._unsent:
            try:
                await self._send(_joined(self._unsent))
            except NatsUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                break
        self._unsent = []
        self._sending = None
        self.advance()

    async def close(self) -> None:
        self._waiting.clear()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


def _joined(some: list[_Commands]) -> bytes:
    return some[0][1] if len(some) == 1 else b"".join([one[1] for one in some])


class Outbox:
    """Sends commands as soon as the journal allows it. It belongs to the event loop."""

    def __init__(
        self, journal: Journal, offer: Offer, deliver: Send, answer: Callable[[bytes], None]
    ) -> None:
        """`offer` and `deliver` send deliveries and statuses; `answer` sends answers to acks.
        Without a connection, these answers are lost."""

        def answered(commands: bytes) -> bool:
            answer(commands)
            return True

        self._journal = journal
        self._deliveries = _Queue(lambda: journal.written_position, offer, deliver)
        self._answers = _Queue(lambda: journal.synced_position, answered, deliver)
        self._is_scheduled = False

    @property
    def is_full(self) -> bool:
        """True while too many bytes wait. Consumers then stop reading records. If the journal
        cannot be written, further statuses and heartbeats are dropped."""
        return self._deliveries.size_bytes > _MOST_WAITING_BYTES

    @property
    def size_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._deliveries.size_bytes + self._answers.size_bytes

    async def close(self) -> None:
        """Drop the commands that still wait."""
        await self._deliveries.close()
        await self._answers.close()

    def drop(self, source: object) -> None:
        """Drop the commands of `source` that still wait."""
        self._deliveries.drop(source)
        self._answers.drop(source)

    def after_written(self, position: int, commands: bytes, source: object = None) -> None:
        """Send commands when the changes up to a position are written. `drop` with the same
        `source` drops them."""
        most = _MOST_WAITING_BYTES + _SPARE_BYTES
        if self._deliveries.size_bytes > most and self._journal.problem is not None:
            return  # without a limit, heartbeats would fill the memory until the disk is repaired
        self._deliveries.put(position, commands, source)
        self._schedule(self._deliveries)

    def after_synced(self, position: int, commands: bytes, source: object = None) -> None:
        """Send answers when the changes up to a position are synced. Apart from that, like
        `after_written`."""
        self._answers.put(position, commands, source)
        if not self._answers.is_due:
            self._journal.sync_soon()
        self._schedule(self._answers)

    def _schedule(self, queue: _Queue) -> None:
        """Schedule the sending of commands that are already due. The journal may make no further
        progress that would send them."""
        if queue.is_due and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self.advance()

    def advance(self) -> None:
        """Send the commands that are due. Call this method when the journal has made progress."""
        self._deliveries.advance()
        self._answers.advance()
