"""The disk of the data directory. A probe shows whether the disk can be written, and a reserve
provides space when the disk is full.

A disk that hangs must block neither the event loop nor requests that ask for the state of the disk.
So each probe runs in a separate thread, one at a time, and callers wait for it only briefly.

The reserve is a file that only occupies space. Appends are refused when the disk is full. But a
clean stop, retention and recovery have to write small files, and can use the space of the reserve.
The file stays between a stop and the next start. Its bytes are random, because a compressing file
system would store zeros in almost no space.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from liftlog.errors import StorageError, StreamUnavailable
from liftlog.log.files.filesystem import private

PROBE_NAME = "probe"
_PROBE_BYTES = 64 * 1024
"""Number of bytes that a probe writes. If less space than this is free, no message can be stored.
The number is small because segment files are allocated in advance. So even on a nearly full disk,
they may have much space. Metrics and alerts show the free space."""
_FRESH_SECONDS = 2.0
_WAIT_SECONDS = 0.5


def for_failed_storage(error: Exception) -> StreamUnavailable | None:
    """Return the error for clients if `error` means that files cannot be used although they are not
    damaged.

    Returns None for other errors, and for errors that have their own error class for clients, such
    as a full disk.
    """
    if not isinstance(error, StorageError) or error.code:
        return None
    cause = error.__cause__
    reason = (cause.strerror if isinstance(cause, OSError) else None) or "an error of the disk"
    return StreamUnavailable(
        f"the daemon cannot use the stream's files at the moment: {reason}",
        hint="try again; the daemon's log names the file",
    )


@dataclass(frozen=True, slots=True)
class DiskState:
    """The result of one probe. `problem` is empty if the directory can be written."""

    free_bytes: int = 0
    size_bytes: int = 0
    problem: str = ""


class DiskProbe:
    """Probes the disk. Belongs to the event loop. Use it while holding the directory's lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._last = DiskState()
        self._looked_at = float("-inf")
        self._looking: asyncio.Future[DiskState] | None = None
        self._looking_since = 0.0

    @property
    def last(self) -> DiskState:
        """The newest result. If a probe takes too long, `problem` reports the delay."""
        seconds = time.monotonic() - self._looking_since
        return (
            self._unanswered(seconds) if self._looking and seconds > _WAIT_SECONDS else self._last
        )

    async def state(self) -> DiskState:
        """Return a result that is at most two seconds old. If the disk does not answer, return a
        result with this problem."""
        if time.monotonic() - self._looked_at < _FRESH_SECONDS:
            return self._last
        late = time.monotonic() - self._looking_since
        if self._looking is not None and late > _WAIT_SECONDS:
            return self._unanswered(late)
        looking = self._looking or self._begin()
        await asyncio.wait([looking], timeout=_WAIT_SECONDS)
        if looking.done():
            return looking.result()
        return self._unanswered(time.monotonic() - self._looking_since)

    def _unanswered(self, seconds: float) -> DiskState:
        problem = f"the disk has not answered for {seconds:.1f} s"
        return DiskState(self._last.free_bytes, self._last.size_bytes, problem)

    def _begin(self) -> asyncio.Future[DiskState]:
        loop = asyncio.get_running_loop()
        looking = self._looking = loop.create_future()
        self._looking_since = time.monotonic()
        looking.add_done_callback(self._ended)

        def run() -> None:
            found = look_at(self._directory)
            with contextlib.suppress(RuntimeError):  # if the loop is closed, no task waits
                loop.call_soon_threadsafe(_set_result, looking, found)

        # Not a thread of a pool, because a thread that hangs in the kernel must not prevent the
        # exit of the daemon.
        threading.Thread(target=run, name="liftlog-disk-probe", daemon=True).start()
        return looking

    def _ended(self, looking: asyncio.Future[DiskState]) -> None:
        self._looking = None
        if not looking.cancelled():
            self._last = looking.result()
            self._looked_at = time.monotonic()


def look_at(directory: Path) -> DiskState:
    """Probe the disk of this directory. Blocks until the disk has answered. Does not sync, because
    commits themselves show whether syncs return in time."""
    try:
        found = os.statvfs(directory)
        free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    except OSError as error:
        return DiskState(0, 0, f"cannot read the state of the data directory: {error.strerror}")
    path = directory / PROBE_NAME
    try:
        try:
            path.write_bytes(bytes(_PROBE_BYTES))
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        return DiskState(free, size, f"the data directory cannot be written: {error.strerror}")
    return DiskState(free, size)


def _set_result(looking: asyncio.Future[DiskState], found: DiskState) -> None:
    if not looking.done():
        looking.set_result(found)


logger = logging.getLogger("liftlog.server")

RESERVE_NAME = "reserve"
RESERVE_BYTES = 1024 * 1024
_STEP_BYTES = 16 * 1024


class DiskReserve:
    """The reserve file. All methods except `lent` block. Use it only while holding the data
    directory's lock."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / RESERVE_NAME
        self._lent = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Lend the space of the reserve, to one caller at a time, for work that frees disk
        space."""
        async with self._lent:
            await asyncio.to_thread(self.release)
            try:
                yield
            finally:
                await asyncio.to_thread(self.keep)

    def is_disk_full(self) -> bool:
        """Return True if less space is free than one commit group may need. The reserve does not
        count as free."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < RESERVE_BYTES

    def release(self) -> None:
        """Give the space back to the file system. Errors are logged, not raised."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("disk-reserve-not-released path=%s error=%s", self._path, error)

    def keep(self) -> None:
        """Write the file again. It gets its full size, or the size for which the disk has space."""
        try:
            with open(self._path, "ab", buffering=0, opener=private) as file:
                size = os.fstat(file.fileno()).st_size
                while size < RESERVE_BYTES:
                    size += file.write(os.urandom(min(_STEP_BYTES, RESERVE_BYTES - size)))
        except OSError as error:
            logger.warning("disk-reserve-incomplete path=%s error=%s", self._path, error)
