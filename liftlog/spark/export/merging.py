"""The second phase: merges staged rows with the rows of the table, and keeps the newest row of each
key. Does not import Spark.

A task handles one bucket of keys. It first reads keys and offsets, and decides which rows win; then
it reads all columns in portions, and writes the winning rows. So it needs memory for the keys of
its bucket and for a few portions, regardless of the size of the table. A bucket with many large
values takes longer. A bucket with more keys also takes more memory, but buckets have similar
numbers of keys, because a checksum divides the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from liftlog.spark.columns import KEY, OFFSET, VALUE, schema_of
from liftlog.spark.export.buckets import Bucket, buckets_for, numbers_of
from liftlog.spark.export.files import (
    PartWriter,
    StagedFile,
    StagedPart,
    are_among,
    read_offsets,
    read_part,
    read_rows,
    split_by_key,
)
from liftlog.spark.export.snapshot import DataFile
from liftlog.spark.export.store import Store, open_store
from liftlog.spark.export.tasks import TaskResult
from liftlog.spark.newest import Flags, newest_of_each


@dataclass(frozen=True, slots=True)
class MergeWork:
    """Data that the tasks of all buckets share. `directory` is the run's directory below
    `table`."""

    table: str
    directory: str
    columns: tuple[str, ...]
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Reads the rows of one bucket, and writes the newest row of each key to a new file.

    Among rows with the same key, the one with the largest offset wins. A winning row is omitted if
    it is a tombstone, if it is below the log start, or if its offset is in a file of `removed`. The
    last two conditions also apply to rows without a key; all other rows without a key are kept. If
    a file contains rows of other buckets, they are skipped.
    """

    work: MergeWork
    bucket: Bucket
    files: tuple[DataFile, ...]
    staged: tuple[StagedPart, ...]
    removed: tuple[DataFile, ...] = ()

    def run(self) -> TaskResult:
        """Run the task. Raises LiftlogError."""
        work, schema = self.work, schema_of(self.work.columns)
        store = open_store(work.table)
        wanted, at = self._wanted(store), 0
        with (
            PartWriter(store, work.directory, "keyed", schema, self.bucket) as keyed,
            PartWriter(store, work.directory, "keyless", schema) as keyless,
        ):
            for batch, _ in self._rows(store, schema):
                flags = wanted[at : at + batch.num_rows]
                at += batch.num_rows
                rows = batch.filter(pa.array(flags))
                with_key, without_key = split_by_key(rows, rows.column(KEY))
                keyed.add(with_key.filter(pc.is_valid(with_key.column(VALUE))))
                keyless.add(without_key)
            return TaskResult(keyed.finish() + keyless.finish())

    def _wanted(self, store: Store) -> Flags:
        """Return a flag for each row, in the order of `_rows`: True if the row is in this bucket
        and is the newest row of its key."""
        keys: list[pa.Array] = []
        offsets = [np.zeros(0, np.int64)]
        ours = [np.zeros(0, np.bool_)]
        number, total = self.bucket
        for batch, is_mixed in self._rows(store, schema_of((KEY, OFFSET))):
            mask = np.ones(batch.num_rows, np.bool_)
            if is_mixed:
                mask = numbers_of(batch.column(KEY), total) == number
                batch = batch.filter(pa.array(mask))
            ours.append(mask)
            keys.append(batch.column(KEY))
            offsets.append(batch.column(OFFSET).to_numpy())
        places = np.concatenate(offsets)
        wins = newest_of_each(keys, places) & (places >= self.work.log_start_offset)
        wins &= ~are_among(places, read_offsets(store, self.removed))
        wanted = np.concatenate(ours)
        wanted[wanted] = wins
        return wanted

    def _rows(self, store: Store, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Yield all rows of the task's files in batches, each with a flag: True if the batch may
        contain rows of other buckets."""
        for file in self.files:
            for batch in read_rows(store, file, schema):
                yield batch, file.bucket.total < self.bucket.total
        for part in self.staged:
            for batch in read_part(store, part, schema.names):
                yield batch, False


def buckets_to_stage(old: Sequence[DataFile], most_bytes: int, bucket_bytes: int) -> int:
    """Return the number of buckets for staging at most `most_bytes`. It is the largest number that
    the merge may need. The real size is known only at the merge.

    `old` are all files of the table, including the files of removed offsets. A run that adds
    changes uses the number of buckets of these files, even if the other files of the table have
    another number.
    """
    kept = _keyed_bytes(old)
    return max(_most_buckets(old), buckets_for(kept + most_bytes, bucket_bytes))


def plan_merge(
    work: MergeWork,
    old: Sequence[DataFile],
    staged: Sequence[StagedFile],
    bucket_bytes: int,
    removed: Sequence[DataFile] = (),
) -> tuple[list[DataFile], list[MergeTask]]:
    """Return the files of the previous snapshot that stay unchanged, and the tasks that merge the
    other files. The tasks omit rows whose offsets are in `removed`.

    The number of buckets stays the same, unless a bucket would have more than `bucket_bytes`. Files
    of buckets without new rows stay unchanged, with two exceptions. A file with rows below the log
    start is merged, so that the result equals the result of a full export. And a file that another
    tool has written is merged.
    """
    start = work.log_start_offset
    old = [file for file in old if file.max_offset >= start]
    size_bytes = _keyed_bytes(old) + sum(file.size_bytes for file in staged)
    total = max(_most_buckets(old), buckets_for(size_bytes, bucket_bytes))
    total = min([total, *[len(file.rows) for file in staged]])
    parts: dict[Bucket, list[StagedPart]] = {}
    for bucket in [Bucket(number, total) for number in range(total)]:
        found = [file.part(bucket) for file in staged]
        parts[bucket] = [part for part in found if part.rows]
    filled = [bucket for bucket, found in parts.items() if found]
    stay: list[DataFile] = []
    merged: list[DataFile] = []
    for file in old:
        stays = (
            file.min_offset >= start
            and not file.removed_rows
            and (
                file.kind == "keyless"
                or (file.kind == "keyed" and not any(map(file.bucket.meets, filled)))
            )
        )
        (stay if stays else merged).append(file)
    tasks = []
    for bucket, found in parts.items():
        files = [file for file in merged if concerns(file, bucket)]
        if files or found:
            gone = [file for file in removed if file.bucket.meets(bucket)]
            tasks.append(MergeTask(work, bucket, tuple(files), tuple(found), tuple(gone)))
    return stay, tasks


def concerns(file: DataFile, bucket: Bucket) -> bool:
    """Return True if a row of the file can be in the bucket.

    Rows without a key are in the first bucket, together with the empty key.
    """
    return bucket.number == 0 if file.kind == "keyless" else file.bucket.meets(bucket)


def _keyed_bytes(files: Sequence[DataFile]) -> int:
    return sum(file.size_bytes for file in files if file.kind != "keyless")


def _most_buckets(files: Sequence[DataFile]) -> int:
    return max([file.bucket.total for file in files], default=1)
