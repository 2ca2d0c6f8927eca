"""Removes the rows of erased records from a table: rewrites the files that hold such rows.

The daemon keeps the offsets of all erased records, and an offset identifies a row. A manifest has
the newest erasure whose rows the table lacks. So a run reads files only if there was another
erasure, and then only files whose bounds include one of the offsets. Does not import Spark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from liftlog.client import SyncClient
from liftlog.errors import UnknownRequest
from liftlog.spark.columns import OFFSET, schema_of
from liftlog.spark.export.changes import Rows
from liftlog.spark.export.files import (
    STAGED,
    Flags,
    Offsets,
    PartWriter,
    are_among,
    opened_whole,
    read_offsets,
    read_rows,
)
from liftlog.spark.export.packing import PackWork
from liftlog.spark.export.snapshot import DataFile, Snapshot
from liftlog.spark.export.store import Store, join, open_store
from liftlog.spark.export.tasks import Engine, TaskResult, Tell

if TYPE_CHECKING:
    from liftlog.log.erased import ErasedSet


@dataclass(frozen=True, slots=True)
class Erased:
    """The erased records of a stream. `newest` is `ErasedOffsets.newest`. `offsets` is None
    if the table lacks the rows of all erasures. `unknown` is the number of erased records whose
    offsets the daemon does not have any more. `is_listed` is `ErasedOffsets.is_listed`."""

    newest: str = ""
    offsets: ErasedSet | None = None
    unknown: int = 0
    is_listed: bool = True

    def may_be_in(self, file: DataFile) -> bool:
        """Return True if a row of the file may be erased, by the bounds of its offsets."""
        if self.offsets is None:
            return False
        return self.offsets.count_in(file.min_offset, file.max_offset + 1) > 0

    def concerns(self, previous: Snapshot | None) -> bool:
        return previous is not None and any(map(self.may_be_in, previous.files))


def erased_since(client: SyncClient, stream: str, previous: Snapshot | None) -> Erased:
    """Ask for the erasures since the previous snapshot. Call it before the run reads the stream:
    records that are erased during the run are removed by the next run. Raises LiftlogError."""
    after = "" if previous is None else previous.erasures
    try:
        found = client.erased_offsets(stream, after)
    except UnknownRequest:  # an older daemon
        return Erased(after)
    if not found.bitmaps:
        return Erased(found.newest, None, found.unknown, found.is_listed)
    # Imported here, because most streams erase nothing.
    from liftlog.log.erased import ErasedSet
    from liftlog.log.files.erased_file import parse_bitmap

    chunks = {number: parse_bitmap(bits) for number, bits in found.bitmaps.items()}
    return Erased(found.newest, ErasedSet(chunks), found.unknown, found.is_listed)


@dataclass(frozen=True, slots=True)
class ErasedFile:
    """A file with all erased offsets, which exists until its run has ended. The tasks share it,
    because a set of scattered offsets is large, and almost every file may have one of them."""

    path: str
    size_bytes: int

    @classmethod
    def write(cls, store: Store, directory: str, offsets: ErasedSet) -> ErasedFile:
        """Write the file to the run's directory; durable on return. Raises StorageError."""
        path, content = join(directory, STAGED, "erased.json"), json.dumps(offsets.to_plain())
        with store.writing(path) as file:
            file.write(content.encode())
        return cls(path, len(content))

    def read(self, store: Store) -> ErasedSet:
        """Read the offsets. Raises StorageError."""
        from liftlog.log.erased import ErasedSet

        with opened_whole(store, self.path, self.size_bytes) as file:
            return ErasedSet.from_plain(json.loads(file.read()))


@dataclass(frozen=True, slots=True)
class EraseTask:
    """Writes the rows of a file that are not erased to a new file of the same kind. Also leaves out
    rows whose offsets are in `removed`. If no row is erased, writes nothing. Needs memory for the
    bitmaps of the erased offsets, for the offsets in `removed`, and for one portion of rows."""

    work: PackWork
    file: DataFile
    removed: tuple[DataFile, ...]
    erased: ErasedFile

    def run(self) -> TaskResult:
        """Run the task. The result has the old file and the number of its erased rows in `removed`,
        or nothing. Raises LiftlogError."""
        work, file, store = self.work, self.file, open_store(self.work.table)
        erased, count = self.erased.read(store), 0
        for batch in read_rows(store, file, schema_of((OFFSET,))):
            count += int(_are_erased(batch.column(OFFSET).to_numpy(), erased).sum())
        if not count:
            return TaskResult()
        removed, schema = read_offsets(store, self.removed), schema_of(work.columns)
        with PartWriter(store, work.directory, file.kind, schema, file.bucket) as left:
            for batch in read_rows(store, file, schema):
                offsets = batch.column(OFFSET).to_numpy()
                gone = _are_erased(offsets, erased) | are_among(offsets, removed)
                left.add(batch.filter(pa.array(~gone)))
            return TaskResult(left.finish(), removed=((file.path, count),))


def _are_erased(offsets: Offsets, erased: ErasedSet) -> Flags:
    """Return True for each offset that is erased. Needs memory for `offsets` only: a range of many
    erased records is small as a bitmap."""
    from liftlog.log.erased import ErasedSet

    some = ErasedSet.of_offsets(np.sort(offsets)) & erased
    return are_among(offsets, some.offsets_in(0, some.end_offset))


def without_erased(
    engine: Engine, tell: Tell, work: PackWork, old: Rows, erased: Erased
) -> tuple[Rows, int]:
    """Return the files of a table without the rows of erased records, and the number of these rows.
    Rewrites only files that hold such rows. Raises LiftlogError."""
    found = [file for file in old.files if erased.may_be_in(file)]
    if not found:
        return old, 0
    assert erased.offsets is not None
    end = max([file.max_offset for file in found]) + 1
    offsets = erased.offsets.within(min([file.min_offset for file in found]), end)
    written = ErasedFile.write(open_store(work.table), work.directory, offsets)
    tasks = [_task(work, file, old.removed, written) for file in found]
    done = engine.run("erase", tasks, tell)
    replaced = {path: count for result in done for path, count in result.removed}
    files = [file for file in old.files if file.path not in replaced]
    files += [file for result in done for file in result.files]
    return Rows(files, old.removed), sum(replaced.values())


def _task(
    work: PackWork, file: DataFile, removed: Sequence[DataFile], erased: ErasedFile
) -> EraseTask:
    theirs = [one for one in removed if file.removed_rows and one.bucket.meets(file.bucket)]
    return EraseTask(work, file, tuple(theirs), erased)
