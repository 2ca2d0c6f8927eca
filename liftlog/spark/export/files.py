"""The files of an export, written and read by tasks on any host.

A file is created with its first row, and is durable before a snapshot names it. A reader opens a
file by name and size. So if hosts do not share the directory, the reader gets an error, and never a
table with fewer rows.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from liftlog.errors import StorageError
from liftlog.spark.columns import KEY, OFFSET, SUBJECT, schema_of
from liftlog.spark.export.buckets import ALL_KEYS, Bucket, numbers_of
from liftlog.spark.export.snapshot import DataFile, Kind, file_name
from liftlog.spark.export.store import Store, join

_ROW_GROUP_BYTES = 32 * 1024 * 1024
_ROW_GROUP_ROWS = 1024 * 1024
_READ_ROWS = 64 * 1024
_READ_BYTES = 32 * 1024 * 1024
_PORTION_BYTES = 32 * 1024 * 1024

STAGED = "staged"

Offsets: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


class RowFile(ABC):
    """Writes one file; used in `with`. Rows are collected in memory, and written in portions.

    Subclasses define the format. If an exception leaves a file incomplete, no snapshot names the
    file, and it is removed together with the other files of its run.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        schema: pa.Schema,
        *,
        portion_bytes: int,
        portion_rows: int | None = None,
    ) -> None:
        self._store = store
        self._path = path
        self._schema = schema
        self._portion_bytes = portion_bytes
        self._portion_rows = portion_rows
        self._stack = ExitStack()
        self._writer: Any = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._held_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        self._held_rows += batch.num_rows
        if self._held_bytes >= self._portion_bytes or (
            self._portion_rows is not None and self._held_rows >= self._portion_rows
        ):
            self._flush()

    @abstractmethod
    def _begin(self, file: BinaryIO) -> Any:
        """Create the writer for the file's format. The writer has a method `close`."""

    @abstractmethod
    def _write(self, writer: Any, portion: pa.Table) -> None: ...

    def _finish(self) -> int | None:
        """Close the file and return its size; durable on return. Returns None if there were no
        rows, and so no file.

        Raises StorageError, also if the file no longer exists, because another run has treated this
        run as stopped and has removed its files.
        """
        self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        self._stack.close()
        size = self._store.size(self._path)
        if size is None:
            raise StorageError(
                f"{join(self._store.uri, self._path)} was removed by another process"
            )
        return size

    def _flush(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._writer = self._begin(self._stack.enter_context(self._store.writing(self._path)))
        self._write(self._writer, self._portion())

    def _portion(self) -> pa.Table:
        """Return the collected rows. The object keeps no reference to these rows, so that the
        caller can free their memory."""
        held, self._held = self._held, []
        self._held_bytes = self._held_rows = 0
        return pa.Table.from_batches(held, self._schema)

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


class PartWriter(RowFile):
    """Writes one Parquet file of the table; `finish` returns its description."""

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
        """Finish the file, and return its description; durable on return; empty if there were no
        rows."""
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
    """Return the rows with a key, and the rows without a key."""
    if not key.null_count:
        return batch, batch.slice(0, 0)
    has_key = pc.is_valid(key)
    return batch.filter(has_key), batch.filter(pc.invert(has_key))


@contextmanager
def opened_whole(store: Store, path: str, size_bytes: int) -> Iterator[Any]:
    """Open a file for reading. Raises StorageError, also if the content is invalid."""
    found = store.size(path)
    if found != size_bytes:
        what = "is not there" if found is None else f"has {found} of {size_bytes} bytes"
        raise StorageError(
            f"{join(store.uri, path)} {what} on the host of a task",
            hint="--to must be a directory that all hosts share",
        )
    with store.opened(path) as file:
        try:
            yield file
        except pa.ArrowException as error:
            raise StorageError(f"reading {join(store.uri, path)}: {error}") from error


def check_rows(path: str, found: int, wanted: int) -> None:
    """Raise StorageError if `found`, the number of rows in the file, is not `wanted`."""
    if found != wanted:
        raise StorageError(f"{path} contains {found} rows instead of {wanted}")


def read_rows(store: Store, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, always in the same order. Raises StorageError.

    Another tool may have written the file: its row groups can have any size, and its types may
    differ but are compatible.
    """
    with opened_whole(store, file.path, file.size_bytes) as opened:
        parquet = pq.ParquetFile(opened, page_checksum_verification=True)
        described = parquet.metadata
        if file.kind != "records":
            check_rows(file.path, described.num_rows, file.rows)
        groups = [described.row_group(number) for number in range(described.num_row_groups)]
        size_bytes = sum(group.total_byte_size for group in groups)
        most = max(_READ_BYTES * described.num_rows // max(size_bytes, 1), 1)
        for batch in parquet.iter_batches(
            min(most, _READ_ROWS), columns=schema.names, use_threads=False
        ):
            found = batch.select(schema.names)
            yield found if found.schema.equals(schema) else found.cast(schema)


def read_offsets(store: Store, files: Sequence[DataFile]) -> Offsets:
    """Return all offsets in these files, sorted. Raises StorageError."""
    schema = schema_of((OFFSET,))
    batches = [batch for file in files for batch in read_rows(store, file, schema)]
    return np.sort(pa.Table.from_batches(batches, schema).column(OFFSET).to_numpy())


def are_among(offsets: Offsets, some: Offsets) -> Flags:
    """Return True for each offset that is in `some`, which is sorted."""
    if not len(some):
        return np.zeros(len(offsets), np.bool_)
    places = np.minimum(np.searchsorted(some, offsets), len(some) - 1)
    found: Flags = some[places] == offsets
    return found


# --- staged rows: written by the scan of a range, read by the merge of their keys ---


@dataclass(frozen=True, slots=True)
class StagedFile:
    """An Arrow file that exists until its run has ended. `rows` is the number of rows in each
    bucket.

    Rows are written in portions. Each portion has one record batch for each bucket, even if that
    batch is empty. So record batch i belongs to bucket i modulo the number of buckets, and the
    merge of a bucket reads only the batches of this bucket.
    """

    path: str
    size_bytes: int
    rows: tuple[int, ...]

    def part(self, bucket: Bucket) -> StagedPart:
        """Return the rows of `bucket`. The bucket may belong to a coarser division than the file.
        Raises ValueError if it belongs to a finer division."""
        if bucket.total > len(self.rows):
            raise ValueError(f"{self.path} has {len(self.rows)} buckets, not {bucket.total}")
        rows = sum(self.rows[bucket.number :: bucket.total])
        return StagedPart(self.path, self.size_bytes, bucket, rows)


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The rows of one bucket in a staged file."""

    path: str
    size_bytes: int
    bucket: Bucket
    rows: int


class StagedWriter(RowFile):
    """Writes one staged file; `finish` returns its description."""

    def __init__(self, store: Store, directory: str, schema: pa.Schema, buckets: int) -> None:
        # Another attempt of the same task may be writing too.
        path = join(directory, f"{uuid.uuid4().hex}.arrow")
        super().__init__(store, path, schema, portion_bytes=_PORTION_BYTES)
        self._key = schema.names.index(KEY)
        self._rows = np.zeros(buckets, np.int64)

    def finish(self) -> tuple[StagedFile, ...]:
        """Finish the file, and return its description; durable on return. An empty tuple if there
        were no rows."""
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


def read_part(store: Store, part: StagedPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the given columns of the rows, always in the same order. Raises StorageError."""
    rows = 0
    first, step = part.bucket
    with opened_whole(store, part.path, part.size_bytes) as file:
        schema = pa.ipc.open_file(file).schema
        places = [schema.names.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        reader = pa.ipc.open_file(file, options=options)
        for number in range(first, reader.num_record_batches, step):
            batch = reader.get_batch(number)
            rows += batch.num_rows
            yield batch.select(columns)
    check_rows(part.path, rows, part.rows)
