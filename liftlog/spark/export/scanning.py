"""The first phase: writes one range of the log to files. Does not import Spark.

In mode "append" all records are written to files of the table. In mode "compacted" records without
a key are written to files of the table. For each key, the newest record in the range, which may be
a tombstone, is *staged*: it is written to a file for the merge with the previous snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from liftlog.spark.columns import DEFAULT_WITH_HEADERS, HEADERS, KEY, VALUE, schema_of
from liftlog.spark.export.files import STAGED, PartWriter, StagedWriter, split_by_key
from liftlog.spark.export.planning import SKIP_LOST_HINT
from liftlog.spark.export.snapshot import Lost, Mode
from liftlog.spark.export.store import join, open_store
from liftlog.spark.export.tasks import TaskResult
from liftlog.spark.options import ScanOptions
from liftlog.spark.scan import read
from liftlog.spark.transport import ScanRange


@dataclass(frozen=True, slots=True)
class ScanWork:
    """Data that the tasks of all ranges share. `directory` is the run's directory below `table`;
    staged rows are divided into `buckets`. `is_key_value` is true for a stream that contains a
    key-value bucket of JetStream's clients: they delete a key by a message with a header."""

    table: str
    directory: str
    mode: Mode
    options: ScanOptions
    buckets: int
    is_key_value: bool = False


@dataclass(frozen=True, slots=True)
class ScanTask:
    work: ScanWork
    wanted: ScanRange

    def run(self) -> TaskResult:
        """Run the task. Raises LiftlogError."""
        lost: list[Lost] = []

        def note(first_offset: int, next_offset: int, reason: str) -> None:
            # A damaged batch can extend beyond the range of this task.
            first = max(first_offset, self.wanted.first_offset)
            lost.append(Lost(first, min(next_offset, self.wanted.end_offset), reason))

        options = self.work.options
        if self.work.is_key_value:
            options = replace(options, columns=DEFAULT_WITH_HEADERS)
        batches = read(options, self.wanted, on_loss=note, loss_hint=SKIP_LOST_HINT)
        if self.work.is_key_value:
            batches = (without_deleted_keys(one, self.work.options.columns) for one in batches)
        written = self.write(batches)
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


def without_deleted_keys(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return the `columns` of a batch that also has the column headers. If a record's headers show
    that a client has deleted or purged the key, or that the key has expired, the value is null, as
    in a tombstone."""
    headers = batch.column(HEADERS)
    lines = headers.flatten()
    names, values = pc.struct_field(lines, [0]), pc.struct_field(lines, [1])
    operations = pc.and_(
        pc.equal(names, "KV-Operation"),
        pc.is_in(values, pa.array([b"DEL", b"PURGE"], values.type)),
    )
    deletes = pc.or_(operations, pc.equal(names, "Nats-Marker-Reason"))
    rows = np.zeros(batch.num_rows, np.bool_)
    rows[pc.list_parent_indices(headers).filter(deletes).to_numpy()] = True
    value = pc.if_else(pa.array(rows), pa.scalar(None, pa.binary()), batch.column(VALUE))
    arrays = [value if name == VALUE else batch.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
