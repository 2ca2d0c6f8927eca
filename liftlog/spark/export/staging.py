"""Rows on their way from the scan of a range to the merge of their keys.

A staged file is an Arrow file that lives as long as its run. It is written in portions, each as one
record batch per bucket, empty ones included: so batch i belongs to bucket i modulo the number of
buckets, and the merge of a bucket reads only its batches.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from liftlog.spark.columns import KEY
from liftlog.spark.export.buckets import Bucket, numbers_of
from liftlog.spark.export.files import RowFile, check_rows, opened_whole
from liftlog.spark.export.store import Store, join

STAGED = "staged"

_PORTION_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StagedFile:
    """`rows` is the number of rows in each bucket."""

    path: str
    size_bytes: int
    rows: tuple[int, ...]

    def part(self, bucket: Bucket) -> StagedPart:
        """`bucket` can belong to a coarser division."""
        return StagedPart(self.path, self.size_bytes, sum(self.rows[bucket.number :: bucket.total]))


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The rows of one bucket in a staged file."""

    path: str
    size_bytes: int
    rows: int


class StagedWriter(RowFile):
    """One staged file. `finish` describes it."""

    def __init__(self, store: Store, directory: str, schema: pa.Schema, buckets: int) -> None:
        # Another attempt of the same task may be writing too.
        path = join(directory, f"{uuid.uuid4().hex}.arrow")
        super().__init__(store, path, schema, portion_bytes=_PORTION_BYTES)
        self._key = schema.names.index(KEY)
        self._rows = np.zeros(buckets, np.int64)

    def finish(self) -> tuple[StagedFile, ...]:
        """The file, durable on return; an empty tuple if there are no rows."""
        size = self._finish()
        if size is None:
            return ()
        return (StagedFile(self._path, size, tuple(self._rows.tolist())),)

    def _begin(self, file: BinaryIO) -> pa.RecordBatchFileWriter:
        return pa.ipc.new_file(file, self._schema)

    def _write(self, writer: Any, portion: pa.Table) -> None:
        portion = portion.combine_chunks()
        buckets = len(self._rows)
        numbers = numbers_of(portion.column(self._key).combine_chunks(), buckets)
        counts = np.bincount(numbers, minlength=buckets)
        rows = portion.take(pa.array(np.argsort(numbers, kind="stable"))).combine_chunks()
        (whole,) = rows.to_batches()
        for end, count in zip(np.cumsum(counts).tolist(), counts.tolist(), strict=True):
            writer.write_batch(whole.slice(end - count, count))
        self._rows += counts


def read_part(
    store: Store, part: StagedPart, bucket: Bucket, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The given columns of the rows, always in the same order. Raises StorageError."""
    rows = 0
    with opened_whole(store, part.path, part.size_bytes) as file:
        schema = pa.ipc.open_file(file).schema
        places = [schema.names.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        reader = pa.ipc.open_file(file, options=options)
        for number in range(bucket.number, reader.num_record_batches, bucket.total):
            batch = reader.get_batch(number)
            rows += batch.num_rows
            yield batch.select(columns)
    check_rows(part.path, rows, part.rows)
