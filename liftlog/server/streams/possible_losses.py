"""Events in which messages may have passed us by, noted in the manifest of each stream."""

from __future__ import annotations

import asyncio
import logging

from liftlog.log import Clock
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.metadata import save_metadata

logger = logging.getLogger("liftlog.server")

_MAX_NOTED = 100


class PossibleLosses:
    """Belongs to the event loop. Notes are saved in the background: they hold nobody up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._saving: set[asyncio.Task[None]] = set()

    def note(self, host: StreamHost, reason: str) -> None:
        """With the offset that the next message gets."""
        host.note_possible_loss(reason, self._clock.now_ns())
        task = asyncio.get_running_loop().create_task(save_metadata(host))
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    async def close(self) -> None:
        """Give up what is not saved yet."""
        saving = list(self._saving)
        for task in saving:
            task.cancel()
        await asyncio.gather(*saving, return_exceptions=True)
