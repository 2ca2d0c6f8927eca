"""A file that only takes up room, so that a full disk still leaves some for what must be written.

Appends are refused when the disk is full, but a clean stop, retention and recovery write small
files themselves: they get the room of the reserve. It is there between a stop and the next start
too. Its bytes are random: a file system that compresses would keep zeros in next to no room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

logger = logging.getLogger("liftlog.server")

RESERVE_NAME = "reserve"
RESERVE_BYTES = 1024 * 1024
_STEP_BYTES = 16 * 1024


class DiskReserve:
    """Blocking, but for `lent`. Use it only while holding the data directory's lock."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / RESERVE_NAME
        self._lent = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """The room of the reserve, to one at a time, for what makes room again."""
        async with self._lent:
            await asyncio.to_thread(self.release)
            try:
                yield
            finally:
                await asyncio.to_thread(self.keep)

    def is_disk_full(self) -> bool:
        """Whether less room is left than one group may need, the reserve not counted."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < RESERVE_BYTES

    def release(self) -> None:
        """Give the room back to the file system. What follows must be tried in any case."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("disk-reserve-not-released path=%s error=%s", self._path, error)

    def keep(self) -> None:
        """Take up the room again, or as much of it as there is."""
        try:
            with self._path.open("ab", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                while size < RESERVE_BYTES:
                    size += file.write(os.urandom(min(_STEP_BYTES, RESERVE_BYTES - size)))
        except OSError as error:
            logger.warning("disk-reserve-incomplete path=%s error=%s", self._path, error)
