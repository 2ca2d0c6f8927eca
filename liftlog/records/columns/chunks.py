"""Groups batches that are processed in one step: one large batch, or similar small neighbours."""

from __future__ import annotations

from itertools import pairwise

from liftlog.records.columns.batch_columns import decode_columns, decode_keys
from liftlog.records.columns.column_set import Columns, KeyedRecords
from liftlog.records.columns.many import can_decode_together, decode_many
from liftlog.records.decode import RecordBatch
from liftlog.records.format import KEYS
from liftlog.records.header import BatchHeader

_SMALL_BYTES = 4096


class Chunk:
    """One large batch, or several small batches that follow each other. All have the same leader
    epoch.

    `header` is the header of the first batch, with the offset range of all batches.
    """

    __slots__ = ("_columns", "batches", "header")

    def __init__(self, batches: list[RecordBatch]) -> None:
        self.batches = batches
        self._columns: Columns | None = None
        self.header: BatchHeader = batches[0].header
        if len(batches) > 1:
            self.header = with_range(
                self.header, self.header.base_offset, batches[-1].header.last_offset
            )

    @property
    def record_count(self) -> int:
        return sum([batch.header.record_count for batch in self.batches])

    @property
    def is_one_batch(self) -> bool:
        return len(self.batches) == 1

    def columns(self) -> Columns:
        """Return all records. Raises CorruptBatch."""
        if self.is_one_batch:
            return decode_columns(self.batches[0])
        if self._columns is None:
            self._columns = decode_many(self.batches)
        return self._columns

    def keyed(self) -> KeyedRecords | None:
        """Return the keys; None if no record has a key. Raises CorruptBatch."""
        if self.is_one_batch or not self.header.attributes & KEYS:
            return decode_keys(self.batches[0])
        columns = self.columns()
        assert columns.keys is not None
        return KeyedRecords(columns.offsets, columns.keys, columns.values.valid)


def with_range(header: BatchHeader, base_offset: int, last_offset: int) -> BatchHeader:
    return header._replace(base_offset=base_offset, last_offset_delta=last_offset - base_offset)


def chunks_of(window: list[RecordBatch]) -> list[Chunk]:
    """Divide a run of batches into chunks."""
    if not window:
        return []
    chunks = []
    group = [window[0]]
    for batch, following in pairwise(window):
        if not _belong_together(batch, following):
            chunks.append(Chunk(group))
            group = []
        group.append(following)
    chunks.append(Chunk(group))
    return chunks


def _belong_together(one: RecordBatch, other: RecordBatch) -> bool:
    return (
        len(one.raw) <= _SMALL_BYTES
        and len(other.raw) <= _SMALL_BYTES
        and one.header.leader_epoch == other.header.leader_epoch
        and other.header.record_count > 0
        and can_decode_together(one, other)
    )
