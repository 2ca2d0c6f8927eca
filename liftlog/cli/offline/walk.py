"""The batches of one segment, one after the other, and every stretch that holds none.

Unlike recovery, which must decide what to keep, this only has to tell what is there. So it goes
on behind damage wherever the log's own batches can be recognised again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from liftlog.cli.offline.resync import find_resync
from liftlog.cli.offline.window import Readable, Window
from liftlog.errors import CorruptBatch
from liftlog.log.index import SparseIndex
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import BatchHeader, parse_header


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


def walk(
    file: Readable, base_offset: int, size: int, data_end: int, index: SparseIndex | None = None
) -> Iterator[Found | Missing]:
    """Every batch and every gap below `data_end`, in order of position.

    No byte at or past `size` is looked at; between the two lie zeros allocated ahead. `index` is
    the one of a sealed segment. Raises OSError, and UnsupportedFormat for what a newer liftlog
    wrote.
    """
    window = Window(file, size)
    position, expected, epoch = 0, base_offset, 0
    while position < data_end:
        header, batch, reason = _read_batch(window, position, expected, epoch)
        if header is not None and header.base_offset > expected:
            # Offsets tile without gaps, also after compaction.
            hole = f"the next batch begins at offset {header.base_offset}"
            yield Missing(position, position, expected, header.base_offset, hole)
            expected = header.base_offset
        if header is not None and batch is not None:
            yield Found(position, batch)
            position += header.length
            expected, epoch = header.next_offset, header.leader_epoch
            continue
        end, following = data_end, None
        if header is not None and _continues(window, position + header.length, data_end, header):
            end, following = position + header.length, header.next_offset
        else:
            found = find_resync(window, data_end, index, position, expected, epoch)
            if found is not None:
                end, following = found
        yield Missing(position, end, expected, following, reason, header)
        position = end
        expected = expected if following is None else following


def _read_batch(
    window: Window, position: int, expected: int, epoch: int
) -> tuple[BatchHeader | None, RecordBatch | None, str]:
    """The header if it is good and can continue the log, the batch if its body is good too, and
    what is wrong."""
    header = None
    try:
        header = parse_header(window.view(position, HEADER_SIZE))
        if header.base_offset < expected or header.leader_epoch < epoch:
            reason = (
                f"a batch of offset {header.base_offset}, epoch {header.leader_epoch} stands where "
                f"offset {expected}, epoch {epoch} goes on"
            )
            return None, None, reason
        return header, decode_batch(window.view(position, header.length)), ""
    except CorruptBatch as error:
        return header, None, error.message


def _continues(window: Window, position: int, data_end: int, header: BatchHeader) -> bool:
    """Whether the batch at `position` follows `header`, whose checksum says that it is ours."""
    if position >= data_end:
        return False
    try:
        return parse_header(window.view(position, HEADER_SIZE)).base_offset == header.next_offset
    except CorruptBatch:
        return False
