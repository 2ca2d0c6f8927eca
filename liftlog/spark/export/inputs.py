"""What a merge reads: files that other tasks have written, on this host or on others.

Each is asked for by its name and has to be here as it was written, so a directory that not all
hosts share is an error and never a smaller table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from liftlog.errors import StorageError
from liftlog.spark.export.snapshot import DataFile
from liftlog.spark.export.store import Store, join

_MOST_ROWS = 64 * 1024
_MOST_BYTES = 32 * 1024 * 1024


@contextmanager
def opened_whole(store: Store, path: str, size_bytes: int) -> Iterator[Any]:
    """A file to read. Raises StorageError, also where what it holds makes no sense."""
    found = store.size(path)
    if found != size_bytes:
        what = "is not there" if found is None else f"has {found} of {size_bytes} bytes"
        raise StorageError(
            f"{join(store.uri, path)} {what} on the host of a task",
            hint="--to has to be a directory that all hosts share",
        )
    with store.opened(path) as file:
        try:
            yield file
        except pa.ArrowException as error:
            raise StorageError(f"reading {join(store.uri, path)}: {error}") from error


def check_rows(path: str, found: int, wanted: int) -> None:
    """Raises StorageError."""
    if found != wanted:
        raise StorageError(f"{path} holds {found} rows where there should be {wanted}")


def read_rows(store: Store, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, always in the same order. Raises StorageError.

    Other tools may have written it: in row groups of any size, and in types that are as good.
    """
    with opened_whole(store, file.path, file.size_bytes) as opened:
        parquet = pq.ParquetFile(opened, page_checksum_verification=True)
        described = parquet.metadata
        if file.kind != "records":
            check_rows(file.path, described.num_rows, file.rows)
        groups = [described.row_group(number) for number in range(described.num_row_groups)]
        size_bytes = sum(group.total_byte_size for group in groups)
        most = max(_MOST_BYTES * described.num_rows // max(size_bytes, 1), 1)
        for batch in parquet.iter_batches(
            min(most, _MOST_ROWS), columns=schema.names, use_threads=False
        ):
            found = batch.select(schema.names)
            yield found if found.schema.equals(schema) else found.cast(schema)
