"""Takes waiting requests from the queue, and has them answered within the time that the event loop
has for answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from liftlog.server.jetstream_api.pace import Pace
from liftlog.server.jetstream_api.waiting import Message, Waiting

STALE_SECONDS = 10.0
"""A request that has waited for this time (in seconds) is dropped, because clients time out after 5
s."""


class RequestWorkers(NamedTuple):
    """Answers the requests of the queue. Each task that runs `work` is one worker. Belongs to the
    event loop."""

    waiting: Waiting
    pace: Pace
    may_answer: asyncio.Event
    """Requests wait while this event is not set."""
    answer: Callable[[Message], Awaitable[None]]
    drop: Callable[[Message], None]
    """Receives each request that has waited for too long."""
    was_repeated: Callable[[Message], bool]
    """Returns True, once, for a request that may be answered regardless of its age."""

    async def work(self) -> None:
        """Answer requests until the task is cancelled. A worker answers several requests within its
        turn if there is time."""
        while True:
            message: Message | None = await self.waiting.take()
            await self.may_answer.wait()
            await self.pace.turn()
            while message is not None:
                try:
                    await self._answer_or_drop(message)
                finally:
                    self.waiting.done(message)
                may_go_on = self.pace.has_time and self.may_answer.is_set()
                message = self.waiting.take_now() if may_go_on else None

    async def _answer_or_drop(self, message: Message) -> None:
        is_repeated = self.was_repeated(message)
        if time.monotonic() - message[3] > STALE_SECONDS and not is_repeated:
            self.drop(message)
        else:
            await self.answer(message)
