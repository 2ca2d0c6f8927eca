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
from liftlog.log.resync import find_resync, leads_to
from liftlog.log.unreadable import WINDOW_BYTES, FileWindow
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import BatchHeader, parse_header
from liftlog.records.place import Epochs, Place


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
    end_offset: int | None = None,
    epochs: Epochs = (),
) -> Iterator[Found | Missing]:
    """Every batch and every gap from `position`, where the batch of `base_offset` begins, to
    `data_end`, in order of position.

    No batch reaches past `size`; between the two lie zeros allocated ahead. `index` is the one of
    a sealed segment, `end_offset` the offset at which the log goes on at `data_end`, where that is
    known; `epochs` are those of the manifest. Raises OSError, and UnsupportedFormat for what a
    newer liftlog wrote.
    """
    window = FileWindow(file, size, window_bytes)
    place = Place(base_offset, end_offset, epochs=epochs)
    while position < data_end:
        expected = place.offset
        border = _border(index, position, expected, data_end, end_offset)
        header, batch, reason = _read_batch(window, position)
        if header is not None and not place.holds(header):
            reason = place.problem(header)
            if header.base_offset > expected and leads_to(file, position, header, *border):
                # The batches between are gone, and their bytes as well.
                yield Missing(position, position, expected, header.base_offset, reason)
                place.go_on_at(header.base_offset)
            if not place.holds(header):
                header = batch = None
        if header is not None and batch is not None:
            yield Found(position, batch)
            position += header.length
            place.pass_by(header)
            continue
        expected = place.offset
        end, following = _behind(file, position, place, border, header)
        yield Missing(position, end, expected, following, reason, header)
        position = end
        place.go_on_at(expected if following is None else following)


def _read_batch(
    window: FileWindow, position: int
) -> tuple[BatchHeader | None, RecordBatch | None, str]:
    """The header if it is good, the batch if its body is good too, and what is wrong."""
    header = None
    try:
        header = parse_header(window.view(position, HEADER_SIZE))
        return header, decode_batch(window.view(position, header.length)), ""
    except CorruptBatch as error:
        length = HEADER_SIZE if header is None else header.length
        return header, None, window.unreadable(position, length) or error.message


def _border(
    index: SparseIndex | None,
    position: int,
    expected: int,
    data_end: int,
    end_offset: int | None,
) -> tuple[int, int | None]:
    """The next place behind `position` at which a batch begins for sure, or the data end, and the
    offset there if that is known."""
    border = index.after_position(position) if index is not None else None
    if border is None or border.position >= data_end or border.offset <= expected:
        return data_end, end_offset
    return border.position, border.offset


def _behind(
    file: File,
    position: int,
    place: Place,
    border: tuple[int, int | None],
    header: BatchHeader | None,
) -> tuple[int, int | None]:
    """Where to go on behind a bad batch, and the offset there; None at the end of the data."""
    end, end_offset = border
    found = find_resync(
        file,
        position,
        end,
        offset=place.offset,
        epoch=place.sure_epoch,
        header=header,
        end_offset=end_offset,
    )
    return border if found is None else (found.position, found.offset)
