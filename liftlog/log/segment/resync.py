"""Finds the place where good batches continue after damage.

A value of a record may contain the bytes of whole foreign batches, perhaps on purpose, so a batch
that looks good may be inside a value. There are two proofs that a batch is not inside a value. If
the header of the damaged batch is readable, its length gives the start of the next batch. Otherwise
a chain of headers must lead to a known border (an index entry, or the end of the data), and each
header must continue the previous one. A chain inside a value breaks at the end of the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log.files.filesystem import File
from liftlog.log.files.unreadable import first_hole, read_around, read_zeroed, readable_end
from liftlog.records.format import ALIGNMENT, HEADER_SIZE, MAGIC
from liftlog.records.header import BatchHeader, parse_header, verify_body

_SEARCH_BYTES = 1024 * 1024
_HEADER_WINDOW_BYTES = 64 * 1024
_MIN_RECORD_BYTES = 4  # the size of its entry in the value offsets
_UNKNOWN = -1  # the offset cannot be determined
_MAX_CHECKED_BYTES = 256 * 1024 * 1024
_MAX_BATCH_BYTES = 128 * 1024 * 1024  # NATS carries no message of more than 64 MiB


class Resync(NamedTuple):
    """A place where good batches continue: the position and the base offset of the first good
    batch."""

    position: int
    offset: int


class Headers:
    """Reads headers anywhere in a file, in windows; `at` returns None at the end of the file and at
    damage."""

    def __init__(self, file: File, window: int = _HEADER_WINDOW_BYTES) -> None:
        self._file = file
        self._window = window
        self._start = 0
        self._buffer = b""
        self._holes: tuple[range, ...] = ()

    def at(self, position: int) -> BatchHeader | None:
        inside = position - self._start
        if inside < 0 or inside + HEADER_SIZE > len(self._buffer):
            self._start, inside = position, 0
            self._buffer, self._holes = read_around(self._file, self._window, position)
        try:
            return parse_header(self._buffer, inside)
        except (CorruptBatch, UnsupportedFormat):
            return None

    def is_unreadable(self, position: int) -> bool:
        """Return True if the disk cannot read the header at `position`. Call this method after
        `at`."""
        return first_hole(self._holes, position, HEADER_SIZE) is not None

    def is_cut_at(self, position: int, end: int) -> bool:
        """Return True if a header begins at `position` but does not fit before `end`."""
        start = read_zeroed(self._file, min(len(MAGIC), end - position), position)
        return end - position < HEADER_SIZE and start == MAGIC[: len(start)]


def find_resync(
    file: File,
    position: int,
    end: int,
    *,
    offset: int,
    epoch: int,
    header: BatchHeader | None = None,
    end_offset: int | None = None,
) -> Resync | None:
    """Find the first good batch in (position, end), after a bad batch of `offset` at `position`.

    `header` is the header of the bad batch, if it is readable and continues the log. `end` is the
    end of the data or a known border. `end_offset` is the offset that a chain must reach at `end`,
    or None if this offset is unknown. Memory and time are bounded for any input. Raises OSError.
    """
    headers = Headers(file)
    if end_offset is None:
        end = _readable_end(file, position, end)
    start = position + ALIGNMENT
    if header is not None and header.base_offset == offset:
        start = position + header.length
        if start >= end:
            return None
        following = headers.at(start)
        if (
            following is not None
            and following.base_offset == header.next_offset
            and following.leader_epoch >= header.leader_epoch
        ):
            return Resync(start, following.base_offset)
    budget = _MAX_CHECKED_BYTES
    broken: set[int] = set()  # positions from which no chain reaches the end
    for at in _magics(file, start, end):
        found = headers.at(at)
        if (
            found is None
            or not offset < found.base_offset <= offset + (at - position) // _MIN_RECORD_BYTES
            or found.leader_epoch < epoch
            or found.length > _MAX_BATCH_BYTES
        ):
            continue
        budget -= found.length
        if budget < 0:
            return None
        if not is_whole(file, at, found):
            continue
        reached = _follow(headers, at, end, found, broken)
        if _is_proof(reached, end_offset):
            return Resync(at, found.base_offset)
    return None


def leads_to(
    file: File, position: int, header: BatchHeader, end: int, end_offset: int | None = None
) -> bool:
    """Return True if a chain of headers leads from the batch at `position`, with the header
    `header`, to `end`, and reaches the offset `end_offset` there. Raises OSError."""
    if end_offset is None:
        end = _readable_end(file, position, end)
    reached = _follow(Headers(file), position, end, header, set())
    return _is_proof(reached, end_offset)


def _readable_end(file: File, position: int, end: int) -> int:
    """Return the end of the readable bytes, at which a chain without a known end offset may end.

    An unreadable page in the allocated space after the last batch counts as data, because its
    content is unknown. But there are zeros between the last batch and this page, and no chain can
    continue after zeros.
    """
    used = readable_end(file, position, end) - position
    return min(end, position + (used + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)


def _is_proof(reached: int | None, end_offset: int | None) -> bool:
    return reached is not None and (end_offset is None or reached in (end_offset, _UNKNOWN))


def _follow(
    headers: Headers, position: int, end: int, header: BatchHeader, broken: set[int]
) -> int | None:
    """Return the offset that the chain of headers from `position` reaches at `end`.

    If the chain breaks before `end`, returns None, and adds the positions of the chain to `broken`.
    A last batch that extends beyond `end` does not break the chain, because a crash leaves such a
    torn tail after good batches. An unreadable header does not break the chain either; the result
    is then _UNKNOWN. So the check accepts a chain inside a value if the end of the value is in an
    unreadable page.
    """
    passed = []
    current: BatchHeader | None = header
    while current is not None and position not in broken:
        passed.append(position)
        position += current.length
        offset, epoch = current.next_offset, current.leader_epoch
        if position >= end or headers.is_cut_at(position, end):
            return offset
        current = headers.at(position)
        if current is None and headers.is_unreadable(position):
            return _UNKNOWN
        if current is not None and (current.base_offset != offset or current.leader_epoch < epoch):
            current = None
    broken.update(passed)
    return None


def is_whole(file: File, position: int, header: BatchHeader) -> bool:
    """Return True if the body of the batch at `position` matches its header. Raises OSError."""
    try:
        verify_body(read_zeroed(file, header.length, position), header)
    except CorruptBatch:
        return False
    return True


def _magics(file: File, start: int, end: int) -> Iterator[int]:
    """Yield the aligned positions in [start, end) at which a batch may begin."""
    at = start
    while at < end:
        # The pieces overlap, so that a magic number across a border is found.
        raw = read_zeroed(file, min(_SEARCH_BYTES, end - at) + len(MAGIC), at)
        if not raw:
            return
        found = raw.find(MAGIC)
        while found >= 0:
            if found % ALIGNMENT == 0 and at + found < end:
                yield at + found
            found = raw.find(MAGIC, found + 1)
        at += _SEARCH_BYTES
