"""What a job is held to: a rate, and room that is left on the disk."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

_BURST_SECONDS = 0.1
_LOOK_EVERY_BYTES = 4 * 1024 * 1024
_MIN_FREE_BYTES = 64 * 1024 * 1024
_MIN_FREE_PART = 20  # of small file systems


class RateLimit:
    """Sleeps so that no more than `bytes_per_second` pass, apart from a short burst."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def __call__(self, size_bytes: int) -> None:
        now = self._clock()
        self._due = max(self._due, now - _BURST_SECONDS) + size_bytes * self._seconds_per_byte
        if self._due > now:
            self._sleep(self._due - now)


class FreeRoom:
    """Ends a job with ENOSPC before the disk is full: what is left belongs to the messages.

    Messages would be refused while a job uses up the last bytes, though what it writes takes the
    place of something larger.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._passed = _LOOK_EVERY_BYTES  # the first look is before the first byte

    def __call__(self, size_bytes: int) -> None:
        self._passed += size_bytes
        if self._passed < _LOOK_EVERY_BYTES:
            return
        self._passed = 0
        found = os.statvfs(self._directory)
        wanted = min(_MIN_FREE_BYTES, found.f_blocks * found.f_frsize // _MIN_FREE_PART)
        if found.f_bavail * found.f_frsize < wanted:
            raise OSError(errno.ENOSPC, "less room is left than cleaning may use")
