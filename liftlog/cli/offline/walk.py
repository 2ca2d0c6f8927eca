"""The batches of one segment, one after the other, and every stretch that holds none.

Unlike recovery, which must decide what to keep, this only has to tell what is there. So it goes
on behind damage wherever a batch can be recognised again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from liftlog.errors import CorruptBatch
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import ALIGNMENT, HEADER_SIZE, MAGIC
from liftlog.records.header import BatchHeader, parse_header

_WINDOW_BYTES = 4 * 1024 * 1024
_MIN_RECORD_BYTES = 4


class Readable(Protocol):
    def pread(self, length: int, position: int) -> bytes: ...


class Found(NamedTuple):
    """A whole batch that continues the log."""

    position: int
    batch: RecordBatch


class Missing(NamedTuple):
    """No good batch in [position, end_position).

    It should have held [first_offset, next_offset); next_offset is None when nothing follows
    that would tell. `header` is set when the batch's header is good and only its body is not.
    """

    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    reason: str
    header: BatchHeader | None = None

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.position


class _Window:
    """The file in large pieces, so that a walk reads each byte about once."""

    def __init__(self, file: Readable, size: int) -> None:
        self._file = file
        self._size = size
        self._start = 0
        self._buffer = b""

    def view(self, position: int, length: int) -> memoryview:
        """`length` bytes at `position`, fewer at the end."""
        length = min(length, self._size - position)
        at = position - self._start
        if at < 0 or at + length > len(self._buffer):
            wanted = min(max(length, _WINDOW_BYTES), self._size - position)
            self._start, at, self._buffer = position, 0, self._file.pread(wanted, position)
        return memoryview(self._buffer)[at : at + length]


def walk(file: Readable, base_offset: int, size: int, data_end: int) -> Iterator[Found | Missing]:
    """Every batch and every gap below `data_end`, in order of position.

    No byte at or past `size` is looked at; between the two lie zeros allocated ahead. Raises
    OSError, and UnsupportedFormat for what a newer liftlog wrote.
    """
    window = _Window(file, size)
    position, expected, epoch = 0, base_offset, 0
    while position < data_end:
        header, reason = None, ""
        try:
            header = parse_header(window.view(position, HEADER_SIZE))
            if header.base_offset < expected or header.leader_epoch < epoch:
                reason = f"the batch there is of offset {header.base_offset}, epoch "
                reason += f"{header.leader_epoch}; offset {expected}, epoch {epoch} goes on here"
                header = None
            else:
                batch = decode_batch(window.view(position, header.length))
        except CorruptBatch as error:
            reason = error.message
        if header is not None and header.base_offset > expected:
            # Offsets tile without gaps, also after compaction.
            hole = f"the next batch begins at offset {header.base_offset}"
            yield Missing(position, position, expected, header.base_offset, hole)
            expected = header.base_offset
        if not reason and header is not None:
            yield Found(position, batch)
            position += header.length
            expected, epoch = header.next_offset, header.leader_epoch
            continue
        end, following = _behind(window, data_end, position, expected, epoch, header)
        yield Missing(position, end, expected, following, reason, header)
        position = end
        if following is not None:
            expected = following


def _behind(
    window: _Window, end: int, position: int, expected: int, epoch: int, header: BatchHeader | None
) -> tuple[int, int | None]:
    """Where the next good batch begins, and its offset; the end and None when there is none."""
    if header is not None and position + header.length < end:
        # The header has a checksum of its own: it can be believed.
        at = position + header.length
        try:
            if parse_header(window.view(at, HEADER_SIZE)).base_offset == header.next_offset:
                return at, header.next_offset
        except CorruptBatch:
            pass
    at = position + ALIGNMENT
    while at < end:
        # A magic that begins in this piece ends in it: the next piece overlaps by 8 bytes.
        raw = bytes(window.view(at, _WINDOW_BYTES))
        candidate = raw.find(MAGIC)
        while candidate >= 0:
            found = at + candidate
            if found % ALIGNMENT == 0:
                most = expected + (found - position) // _MIN_RECORD_BYTES
                offset = _begins_chain(window, end, found, expected, most, epoch)
                if offset is not None:
                    return found, offset
            candidate = raw.find(MAGIC, candidate + 1)
        if at + len(raw) >= end:
            break
        at += max(len(raw) - ALIGNMENT, ALIGNMENT)
    return end, None


def _begins_chain(
    window: _Window, end: int, position: int, expected: int, most: int, epoch: int
) -> int | None:
    """The offset of the good batch at `position`, if another one follows it or the data ends.

    A value may hold the bytes of a whole foreign batch; nothing that continues it follows there.
    """
    try:
        header = parse_header(window.view(position, HEADER_SIZE))
        if not expected <= header.base_offset <= most or header.leader_epoch < epoch:
            return None
        decode_batch(window.view(position, header.length))
        at = position + header.length
        if (
            at < end
            and parse_header(window.view(at, HEADER_SIZE)).base_offset != header.next_offset
        ):
            return None
    except CorruptBatch:
        return None
    return header.base_offset
