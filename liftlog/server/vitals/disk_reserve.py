"""A file that only occupies room, so that a full disk still has some for what must be written.

Appends are refused when the disk is full, but a clean stop, retention and recovery write small
files: they use the room of the reserve. The file stays between a stop and the next start. Its bytes
are random, because a file system that compresses would store zeros in almost no room.
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
        """Lends the room of the reserve, to one caller at a time, for work that frees room."""
        async with self._lent:
            await asyncio.to_thread(self.release)
            try:
                yield
            finally:
                await asyncio.to_thread(self.keep)

    def is_disk_full(self) -> bool:
        """Whether less room is left than one commit group may need, not counting the reserve."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < RESERVE_BYTES

    def release(self) -> None:
        """Give the room back to the file system. Errors are logged, not raised."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("disk-reserve-not-released path=%s error=%s", self._path, error)

    def keep(self) -> None:
        """Occupy the room again, or as much of it as there is."""
        try:
            with self._path.open("ab", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                while size < RESERVE_BYTES:
                    size += file.write(os.urandom(min(_STEP_BYTES, RESERVE_BYTES - size)))
        except OSError as error:
            logger.warning("disk-reserve-incomplete path=%s error=%s", self._path, error)
