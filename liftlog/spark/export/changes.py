"""Merge on read: a run adds the rows that changed, and the offsets of the rows that they replace.

    keyed      rows with a key, as the last fold wrote them
    changed    the newest rows of keys that changed since the last fold, in a few files per run
    removed    offsets: the rows with these offsets in other files no longer count

An offset identifies a row, so the table consists of all rows whose offset is not in a file of kind
"removed". Readers need no keys, no order of files and no tombstones. Does not import Spark.

A run writes about as many bytes as have changed. When the changes have become a quarter of the
table, the next run folds them: it rewrites the keyed files with the changes, as each run does with
copy on write. So the additional cost of reads is limited. `must_fold` explains that the additional
cost of writes is also limited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from liftlog.spark.columns import KEY, OFFSET, VALUE, schema_of
from liftlog.spark.export.buckets import Bucket, buckets_for, numbers_of
from liftlog.spark.export.files import (
    STAGED,
    Flags,
    Offsets,
    PartWriter,
    StagedFile,
    StagedPart,
    StagedWriter,
    are_among,
    read_offsets,
    read_part,
    read_rows,
)
from liftlog.spark.export.merging import MergeWork, concerns, plan_merge
from liftlog.spark.export.snapshot import DataFile
from liftlog.spark.export.store import Store, join, open_store
from liftlog.spark.export.tasks import Engine, Task, TaskResult, Tell
from liftlog.spark.newest import newest_of_each

FOLD_PART = 0.25
"""If the changes are larger than this part of the keyed files, the next run folds them into these
files."""

MOST_CHANGES = 16
"""If a bucket has this number of files of changes, or of removed offsets, a run merges them into
one, because a reader needs a request for each file."""

_SMALL_TABLE = 1024 * 1024
"""Size in bytes below which a file consists mostly of its footer. The size of such a file depends
little on its number of rows."""

_KEYS_PER_TASK = 8
"""Number of buckets of a task that looks for changed keys. Such a task reads only keys and offsets,
while a task of a fold reads all columns of one bucket."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The files of a table."""

    files: list[DataFile]
    removed: list[DataFile]


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """Writes the rows of `staged` to a new file of changes. Writes to a second file the offsets of
    two kinds of rows of `older`: rows that the new rows replace, and rows below the log start.

    If `absorbs` is true, the new files replace the files of earlier runs: the first also gets the
    rows of `absorbed`, and the second the offsets of `removed`, except offsets of rows in
    `absorbed`. All files belong to the task's bucket, or to a larger bucket that contains it. Needs
    memory for the keys of `staged` and `absorbed`, the offsets in `removed`, and the keys of one
    older file.
    """

    work: MergeWork
    bucket: Bucket
    older: tuple[DataFile, ...]
    absorbed: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    staged: tuple[StagedPart, ...]
    absorbs: bool

    def run(self) -> TaskResult:
        """Run the task. Raises LiftlogError."""
        work, store = self.work, open_store(self.work.table)
        removed = read_offsets(store, self.removed)
        keys, absorbed, wanted = self._decide(store, removed)
        counts, found = self._replaced(store, keys, removed)
        schema, offsets = schema_of(work.columns), schema_of((OFFSET,))
        if self.absorbs:
            found.append(removed[~are_among(removed, np.sort(absorbed))])
        with (
            PartWriter(store, work.directory, "changed", schema, self.bucket) as changed,
            PartWriter(store, work.directory, "removed", offsets, self.bucket) as gone,
        ):
            at = 0
            for batch in self._rows(store, schema):
                rows = batch.filter(pa.array(wanted[at : at + batch.num_rows]))
                at += batch.num_rows
                changed.add(rows.filter(pc.is_valid(rows.column(VALUE))))
            together = np.sort(np.concatenate([np.zeros(0, np.int64), *found]))
            gone.add(pa.RecordBatch.from_arrays([pa.array(together)], schema=offsets))
            return TaskResult(changed.finish() + gone.finish(), removed=tuple(counts))

    def _decide(self, store: Store, removed: Offsets) -> tuple[pa.Array, Offsets, Flags]:
        """Return the new keys, the offsets of the absorbed rows, and a flag for each row: True for
        the newest row of a key."""
        keys: list[pa.Array] = []
        places = [np.zeros(0, np.int64)]
        for batch in self._rows(store, schema_of((KEY, OFFSET))):
            keys.append(batch.column(KEY))
            places.append(batch.column(OFFSET).to_numpy())
        absorbed = sum(file.rows for file in self.absorbed)
        offsets = np.concatenate(places)
        wins = newest_of_each(keys, offsets) & (offsets >= self.work.log_start_offset)
        wins &= ~are_among(offsets, removed)
        together = pa.chunked_array(keys, pa.binary())
        return together.slice(absorbed).unique(), offsets[:absorbed], wins

    def _rows(self, store: Store, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for file in self.absorbed:
            yield from read_rows(store, file, schema)
        for part in self.staged:
            yield from read_part(store, part, schema.names)

    def _replaced(
        self, store: Store, keys: pa.Array, removed: Offsets
    ) -> tuple[list[tuple[str, int]], list[Offsets]]:
        """Find the rows of older files that no longer count. Return the number of such rows for
        each file, and their offsets."""
        schema = schema_of((KEY, OFFSET))
        number, total = self.bucket
        counts: list[tuple[str, int]] = []
        found: list[Offsets] = []
        for file in self.older:
            # Each file is searched in one step, because each search builds a hash table of all new
            # keys.
            rows = pa.Table.from_batches(read_rows(store, file, schema), schema)
            offsets = rows.column(OFFSET).to_numpy()
            gone = pc.is_in(rows.column(KEY), value_set=keys).to_numpy()
            gone = (gone | (offsets < self.work.log_start_offset)) & ~are_among(offsets, removed)
            if file.bucket.total < total and file.kind != "keyless":
                places = np.flatnonzero(gone)
                ours = numbers_of(rows.column(KEY).take(places).combine_chunks(), total) == number
                gone[places[~ours]] = False
            if count := int(np.count_nonzero(gone)):
                counts.append((file.path, count))
                found.append(offsets[gone])
        return counts, found


@dataclass(frozen=True, slots=True)
class RestageTask:
    """Stages the changes of earlier runs for a fold, as if they had just been read from the log."""

    work: MergeWork
    buckets: int
    files: tuple[DataFile, ...]

    def run(self) -> TaskResult:
        """Run the task. Raises LiftlogError."""
        work, schema = self.work, schema_of(self.work.columns)
        store = open_store(work.table)
        with StagedWriter(store, join(work.directory, STAGED), schema, self.buckets) as staged:
            for file in self.files:
                for batch in read_rows(store, file, schema):
                    staged.add(batch)
            return TaskResult(staged=staged.finish())


def must_fold(old: Rows, staged: Sequence[StagedFile]) -> bool:
    """Return True if the changes, including the changes of this run, are larger than FOLD_PART of
    the keyed files.

    Let f be FOLD_PART, and K the size of the keyed files. A fold writes at most K + f K bytes, and
    a fold is due only after f K bytes of changes have been written. So over time at most 1 + (1 +
    f) / f bytes are written for each byte of changes: six if f is a quarter. Merging the files of
    changes (MOST_CHANGES) adds at most f K bytes in MOST_CHANGES runs.
    """
    keyed = [file for file in old.files if file.kind == "keyed"]
    changed = [file for file in old.files if file.kind == "changed"]
    rows = sum(file.rows for file in keyed) * FOLD_PART
    size_bytes = max(sum(file.size_bytes for file in keyed), _SMALL_TABLE) * FOLD_PART
    came = sum(sum(file.rows) for file in staged)
    return (
        sum(file.rows for file in changed) + came > rows
        or sum(file.rows for file in old.removed) > rows
        or sum(file.size_bytes for file in [*changed, *old.removed]) > size_bytes
    )


def fold(
    engine: Engine,
    tell: Tell,
    work: MergeWork,
    old: Rows,
    staged: Sequence[StagedFile],
    buckets: int,
    bucket_bytes: int,
) -> Rows:
    """Rewrite every bucket with changes (copy on write). Afterwards there are no files of changes
    or of removed offsets.

    `staged` is divided into `buckets`. Raises LiftlogError.
    """
    changes: dict[Bucket, list[DataFile]] = {}
    for file in old.files:
        if file.kind == "changed":
            changes.setdefault(file.bucket, []).append(file)
    again: list[Task] = [RestageTask(work, buckets, tuple(some)) for some in changes.values()]
    staged = [*staged, *[one for did in engine.run("fold", again, tell) for one in did.staged]]
    kept = [file for file in old.files if file.kind != "changed"]
    stay, tasks = plan_merge(work, kept, staged, bucket_bytes, old.removed)
    merged = engine.run("merge", tasks, tell)
    return Rows(stay + [file for result in merged for file in result.files], [])


def add_changes(
    engine: Engine,
    tell: Tell,
    work: MergeWork,
    old: Rows,
    staged: Sequence[StagedFile],
    bucket_bytes: int,
) -> Rows:
    """Add the changes as new files; existing files are not rewritten (merge on read). Raises
    LiftlogError."""
    old = Rows([one for one in old.files if one.max_offset >= work.log_start_offset], old.removed)
    tasks = plan_changes(work, old, staged, bucket_bytes)
    done = engine.run("merge", tasks, tell)
    counts: dict[str, int] = {}
    for path, count in [one for result in done for one in result.removed]:
        counts[path] = counts.get(path, 0) + count
    absorbed = {file.path for task in tasks for file in task.absorbed}
    absorbed |= {file.path for task in tasks if task.absorbs for file in task.removed}
    files = [
        replace(file, removed_rows=file.removed_rows + counts.get(file.path, 0))
        for file in old.files
        if file.path not in absorbed
    ]
    new = [file for result in done for file in result.files]
    return Rows(
        [file for file in files if file.live_rows] + [one for one in new if one.kind == "changed"],
        [file for file in old.removed if file.path not in absorbed]
        + [one for one in new if one.kind == "removed"],
    )


def plan_changes(
    work: MergeWork, old: Rows, staged: Sequence[StagedFile], bucket_bytes: int
) -> list[ChangeTask]:
    """Plan tasks for the buckets that have new rows, or rows below the log start. A task reads only
    the files that may contain rows that no longer count."""
    start = work.log_start_offset
    total = _buckets(old, staged, bucket_bytes)
    finest = [Bucket(n, len(file.rows)) for file in staged[:1] for n in range(len(file.rows))]
    filled = [one for one in finest if any(file.part(one).rows for file in staged)]
    tasks = []
    for bucket in [Bucket(number, total) for number in range(total)]:
        parts = [part for part in [file.part(bucket) for file in staged] if part.rows]
        files = [file for file in old.files if concerns(file, bucket)]
        changes = [file for file in files if file.kind == "changed"]
        removed = [file for file in old.removed if file.bucket.meets(bucket)]
        older = [
            file for file in files if file.min_offset < start or _has_keys_of(file, bucket, filled)
        ]
        if not parts and not older:
            continue
        absorbs = max(len(changes), len(removed)) >= MOST_CHANGES
        if absorbs:
            older = [file for file in older if file.kind != "changed"]
        tasks.append(
            ChangeTask(
                work,
                bucket,
                tuple(older),
                tuple(changes) if absorbs else (),
                tuple(removed),
                tuple(parts),
                absorbs,
            )
        )
    return tasks


def _has_keys_of(file: DataFile, bucket: Bucket, filled: Sequence[Bucket]) -> bool:
    if file.kind == "keyless":
        return False
    return any(one.meets(bucket) and file.bucket.meets(one) for one in filled)


def _buckets(old: Rows, staged: Sequence[StagedFile], bucket_bytes: int) -> int:
    """Return the number of buckets. The number stays the same from one fold to the next, because a
    file of offsets has no keys and cannot be divided."""
    changes = [file for file in [*old.files, *old.removed] if file.kind in ("changed", "removed")]
    if changes:
        return min(file.bucket.total for file in changes)
    came = sum(file.size_bytes for file in staged)
    keys = sum(file.size_bytes for file in old.files if file.kind == "keyed") // _KEYS_PER_TASK
    most = max([file.bucket.total for file in old.files], default=1)
    total = min(buckets_for(max(came, keys), bucket_bytes), most)
    return min([total, *[len(file.rows) for file in staged]])
