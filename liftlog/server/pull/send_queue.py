"""Data that waits to be sent on one connection: frames, and slices of log files.

All data are sent in the order in which they were added. A slice is released as soon as its last
byte was passed to the socket, or when the queue is closed.

`sendfile` on a page that is not in memory would block the whole event loop until the disk has read
it. Linux offers a test: if a page is not in memory, `preadv(RWF_NOWAIT)` of one of its bytes fails
instead of waiting. If a range is not in memory, a thread reads the range once and discards the
bytes. After that, the loop sends the range like any other range.

The client receives the length of a slice before its bytes are read. If the disk then fails to
return some bytes, zeros are sent in their place. The client detects the damage by the checksum of
the batch, and keeps its connection and the undamaged batches. The damaged range is quarantined
before the zeros are sent, so the answer to the client's next fetch contains the exact range.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from liftlog.errors import DiskFull
from liftlog.log import LogSlice
from liftlog.log.files.unreadable import PAGE_BYTES, add_hole, is_unreadable
from liftlog.server.pull.limits import TURN_BYTES
from liftlog.server.pull.sockets import Transport
from liftlog.server.reading.read_share import ReadShare

logger = logging.getLogger("liftlog.server.pull")

STEP_BYTES = 64 * 1024
"""Distance, in bytes, between two bytes that are tested. The kernel reads ahead in larger steps, so
one tested byte per step is sufficient."""
_SCRATCH_BYTES = 256 * 1024
_SCAN_BYTES = 256 * 1024
"""If a client reads this number of bytes at once, it is likely to continue reading."""
_AHEAD_BYTES = 16 * 1024 * 1024

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_FRAME_OVERHEAD_BYTES = 64
_ZEROS = memoryview(bytes(64 * 1024))


class ShortFile(Exception):
    """Raised if bytes cannot be sent although a thread has just read them into memory."""


class _FilePart:
    """The unsent part of a slice. Pages below the position `resident_until` are in memory, except
    the `holes`: ranges that the file does not return. `suspect_at` is the position at which
    `sendfile` sent nothing."""

    __slots__ = ("holes", "position", "remaining", "resident_until", "slice", "suspect_at")

    def __init__(self, piece: LogSlice) -> None:
        self.slice = piece
        self.position = piece.position
        self.remaining = piece.length
        self.resident_until = piece.position
        self.holes: list[range] = []
        self.suspect_at = -1

    def look(self, position: int, length: int) -> list[range]:
        """Read these bytes into memory, and quarantine and return the holes in them. Blocking.
        Raises OSError, StorageError."""
        holes = make_resident(self.slice.fd, position, length)
        if holes:
            try:
                self.slice.quarantine()
            except DiskFull as error:  # the zeros still show the damage to each client
                logger.warning("damage-not-quarantined error=%s", error)
        return holes


class UnsentMemory:
    """Memory of the frames in all send queues of a server. Slices do not count, because their bytes
    stay in files."""

    __slots__ = ("used_bytes",)

    def __init__(self) -> None:
        self.used_bytes = 0


class SendQueue:
    """Sends frames and slices on one connection. Not thread-safe: belongs to the loop's thread.

    `on_progress` runs after bytes were sent. `on_failure` runs once, with the reason, when nothing
    more can be sent; the owner then closes the queue.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        cold_readers: Executor,
        on_progress: Callable[[], None],
        on_failure: Callable[[Exception], None],
        memory: UnsentMemory,
        share: ReadShare,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._cold_readers = cold_readers
        self._share = share
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._items: deque[bytes | bytearray | memoryview | _FilePart] = deque()
        self._writing = False  # the loop calls `_send` when the socket is writable
        self._warming: _FilePart | None = None
        self._closed = False
        self._sending = False
        self._memory = memory
        self.memory_bytes = 0
        """This queue's part of the total memory. The overhead of small frames is included, because
        a client may request a million small frames."""
        self.unsent_bytes = 0
        self.sent_bytes = 0
        self.progress_at = loop.time()

    def put(self, frame: bytes | bytearray) -> None:
        if self._closed:
            return
        if not self._items:
            self.progress_at = self._loop.time()
        self._items.append(frame)
        self.unsent_bytes += len(frame)
        self._note_memory(len(frame) + _FRAME_OVERHEAD_BYTES)

    def put_slice(self, piece: LogSlice) -> None:
        """Append a slice. Takes ownership of `piece`, even if the queue is closed."""
        bodies = piece.bodies
        for body in bodies:
            self.put(body)
        if self._closed or bodies:
            piece.release()
            return
        if not self._items:
            self.progress_at = self._loop.time()
        self._items.append(_FilePart(piece))
        self.unsent_bytes += piece.length

    def flush(self) -> None:
        """Send as much as the socket accepts now. Send the remaining data when the socket is
        writable."""
        if not self._items or self._writing or self._warming is not None or self._closed:
            return
        self._send()

    def close(self) -> None:
        """Drop unsent data and release every slice."""
        if self._closed:
            return
        self._closed = True
        self._stop_writing()
        items, self._items = self._items, deque()
        for item in items:
            # A slice that a thread is reading is released when the thread has finished.
            if isinstance(item, _FilePart) and item is not self._warming:
                item.slice.release()
        self.unsent_bytes = 0
        self._note_memory(-self.memory_bytes)

    def _note_memory(self, more: int) -> None:
        self.memory_bytes += more
        self._memory.used_bytes += more

    def _send(self) -> None:
        if self._sending:
            return  # the owner called `close` from `on_progress`
        self._sending = True
        try:
            with self._share:
                self._send_items(self._transport.turn_bytes)
        except (OSError, ShortFile) as error:
            self._fail(error)
            return
        finally:
            self._sending = False
        if self._items and self._warming is None:
            self._start_writing()
        elif self._writing:
            self._stop_writing()

    def _send_items(self, budget: int) -> None:
        items = self._items
        before = self.sent_bytes
        try:
            while items and self.sent_bytes - before < budget:
                item = items[0]
                if isinstance(item, _FilePart):
                    if not self._may_send(item):
                        break
                    sent = self._send_file(item)
                else:
                    sent = self._send_bytes(item)
                self.unsent_bytes -= sent
                self.sent_bytes += sent
        except BlockingIOError:
            pass
        if self.sent_bytes > before:
            self.progress_at = self._loop.time()
            self._on_progress()

    def _send_bytes(self, data: bytes | bytearray | memoryview) -> int:
        items = self._items
        sent = self._transport.send(data, len(items) > 1)
        items.popleft()
        if sent < len(data):
            items.appendleft(memoryview(data)[sent:])
        else:
            whole = data.obj if type(data) is memoryview else data
            self._note_memory(-len(whole) - _FRAME_OVERHEAD_BYTES)  # type: ignore[arg-type]
        return sent

    def _send_file(self, part: _FilePart) -> int:
        count = min(part.remaining, part.resident_until - part.position)
        if part.holes:
            sent = self._send_around(part, count)
        else:
            sent = self._send_from_file(part, count)
        part.position += sent
        part.remaining -= sent
        if part.remaining == 0:
            self._items.popleft()
            part.slice.release()
        return sent

    def _send_around(self, part: _FilePart, count: int) -> int:
        hole = part.holes[0]
        if part.position < hole.start:
            return self._send_from_file(part, min(count, hole.start - part.position))
        zeros = _ZEROS[: min(count, hole.stop - part.position)]
        sent = self._transport.send(zeros, part.remaining > len(zeros))
        if part.position + sent == hole.stop:
            part.holes.pop(0)
        return sent

    def _send_from_file(self, part: _FilePart, count: int) -> int:
        try:
            sent = self._transport.sendfile(part.slice.fd, part.position, count)
        except OSError as error:
            if not is_unreadable(error):
                raise
            sent = 0
        if sent == 0:
            # The page was not tested, or has been evicted since the test, so a thread reads it.
            if part.suspect_at == part.position:
                raise ShortFile(f"the file cannot be read at {part.position}")
            part.suspect_at = part.resident_until = part.position
        return sent

    def _may_send(self, part: _FilePart) -> bool:
        """Return True if the next bytes are in memory. If the bytes are not in memory, start a
        thread that reads them."""
        if part.position < part.resident_until:
            return True
        length = min(part.remaining, TURN_BYTES)
        if part.suspect_at != part.position and is_resident(part.slice.fd, part.position, length):
            part.resident_until = part.position + length
            return True
        self._warming = part
        job = self._loop.run_in_executor(self._cold_readers, part.look, part.position, length)
        job.add_done_callback(lambda done: self._warmed(part, length, done))
        return False

    def _warmed(self, part: _FilePart, length: int, job: asyncio.Future[list[range]]) -> None:
        self._warming = None
        error = None if job.cancelled() else job.exception()
        if self._closed:
            part.slice.release()
        elif isinstance(error, Exception):
            self._fail(error)
        else:
            part.holes = job.result()
            part.resident_until = part.position + length
            self._send()

    def _fail(self, error: Exception) -> None:
        self._stop_writing()
        self._on_failure(error)

    def _start_writing(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._transport.fileno(), self._send)

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._transport.fileno())


def is_resident(fd: int, position: int, length: int) -> bool:
    """Return True if the sampled pages are in memory, or if the file system cannot report which
    pages are in memory."""
    if not _NOWAIT or length <= 0:
        return True
    byte = [bytearray(1)]
    last = position + length - 1
    try:
        for at in range(position, last, STEP_BYTES):
            os.preadv(fd, byte, at, _NOWAIT)
        os.preadv(fd, byte, last, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return True  # the file is always in memory, as on tmpfs
        if is_unreadable(error):
            return False  # a thread determines which pages are missing
        raise
    return True


def make_resident(fd: int, position: int, length: int) -> list[range]:
    """Read a range into the page cache and discard the bytes. Blocking: call it in a thread. Raises
    OSError.

    Returns the holes: pages that the disk cannot read, and bytes past the end of the file. After a
    large range the kernel is asked to read ahead while the range is sent.
    """
    holes: list[range] = []
    ahead = _AHEAD_BYTES if length >= _SCAN_BYTES else 0
    os.posix_fadvise(fd, position, length + ahead, os.POSIX_FADV_WILLNEED)
    scratch = memoryview(bytearray(min(length, _SCRATCH_BYTES)))
    end = position + length
    while position < end:
        try:
            count = os.preadv(fd, [scratch[: end - position]], position)
        except OSError as error:
            if not is_unreadable(error):
                raise
            following = min(position - position % PAGE_BYTES + PAGE_BYTES, end)
            add_hole(holes, position, following)
            position = following
            continue
        if count == 0:
            add_hole(holes, position, end)
            break
        position += count
    return holes
