"""Rows into Parquet files that are durable when they are named. Used by the tasks."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from liftlog.spark.columns import OFFSET, SUBJECT
from liftlog.spark.export.buckets import ALL_KEYS, Bucket
from liftlog.spark.export.snapshot import DataFile, Kind, file_name
from liftlog.spark.export.store import Store, join

_ROW_GROUP_BYTES = 32 * 1024 * 1024
_ROW_GROUP_ROWS = 1024 * 1024


class PartWriter:
    """One file, begun with its first row; in `with`. `finish` says what it holds."""

    def __init__(
        self,
        store: Store,
        directory: str,
        kind: Kind,
        schema: pa.Schema,
        bucket: Bucket = ALL_KEYS,
    ) -> None:
        self._store = store
        # Another attempt of the same task may be writing too.
        self._path = join(directory, file_name(kind, bucket, uuid.uuid4().hex))
        self._kind = kind
        self._bucket = bucket
        self._schema = schema
        self._stack = ExitStack()
        self._writer: Any = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._held_rows = 0
        self._rows = 0
        self._min_offset: int | None = None
        self._max_offset = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        self._held_rows += batch.num_rows
        if self._held_bytes >= _ROW_GROUP_BYTES or self._held_rows >= _ROW_GROUP_ROWS:
            self._flush()

    def finish(self) -> tuple[DataFile, ...]:
        """The file, durable on return; without rows there is none."""
        self._flush()
        if self._writer is None:
            return ()
        self._writer.close()
        self._stack.close()
        size = self._store.size(self._path)
        assert size is not None
        assert self._min_offset is not None
        bounds = self._min_offset, self._max_offset
        return (DataFile(self._path, self._kind, self._rows, size, *bounds, self._bucket),)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held = []
        self._stack.__exit__(kind, error, trace)

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self._schema)
        self._held, self._held_bytes, self._held_rows = [], 0, 0
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._stack.enter_context(self._store.writing(self._path)),
                self._schema,
                compression="zstd",
                use_dictionary=[SUBJECT] if SUBJECT in self._schema.names else False,
                write_page_checksum=True,
                store_schema=False,
            )
        self._writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
        bounds = pc.min_max(table.column(OFFSET)).as_py()
        self._rows += table.num_rows
        self._max_offset = max(self._max_offset, bounds["max"])
        if self._min_offset is None or bounds["min"] < self._min_offset:
            self._min_offset = bounds["min"]


def split_by_key(batch: pa.RecordBatch, key: pa.Array) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows with a key, and those without."""
    if not key.null_count:
        return batch, batch.slice(0, 0)
    has_key = pc.is_valid(key)
    return batch.filter(has_key), batch.filter(pc.invert(has_key))
