"""The batches of one segment, one after the other, and every stretch that holds none.

Unlike recovery, which must decide what to keep, this only has to tell what is there. So it goes
on behind damage wherever the log's own batches can be recognised again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from liftlog.errors import CorruptBatch
from liftlog.log.filesystem import File
from liftlog.log.index import SparseIndex
from liftlog.log.resync import find_resync
from liftlog.log.window import WINDOW_BYTES, FileWindow
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
    file: File,
    base_offset: int,
    size: int,
    data_end: int,
    index: SparseIndex | None = None,
    *,
    position: int = 0,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Found | Missing]:
    """Every batch and every gap from `position`, where the batch of `base_offset` begins, to
    `data_end`, in order of position.

    No batch reaches past `size`; between the two lie zeros allocated ahead. `index` is the one of
    a sealed segment. Raises OSError, and UnsupportedFormat for what a newer liftlog wrote.
    """
    window = FileWindow(file, size, window_bytes)
    expected, epoch = base_offset, 0
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
        end, following = _behind(file, data_end, index, position, expected, epoch, header)
        yield Missing(position, end, expected, following, reason, header)
        position = end
        expected = expected if following is None else following


def _read_batch(
    window: FileWindow, position: int, expected: int, epoch: int
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
        length = HEADER_SIZE if header is None else header.length
        return header, None, window.unreadable(position, length) or error.message


def _behind(
    file: File,
    data_end: int,
    index: SparseIndex | None,
    position: int,
    expected: int,
    epoch: int,
    header: BatchHeader | None,
) -> tuple[int, int | None]:
    """Where to go on behind a bad batch, and the offset there; None at the end of the data."""
    border = index.after_position(position) if index is not None else None
    if border is not None and (border.position >= data_end or border.offset <= expected):
        border = None
    found = find_resync(
        file,
        position,
        data_end if border is None else border.position,
        offset=expected,
        epoch=epoch,
        header=header,
        end_offset=None if border is None else border.offset,
    )
    if found is not None:
        return found.position, found.offset
    return (data_end, None) if border is None else (border.position, border.offset)
