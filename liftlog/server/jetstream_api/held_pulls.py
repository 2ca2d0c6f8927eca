"""Holds pulls that arrive while no node leads their stream, until there is a leader. Clients repeat
a pull only when it has expired or heartbeats are missing. This can take 30 s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from liftlog.errors import LiftlogError
from liftlog.server.jetstream_api.waiting import Message

LOOK_SECONDS = 0.05
_HELD_SECONDS = 8.0
_MAX_HELD = 1_000
_MAX_HELD_BYTES = 1024 * 1024


class HeldPulls:
    """The pulls that wait for a leader. Belongs to the event loop."""

    def __init__(
        self, check_led: Callable[[str], None], again: Callable[[Message], object]
    ) -> None:
        """`check_led` raises LiftlogError while no node leads a stream. `again` receives the held
        pulls when a node leads the stream."""
        self._check_led = check_led
        self._again = again
        self._held: list[tuple[str, Message]] = []
        self._size_bytes = 0
        self._waiting: asyncio.Task[None] | None = None

    def hold(self, stream: str, message: Message) -> bool:
        """Hold a pull until a node leads the stream. Returns False if a node already leads the
        stream, if the pull is too old, or if too many pulls wait."""
        size = sum(map(len, message[:3]))
        is_full = len(self._held) >= _MAX_HELD or self._size_bytes + size > _MAX_HELD_BYTES
        if is_full or self._is_old(message) or self._is_led(stream):
            return False
        self._held.append((stream, message))
        self._size_bytes += size
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait(), name="jetstream-api-held")
        return True

    async def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.gather(self._waiting, return_exceptions=True)

    async def _wait(self) -> None:
        while self._held:
            await asyncio.sleep(LOOK_SECONDS)
            held = [one for one in self._held if not self._is_old(one[1])]
            led = {stream for stream in {one[0] for one in held} if self._is_led(stream)}
            self._held = [one for one in held if one[0] not in led]
            self._size_bytes = sum([sum(map(len, one[:3])) for _, one in self._held])
            for stream, message in held:
                if stream in led:
                    self._again(message)
        self._waiting = None

    def _is_led(self, stream: str) -> bool:
        try:
            self._check_led(stream)
        except LiftlogError:
            return False
        return True

    @staticmethod
    def _is_old(message: Message) -> bool:
        return time.monotonic() - message[3] > _HELD_SECONDS
