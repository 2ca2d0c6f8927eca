"""Opens a table by its location and format: for a run, or to read its newest snapshot.

Readers need neither Spark nor a daemon. deltalake is imported only for a Delta table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from liftlog.errors import Conflict, InvalidArgument, StreamNotFound
from liftlog.spark.columns import KEY, OFFSET, did_you_mean, schema_of
from liftlog.spark.export.files import are_among, read_offsets, read_rows
from liftlog.spark.export.manifests import ManifestTable
from liftlog.spark.export.planning import ExportRequest
from liftlog.spark.export.snapshot import DataFile, Snapshot
from liftlog.spark.export.store import (
    LocalStore,
    Store,
    is_url,
    join,
    local_path,
    no_atomic_manifest,
    open_store,
)
from liftlog.spark.export.table import DELTA_LOG, LEAST_SNAPSHOTS, Table


def open_table(request: ExportRequest) -> Table:
    """Open the table of the request for a run. Raises LiftlogError."""
    if request.format == "delta":
        from liftlog.spark.export.delta import DeltaLakeTable

        return DeltaLakeTable(request.to, open_store(request.to), request.stream, request.columns)
    if is_url(request.to):
        raise no_atomic_manifest(request.to, "an object store has no hard links")
    return ManifestTable(request.to, LocalStore(local_path(request.to)))


def newest(directory: str) -> Snapshot | None:
    """Return the newest snapshot of the table in `directory`; None before the first export.

    Its files stay for an hour (`--keep`) after the next snapshot is committed. Files of a Delta
    table stay for the time that the table's property defines. Raises InvalidArgument,
    CorruptMetadata.
    """
    store = _store_of(directory)
    if not isinstance(store, LocalStore) or store.names(DELTA_LOG):
        from liftlog.spark.export.delta import newest_in

        return newest_in(directory, store)
    return ManifestTable(directory, store).newest()


def _store_of(directory: str) -> Store:
    """Open the store of a table. Raises InvalidArgument if the path is a file, or below a file."""
    store = open_store(directory)
    if isinstance(store, LocalStore) and any(
        one.exists() and not one.is_dir() for one in (store.root, *store.root.parents)
    ):
        raise InvalidArgument(
            f"{directory} is not the directory of an export, but a file, or below one",
            hint="give the directory that `liftlog export STREAM --to DIR` has written",
        )
    return store


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The files and directories that `vacuum` has removed, or with `dry_run` would remove, and
    their size."""

    paths: tuple[str, ...]
    size_bytes: int
    dry_run: bool


def vacuum(
    directory: str,
    *,
    keep_seconds: float,
    keep_snapshots: int | None = None,
    dry_run: bool = False,
    now_ns: int | None = None,
) -> Vacuumed:
    """Remove superseded snapshots, and files that stopped runs have left.

    A snapshot is removed when the next snapshot is `keep_seconds` old, unless it is among the
    newest `keep_snapshots` snapshots (None: two). The newest snapshot always stays. For a Delta
    table `keep_snapshots` has no effect, and `keep_seconds` is rounded up to hours. Files of runs
    in progress are not removed. Raises StreamNotFound, InvalidArgument, CorruptMetadata,
    StorageError.
    """
    store, snapshot = _store_of(directory), newest(directory)
    if snapshot is None:
        raise nothing_in(directory)
    opened: Table
    if isinstance(store, LocalStore) and not store.names(DELTA_LOG):
        opened = ManifestTable(directory, store)
    else:
        from liftlog.spark.export.delta import DeltaLakeTable

        if keep_snapshots is not None:
            raise InvalidArgument(
                f"{directory} is a Delta table, whose snapshots are kept by age alone",
                hint="leave out --keep-snapshots, and give --keep",
            )
        opened = DeltaLakeTable(directory, store, snapshot.stream, snapshot.columns)
    now_ns = time.time_ns() if now_ns is None else now_ns
    found = opened.garbage(now_ns, keep_seconds, keep_snapshots or LEAST_SNAPSHOTS)
    size_bytes = 0
    for path in found:
        size_bytes += store.total_bytes(path)
        if not dry_run:
            store.remove(path)
    return Vacuumed(tuple(found), size_bytes, dry_run)


def paths(directory: str) -> list[str]:
    """Return the files of the newest snapshot, for any reader of Parquet.

    Raises Conflict if some rows in these files do not count, as in a table with the layout
    merge-on-read.
    """
    snapshot = newest(directory)
    if snapshot is None:
        return []
    if snapshot.removed:
        raise Conflict(
            f"{directory} is merged on read: some rows of its files do not count",
            hint="read it with `read`, `batches` or the SQL of `query` in liftlog.spark.export, or "
            "run `liftlog export` with --copy-on-write",
        )
    return paths_of(directory, snapshot.files)


def paths_of(directory: str, files: Sequence[DataFile]) -> list[str]:
    root = open_store(directory).uri
    return [join(root, file.path) for file in files]


def batches(directory: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the newest snapshot, in no particular order. If `columns` is None, the
    rows have all columns.

    Needs memory for one portion of rows, and for the offsets of rows that do not count. Raises
    StreamNotFound, CorruptMetadata, StorageError, InvalidArgument.
    """
    snapshot = newest(directory)
    if snapshot is None:
        raise nothing_in(directory)
    wanted = snapshot.columns if columns is None else tuple(columns)
    for name in wanted:
        if name not in snapshot.columns:
            raise InvalidArgument(
                f"{directory} has no column {name!r}{did_you_mean(name, snapshot.columns)}"
            )
    store = open_store(directory)
    for batch in live_rows(store, snapshot, tuple(dict.fromkeys((*wanted, OFFSET)))):
        yield batch.select(wanted)


def query(directory: str) -> str:
    """Return SQL for DuckDB that selects the rows of the newest snapshot. DuckDB can run it without
    liftlog.

    The files in the query stay for the same time as the files of `newest`. Raises StreamNotFound,
    CorruptMetadata.
    """
    snapshot = newest(directory)
    if snapshot is None:
        raise nothing_in(directory)
    columns = ", ".join(f'"{name}"' for name in snapshot.columns)
    if not snapshot.files:
        types = ", ".join(f'NULL AS "{name}"' for name in snapshot.columns)
        return f"SELECT {columns} FROM (SELECT {types}) WHERE false"
    text = f"SELECT {columns} FROM {_parquet(paths_of(directory, snapshot.files))}"
    if snapshot.removed:
        removed = _parquet(paths_of(directory, snapshot.removed))
        text += f' WHERE "offset" NOT IN (SELECT "offset" FROM {removed})'
    return text


def _parquet(names: Sequence[str]) -> str:
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    return f"read_parquet([{quoted}], hive_partitioning = false)"


def nothing_in(directory: str) -> StreamNotFound:
    return StreamNotFound(
        f"{directory} holds no export", hint="run `liftlog export STREAM --to DIR` first"
    )


def live_rows(
    store: Store,
    snapshot: Snapshot,
    columns: tuple[str, ...],
    files: Sequence[DataFile] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the snapshot that count, from the given files or from all files. `columns`
    must include the offset. Raises StorageError."""
    removed = read_offsets(store, snapshot.removed)
    for file in snapshot.files if files is None else files:
        for batch in read_rows(store, file, schema_of(columns)):
            if file.removed_rows:
                gone = are_among(batch.column(OFFSET).to_numpy(), removed)
                batch = batch.filter(pa.array(~gone))
            if batch.num_rows:
                yield batch


def in_doubt(directory: str) -> Iterator[pa.RecordBatch]:
    """Yield the keys of a compacted table whose newest value may be among the lost records
    (`Snapshot.lost`). The batches have the columns key and offset; their order is undefined.

    The table has the newest value of all other keys. Raises CorruptMetadata, StorageError.
    """
    snapshot = newest(directory)
    if snapshot is not None:
        yield from rows_in_doubt(open_store(directory), snapshot)


def rows_in_doubt(store: Store, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
    """Yield the keys and offsets that `in_doubt` yields, for an opened snapshot."""
    bound = snapshot.doubtful_below
    files = [one for one in snapshot.files if one.kind != "keyless" and one.min_offset < bound]
    if not files:
        return
    for batch in live_rows(store, snapshot, (KEY, OFFSET), files):
        mask = pc.and_(pc.is_valid(batch.column(KEY)), pc.less(batch.column(OFFSET), bound))
        if pc.any(mask).as_py():
            yield batch.filter(mask)
