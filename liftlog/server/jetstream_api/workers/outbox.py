"""Sends commands once the journal has the changes behind them.

Deliveries and statuses leave when the changes of their turn are written; answers to acks leave when
these are synced. The order within each kind is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from liftlog.errors import LiftlogError, NatsUnavailable, ShuttingDown
from liftlog.server.journal import Journal

logger = logging.getLogger("liftlog.server.jetstream_api")

_MOST_BYTES = 1024 * 1024
_RETRY_SECONDS = 0.2

Send = Callable[[bytes], Awaitable[None]]
"""Sends NATS commands. Raises NatsUnavailable."""
Reach = Callable[[int], "asyncio.Future[None]"]


class _Queue:
    def __init__(self, reached: Reach, position: Callable[[], int], journal: Journal, send: Send):
        self._reached, self._position = reached, position
        self._journal, self._send = journal, send
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._is_work = asyncio.Event()
        self.size_bytes = 0

    def put(self, position: int, commands: bytes) -> None:
        self._waiting.append((position, commands))
        self.size_bytes += len(commands)
        self._is_work.set()

    async def run(self) -> None:
        while True:
            await self._is_work.wait()
            try:
                await self._reached(self._waiting[0][0])
            except ShuttingDown:
                return
            except LiftlogError:
                await self._journal.writable()
                continue
            await self._send_again(b"".join(self._take()))

    def _take(self) -> list[bytes]:
        found, size = [], 0
        reached = self._position()
        while self._waiting and self._waiting[0][0] <= reached and size < _MOST_BYTES:
            commands = self._waiting.popleft()[1]
            size += len(commands)
            found.append(commands)
        self.size_bytes -= size
        if not self._waiting:
            self._is_work.clear()
        return found

    async def _send_again(self, commands: bytes) -> None:
        while True:
            try:
                await self._send(commands)
            except NatsUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return


class Outbox:
    """Belongs to the event loop."""

    def __init__(self, journal: Journal, deliver: Send, answer: Send) -> None:
        """`deliver` and `answer` send the commands of the two kinds."""
        self._deliveries = _Queue(
            journal.written, lambda: journal.written_position, journal, deliver
        )
        self._answers = _Queue(journal.synced, lambda: journal.synced_position, journal, answer)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_full(self) -> bool:
        """True while too many bytes wait: consumers then stop reading records."""
        return self._deliveries.size_bytes > 4 * _MOST_BYTES

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._deliveries.run(), name="consumer-deliveries"),
            asyncio.create_task(self._answers.run(), name="consumer-answers"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def after_written(self, position: int, commands: bytes) -> None:
        self._deliveries.put(position, commands)

    def after_synced(self, position: int, commands: bytes) -> None:
        self._answers.put(position, commands)
