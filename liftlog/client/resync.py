"""Where good batches continue after a damaged header, inside one whole answer.

What proves it is a chain of headers, each continuing the one before, that leads to the end of the
answer and to the offset that the daemon said it ends with. A batch from which no chain leads there
may be a batch of the log with more damage after it, or bytes in the value of a record: then nothing
is proven, and the daemon has to be asked.
"""

from __future__ import annotations

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.records.format import ALIGNMENT, HEADER_SIZE, MAGIC
from liftlog.records.header import BatchHeader, parse_header, verify_body


def find_good_batch(body: memoryview, position: int, offset: int, end_offset: int) -> int | None:
    """The offset of the first good batch after `position`, where the batch of `offset` is damaged.

    `end_offset` is where the answer ends; it is the result when there is no good batch before it.
    None when nothing can be proven.
    """
    raw = body.tobytes()
    at = raw.find(MAGIC, position + ALIGNMENT)
    while at >= 0:
        header = _header_at(body, at) if at % ALIGNMENT == 0 else None
        if header is not None and header.base_offset > offset:
            if not _leads_to_end(body, at, header, end_offset):
                return None
            if _is_whole(body, at, header):
                return header.base_offset
        at = raw.find(MAGIC, at + 1)
    return end_offset


def _header_at(body: memoryview, position: int) -> BatchHeader | None:
    if position + HEADER_SIZE > len(body):
        return None
    try:
        return parse_header(body, position)
    except (CorruptBatch, UnsupportedFormat):
        return None


def _is_whole(body: memoryview, position: int, header: BatchHeader) -> bool:
    try:
        verify_body(body[position : position + header.length], header)
    except CorruptBatch:
        return False
    return True


def _leads_to_end(body: memoryview, position: int, header: BatchHeader, end_offset: int) -> bool:
    current: BatchHeader | None = header
    while current is not None:
        position += current.length
        offset, epoch = current.next_offset, current.leader_epoch
        if position == len(body):
            return offset == end_offset
        current = _header_at(body, position)
        if current is not None and (current.base_offset != offset or current.leader_epoch < epoch):
            current = None
    return False
