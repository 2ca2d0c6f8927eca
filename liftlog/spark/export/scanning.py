"""What a task does: one range of the log into Parquet files. Knows nothing of Spark.

In mode "append" the records are written as they are. In mode "compacted" those without a key are
written once and for all; of the others the newest of each key in the range is staged, tombstones
too, for the merge with the snapshot that was there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from liftlog import errors
from liftlog.errors import LiftlogError
from liftlog.spark.columns import KEY, schema_of
from liftlog.spark.export.parquet import PartWriter, split_by_key
from liftlog.spark.export.snapshot import DataFile, Mode
from liftlog.spark.export.store import join, open_store
from liftlog.spark.options import ReadOptions
from liftlog.spark.scan import read
from liftlog.spark.transport import ScanRange

STAGED = "staged"


@dataclass(frozen=True, slots=True)
class ScanWork:
    """What is the same for all ranges. `directory` is the run's own, below `table`."""

    table: str
    directory: str
    mode: Mode
    options: ReadOptions


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What one range became. `staged` waits for the merge."""

    first_offset: int
    end_offset: int
    files: tuple[DataFile, ...] = ()
    staged: tuple[DataFile, ...] = ()
    error: LiftlogError | None = None


def scan_range(work: ScanWork, wanted: ScanRange) -> RangeResult:
    """Raises LiftlogError only where another attempt may help; else it is in the result, so that
    it arrives as it is and nothing is attempted again."""
    try:
        return write_range(work, wanted, read(work.options, wanted))
    except LiftlogError as error:
        if error.retriable:
            raise
        return RangeResult(wanted.first_offset, wanted.end_offset, error=error)


def write_range(
    work: ScanWork, wanted: ScanRange, batches: Iterable[pa.RecordBatch]
) -> RangeResult:
    store, schema = open_store(work.table), schema_of(work.options.columns)
    if work.mode == "append":
        with PartWriter(store, work.directory, "records", schema) as records:
            for batch in batches:
                records.add(batch)
            return _result(wanted, [records.finish()], [])
    staging = join(work.directory, STAGED)
    key = work.options.columns.index(KEY)
    with (
        PartWriter(store, work.directory, "keyless", schema) as keyless,
        PartWriter(store, staging, "keyed", schema) as keyed,
    ):
        for batch in batches:
            with_key, without_key = split_by_key(batch, batch.column(key))
            keyed.add(with_key)
            keyless.add(without_key)
        return _result(wanted, [keyless.finish()], [keyed.finish()])


def _result(
    wanted: ScanRange, files: Sequence[DataFile | None], staged: Sequence[DataFile | None]
) -> RangeResult:
    return RangeResult(
        wanted.first_offset,
        wanted.end_offset,
        tuple([file for file in files if file is not None]),
        tuple([file for file in staged if file is not None]),
    )


def encode_result(result: RangeResult) -> str:
    """For the way from the task to the driver."""
    error = result.error
    content: dict[str, Any] = {
        "range": [result.first_offset, result.end_offset],
        "files": [asdict(file) for file in result.files],
        "staged": [asdict(file) for file in result.staged],
    }
    if error is not None:
        plain = {k: v for k, v in error.details.items() if isinstance(v, (int, str))}
        content["error"] = [type(error).__name__, error.message, error.hint, plain]
    return json.dumps(content)


def decode_result(text: str) -> RangeResult:
    content = json.loads(text)
    first, end = content["range"]
    error = content.get("error")
    return RangeResult(
        first,
        end,
        tuple([DataFile(**one) for one in content["files"]]),
        tuple([DataFile(**one) for one in content["staged"]]),
        None if error is None else _error(*error),
    )


def _error(kind: str, message: str, hint: str, details: dict[str, Any]) -> LiftlogError:
    found = getattr(errors, kind, LiftlogError)
    return found(message, hint=hint, **details)
