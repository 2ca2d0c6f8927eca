"""Many record batches as one `pyarrow.RecordBatch`. Needs numpy and pyarrow.

For those who hand rows on in large pieces: Spark, exports. Large batches are converted one by one,
as `to_arrow` does; runs of small ones, as synchronous publishers leave them, in one go. Then each
column is put together, which also frees the buffers that the batches lie in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from liftlog.errors import CorruptBatch, InvalidArgument
from liftlog.records.arrow import SCHEMA, arrays_of
from liftlog.records.column_set import BinaryColumn, Columns
from liftlog.records.decode import RecordBatch
from liftlog.records.many import can_decode_together, decode_many

_SMALL_RECORDS = 64
"""Batches of fewer records are cheaper to decode together than one by one."""

_SUBJECT = pa.field("subject", pa.utf8(), nullable=False)
ROWS_SCHEMA = pa.schema([_SUBJECT if field.name == "subject" else field for field in SCHEMA])
"""As SCHEMA, but with subjects as plain text: every batch has a dictionary of its own."""


def rows_of(batches: Sequence[RecordBatch], columns: Sequence[str]) -> pa.RecordBatch:
    """The records of all batches in their order, with these columns of ROWS_SCHEMA.

    The batches are verified and together hold less than 2 GiB. Raises InvalidArgument for a column
    that does not exist, CorruptBatch when the columns of a batch contradict each other.
    """
    names = list(columns)
    if not names or not set(names) <= set(ROWS_SCHEMA.names):
        raise InvalidArgument(
            f"records have no columns {names!r}", hint=f"choose from {', '.join(ROWS_SCHEMA.names)}"
        )
    schema = pa.schema([ROWS_SCHEMA.field(name) for name in names])
    parts = [_convert(run, names) for run in _runs(batches)]
    if not parts:
        arrays = [pa.array([], field.type) for field in schema]
    elif len(parts) == 1:
        arrays = parts[0]
    else:
        arrays = [pa.concat_arrays([part[i] for part in parts]) for i in range(len(names))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def subject_names(batch: RecordBatch) -> list[str]:
    """Each subject that occurs in the batch once, trimmed or not: a look at its dictionary only."""
    return batch._subject_names()


def _runs(batches: Sequence[RecordBatch]) -> Iterator[Sequence[RecordBatch]]:
    """Neighbours that are decoded together; a large batch, or one that was trimmed, is alone."""
    run: list[RecordBatch] = []
    for batch in batches:
        if run and not (_is_small(batch) and can_decode_together(run[0], batch)):
            yield run
            run = []
        if _is_small(batch) and (run or can_decode_together(batch, batch)):
            run.append(batch)
        elif len(batch):
            yield [batch]
    if run:
        yield run


def _is_small(batch: RecordBatch) -> bool:
    count = batch.header.record_count
    return count < _SMALL_RECORDS and len(batch) == count


def _convert(run: Sequence[RecordBatch], names: list[str]) -> list[pa.Array]:
    if len(run) == 1:
        return arrays_of(run[0], names)
    records = decode_many(run)
    try:
        arrays = [_MAKERS[name](records) for name in names]
        for made in arrays:
            made.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise CorruptBatch(f"the columns of a batch contradict each other: {error}") from error
    return arrays


# --- columns of numpy to columns of Arrow ---


def _offsets(records: Columns) -> pa.Array:
    return pa.array(records.offsets)


def _timestamps(records: Columns) -> pa.Array:
    return pa.array(records.timestamps_ns).view(ROWS_SCHEMA.field("timestamp").type)


def _subjects(records: Columns) -> pa.Array:
    names = pa.array([raw.decode() for raw, _ in records.subjects], pa.utf8())
    ids = records.subject_ids
    places = np.zeros(len(records), np.int32) if ids is None else ids.astype(np.int32)
    return names.take(pa.array(places))


def _keys(records: Columns) -> pa.Array:
    if records.keys is None:
        return pa.nulls(len(records), pa.binary())
    return _binary(records.keys)


def _headers(records: Columns) -> pa.Array:
    if records.headers is None:
        nothing = np.zeros(len(records) + 1, np.int32)
        return _binary(BinaryColumn(nothing, np.empty(0, np.uint8), None))
    return _binary(records.headers)


def _values(records: Columns) -> pa.Array:
    return _binary(records.values)


def _binary(column: BinaryColumn) -> pa.Array:
    bitmap = None
    if column.valid is not None:
        bitmap = pa.py_buffer(np.packbits(column.valid, bitorder="little"))
    ends, data = np.ascontiguousarray(column.ends), np.ascontiguousarray(column.data)
    buffers = [bitmap, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)


_MAKERS: dict[str, Callable[[Columns], Any]] = {
    "offset": _offsets,
    "timestamp": _timestamps,
    "subject": _subjects,
    "key": _keys,
    "headers": _headers,
    "value": _values,
}
