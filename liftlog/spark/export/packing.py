"""Merges small files of a table into a few large files: `--optimize`. Does not import Spark.

The rows stay the same. Each key has one row in a table, so files of keyed rows are merged without
comparing keys. The bucket of the new file is the smallest bucket that contains the buckets of all
old files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from liftlog.spark.columns import schema_of
from liftlog.spark.export.buckets import ALL_KEYS, BUCKET_BYTES, Bucket, buckets_for
from liftlog.spark.export.files import PartWriter, check_rows, read_rows
from liftlog.spark.export.snapshot import DataFile
from liftlog.spark.export.store import open_store
from liftlog.spark.export.tasks import TaskResult

DEFAULT_FILE_BYTES = 128 * 1024 * 1024
"""Default size of files with rows without a key, and of files in mode append. Files of buckets have
another default."""


@dataclass(frozen=True, slots=True)
class PackWork:
    """Data that all tasks share. `directory` is the run's directory below `table`."""

    table: str
    directory: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PackTask:
    """Writes the rows of `files`, which all have the same kind, to one new file."""

    work: PackWork
    bucket: Bucket
    files: tuple[DataFile, ...]

    def run(self) -> TaskResult:
        """Run the task. Raises LiftlogError."""
        work, schema = self.work, schema_of(self.work.columns)
        store = open_store(work.table)
        kind = self.files[0].kind
        with PartWriter(store, work.directory, kind, schema, self.bucket) as packed:
            for file in self.files:
                rows = 0
                for batch in read_rows(store, file, schema):
                    rows += batch.num_rows
                    packed.add(batch)
                check_rows(file.path, rows, file.rows)
            return TaskResult(packed.finish())


def can_be_packed(files: Sequence[DataFile], file_bytes: int | None) -> bool:
    return bool(_groups(files, file_bytes))


def plan_packing(
    work: PackWork, files: Sequence[DataFile], file_bytes: int | None
) -> tuple[list[DataFile], list[PackTask]]:
    """Return the files that stay unchanged, and the tasks that replace the other files.

    `file_bytes` is the approximate size of a new file. If it is None, the default sizes apply.
    """
    groups = _groups(files, file_bytes)
    packed = {file.path for _, group in groups for file in group}
    tasks = [PackTask(work, bucket, tuple(group)) for bucket, group in groups]
    return [file for file in files if file.path not in packed], tasks


def _groups(
    files: Sequence[DataFile], file_bytes: int | None
) -> list[tuple[Bucket, list[DataFile]]]:
    """Return groups of files, each with its bucket. The files of a group, at least two, become one
    file."""
    groups: list[tuple[Bucket, list[DataFile]]] = []
    for kind in ("keyless", "records"):
        some = [file for file in files if file.kind == kind]
        groups += [(ALL_KEYS, one) for one in _runs(some, file_bytes or DEFAULT_FILE_BYTES)]
    groups += _buckets([file for file in files if file.kind == "keyed"], file_bytes or BUCKET_BYTES)
    return [(bucket, group) for bucket, group in groups if len(group) > 1]


def _runs(files: Sequence[DataFile], file_bytes: int) -> list[list[DataFile]]:
    """Return groups of files with neighbouring offsets. Together, the files of a group have about
    `file_bytes`."""
    runs: list[list[DataFile]] = []
    size = file_bytes
    for file in sorted(files, key=lambda file: (file.min_offset, file.path)):
        if size + file.size_bytes > file_bytes:
            runs.append([])
            size = 0
        runs[-1].append(file)
        size += file.size_bytes
    return runs


def _buckets(files: Sequence[DataFile], bucket_bytes: int) -> list[tuple[Bucket, list[DataFile]]]:
    """Group the files by bucket. The number of buckets follows from their total size. Files of
    coarser buckets are not merged."""
    total = buckets_for(sum(file.size_bytes for file in files), bucket_bytes)
    groups: dict[int, list[DataFile]] = {}
    for file in files:
        if file.bucket.total >= total:
            groups.setdefault(file.bucket.number % total, []).append(file)
    return [(Bucket(number, total), group) for number, group in sorted(groups.items())]
