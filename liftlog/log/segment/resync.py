"""Where good batches continue after damage.

A value may hold the bytes of whole foreign batches, perhaps put there on purpose, so a batch that
looks good proves nothing by itself. Two things do: the damaged batch's own header, when it is
readable, says where the next one begins; and a chain of headers, each continuing the one before,
that leads to a place known to be a border (an index entry, the end of the data). A chain inside a
value breaks where the value ends.
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
_MIN_RECORD_BYTES = 4  # a record costs at least its entry in the value offsets
_UNKNOWN = -1  # an offset that cannot be known
_MAX_CHECKED_BYTES = 256 * 1024 * 1024
_MAX_BATCH_BYTES = 128 * 1024 * 1024  # NATS carries no message of more than 64 MiB


class Resync(NamedTuple):
    """Good batches continue at `position` with the batch of `offset`."""

    position: int
    offset: int


class Headers:
    """Headers anywhere in a file, read in pieces; end of file and damage are both None."""

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
        """Whether the disk does not give the header there. Asked after `at`."""
        return first_hole(self._holes, position, HEADER_SIZE) is not None

    def is_cut_at(self, position: int, end: int) -> bool:
        """Whether a header begins at `position` that `end` cuts."""
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
    """The first good batch in (position, end), where the batch of `offset` at `position` is bad.

    `header` is the bad batch's own, when it could be read and continues the log. `end` is the end
    of the data or a known border; with `end_offset`, the offset that a chain must reach there.
    Costs bounded memory and time, whatever the bytes are. Raises OSError.
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
    broken: set[int] = set()  # positions from which no chain leads to the end
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
    """Whether a chain of headers leads from the batch at `position`, whose header this is, to
    `end`, and reaches `end_offset` there. Raises OSError."""
    if end_offset is None:
        end = _readable_end(file, position, end)
    reached = _follow(Headers(file), position, end, header, set())
    return _is_proof(reached, end_offset)


def _readable_end(file: File, position: int, end: int) -> int:
    """Where a chain may end that no offset is known for: where the readable bytes end.

    An unreadable page in the space allocated ahead counts as data, since what it held is not known.
    But the last batch ends before the zeros in front of that page, and no chain can lead further.
    """
    used = readable_end(file, position, end) - position
    return min(end, position + (used + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)


def _is_proof(reached: int | None, end_offset: int | None) -> bool:
    return reached is not None and (end_offset is None or reached in (end_offset, _UNKNOWN))


def _follow(
    headers: Headers, position: int, end: int, header: BatchHeader, broken: set[int]
) -> int | None:
    """The offset that the chain from `position` on reaches at `end`.

    None when it breaks before; then `broken` gets the positions that it passed. A last batch that
    the end cuts does not break it: that is the torn tail that a crash leaves after good batches.
    Nor, with the result _UNKNOWN, does a header that the disk does not give: what could break the
    chain there is not known, and a value whose end happens to lie in an unreadable page is not what
    this guards against.
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
    """Whether the body of the batch there is what its header says. Raises OSError."""
    try:
        verify_body(read_zeroed(file, header.length, position), header)
    except CorruptBatch:
        return False
    return True


def _magics(file: File, start: int, end: int) -> Iterator[int]:
    """Aligned positions in [start, end) at which a batch may begin."""
    at = start
    while at < end:
        # The pieces overlap by what a magic may need across the border.
        raw = read_zeroed(file, min(_SEARCH_BYTES, end - at) + len(MAGIC), at)
        if not raw:
            return
        found = raw.find(MAGIC)
        while found >= 0:
            if found % ALIGNMENT == 0 and at + found < end:
                yield at + found
            found = raw.find(MAGIC, found + 1)
        at += _SEARCH_BYTES
