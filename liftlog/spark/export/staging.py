"""Rows on their way from the scan of a range to the merge of their keys.

A staged file is an Arrow file that lives as long as its run. It is written in portions, each as one
record batch for each bucket, empty ones too: so batch i belongs to bucket i modulo their number,
and whoever merges a bucket reads its batches and no others.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from liftlog.spark.columns import KEY
from liftlog.spark.export.buckets import Bucket, numbers_of
from liftlog.spark.export.inputs import check_rows, opened_whole
from liftlog.spark.export.store import Store, join

STAGED = "staged"

_PORTION_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StagedFile:
    """`rows` counts those of each bucket."""

    path: str
    size_bytes: int
    rows: tuple[int, ...]

    def part(self, bucket: Bucket) -> StagedPart:
        """`bucket` may be one of a coarser division."""
        return StagedPart(self.path, self.size_bytes, sum(self.rows[bucket.number :: bucket.total]))


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one bucket has in a staged file."""

    path: str
    size_bytes: int
    rows: int


class StagedWriter:
    """One file, begun with its first row; in `with`. `finish` says what it holds."""

    def __init__(self, store: Store, directory: str, schema: pa.Schema, buckets: int) -> None:
        self._store = store
        # Another attempt of the same task may be writing too.
        self._path = join(directory, f"{uuid.uuid4().hex}.arrow")
        self._schema = schema
        self._key = schema.names.index(KEY)
        self._rows = np.zeros(buckets, np.int64)
        self._stack = ExitStack()
        self._writer: Any = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _PORTION_BYTES:
            self._flush()

    def finish(self) -> tuple[StagedFile, ...]:
        """The file, durable on return; without rows there is none."""
        self._flush()
        if self._writer is None:
            return ()
        self._writer.close()
        self._stack.close()
        size = self._store.size(self._path)
        assert size is not None
        return (StagedFile(self._path, size, tuple(self._rows.tolist())),)

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
        portion = pa.Table.from_batches(self._held, self._schema).combine_chunks()
        self._held, self._held_bytes = [], 0
        if self._writer is None:
            file = self._stack.enter_context(self._store.writing(self._path))
            self._writer = pa.ipc.new_file(file, self._schema)
        buckets = len(self._rows)
        numbers = numbers_of(portion.column(self._key).combine_chunks(), buckets)
        counts = np.bincount(numbers, minlength=buckets)
        rows = portion.take(pa.array(np.argsort(numbers, kind="stable"))).combine_chunks()
        (whole,) = rows.to_batches()
        for end, count in zip(np.cumsum(counts).tolist(), counts.tolist(), strict=True):
            self._writer.write_batch(whole.slice(end - count, count))
        self._rows += counts


def read_part(
    store: Store, part: StagedPart, bucket: Bucket, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The columns of its rows, always in the same order. Raises StorageError."""
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
