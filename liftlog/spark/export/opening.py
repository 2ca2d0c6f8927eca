"""A table, opened by its place and format: for a run, or to read its newest snapshot.

Readers need neither Spark nor a daemon. deltalake is imported only for a Delta table.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from liftlog.spark.columns import KEY, OFFSET, schema_of
from liftlog.spark.export.files import read_rows
from liftlog.spark.export.manifests import ManifestTable
from liftlog.spark.export.planning import ExportRequest
from liftlog.spark.export.snapshot import Snapshot
from liftlog.spark.export.store import (
    LocalStore,
    Store,
    is_url,
    join,
    local_path,
    no_atomic_manifest,
    open_store,
)
from liftlog.spark.export.table import DELTA_LOG, Table


def open_table(request: ExportRequest) -> Table:
    """Raises LiftlogError."""
    if request.format == "delta":
        from liftlog.spark.export.delta import DeltaLakeTable

        return DeltaLakeTable(request.to, open_store(request.to), request.stream, request.columns)
    if is_url(request.to):
        raise no_atomic_manifest(request.to, "an object store has no hard links")
    return ManifestTable(request.to, LocalStore(local_path(request.to)))


def newest(directory: str) -> Snapshot | None:
    """The newest snapshot of the table in `directory`; None before the first export.

    Its files stay for an hour after the next snapshot (`--keep`), those of a Delta table as
    long as that table says. Raises CorruptMetadata.
    """
    store = open_store(directory)
    if not isinstance(store, LocalStore) or store.names(DELTA_LOG):
        from liftlog.spark.export.delta import newest_in

        return newest_in(directory, store)
    return ManifestTable(directory, store).newest()


def paths(directory: str) -> list[str]:
    """The files of the newest snapshot, for any reader of Parquet."""
    snapshot = newest(directory)
    return [] if snapshot is None else paths_of(directory, snapshot)


def paths_of(directory: str, snapshot: Snapshot) -> list[str]:
    root = open_store(directory).uri
    return [join(root, file.path) for file in snapshot.files]


def in_doubt(directory: str) -> Iterator[pa.RecordBatch]:
    """The keys of a compacted table for which a newer value may be among the lost records
    (`Snapshot.lost`): batches with the columns key and offset, in no particular order.

    A key that is not among them has its newest value. Raises CorruptMetadata, StorageError.
    """
    snapshot = newest(directory)
    if snapshot is not None:
        yield from rows_in_doubt(open_store(directory), snapshot)


def rows_in_doubt(store: Store, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
    """See `in_doubt`."""
    bound = snapshot.doubtful_below
    for file in snapshot.files:
        if file.kind == "keyless" or file.min_offset >= bound:
            continue
        for batch in read_rows(store, file, schema_of((KEY, OFFSET))):
            mask = pc.and_(pc.is_valid(batch.column(KEY)), pc.less(batch.column(OFFSET), bound))
            if pc.any(mask).as_py():
                yield batch.filter(mask)
