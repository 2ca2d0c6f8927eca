"""Rows into the Parquet files of the table."""

from __future__ import annotations

import uuid
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from liftlog.spark.columns import OFFSET, SUBJECT
from liftlog.spark.export.buckets import ALL_KEYS, Bucket
from liftlog.spark.export.row_file import RowFile
from liftlog.spark.export.snapshot import DataFile, Kind, file_name
from liftlog.spark.export.store import Store, join

_ROW_GROUP_BYTES = 32 * 1024 * 1024
_ROW_GROUP_ROWS = 1024 * 1024


class PartWriter(RowFile):
    """One file of the table. `finish` says what it holds."""

    def __init__(
        self,
        store: Store,
        directory: str,
        kind: Kind,
        schema: pa.Schema,
        bucket: Bucket = ALL_KEYS,
    ) -> None:
        # Another attempt of the same task may be writing too.
        path = join(directory, file_name(kind, bucket, uuid.uuid4().hex))
        super().__init__(
            store, path, schema, portion_bytes=_ROW_GROUP_BYTES, portion_rows=_ROW_GROUP_ROWS
        )
        self._kind = kind
        self._bucket = bucket
        self._rows = 0
        self._min_offset: int | None = None
        self._max_offset = 0

    def finish(self) -> tuple[DataFile, ...]:
        """The file, durable on return; without rows there is none."""
        size = self._finish()
        if size is None:
            return ()
        assert self._min_offset is not None
        bounds = self._min_offset, self._max_offset
        return (DataFile(self._path, self._kind, self._rows, size, *bounds, self._bucket),)

    def _begin(self, file: BinaryIO) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            file,
            self._schema,
            compression="zstd",
            use_dictionary=[SUBJECT] if SUBJECT in self._schema.names else False,
            write_page_checksum=True,
            store_schema=False,
        )

    def _write(self, writer: Any, portion: pa.Table) -> None:
        writer.write_table(portion, row_group_size=_ROW_GROUP_ROWS)
        bounds = pc.min_max(portion.column(OFFSET)).as_py()
        self._rows += portion.num_rows
        self._max_offset = max(self._max_offset, bounds["max"])
        if self._min_offset is None or bounds["min"] < self._min_offset:
            self._min_offset = bounds["min"]


def split_by_key(batch: pa.RecordBatch, key: pa.Array) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows with a key, and those without."""
    if not key.null_count:
        return batch, batch.slice(0, 0)
    has_key = pc.is_valid(key)
    return batch.filter(has_key), batch.filter(pc.invert(has_key))
