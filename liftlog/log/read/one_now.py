"""Reads one record that is in memory, without a wait for the disk.

The event loop may call this. Everything unusual (damage, a file that is not open, bytes that are
not in the page cache) is left to `reading.py`, which threads call, and which reports problems.
"""

from __future__ import annotations

from bisect import bisect_right

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log.environment import FilePool, LogEnvironment
from liftlog.log.segment.index import IndexEntry, SparseIndex
from liftlog.log.segment.segment import Segment
from liftlog.log.state import ReadView
from liftlog.records.codecs import raw_length
from liftlog.records.decode import Record, decode_batch
from liftlog.records.header import parse_header
from liftlog.records.place import Place

_MOST_BYTES = 256 * 1024
"""Maximum number of bytes to read and check for one record, and to decompress."""
_START_BYTES = 72
"""Size of the start of a batch that contains its length without compression."""


def read_one_now(view: ReadView, environment: LogEnvironment, offset: int) -> Record | None:
    """Return the record at `offset`. Returns None if the record does not exist or is not in memory;
    only a read that may wait for the disk distinguishes the two cases."""
    if not view.manifest.log_start_offset <= offset < view.committed.offset:
        return None
    i = bisect_right(view.segments, offset, key=lambda segment: segment.base_offset) - 1
    segment = view.segments[max(i, 0)]
    end = view.readable_end(segment)
    index = view.active_index if not segment.sealed else environment.indexes.in_memory(segment)
    if index is None or offset >= end.offset:
        return None
    if view.manifest.quarantined and view.damaged(segment):
        return None
    if view.hides(offset):
        return None
    try:
        return _read(environment.pool, index, segment, end, view, offset)
    except (CorruptBatch, UnsupportedFormat, OSError):
        return None


def _read(
    pool: FilePool,
    index: SparseIndex,
    segment: Segment,
    end: IndexEntry,
    view: ReadView,
    offset: int,
) -> Record | None:
    """Read the bytes between two index entries, and find the batch of the record in them."""
    start = index.floor(offset)
    following = index.after_position(start.position)
    stop = end if following is None or following.position > end.position else following
    length = stop.position - start.position
    if not 0 < length <= _MOST_BYTES:
        return None
    body = bytearray(length)
    if not pool.read_now(segment.path, body, start.position):
        return None
    place = Place(start.offset, stop.offset, epochs=view.manifest.epochs)
    position = 0
    while position < length:
        header = parse_header(body, position)
        if not place.accept(header):
            return None
        if header.next_offset > offset:
            if raw_length(bytes(body[position : position + _START_BYTES]), header) > _MOST_BYTES:
                return None
            return decode_batch(body, position).record_at(offset)
        position += header.length
    return None
