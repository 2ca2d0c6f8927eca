"""The first phase: writes one range of the log to files. Does not import Spark.

In mode "append" the records are written as they are. In mode "compacted" records without a key are
written to files of the table; of the others the newest of each key in the range, tombstones too, is
staged for the merge with the previous snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from liftlog.spark.columns import KEY, schema_of
from liftlog.spark.export.files import STAGED, PartWriter, StagedWriter, split_by_key
from liftlog.spark.export.snapshot import Lost, Mode
from liftlog.spark.export.store import join, open_store
from liftlog.spark.export.tasks import TaskResult
from liftlog.spark.options import ScanOptions
from liftlog.spark.scan import read
from liftlog.spark.transport import ScanRange


@dataclass(frozen=True, slots=True)
class ScanWork:
    """What is the same for all ranges. `directory` is that of the run, below `table`; staged rows
    are divided into `buckets`."""

    table: str
    directory: str
    mode: Mode
    options: ScanOptions
    buckets: int


@dataclass(frozen=True, slots=True)
class ScanTask:
    work: ScanWork
    wanted: ScanRange

    def run(self) -> TaskResult:
        """Raises LiftlogError."""
        lost: list[Lost] = []

        def note(first_offset: int, next_offset: int, reason: str) -> None:
            # A damaged batch can extend beyond this task's range.
            first = max(first_offset, self.wanted.first_offset)
            lost.append(Lost(first, min(next_offset, self.wanted.end_offset), reason))

        written = self.write(read(self.work.options, self.wanted, on_loss=note))
        return replace(written, lost=tuple(lost))

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        work, schema = self.work, schema_of(self.work.options.columns)
        store = open_store(work.table)
        if work.mode == "append":
            with PartWriter(store, work.directory, "records", schema) as records:
                for batch in batches:
                    records.add(batch)
                return TaskResult(records.finish())
        staging = join(work.directory, STAGED)
        key = schema.names.index(KEY)
        with (
            PartWriter(store, work.directory, "keyless", schema) as keyless,
            StagedWriter(store, staging, schema, work.buckets) as keyed,
        ):
            for batch in batches:
                with_key, without_key = split_by_key(batch, batch.column(key))
                keyed.add(with_key)
                keyless.add(without_key)
            return TaskResult(keyless.finish(), keyed.finish())
