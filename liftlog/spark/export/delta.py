"""A Delta table, written with delta-rs. It needs no JVM jar, and also works with object stores.

    _delta_log/                               Delta's own
    runs/<sequence, 20 digits>-<run>/         the files that one run has written

A run is one commit. It contains the application transaction `liftlog:<stream>` with the run's
sequence number. If two such commits began at the same version, delta-rs accepts only one of them. A
commit that begins later could use the same number again, so this module checks that the number
follows the last number. The commit's metadata describes the run, under `liftlog`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from liftlog.errors import Conflict, CorruptMetadata, InvalidArgument, StorageError
from liftlog.spark.columns import OFFSET, schema_of
from liftlog.spark.export.buckets import ALL_KEYS
from liftlog.spark.export.snapshot import (
    DataFile,
    Snapshot,
    from_content,
    is_safe_path,
    parse_file_name,
    to_content,
)
from liftlog.spark.export.store import Store, join
from liftlog.spark.export.table import (
    DELTA_LOG,
    LEAST_SNAPSHOTS,
    MANIFESTS,
    another_was_quicker,
    left_by_runs,
    run_name,
)

_RUNS = "runs"
_METADATA = "liftlog"
_UNKNOWN_OFFSET = 2**63 - 1
_RECENT_COMMITS = 8
_HISTORY_STEPS = (_RECENT_COMMITS, 256, None)
_RUNS_BETWEEN_SWEEPS = 128

# Delta keeps its commits for this time. Within this time the last export can be found, regardless
# of the number of commits of other writers. Delta's default is a month.
_CONFIGURATION = {"delta.logRetentionDuration": "interval 365 days"}


class DeltaLakeTable:
    """The Delta table at a path or URL, for one exporter and one run."""

    def __init__(self, where: str, store: Store, stream: str, columns: tuple[str, ...]) -> None:
        _check_path(where, store)
        self.store = store
        self._where = where
        self._transaction = f"liftlog:{stream}"
        self._columns = columns
        self._table: DeltaTable | None = None  # opened once: this reads the whole log

    def prepare(self) -> None:
        if self.store.names(MANIFESTS):
            raise Conflict(f"{self._where} is a Parquet table", hint="use --format parquet")
        self.store.make_directory(_RUNS)
        if self._open() is None:
            with _storage_errors(self._where):
                DeltaTable.create(
                    self.store.uri,
                    schema_of(self._columns),
                    mode="ignore",
                    configuration=_CONFIGURATION,
                )
        if self.next_sequence() == 1:  # the table to which the first export adds
            self._make_durable(-1)
            self.store.sync(DELTA_LOG)

    def newest(self) -> Snapshot | None:
        table = self._open()
        if table is None:
            return None
        with _storage_errors(self._where):
            sequence, last = self._sequence(table), _last_run(table, self._where)
            if not sequence:
                if table.file_uris() or last is not None:
                    raise Conflict(
                        f"{self._where} is a Delta table with other data",
                        hint="export each stream into a table of its own",
                    )
                return None
            if last is None or last.sequence != sequence:
                raise CorruptMetadata(
                    f"{self._where} no longer records how far its last export got: that commit is "
                    "no longer in the table's log",
                    hint="export the stream again with --full",
                )
            self._check_features(table)
            return replace(last, files=_files(table))

    def _check_features(self, table: DeltaTable) -> None:
        features = table.protocol().reader_features
        if features or table.metadata().partition_columns:
            raise Conflict(
                f"{self._where} now has features that an export cannot preserve: "
                f"{features or 'partitions'}",
                hint="export into a new table",
            )

    def next_sequence(self) -> int:
        return self._sequence(self._open()) + 1

    def run_directory(self, sequence: int, run: str) -> str:
        return join(_RUNS, run_name(sequence, run))

    def commit(self, snapshot: Snapshot, previous: Snapshot | None) -> None:
        table = self._open()
        if table is None or self._sequence(table) != snapshot.sequence - 1:
            raise another_was_quicker(self._where, self.newest())
        with _storage_errors(self._where):
            before = table.version()
            try:
                self._write(table, snapshot)
            except CommitFailedError as error:
                newest = self.newest()
                if newest is None or newest.run != snapshot.run:
                    raise another_was_quicker(self._where, newest) from error
                # The commit has succeeded despite this.
        self._make_durable(before)

    def _write(self, table: DeltaTable, snapshot: Snapshot) -> None:
        tracked = {file.path: file for file in _files(table)}
        wanted = {file.path for file in snapshot.files}
        actions: list[AddAction | RemoveAction] = [
            _add(file, snapshot) for file in snapshot.files if file.path not in tracked
        ]
        actions += [_remove(file, snapshot) for path, file in tracked.items() if path not in wanted]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            commit_properties=CommitProperties(
                custom_metadata={_METADATA: to_content(snapshot)},
                app_transactions=[Transaction(self._transaction, snapshot.sequence)],
            ),
        )

    def garbage(
        self, now_ns: int, keep_seconds: float | None, keep_snapshots: int = LEAST_SNAPSHOTS
    ) -> list[str]:
        """Return unneeded files: files of this exporter that were superseded at least
        `keep_seconds` ago, and files that no version has ever named. If `keep_seconds` is None, the
        duration is in the table's property `delta.deletedFileRetentionDuration`. `keep_snapshots`
        has no effect here.

        To determine the committed runs, usually only the last commits are read, because earlier
        runs have checked the older commits. From time to time, and if `keep_seconds` is given, all
        commits are read.
        """
        table = self._open()
        newest = self._sequence(table)
        if table is None or not newest:
            return []
        whole = keep_seconds is not None or newest % _RUNS_BETWEEN_SWEEPS == 0
        with _storage_errors(self._where):
            history = table.history(None if whole else _RECENT_COMMITS)
            tracked = {file.path for file in _files(table)}
            expired = table.vacuum(
                None if keep_seconds is None else math.ceil(keep_seconds / 3600),
                dry_run=True,
                enforce_retention_duration=False,
                full=whole,
            )
        runs = [one[_METADATA] for one in history if _METADATA in one]
        committed = {str(one.get("run")) for one in runs}
        oldest = 0 if whole else min([one.get("sequence", 0) for one in runs], default=newest + 1)
        gone: list[str] = []
        for path in sorted(set(expired) - tracked):
            number = re.match(rf"{_RUNS}/(\d{{20}})-[0-9a-f]{{32}}/", path)
            if number is not None and int(number[1]) <= newest and is_safe_path(path):
                gone.append(path)

        def is_needed(run: str, path: str) -> bool:
            if path in gone:
                return False
            return path in tracked or (run in committed and path.endswith(".parquet"))

        left = left_by_runs(self.store, _RUNS, newest, is_needed, oldest)
        left += self._emptied([path for path in gone if not _is_below(path, left)])
        return left + [path for path in gone if not _is_below(path, left)]

    def _emptied(self, gone: Sequence[str]) -> list[str]:
        """Return the directories that contain only files of `gone`."""
        directories = sorted({path.rpartition("/")[0] for path in gone})
        wanted = set(gone)
        return [
            directory
            for directory in directories
            if wanted.issuperset(join(directory, name) for name in self.store.names(directory))
        ]

    # --- inner ---

    def _open(self) -> DeltaTable | None:
        with _storage_errors(self._where):
            if self._table is not None:
                self._table.update_incremental()
            elif DeltaTable.is_deltatable(self.store.uri):
                self._table = DeltaTable(self.store.uri)
            return self._table

    def _sequence(self, table: DeltaTable | None) -> int:
        """Return the number of the last committed run; 0 if no run was committed."""
        if table is None:
            return 0
        with _storage_errors(self._where):
            return table.transaction_version(self._transaction) or 0

    def _make_durable(self, before: int) -> None:
        """Sync the files of the commits after version `before`, because delta-rs does not sync
        them."""
        for name in self.store.names(DELTA_LOG):
            if name > f"{before:020d}.z":
                self.store.sync(join(DELTA_LOG, name))


def _is_below(path: str, entries: Sequence[str]) -> bool:
    return path in entries or path.rpartition("/")[0] in entries


def newest_in(where: str, store: Store) -> Snapshot | None:
    """Return the snapshot of the last run. Its files are the files of the table's newest version,
    because other tools may have rewritten some files."""
    _check_path(where, store)
    with _storage_errors(where):
        if not DeltaTable.is_deltatable(store.uri):
            return None
        table = DeltaTable(store.uri)
        found = _last_run(table, where)
        return None if found is None else replace(found, files=_files(table))


def _check_path(where: str, store: Store) -> None:
    """Raise InvalidArgument for a path that delta-rs would misread, because it treats paths as
    URLs: it would search for the table in another place, or not find its log."""
    found = re.search(r"[#?]|%[0-9A-Fa-f]{2}", store.uri.partition("://")[2] or store.uri)
    if found is not None:
        raise InvalidArgument(
            f"{where} cannot be the path of a Delta table: {found[0]!r} has another meaning "
            "in a URL",
            hint="use a path without '#', '?' and '%'; a Parquet table may have them",
        )


@contextmanager
def _storage_errors(where: str) -> Iterator[None]:
    """Convert errors of delta-rs to StorageError."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise StorageError(f"{where}: {error}") from error


def _last_run(table: DeltaTable, where: str) -> Snapshot | None:
    """Return the last run without its files, or None. The run is usually the last commit."""
    for limit in _HISTORY_STEPS:
        for commit in table.history(limit):
            if _METADATA in commit:
                return from_content(commit[_METADATA], [], f"{where}/{DELTA_LOG}")
    return None


def _files(table: DeltaTable) -> tuple[DataFile, ...]:
    """Return the files of the table's newest version. Another tool may have rewritten some."""
    found = []
    for one in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        named = parse_file_name(one["path"].rpartition("/")[2])
        first, last = one.get("min.offset"), one.get("max.offset")
        if None in (named, first, last):
            named, first, last = ("records", ALL_KEYS), 0, _UNKNOWN_OFFSET
        assert named is not None
        kind, bucket = named
        found.append(
            DataFile(
                path=unquote(one["path"]),
                kind=kind,
                rows=one.get("num_records") or 0,
                size_bytes=one["size_bytes"],
                min_offset=first,
                max_offset=last,
                bucket=bucket,
            )
        )
    return tuple(sorted(found, key=lambda file: file.path))


def _add(file: DataFile, snapshot: Snapshot) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": {OFFSET: file.min_offset},
        "maxValues": {OFFSET: file.max_offset},
        "nullCount": {OFFSET: 0},
    }
    modified_ms = snapshot.created_ns // 1_000_000
    return AddAction(file.path, file.size_bytes, {}, modified_ms, True, json.dumps(stats))


def _remove(file: DataFile, snapshot: Snapshot) -> RemoveAction:
    return RemoveAction(
        path=file.path,
        deletion_timestamp=snapshot.created_ns // 1_000_000,
        data_change=True,
        size=file.size_bytes,
    )
