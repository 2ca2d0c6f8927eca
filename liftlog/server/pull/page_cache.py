"""Whether sending a slice of a file would wait for the disk.

`sendfile` on a page that is not in memory blocks the whole event loop for as long as the
disk takes. Linux can say beforehand: `preadv(RWF_NOWAIT)` of a byte refuses instead of
waiting. One byte in 64 KiB is sampled, since the kernel reads ahead in larger steps. A range
that is not in memory is read once by a thread (the bytes are thrown away), then sent from the
loop like any other. The thread also finds out which pages the disk does not give.
"""

from __future__ import annotations

import errno
import os

from liftlog.log.unreadable import PAGE_BYTES, add_hole, is_unreadable

STEP_BYTES = 64 * 1024
_SCRATCH_BYTES = 256 * 1024
_SCAN_BYTES = 256 * 1024
"""A client that reads so much at once most likely reads on."""
_AHEAD_BYTES = 16 * 1024 * 1024

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def is_resident(fd: int, position: int, length: int) -> bool:
    """True when the sampled pages are in memory, or when the file system cannot say."""
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
            return True  # such as tmpfs, which is always in memory
        if is_unreadable(error):
            return False  # a thread finds out which pages these are
        raise
    return True


def make_resident(fd: int, position: int, length: int) -> list[range]:
    """Read the range and drop it. Blocks: for threads. Raises OSError.

    Returns what the file does not give: pages that the disk cannot read, and bytes past the end of
    the file. After a large range the kernel is asked to read ahead, while this one is sent.
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
